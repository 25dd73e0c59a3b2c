"""What `trucker run` shows while it runs: a table that moves on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trucker.cli.output import console, copy_progress, status_table
from trucker.observe.status import ProjectStatus, TruckPhase

if TYPE_CHECKING:
    from trucker.config.models import ProjectConfig

logger = logging.getLogger("trucker.cli")

OnStatus = Callable[[ProjectStatus], None]

_PROGRESS_EVERY: Final = 10.0


def shows_table(config: ProjectConfig, *, quiet: bool) -> bool:
    """Whether standard output is a terminal that is free: not wanted quiet, and no truck writes its changes there."""
    adapters = {config.connection(truck.output.connection).adapter for truck in config.trucks}
    return sys.stdout.isatty() and not quiet and "stdout" not in adapters


@contextmanager
def table() -> Iterator[OnStatus]:
    """Keep a table of the trucks at the foot of the terminal; log lines pass above it."""
    from rich.live import Live

    rates = Rates()
    with Live(console=console(), auto_refresh=False, redirect_stdout=False) as live:
        yield lambda status: live.update(status_table(status, rates.of(status)), refresh=True)


@contextmanager
def lines() -> Iterator[OnStatus]:
    """Log what changes: phases when they change, copies every ten seconds."""
    yield Narrator()


class Rates:
    """Rows per second of each truck, from one status to the next."""

    def __init__(self) -> None:
        self._before: ProjectStatus | None = None

    def of(self, status: ProjectStatus) -> dict[str, float]:
        before, self._before = self._before, status
        seconds = status.updated - before.updated if before else 0.0
        if before is None or seconds <= 0:
            return {}
        rows = {truck.name: truck.rows for truck in before.trucks}
        return {t.name: max(0, t.rows - rows[t.name]) / seconds for t in status.trucks if t.name in rows}


class Narrator:
    """Turns statuses into log lines, few of them. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phases: dict[str, TruckPhase] = {}
        self._told = clock()

    def __call__(self, status: ProjectStatus) -> None:
        for truck in status.trucks:
            if self._phases.get(truck.name) is not truck.phase:
                self._phases[truck.name] = truck.phase
                level = logging.WARNING if truck.phase is TruckPhase.RETRYING else logging.INFO
                logger.log(level, "truck %s is %s", truck.name, truck.phase.value.replace("_", " "))
        if self._clock() - self._told >= _PROGRESS_EVERY:
            self._told = self._clock()
            for truck in status.trucks:
                for progress in truck.copying:
                    logger.info("truck %s copies %s", truck.name, copy_progress(progress))
