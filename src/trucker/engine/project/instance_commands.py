"""The commands that a running instance obeys, by name, apart from how they reach it.

The control socket calls them; so can whatever takes commands in another way. A verb is a method that takes JSON values
and returns one, and an entry of `InstanceCommands.verbs`. Each is called in a thread of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from trucker.config.models import ProjectConfig
from trucker.control.answers import StopRequest, TruckPause
from trucker.control.message import Request
from trucker.engine.project.project_run import ProjectRun
from trucker.engine.project.source_run import SourceRun, needed_by
from trucker.engine.refresh.refresh_request import RefreshRequest, refreshes_of
from trucker.engine.truck.truck import Truck
from trucker.engine.verify.table_verification import comparable_tables
from trucker.errors import ControlError
from trucker.table import TableId

log = logging.getLogger("trucker.control")

REST_SECONDS: Final = 10.0
"""So long `pause` waits for batches of lanes; the main lane's batch is waited for in any case."""

_POLL_SECONDS: Final = 0.02
_READY_SECONDS: Final = 0.1


class InstanceCommands:
    """Commands for the project that this process runs. Those that need the run wait until it has begun."""

    def __init__(
        self, stop: threading.Event, end: Callable[[], None], load: Callable[[], ProjectConfig] | None, *, once: bool
    ) -> None:
        """`stop` is set when the run ends, `end` has it end. `load` reads the project's files, where it has any."""
        self._stop = stop
        self._end = end
        self._load = load
        self._once = once
        self._run: ProjectRun | None = None
        self._over = threading.Event()
        self.verbs: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "reload": self._reload,
            "stop": self._request_stop,
            "refresh": self._refresh,
            "cancel": self._cancel,
            "comparable": self._comparable,
            "verify": self._verify,
        }

    def attach(self, run: ProjectRun) -> None:
        """The run has begun."""
        self._run = run

    def close(self) -> None:
        """The run is over, or never begins."""
        self._over.set()

    def __call__(self, request: Request) -> object:
        """Obey; raises `TruckerError` where that is not possible, having changed nothing."""
        verb = self.verbs.get(request.command)
        if verb is None:
            raise ControlError(
                f"the running instance does not know the command `{request.command}`: it is another version of trucker",
                remedy="restart the instance with this version",
                code="TRK615",
            )
        log.info("command", extra={"command": request.command})
        return verb(request.arguments)

    def _running(self) -> ProjectRun:
        while self._run is None and not self._over.wait(_READY_SECONDS) and not self._stop.is_set():
            pass
        if self._run is None or self._stop.is_set():
            raise ControlError("the instance is stopping", remedy="start it again: `trucker run`", code="TRK616")
        return self._run

    # -- the verbs ----------------------------------------------------------------------------------------------

    def _pause(self, arguments: Mapping[str, Any]) -> object:
        run, names = self._running(), _trucks(arguments)
        with run.changing():
            sources = {name: run.source_of(name) for name in names}
            # First the wish, then the deed: after a crash in between they are paused.
            news = run.pauses.pause(names)
            for name, source in sources.items():
                source.pause(name)
        deadline = time.monotonic() + REST_SECONDS
        while any(source.is_busy(name) for name, source in sources.items()) and time.monotonic() < deadline:
            self._stop.wait(_POLL_SECONDS)
        run.show()
        return [asdict(_state(sources[name], name, paused=True, changed=name in news)) for name in names]

    def _resume(self, arguments: Mapping[str, Any]) -> object:
        run, names = self._running(), _trucks(arguments)
        with run.changing():
            sources = {name: run.source_of(name) for name in names}
            news = run.pauses.resume(names)
            for name, source in sources.items():
                source.go_on(name)
        run.show()
        return [asdict(_state(sources[name], name, paused=False, changed=name in news)) for name in names]

    def _reload(self, arguments: Mapping[str, Any]) -> object:
        # Late: it needs all the conditions of a start.
        from trucker.engine.project.reload import ReloadOptions, reload

        if self._load is None or self._once:
            why = "was started with --once, and ends by itself" if self._once else "was built in code, without files"
            raise ControlError(f"the project {why}", remedy="start it again with what has changed", code="TRK615")
        run = self._running()
        if unknown := arguments.keys() - {field.name for field in fields(ReloadOptions)}:
            raise ControlError(
                f"the running instance does not know the options {', '.join(sorted(unknown))} of reload: it is another "
                "version of trucker",
                remedy="restart the instance with this version",
                code="TRK615",
            )
        options = ReloadOptions(**arguments)
        with run.changing():
            reloaded = reload(run, self._load, options)
        if not reloaded.refused:
            facts = {"added": reloaded.added, "removed": reloaded.removed, "changed": reloaded.changed}
            log.info("project reloaded", extra={**facts, "seconds": reloaded.seconds})
        run.show()
        return reloaded.to_json()

    def _request_stop(self, _: Mapping[str, Any]) -> object:
        self._end()
        return asdict(StopRequest(os.getpid(), socket.gethostname(), ended=False))

    def _refresh(self, arguments: Mapping[str, Any]) -> object:
        run = self._running()
        handed_in = arguments.get("keys")
        keys = run.refreshes.handed_in(str(handed_in)) if handed_in is not None else None
        table = arguments.get("table")
        request = RefreshRequest(
            str(arguments["truck"]), TableId(*table) if table is not None else None, arguments.get("where"), keys
        )
        with run.changing():
            source = run.source_of(request.truck)
            truck = source.runs[request.truck].truck
            with source.destinations[truck.destination].using() as sink:
                wished = refreshes_of(request, source.resolved, {truck.destination: sink})
            added = run.refreshes.add(wished)
        run.show()
        return [refresh.to_json() for refresh in added]

    def _cancel(self, arguments: Mapping[str, Any]) -> object:
        run = self._running()
        cancelled = run.refreshes.cancel(int(arguments["id"]))
        run.show()
        return cancelled.to_json()

    def _comparable(self, arguments: Mapping[str, Any]) -> object:
        run = self._running()
        table = arguments.get("table")
        with run.changing():
            source, truck = self._truck(run, arguments)
            with source.destinations[truck.destination].using() as sink:
                return comparable_tables(truck, TableId(*table) if table is not None else None, sink)

    def _verify(self, arguments: Mapping[str, Any]) -> object:
        if self._once:
            raise ControlError(
                "the project was started with --once, and ends by itself",
                remedy="start it with `trucker run`, then verify it",
                code="TRK615",
            )
        run = self._running()
        with run.changing():
            source, truck = self._truck(run, arguments)
        return source.verify(truck.name, TableId(*arguments["table"])).to_json()

    def _truck(self, run: ProjectRun, arguments: Mapping[str, Any]) -> tuple[SourceRun, Truck]:
        name = str(arguments["truck"])
        source = run.source_of(name)
        return source, source.runs[name].truck


def _trucks(arguments: Mapping[str, Any]) -> Sequence[str]:
    return list(dict.fromkeys(map(str, arguments.get("trucks", ()))))


def _state(source: SourceRun, name: str, *, paused: bool, changed: bool) -> TruckPause:
    run, durable = source.runs[name], source.durable
    needed = needed_by(run)
    return TruckPause(
        name,
        paused,
        changed,
        running=True,
        phase=run.phase.value,
        position=str(run.position) if run.position else None,
        kept_bytes=max(0, durable.commit_lsn - needed) if durable is not None and needed else None,
        copying=tuple(sorted(map(str, source.copying(name)))),
        busy=source.is_busy(name),
    )
