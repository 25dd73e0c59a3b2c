"""The live table of `trucker run` on a terminal. Elsewhere there is only the log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trucker.cli.output import console, status_view
from trucker.observe.status import ProjectStatus

if TYPE_CHECKING:
    from trucker.config.models import ProjectConfig

OnStatus = Callable[[ProjectStatus], None]


def shows_table(config: ProjectConfig, *, quiet: bool) -> bool:
    """Whether standard output is a terminal, `quiet` is not set, and no truck writes its changes to it."""
    used = {truck.output.connection for truck in config.trucks}
    return sys.stdout.isatty() and not quiet and not writes_to_stdout(config, used)


def writes_to_stdout(config: ProjectConfig, connections: Iterable[str]) -> bool:
    """Whether one of these connections writes changes to standard output."""
    from trucker.config.registry import adapter_of

    return any(adapter_of(config.connection(name)).uses_stdout for name in connections)


@contextmanager
def table() -> Iterator[OnStatus]:
    """Keep a table of the trucks at the foot of the terminal.

    Log lines pass above it where standard error is a terminal, too; redirected they go where they are sent.
    """
    from rich.live import Live

    rates = Rates()
    with Live(
        console=console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=sys.stderr.isatty()
    ) as live:
        yield lambda status: live.update(status_view(status, rates.of(status)), refresh=True)


class Rates:
    """Rows per second of each truck, from one status to the next."""

    def __init__(self) -> None:
        self._previous: ProjectStatus | None = None

    def of(self, status: ProjectStatus) -> dict[str, float]:
        previous, self._previous = self._previous, status
        seconds = status.updated - previous.updated if previous else 0.0
        if previous is None or seconds <= 0:
            return {}
        rows = {truck.name: truck.rows for truck in previous.trucks}
        return {t.name: max(0, t.rows - rows[t.name]) / seconds for t in status.trucks if t.name in rows}
