"""The capture process: writes what the slot sends into the change log and acknowledges only what is durable there (I2).

    python -m trucker.capture.process

It reads its task as one JSON line on standard input (`CaptureTask`; the password is in it, and nowhere else), reports
events as JSON lines on standard output, and ends when standard input closes, that is when its parent is gone, or on
SIGTERM; in both cases only after the finished transactions that were received are durable.

    {"event": "connected", "start": "0/1A2B3C8"}
    {"event": "progress", "commit": …, "seen": …, "received": bytes, "beat": seconds a heartbeat took,
     "heard": when the server last sent something, "settled": when it last did with everything before it in the log}
    {"event": "reconnecting", "code": …, "message": …, "remedy": …, "stage": "log" | "connect" | "stream", "tries": n}
    {"event": "notice", "message": …}
    {"event": "failed", "code": …, "message": …, "remedy": …}      and then exit code 3

Progress is reported at most once a second; times are seconds since 1970. When the stream is interrupted, the log's disk
is full or its object storage gives no answer, everything after the log's durable end is discarded and requested again,
after 0.1 to 10 seconds. A small process: neither pyspark nor Arrow nor pydantic is loaded, and a client for object
storage only where it is used.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from trucker.changelog.folder.writer import BLOCK_BYTES
from trucker.changelog.format.durable import Durable
from trucker.changelog.identity import SourceIdentity, check_against_server, check_against_slot
from trucker.changelog.location import LogLocation, from_json, to_json
from trucker.changelog.open_writer import Writer, open_writer
from trucker.errors import SourceError, SourceUnavailable, TruckerError
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.pg.messages import MESSAGE, Messages
from trucker.postgres.replication.heartbeat import Heart
from trucker.postgres.replication.protocol import SLOT_SECONDS, heartbeat_content
from trucker.postgres.replication.stream import Interrupted, ReplicationStream, promoted
from trucker.postgres.replication.timeline_check import LogTail
from trucker.process.backoff import Backoff

EXIT_FAILED: Final = 3
# While data keeps coming: how long a commit may wait for others, so that one fsync serves many.
FLUSH_SECONDS: Final = 0.05
SEE_SECONDS: Final = 1.0
STATUS_SECONDS: Final = 10.0
PROGRESS_SECONDS: Final = 1.0
# A capture process whose parent was killed makes durable what it has, and then releases the log's lock.
LOCK_SECONDS: Final = 15.0
RECEIVE_BYTES: Final = 1 << 20
SLOT_IN_USE: Final = "TRK231"


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """What to capture. `conninfo` are libpq's parameters, the password among them.

    Where they lead to a standby, `primary` leads to its primary, which takes the heartbeats. `timeout` is the limit for
    connecting, `silence` for a server that sends nothing.
    """

    conninfo: dict[str, str | int]
    slot: str
    publication: str
    log: LogLocation
    source: SourceIdentity
    heartbeat: float
    segment_bytes: int
    primary: dict[str, str | int] | None = None
    timeout: float = 10.0
    silence: float = 60.0
    put_every: float = 0.1

    def to_json(self) -> str:
        source = self.source
        identity = [source.system_identifier, source.database, source.slot, source.publication]
        settings = [self.heartbeat, self.segment_bytes, self.primary, self.timeout, self.silence, self.put_every]
        return json.dumps([self.conninfo, self.slot, self.publication, to_json(self.log), identity, *settings])

    @classmethod
    def from_json(cls, text: str) -> CaptureTask:
        conninfo, slot, publication, log, identity, *settings = json.loads(text)
        return cls(conninfo, slot, publication, from_json(log), SourceIdentity(*identity), *settings)


class Capture:
    """One source's capture, from opening the log to the end of the process."""

    def __init__(self, task: CaptureTask) -> None:
        self._task = task
        self._stop = threading.Event()
        self._parent = os.getppid()
        self._failure: TruckerError | None = None
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._backoff = Backoff(0.1, 10.0)
        self._beat: float | None = None
        self._in_use_since: float | None = None
        self._last_backend: int | None = None
        self._goal = Lsn(0)
        self._unanswered: float | None = None
        self._settled: float | None = None

    def stop(self, failure: TruckerError | None = None) -> None:
        """End soon; may be called in signal handlers and other threads."""
        self._failure = self._failure or failure
        self._stop.set()
        os.write(self._waker, b".")

    def run(self) -> None:
        """Capture until `stop`; raises `TruckerError` for what a new try would not cure."""
        writer = self._open()
        if writer is None:
            return
        with writer:
            if self._task.heartbeat > 0:
                threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
            while not self._stop.is_set():
                self._connect_and_stream(writer)
        if self._failure is not None:
            raise self._failure

    def _open(self) -> Writer | None:
        """The log's writer, once its storage answers; None when the process is to stop first."""
        task = self._task
        while not self._stop.is_set():
            try:
                return open_writer(
                    task.log,
                    task.source,
                    segment_bytes=task.segment_bytes,
                    put_every=task.put_every,
                    lock_seconds=LOCK_SECONDS,
                )
            except TruckerError as error:
                if not error.transient:
                    raise
                tell("reconnecting", **_error_fields(error), stage="log", tries=self._backoff.tries + 1)
                self._backoff.wait(self._stop)
        return None

    def _connect_and_stream(self, writer: Writer) -> None:
        """Connect and stream until that fails or the process is to stop."""
        stage = "log"
        try:
            writer.refresh()
            stage = "connect"
            stream = self._connect()
            stage = "stream"
            try:
                self._begin(stream, writer)
                # When the connection breaks, this backend holds the slot until the server notices: `inspect` ends it.
                self._last_backend = stream.backend
                self._stream(stream, writer)
            finally:
                stream.close()
        except Interrupted:
            return
        except TruckerError as error:
            if not error.transient or self._in_use_for_good(error):
                raise
            writer.rollback()
            tell("reconnecting", **_error_fields(error), stage=stage, tries=self._backoff.tries + 1)
            self._backoff.wait(self._stop)

    def _connect(self) -> ReplicationStream:
        task = self._task
        return ReplicationStream.connect(
            task.conninfo,
            task.slot,
            task.publication,
            wake=self._wake,
            timeout=task.timeout,
            silence=task.silence,
        )

    def _begin(self, stream: ReplicationStream, writer: Writer) -> None:
        """Start where the log ends, after a check that log, slot and server belong together."""
        location = stream.inspect(self._last_backend)
        source = self._task.source
        if (location.system_identifier, location.database) != (source.system_identifier, source.database):
            raise SourceError(
                f"the server or database is not the one of the change log: {location.database} on system "
                f"{location.system_identifier}, not {source.database} on system {source.system_identifier}",
                code="TRK206",
                remedy="point the connection back; or run `trucker reset`, then `trucker run`, which copies "
                "the tables of this one",
            )
        if self._task.primary is not None and not location.standby:
            raise promoted()
        if location.standby and location.flushed < writer.durable.seen_lsn:
            # A standby that was restarted replays WAL from its last restartpoint, and soon reaches the log's end.
            raise SourceUnavailable(f"the standby is at {location.flushed}, before the end of the change log")
        check_against_slot(writer.durable, location.confirmed_flush)
        check_against_server(writer.durable, location.flushed)
        durable = writer.durable
        history = LogTail(durable.commit_lsn, durable.commit_time, durable.seen_lsn, lambda: self.stopping)
        history.check(self._connect, location.confirmed_flush)
        stream.start(durable.seen_lsn)
        self._goal = location.flushed
        self._in_use_since = None
        tell("connected", start=str(writer.durable.seen_lsn))

    def _stream(self, stream: ReplicationStream, writer: Writer) -> None:
        """The loop: receive, make durable, acknowledge, wait."""
        Pump(stream, writer, self).run()

    # -- for the loop ---------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self._stop.is_set() or os.getppid() != self._parent

    @property
    def beat(self) -> float | None:
        """Seconds from sending the last heartbeat to receiving it in the stream."""
        return self._beat

    def flowing(self) -> None:
        """Data has become durable: the next interruption is a new one."""
        self._backoff.reset()

    @property
    def settled(self) -> float | None:
        """When the server was last heard with everything it had sent in the log; None before the first time."""
        return self._settled

    def settle(self, heard: float, lsn: Lsn) -> None:
        """Everything received is durable, up to `lsn`, and the server was last heard at `heard` (monotonic).

        The server may have more to send: below the WAL position it had when the connection was made, nothing is
        settled; while a heartbeat has not come back, everything is settled as of its sending at the latest.
        """
        if lsn < self._goal:
            return
        at, unanswered = wall_clock(heard), self._unanswered
        at = at if unanswered is None else min(at, unanswered)
        self._settled = max(self._settled or at, at)

    def record_heartbeat(self, content: bytes) -> None:
        sent_at = float(content or 0)
        if self._unanswered is not None and sent_at >= self._unanswered:
            self._unanswered = None
        self._beat = max(0.0, time.time() - sent_at)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _in_use_for_good(self, error: TruckerError) -> bool:
        """Whether the slot has been in use for longer than a dead connection of this project could hold it."""
        if error.code != SLOT_IN_USE:
            self._in_use_since = None
            return False
        now = time.monotonic()
        if self._in_use_since is None:
            self._in_use_since = now
        return now - self._in_use_since > SLOT_SECONDS

    def _send_heartbeats(self) -> None:
        """Runs in a thread: a heartbeat may wait for a slow server, and the stream must not."""
        task = self._task
        heart = Heart(
            task.primary or task.conninfo,
            task.publication,
            task.conninfo if task.primary else None,
            timeout=task.timeout,
            silence=task.silence,
        )
        notified = False
        try:
            while not self._stop.wait(task.heartbeat):
                sent_at = f"{time.time():.6f}"
                self._unanswered = self._unanswered or float(sent_at)  # before it is sent: the answer may be quick
                try:
                    accepted = heart.beat(sent_at)
                    self._unanswered = self._unanswered if accepted else None
                    if not accepted and not notified:
                        notified = True
                        tell(
                            "notice",
                            message="the server refuses heartbeats; the slot of an idle source advances only "
                            "with keep-alives",
                        )
                        if task.primary is None:  # otherwise the heart still watches the standby
                            return
                except TruckerError as error:
                    # The stream reports a server that cannot be reached.
                    self._unanswered = None
                    if not error.transient:
                        self.stop(error)
        finally:
            heart.close()


class Pump:
    """The loop over one connection."""

    def __init__(self, stream: ReplicationStream, writer: Writer, capture: Capture) -> None:
        self._stream = stream
        self._writer = writer
        self._capture = capture
        self._acknowledged = writer.safe
        self._flushed_at = self._status_at = self._reported_at = time.monotonic()
        self._seen_at = self._flushed_at - SEE_SECONDS
        self._reported = self._progress
        self._requested_lsn = writer.safe

    def run(self) -> None:
        capture, stream = self._capture, self._stream
        while not capture.stopping:
            drained = stream.receive(self._take, RECEIVE_BYTES)
            now = time.monotonic()
            self._make_durable(drained, now)
            if drained and self._writer.settled:
                capture.settle(stream.heard, max(self._writer.durable.seen_lsn, stream.wal_end))
            self._acknowledge(now)
            self._report_progress(now)
            if drained:
                stream.wait(self._seconds_until_due(now), self._writer.landing)
        self._writer.settle()
        stream.acknowledge(self._writer.safe)

    def _take(self, messages: Messages) -> None:
        """Write messages to the log, except heartbeats: only their arrival matters."""
        beats = []
        for index in messages.places(MESSAGE):
            content = heartbeat_content(messages.message(index))
            if content is not None:
                self._capture.record_heartbeat(content)
                beats.append(index)
        self._writer.extend(messages.without(beats) if beats else messages)

    def _make_durable(self, drained: bool, now: float) -> None:
        """Flush when the socket is drained, a block is full or the time is up; record idle progress once a second."""
        writer, stream = self._writer, self._stream
        previous_safe = writer.safe
        if writer.landed or (
            writer.pending and (drained or writer.pending >= BLOCK_BYTES or now - self._flushed_at >= FLUSH_SECONDS)
        ):
            writer.flush()
            self._flushed_at = now
        # A server that shuts down asks for a reply, and waits until everything it sent is acknowledged.
        if stream.reply_wanted:
            self._requested_lsn = stream.wal_end
        urgent = writer.safe < self._requested_lsn
        if drained and stream.wal_end > writer.safe and (urgent or now - self._seen_at >= SEE_SECONDS):
            writer.see(stream.wal_end, urgent=urgent)
            self._seen_at = now
        if writer.safe > previous_safe:
            self._capture.flowing()

    def _acknowledge(self, now: float) -> None:
        durable, ask = self._writer.safe, self._stream.listen(now)
        if durable > self._acknowledged or self._stream.reply_wanted or ask or now - self._status_at >= STATUS_SECONDS:
            reach("capture.acknowledge.before")
            self._stream.acknowledge(durable, ask=ask)
            reach("capture.acknowledge.after")
            self._acknowledged = durable
            self._status_at = now

    @property
    def _progress(self) -> tuple[Durable, float, float | None]:
        return self._writer.durable, self._stream.heard, self._capture.settled

    def _report_progress(self, now: float) -> None:
        progress = durable, heard, settled = self._progress
        if now - self._reported_at >= PROGRESS_SECONDS and progress != self._reported:
            tell(
                "progress",
                commit=str(durable.commit_lsn),
                seen=str(durable.seen_lsn),
                received=self._stream.received,
                beat=self._capture.beat,
                heard=wall_clock(heard),
                settled=settled,
            )
            self._reported_at, self._reported = now, progress

    def _seconds_until_due(self, now: float) -> float:
        """Seconds until the loop has something to do although no data arrives."""
        due = min(self._status_at + STATUS_SECONDS, self._stream.listens_at)
        if self._stream.wal_end > self._writer.safe and not self._writer.in_transaction:
            due = min(due, self._seen_at + SEE_SECONDS)
        if self._writer.due is not None:
            due = min(due, self._writer.due)
        if self._progress != self._reported:
            due = min(due, self._reported_at + PROGRESS_SECONDS)
        return due - now


def wall_clock(monotonic: float) -> float:
    """A time of the monotonic clock, not long ago, as seconds since 1970."""
    return round(time.time() - (time.monotonic() - monotonic), 3)


def tell(event: str, **facts: Any) -> None:
    """One line for the parent. Never with a row's data or a secret in it (I10)."""
    line = json.dumps({"event": event, **facts}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


def _error_fields(error: TruckerError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, "remedy": error.remedy}


def _watch_parent(capture: Capture) -> None:
    """Stop when standard input ends: the parent closed it, or is gone."""
    while sys.stdin.buffer.readline():
        pass
    capture.stop()


def main() -> int:
    # Ctrl-C signals the whole process group. The parent stops this process, after its trucks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    capture = Capture(CaptureTask.from_json(sys.stdin.buffer.readline().decode()))
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())
    threading.Thread(target=_watch_parent, args=[capture], name="parent", daemon=True).start()
    try:
        capture.run()
    except BrokenPipeError:
        return 0
    except TruckerError as error:
        tell("failed", **_error_fields(error))
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
