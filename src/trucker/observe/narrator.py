"""The log of a running project as a whole: changes of its trucks' phases, and a summary at intervals.

It gets every status of the project, about one a second, so that one line names all trucks that an event concerns: six
trucks that wait for one destination are one line.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase, TruckStatus, error_facts

log = logging.getLogger("trucker.run")

PROGRESS_SECONDS: Final = 10.0
SUMMARY_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 600.0
_MOST_COPIES: Final = 3

_LEVEL: Final = {TruckPhase.RETRYING: logging.WARNING, TruckPhase.FAILED: logging.ERROR}
_MESSAGE: Final = {
    TruckPhase.STARTING: "truck is starting",
    TruckPhase.COPYING: "truck is copying",
    TruckPhase.CATCHING_UP: "truck is catching up",
    TruckPhase.STREAMING: "truck is streaming",
    TruckPhase.RETRYING: "truck is retrying",
    TruckPhase.FAILED: "truck failed",
    TruckPhase.PAUSED: "truck is paused",
    TruckPhase.STOPPED: "truck stopped",
}

_Event = tuple[TruckPhase, str, str]
"""A phase, the destination, and the error that is the reason for it."""


class Narrator:
    """Turns statuses into log lines, few of them. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, tuple[TruckPhase, str]] = {}
        self._trouble: dict[str, float] = {}
        self._progress_at = self._summary_at = clock()
        self._rows = 0

    def __call__(self, status: ProjectStatus) -> None:
        now = self._clock()
        self._tell_phases(status, now)
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            for truck in status.trucks:
                _tell_copies(truck)
        self._summarise(status, now)

    def _tell_phases(self, status: ProjectStatus, now: float) -> None:
        """One line for all trucks that have come to the same phase for the same reason."""
        events: dict[_Event, list[TruckStatus]] = {}
        for truck in status.trucks:
            because = truck.error or "" if truck.phase in _LEVEL else ""
            state = (truck.phase, str(error_facts(because).get("code", "")))
            if self._states.get(truck.name) != state:
                self._states[truck.name] = state
                events.setdefault((truck.phase, truck.destination, because), []).append(truck)
        for (phase, _, because), trucks in events.items():
            facts = {**_subject(trucks), **self._outage(phase, trucks, now), **error_facts(because or None)}
            log.log(_LEVEL.get(phase, logging.INFO), _MESSAGE[phase], extra=facts)

    def _outage(self, phase: TruckPhase, trucks: Sequence[TruckStatus], now: float) -> dict[str, Any]:
        """How long the trucks were interrupted, when they stream again."""
        names = [truck.name for truck in trucks]
        if phase is TruckPhase.RETRYING:
            for name in names:
                self._trouble.setdefault(name, now)
        if phase is not TruckPhase.STREAMING:
            return {}
        since = [self._trouble.pop(name) for name in names if name in self._trouble]
        return {"interrupted_seconds": round(now - min(since), 1)} if since else {}

    def _summarise(self, status: ProjectStatus, now: float) -> None:
        """Every minute in which rows were written, every ten minutes otherwise."""
        rows = sum(truck.rows for truck in status.trucks)
        waited, moved = now - self._summary_at, max(0, rows - self._rows)
        if waited < (SUMMARY_SECONDS if moved else IDLE_SECONDS):
            return
        phases = Counter(truck.phase.value for truck in status.trucks)
        idle = (TruckPhase.FAILED, TruckPhase.PAUSED)
        lags = [truck.lag_seconds for truck in status.trucks if truck.phase not in idle]
        letters = sum(truck.dead_letters for truck in status.trucks)
        facts: dict[str, Any] = {
            **phases,
            "rows": moved,
            "seconds": round(waited, 1),
            "rows_per_second": round(moved / waited, 1),
            "lag_seconds": None if None in lags else round(max((lag for lag in lags if lag is not None), default=0), 1),
            "lag_bytes": max((truck.lag_bytes or 0 for truck in status.trucks), default=0),
        }
        blind = sum(truck.blind_since is not None for truck in status.trucks)
        facts |= {"blind": blind} if blind else {}
        facts |= {"dead_letters": letters} if letters else {}
        log.info("summary", extra=facts)
        self._summary_at, self._rows = now, rows


def _subject(trucks: Sequence[TruckStatus]) -> dict[str, Any]:
    """The trucks, and the destination that they have in common."""
    names = [truck.name for truck in trucks]
    named = {"truck": names[0]} if len(names) == 1 else {"trucks": names}
    return {**named, "destination": trucks[0].destination}


def _tell_copies(truck: TruckStatus) -> None:
    """The copies in progress, the first few of them; a finished copy is logged by the copier."""
    under_way = [each for each in truck.copying if each.done < each.chunks]
    for progress in sorted(under_way, key=_begun, reverse=True)[:_MOST_COPIES]:
        facts: dict[str, Any] = {
            "truck": truck.name,
            "table": progress.table,
            "percent": progress.percent,
            "rows": progress.rows,
            "rows_per_second": progress.rows_per_second,
            "seconds_left": progress.seconds_left,
        }
        log.info("table is being copied", extra=facts)


def _begun(progress: CopyProgress) -> float:
    return progress.seconds
