"""Starts the capture process, reads its reports, and starts it again when it crashes."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final

from trucker import private
from trucker.capture.process import EXIT_FAILED, CaptureTask
from trucker.changelog.durable_end import EndWatch
from trucker.changelog.format.durable import Durable
from trucker.changelog.identity import SourceIdentity
from trucker.changelog.location import LogLocation, ObjectLocation
from trucker.changelog.objects.object_writer import PUT_EVERY
from trucker.changelog.reader import LogReader
from trucker.errors import ChangeLogError, EngineError, LockedError, SourceError, SourceRefused, TruckerError
from trucker.lsn import Lsn
from trucker.process.backoff import Backoff
from trucker.source.base import CapturedSource

log = logging.getLogger("trucker.capture")

SEGMENT_BYTES: Final = 64 << 20
_LOOK_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 2.0
"""Changes that the source has sent count as missing when they are not durable after this time."""
BLIND_SECONDS: Final = 10.0
"""When the source is silent, or the log cannot be written, for longer than this, the lag is reported as unknown."""
_CLASSES: Final[tuple[tuple[str, type[TruckerError]], ...]] = (
    ("TRK2", SourceError),
    ("TRK3", ChangeLogError),
    ("TRK6", LockedError),
)


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """What to capture, and into which log. `identity` is the source's, as the log has it.

    `heartbeat` is in seconds, 0 for none.
    """

    source: CapturedSource
    log: LogLocation
    identity: SourceIdentity
    heartbeat: float = 10.0
    segment_bytes: int = SEGMENT_BYTES
    put_every: float = PUT_EVERY

    @property
    def folder(self) -> Path:
        """The log's folder; of a log of objects, the local folder of this machine."""
        folder = self.log.folder if isinstance(self.log, ObjectLocation) else self.log
        assert folder is not None
        return folder

    def task(self) -> CaptureTask:
        """The task for a new process, with the passwords read anew."""
        stream = self.source.stream_parameters()
        return CaptureTask(
            stream.conninfo,
            self.source.slot,
            self.source.publication,
            self.log,
            self.identity,
            self.heartbeat,
            self.segment_bytes,
            stream.primary,
            stream.timeout,
            self.source.silence,
            self.put_every,
        )


class CaptureState(StrEnum):
    """STARTING until the stream begins for the first time; FAILED is for good; STOPPED was asked for."""

    STARTING = "starting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Hearing:
    """When the source was last heard. Times are seconds since 1970.

    `settled` is when it was last heard with everything it had sent by then in the log; None before the first time.
    `current`: nothing that it has sent since can be missing. `blind_since` is set when it has not been heard, or the
    log could not be written, for too long.
    """

    settled: float | None = None
    current: bool = False
    blind_since: float | None = None


class CaptureSupervisor:
    """Keeps one capture process running until `stop`, or until it fails for good."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self.state = CaptureState.STARTING
        self.restarts = 0
        self.beat: float | None = None
        self._heard: float | None = None
        self._settled: float | None = None
        self._started = time.time()
        self._failure: TruckerError | None = None
        self._refused = False
        self._trouble: TruckerError | None = None
        self._trouble_since = 0.0
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._backoff = Backoff(0.1, 10.0)
        self._stderr_lines: deque[str] = deque(maxlen=20)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process and the thread that supervises it."""
        self._launch()
        self._thread = threading.Thread(target=self._supervise, name=f"capture {self.spec.source.slot}", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """End the process once what it holds is durable; by force when that takes longer than `timeout`."""
        with self._changed:
            self._stopping.set()
            process = self._process
        if process is not None:
            _hang_up(process)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread is not None:
            self._thread.join(timeout)
        if self.state is not CaptureState.FAILED:
            self._set_state(CaptureState.STOPPED)

    @property
    def pid(self) -> int | None:
        """The process's id while there is one."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    # -- what it is at --------------------------------------------------------------------------------------------

    def failure(self) -> TruckerError | None:
        """The error that ended capture for good; None while it runs or tries again."""
        return self._failure

    @property
    def trouble(self) -> str | None:
        """What keeps capture from the source at the moment, with code and next step; None when nothing does."""
        error = self._failure or self._trouble
        return str(error) if error is not None else None

    def hearing(self, now: float) -> Hearing:
        """When the source was last heard, judged at `now` (seconds since 1970)."""
        settled, heard, silence = self._settled, self._heard, self.spec.source.silence
        silent = heard is None or now - heard > silence
        away = self.state is not CaptureState.CONNECTED or self._trouble is not None or silent
        behind = settled is None or heard is None or heard - settled > SETTLE_SECONDS
        since = settled or self._started
        return Hearing(settled, not away and not behind, since if away and now - since > BLIND_SECONDS else None)

    def wait_seen(self, lsn: Lsn, stop: threading.Event | None = None, timeout: float | None = None) -> Durable:
        """Wait until everything below `lsn` is durable in the log, and say how far that goes.

        Returns early when `stop` is set or after `timeout` seconds; raises the failure when capture fails for good.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        reader = LogReader(self.spec.log)
        try:
            with reader.watch() as watch:
                return self._wait_seen(lsn, stop, deadline, reader, watch)
        finally:
            reader.close()

    def _wait_seen(
        self, lsn: Lsn, stop: threading.Event | None, deadline: float | None, reader: LogReader, watch: EndWatch
    ) -> Durable:
        while True:
            durable = reader.durable()
            if durable.seen_lsn >= lsn or (stop is not None and stop.is_set()):
                return durable
            if self._failure is not None:
                raise self._failure
            if deadline is not None and time.monotonic() >= deadline:
                return durable
            watch.wait(time.monotonic() + _LOOK_SECONDS)

    def wait_state(self, *states: CaptureState, timeout: float) -> bool:
        """Wait until the state is one of these; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state in states, timeout)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "trucker.capture.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=private.UMASK,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self.spec.task().to_json().encode() + b"\n")
            process.stdin.flush()
        threading.Thread(target=self._read_stderr, args=[process.stderr], name="capture stderr", daemon=True).start()
        self._process = process

    def _supervise(self) -> None:
        """Read the process's events until it ends, and start it again, unless it was stopped or failed for good."""
        while True:
            process = self._process
            assert process is not None
            self._listen(process)
            code = process.wait()
            _hang_up(process)
            if self._stopping.is_set() or self._failure is not None:
                return
            if self._refused:
                self._refused = False
                if self._launch_again():
                    continue
                return
            if code == EXIT_FAILED:
                self._fail(EngineError("capture failed without a reason", code="TRK520", remedy="report this"))
                return
            reason = self._stderr_lines[-1] if self._stderr_lines else f"exit code {code}"
            self._report_trouble(EngineError(f"the capture process ended: {reason}", code="TRK520"))
            if not self._launch_again():
                return

    def _launch_again(self) -> bool:
        """Start a new process after a pause; False when the supervisor is stopped first."""
        self._backoff.wait(self._stopping)
        with self._changed:
            if self._stopping.is_set():
                return False
            self.restarts += 1
            self._launch()
            return True

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                self._handle(event, process)

    def _handle(self, event: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        match event.get("event"):
            case "connected":
                self._connected()
            case "progress":
                self._progressed(event)
            case "reconnecting":
                self._reconnecting(event, process)
            case "notice":
                log.info("capture notice", extra={"source": self.spec.source.name, "notice": event["message"]})
            case "failed":
                self._fail(_error(event))

    def _reconnecting(self, event: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        """Explain why a connection failed, from libpq's message; the modules for that are not loaded by the process."""
        error = _error(event)
        if event.get("stage") == "connect":
            error = self.spec.source.explain(event["message"])
        if event.get("stage") == "connect" and not error.transient:
            self._fail(error)
            _hang_up(process)
            return
        self._report_trouble(error)
        if isinstance(error, SourceRefused):
            # The process has the password it was started with; a new process gets the current one.
            self._refused = True
            _hang_up(process)

    def _report_trouble(self, error: TruckerError) -> None:
        """Log a trouble once, not at every try."""
        previous = self._trouble
        if previous is None:
            self._trouble_since = time.time()
        if previous is None or (previous.code, previous.message) != (error.code, error.message):
            facts = {"source": self.spec.source.name, "slot": self.spec.source.slot, **error.facts()}
            log.warning(_interruption(error), extra=facts)
        self._set_state(CaptureState.RECONNECTING, error)

    def _connected(self) -> None:
        """The stream has begun. A trouble with the log stays until `_progressed` shows that something was written."""
        stays = self._trouble is not None and _concerns_log(self._trouble)
        if self._trouble is not None and not stays:
            self._recovered()
        self._set_state(CaptureState.CONNECTED, self._trouble if stays else None)

    def _progressed(self, event: dict[str, Any]) -> None:
        self.beat = event.get("beat")
        self._heard = event.get("heard", self._heard)
        self._settled = event.get("settled") or self._settled
        self._backoff.reset()
        if self._trouble is not None and (self._settled or 0.0) > self._trouble_since:
            self._recovered()
            self._set_state(CaptureState.CONNECTED)

    def _recovered(self) -> None:
        assert self._trouble is not None
        facts = {"source": self.spec.source.name, "slot": self.spec.source.slot}
        seconds = round(time.time() - self._trouble_since, 1)
        message = "change log can be written again" if _concerns_log(self._trouble) else "source available again"
        log.info(message, extra={**facts, "interrupted_seconds": seconds, "after": self._trouble.code})

    def _fail(self, error: TruckerError) -> None:
        log.error(
            "capture failed", extra={"source": self.spec.source.name, "slot": self.spec.source.slot, **error.facts()}
        )
        with self._changed:
            self._failure = self._failure or error
        self._set_state(CaptureState.FAILED)

    def _set_state(self, state: CaptureState, trouble: TruckerError | None = None) -> None:
        with self._changed:
            self.state, self._trouble = state, trouble
            self._changed.notify_all()

    def _read_stderr(self, stream: IO[bytes]) -> None:
        """Keep the last lines of a crash, for the log. Reading also keeps the pipe from filling up."""
        with stream:
            for line in stream:
                self._stderr_lines.append(line.decode(errors="replace").rstrip())


def _concerns_log(error: TruckerError) -> bool:
    return isinstance(error, ChangeLogError)


def _interruption(error: TruckerError) -> str:
    """What an interruption of capture is, in words."""
    if _concerns_log(error):
        return "change log cannot be written"
    return "capture process ended and restarts" if isinstance(error, EngineError) else "source unavailable"


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close the process's standard input, which tells it to end."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _error(event: dict[str, Any]) -> TruckerError:
    """The error of an event, in the class that its code belongs to."""
    code = str(event.get("code", ""))
    kind = next((kind for prefix, kind in _CLASSES if code.startswith(prefix)), EngineError)
    return kind(str(event.get("message", "")), remedy=str(event.get("remedy", "")), code=code or None)
