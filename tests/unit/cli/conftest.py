"""A project whose answers a test sets, in the place of the real one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from trucker.adapters.jsonl import JsonLinesConnection
from trucker.adapters.stdout import StdoutConnection
from trucker.config.models import ProjectConfig
from trucker.control.answers import Refresh, Reloaded, Replay, StopRequest, TruckPause
from trucker.finding import Finding
from trucker.observe.narrator import Narrator
from trucker.observe.status import ProjectStatus, TruckStatus
from trucker.sinks.letters import Redriven
from trucker.sinks.table_identity import TableChange


def make_status(*trucks: TruckStatus, running: bool = True, updated: float = 1.0) -> ProjectStatus:
    return ProjectStatus("shop", "/shop", running, 7, "host", 0.0, updated, trucks)


@dataclass
class FakeProject:
    """What `Project` is to the command line. `calls` holds what it was asked."""

    findings: list[Finding] = field(default_factory=list)
    final: ProjectStatus = field(default_factory=make_status)
    statuses: list[ProjectStatus] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    redriven: list[Redriven] = field(default_factory=list)
    changes: list[TableChange] = field(default_factory=list)
    pauses: list[TruckPause] = field(default_factory=list)
    reloaded: Reloaded = field(default_factory=Reloaded)
    listed: list[Refresh] = field(default_factory=list)
    ended: list[Refresh] = field(default_factory=list)
    replayed: Replay | None = None
    error: BaseException | None = None
    calls: list[tuple[object, ...]] = field(default_factory=list)
    config: ProjectConfig = field(
        default_factory=lambda: ProjectConfig(
            unique_id="shop",
            folder=Path("/shop"),
            connections=(
                StdoutConnection(name="out", adapter="stdout"),
                JsonLinesConnection(name="audit", adapter="jsonl", path=Path("/audit")),
            ),
        )
    )

    def load(self, folder: Path) -> FakeProject:
        self._called("load", folder)
        return self

    def replay(self, truck: str, *, start: str | None, end: str | None, into: str | None) -> Replay:
        self._called("replay", truck, start, end, into)
        assert self.replayed is not None
        return self.replayed

    def pause(self, trucks: Sequence[str]) -> list[TruckPause]:
        self._called("pause", *trucks)
        return self.pauses

    def resume(self, trucks: Sequence[str]) -> list[TruckPause]:
        self._called("resume", *trucks)
        return self.pauses

    def reload(
        self, *, truck: str | None = None, on_sql_change: str = "refuse", interrupt_copies: bool = False
    ) -> Reloaded:
        self._called("reload", truck, on_sql_change, interrupt_copies)
        return self.reloaded

    def stop(self, *, wait: bool = True) -> StopRequest:
        self._called("stop", wait)
        return StopRequest(7, "host", wait)

    def refresh(
        self, truck: str, *, table: str | None, where: str | None, keys: Iterable[Sequence[str]] | None
    ) -> list[Refresh]:
        self._called("refresh", truck, table, where, None if keys is None else list(keys))
        return self.listed

    def await_refreshes(self, refreshes: Sequence[Refresh]) -> list[Refresh]:
        self._called("await_refreshes", *(each.id for each in refreshes))
        return self.ended

    def refreshes(self) -> list[Refresh]:
        self._called("refreshes")
        return self.listed

    def cancel_refresh(self, number: int) -> Refresh:
        self._called("cancel_refresh", number)
        return self.ended[0]

    def check(self) -> list[Finding]:
        return self.findings

    def run(
        self,
        *,
        once: bool = False,
        wait: bool = False,
        strict: bool = False,
        on_status: Callable[[ProjectStatus], None] | None = None,
    ) -> ProjectStatus:
        self._called("run", once, wait, *(["strict"] if strict else []))
        narrator = Narrator()
        for status in self.statuses:
            narrator(status)
            if on_status is not None:
                on_status(status)
        return self.final

    def status(self) -> ProjectStatus:
        return self.final

    def peek(self, *, truck: str | None, limit: int | None, follow: bool) -> Iterator[str]:
        self._called("peek", truck, limit, follow)
        yield from self.lines

    def redrive(self, truck: str | None, *, table: str | None, ids: list[int] | None, dry_run: bool) -> list[Redriven]:
        self._called("redrive", truck, table, ids, dry_run)
        return self.redriven

    def reset_plan(self, trucks: Sequence[str] | None, *, table: str | None = None) -> list[str]:
        self._called("reset_plan", trucks, *([table] if table else []))
        return self.plan

    def reset(self, trucks: Sequence[str] | None, *, table: str | None = None) -> list[str]:
        self._called("reset", trucks, *([table] if table else []))
        return list(self.plan)

    def accept(self, trucks: Sequence[str] | None, *, table: str | None = None) -> list[TableChange]:
        self._called("accept", trucks, table)
        return self.changes

    def _called(self, *call: object) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error


@pytest.fixture(name="project")
def _project(monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    fake = FakeProject()
    module = ModuleType("trucker.project")
    module.Project = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trucker.project", module)
    return fake


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Commands set up logging; what they did is undone."""
    root, own = logging.getLogger(), logging.getLogger("trucker")
    handlers, level, own_level = list(root.handlers), root.level, own.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)
