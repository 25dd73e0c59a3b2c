"""Commands to the running instance of a project, as a part of `Project`: pause, resume, reload, stop, refresh, verify.

Each asks the instance through its control socket. Where none runs, it does its work itself, or says what to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from trucker.config.models import ProjectConfig, TruckConfig
from trucker.errors import CheckFailed, ConfigError, ControlError, LockedError, TruckerError
from trucker.file_errors import all_explained
from trucker.finding import Finding, Level

if TYPE_CHECKING:
    from trucker.config.adapter import Connection
    from trucker.control.answers import Refresh, Reloaded, Replay, StopRequest, TruckPause, Verification
    from trucker.engine.project.lock import ProjectLock
    from trucker.engine.refresh.refresh_record import RefreshRecord
    from trucker.engine.spark.session import SparkSession
    from trucker.table import Key, TableId

REFRESH_LOOK_SECONDS: Final = 0.2
IMPOSSIBLE: Final = "TRK641"
NOT_RUNNING: Final = "TRK611"
NO_INSTANCE: Final = "no instance runs: the next `trucker run` reads them"


class ProjectCommands:
    """What `Project` has of its own for them."""

    config: ProjectConfig
    _folder: Path | None

    def _trucks(self, name: str | None) -> list[TruckConfig]:
        chosen = [truck for truck in self.config.trucks if name in (None, truck.name)]
        if not chosen:
            names = ", ".join(truck.name for truck in self.config.trucks)
            raise ConfigError(f"there is no truck {name!r}", remedy=f"name one of {names}")
        return chosen

    @all_explained()
    def pause(self, trucks: Sequence[str]) -> list[TruckPause]:
        """Have trucks apply nothing more, from the end of the batch in hand, until `resume`; across restarts.

        Their positions stay, and the change log keeps what they have not applied. Without a running instance this is
        only recorded, for the next one.
        """
        return self._set_paused(trucks, paused=True)

    @all_explained()
    def resume(self, trucks: Sequence[str]) -> list[TruckPause]:
        """Have paused trucks go on from their positions."""
        return self._set_paused(trucks, paused=False)

    def _set_paused(self, trucks: Sequence[str], *, paused: bool) -> list[TruckPause]:
        from trucker.control.answers import TruckPause
        from trucker.engine.project.instance_client import ask_instance
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.project.pause_record import PauseRecord
        from trucker.engine.project.state_folder import secure_state

        state, names = self.config.state_folder, list(dict.fromkeys(trucks))
        answer = ask_instance(state, "pause" if paused else "resume", {"trucks": names})
        if answer is not None:
            return [TruckPause.from_json(fields) for fields in answer]
        for name in names:
            self._trucks(name)
        secure_state(self.config)
        lock = ProjectLock(state)
        lock.acquire(wait=False, remedy="run this command again")
        try:
            record = PauseRecord(state)
            news = record.pause(names) if paused else record.resume(names)
        finally:
            lock.release()
        return [TruckPause(name, paused, changed=name in news, running=False) for name in names]

    @all_explained()
    def reload(
        self,
        *,
        truck: str | None = None,
        on_sql_change: Literal["refuse", "go-on"] = "refuse",
        interrupt_copies: bool = False,
    ) -> Reloaded:
        """Have the running instance read the project's files, and take up trucks that are new, changed or gone.

        All or nothing: where the files have errors, or something in them needs a restart (`ControlError`), nothing
        changes. `truck` takes up that one only. With `go-on`, trucks whose SQL or rules changed go on with the new ones
        from their positions; otherwise they are refused. With `interrupt_copies` copies in progress may begin anew.
        """
        from trucker.control.answers import Reloaded
        from trucker.engine.project.instance_client import ask_instance, not_running

        if on_sql_change not in ("refuse", "go-on"):
            raise ConfigError(f"on_sql_change cannot be {on_sql_change!r}", remedy="use 'refuse' or 'go-on'")
        arguments = {"truck": truck, "go_on": on_sql_change == "go-on", "interrupt_copies": interrupt_copies}
        answer = ask_instance(self.config.state_folder, "reload", arguments)
        if answer is None:
            raise not_running("the next `trucker run` reads the files; `trucker check` checks them now")
        return Reloaded.from_json(answer)

    @all_explained()
    def stop(self, *, wait: bool = True) -> StopRequest:
        """Ask the running instance to stop, as SIGTERM does, and `wait` until it has ended."""
        from trucker.control.answers import StopRequest
        from trucker.control.client import ENDED
        from trucker.engine.project.instance_client import ask_instance, await_end, not_running
        from trucker.engine.project.lock import ProjectLock

        state = self.config.state_folder
        instance = ProjectLock(state).instance()
        try:
            answer = ask_instance(state, "stop", {})
        except ControlError as error:
            if error.code != ENDED or instance is None:
                raise
            answer = {"pid": instance.pid, "host": instance.host, "ended": False}  # it ended faster than it answered
        if answer is None:
            raise not_running("nothing is to be stopped; `trucker run` starts it")
        request = StopRequest(**answer)
        if wait:
            await_end(state, request)
        return replace(request, ended=wait)

    @all_explained()
    def refresh(
        self,
        truck: str,
        *,
        table: str | None = None,
        where: str | None = None,
        keys: Iterable[Sequence[str]] | None = None,
    ) -> list[Refresh]:
        """Queue rows of a truck to be read again at the source, and set right at the destination; the stream goes on.

        All rows of one table or of every table; those that meet the condition `where`, which is SQL at the source; or
        those of `keys`, each the values of the key's columns in their order, as texts. Rows that the source no longer
        has are deleted at the destination. Without a running instance the next one does it.
        """
        if where is not None and keys is not None:
            raise ConfigError("a refresh is of the rows of a condition or of keys", remedy="give one of the two")
        (config,) = self._trucks(truck)
        return self._refresh(config, source_table(table), where, keys)

    def _refresh(
        self, config: TruckConfig, table_id: TableId | None, where: str | None, keys: Iterable[Sequence[str]] | None
    ) -> list[Refresh]:
        from trucker.control.answers import Refresh
        from trucker.engine.project.instance_client import ask_instance
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.project.state_folder import secure_state
        from trucker.engine.refresh.refresh_record import RefreshRecord

        truck = config.name
        state, record = self.config.state_folder, RefreshRecord(self.config.state_folder)
        if ProjectLock(state).instance() is not None:
            handed_in = record.hand_in(keys) if keys is not None else None
            arguments = {"truck": truck, "table": table_id, "where": where, "keys": handed_in}
            try:
                answer = ask_instance(state, "refresh", arguments)
            finally:
                record.discard(handed_in)
            if answer is not None:
                return [Refresh.from_json(fields) for fields in answer]
        given = [tuple(key) for key in keys] if keys is not None else None
        secure_state(self.config)
        lock = ProjectLock(state)
        lock.acquire(wait=False, remedy="run this command again")
        try:
            return self._queue_refresh(config, record, table_id, where, given)
        finally:
            lock.release()

    def _queue_refresh(
        self,
        truck: TruckConfig,
        record: RefreshRecord,
        table: TableId | None,
        where: str | None,
        keys: Sequence[Key] | None,
    ) -> list[Refresh]:
        from trucker.engine.project.conditions.condition_list import DESCRIBED, walk
        from trucker.engine.project.conditions.situation import Situation
        from trucker.engine.refresh.refresh_request import RefreshRequest, refreshes_of

        with Situation(self.config) as situation:
            refuse(walk(situation, DESCRIBED))
            source = situation.sources[truck.input.connection]
            request = RefreshRequest(truck.name, table, where, keys)
            wished = refreshes_of(request, source, situation.sinks)
            return record.add([(replace(refresh, reason=NO_INSTANCE), keys) for refresh, keys in wished])

    @all_explained()
    def await_refreshes(self, refreshes: Sequence[Refresh]) -> list[Refresh]:
        """Wait until these have ended, or no instance runs that carries them out; what there is of them then."""
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.refresh.refresh_record import RefreshRecord

        state = self.config.state_folder
        record, lock = RefreshRecord(state), ProjectLock(state)
        while True:
            running = lock.instance() is not None
            now = [record.get(refresh.id) for refresh in refreshes]
            if not running or all(each.is_over for each in now):
                return now
            time.sleep(REFRESH_LOOK_SECONDS)

    @all_explained()
    def refreshes(self) -> list[Refresh]:
        """The refreshes that are queued or running, and those that ended last."""
        from trucker.engine.refresh.refresh_record import RefreshRecord

        return RefreshRecord(self.config.state_folder).all()

    @all_explained()
    def cancel_refresh(self, number: int) -> Refresh:
        """Cancel a refresh that has not ended. Rows that it has set right stay so."""
        from trucker.control.answers import Refresh
        from trucker.engine.project.instance_client import ask_instance
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.project.state_folder import secure_state
        from trucker.engine.refresh.refresh_record import RefreshRecord

        state = self.config.state_folder
        answer = ask_instance(state, "cancel", {"id": number})
        if answer is not None:
            return Refresh.from_json(answer)
        secure_state(self.config)
        lock = ProjectLock(state)
        lock.acquire(wait=False, remedy="run this command again")
        try:
            return RefreshRecord(state).cancel(number)
        finally:
            lock.release()

    def verify(
        self, truck: str | None = None, *, table: str | None = None, repair: bool = False
    ) -> Iterator[Verification]:
        """Compare tables of a truck, or of all trucks, with the source, while the stream goes on; one after the other.

        Both sides are compared as they were at one position. With `repair` rows that differ are refreshed, and the
        table is compared again. A truck that is named and cannot be verified raises; among all trucks it is skipped. A
        table that could not be compared has an error. An instance must be running.
        """
        table_id = source_table(table)
        for config in self._trucks(truck):
            try:
                tables = self._comparable(config.name, table_id)
            except ControlError as error:
                if truck is not None or error.code != IMPOSSIBLE:
                    raise
                yield unverified(config.name, skipped=error.message)
                continue
            for each in tables:
                yield self._verify(config, each, repair=repair)

    @all_explained()
    def _comparable(self, truck: str, table: TableId | None) -> list[TableId]:
        """The tables of a truck that can be verified."""
        from trucker.table import TableId

        return [TableId(*each) for each in self._ask_running("comparable", {"truck": truck, "table": table})]

    @all_explained()
    def _verify(self, config: TruckConfig, table: TableId, *, repair: bool) -> Verification:
        try:
            compared = self._compared(config.name, table)
            if compared.equal or not repair:
                return compared
            # To copy the table again would remove rows that are to stay.
            by_keys = compared.keys and (compared.complete or compared.keeps_rows)
            refreshes = self._refresh(config, table, None, compared.keys if by_keys else None)
            self.await_refreshes(refreshes)
            return replace(self._compared(config.name, table), repaired=compared.differing)
        except TruckerError as error:
            if error.code == NOT_RUNNING:
                raise
            return unverified(config.name, str(table), error=str(error))

    def _compared(self, truck: str, table: TableId) -> Verification:
        from trucker.control.answers import Verification

        return Verification.from_json(self._ask_running("verify", {"truck": truck, "table": table}))

    @all_explained()
    def replay(
        self,
        truck: str,
        *,
        start: str | None = None,
        end: str | None = None,
        into: str | None = None,
        stop: threading.Event | None = None,
        spark: SparkSession | None = None,
    ) -> Replay:
        """Write changes of a truck from the change log again, to the connection `into`, without asking the source.

        They are those that were committed after `start` up to `end`, each an LSN or a time in ISO 8601; by default all
        from where `into` is to the end of the log. A destination that keeps every change, by default the truck's own,
        gets them as a series of its own. Tables are brought forward from a copy of the truck's destination. Setting
        `stop` ends it at a commit. On a session of the caller's own (`spark`) it runs there.
        """
        from trucker.changelog.log_hold import log_held
        from trucker.engine.project.state_folder import secure_state
        from trucker.engine.replay.log_moment import parse_moment
        from trucker.engine.replay.replay_plan import ReplayRequest
        from trucker.engine.replay.replayer import replay
        from trucker.process.stopping import stopping_on_signals

        (config,) = self._trucks(truck)
        connection = self._connection(into or config.output.connection)
        begin = parse_moment(start, "--from") if start is not None else None
        goal = parse_moment(end, "--to") if end is not None else None
        secure_state(self.config)
        state, stop = self.config.state_folder, stop or threading.Event()
        lock = self._replay_lock(connection.name)
        try:
            with stopping_on_signals(stop), log_held(state):
                return replay(self.config, ReplayRequest(config, connection, begin, goal), stop, spark)
        finally:
            lock.release()

    def _connection(self, name: str) -> Connection:
        names = {connection.name: connection for connection in self.config.connections}
        if name not in names:
            raise ConfigError(f"there is no connection {name!r}", remedy=f"name one of {', '.join(names)}")
        return names[name]

    def _replay_lock(self, into: str) -> ProjectLock:
        """What keeps others from writing to the connection: the project's lock where trucks write to it, too."""
        from trucker.engine.project.lock import ProjectLock

        state = self.config.state_folder
        if any(truck.output.connection == into for truck in self.config.trucks):
            lock = ProjectLock(state)
            lock.acquire(
                wait=False,
                remedy=f"trucks of the project write to {into}: stop that instance, or name a connection that none of "
                "them writes to: --into CONNECTION",
            )
            return lock
        lock = ProjectLock(state / "replay" / into)
        try:
            lock.acquire(wait=False)
        except LockedError:
            raise LockedError(
                f"another replay writes to {into}: {lock.instance()}", remedy="wait until it has ended"
            ) from None
        return lock

    def _ask_running(self, command: str, arguments: Mapping[str, Any]) -> Any:
        from trucker.engine.project.instance_client import ask_instance, not_running

        answer = ask_instance(self.config.state_folder, command, arguments)
        if answer is None:
            raise not_running("start it: `trucker run`; then verify it")
        return answer


def unverified(truck: str, table: str = "", *, error: str = "", skipped: str = "") -> Verification:
    """What there is of a table, or of a truck, that was not compared."""
    from trucker.control.answers import Verification

    return Verification(truck, table, error=error, skipped=skipped)


def source_table(text: str | None) -> TableId | None:
    """The source table that the command line names."""
    from trucker.config.patterns import PatternError, parse_table

    try:
        return parse_table(text) if text else None
    except PatternError as error:
        raise ConfigError(f"--table {text}: {error}", remedy="write schema.table, or table for schema public") from None


def refuse(findings: Sequence[Finding], *, strict: bool = False) -> None:
    """Raise the first error among the findings, and say how many more there are.

    Those that a run can wait for are none, unless it is `strict`.
    """
    errors = [finding for finding in findings if finding.level is Level.ERROR and (strict or not finding.waits)]
    if not errors:
        return

    first = errors[0]
    more = f" (and {len(errors) - 1} more; run trucker check to see all)" if len(errors) > 1 else ""
    raise CheckFailed(f"{first.subject}: {first.message}{more}", remedy=first.remedy, code=first.code or None)
