"""Takes up changed files of a project in its running instance: checked as a start checks them, and all or nothing.

A source of which a truck has changed is begun anew, as a restart of the process would do it, in the session that is
warm; the others go on. So there is one order of steps to be safe in after a crash, that of a start: positions are at
the destinations, the slot keeps what is not captured meanwhile, and the project's lock is held throughout.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from trucker.config.models import ProjectConfig
from trucker.control.answers import Reloaded
from trucker.engine.project.conditions.condition_list import has_errors, walk
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.lock import Instance
from trucker.engine.project.project_run import ProjectRun
from trucker.engine.project.reload_plan import ReloadPlan, plan_reload
from trucker.engine.truck.resolve import ResolvedSource
from trucker.errors import ControlError
from trucker.finding import Finding, Level


@dataclass(frozen=True, slots=True)
class ReloadOptions:
    """`truck`: only this one. `go_on`: trucks with changed SQL go on with it. `interrupt_copies`: copies in progress
    of other trucks may begin anew."""

    truck: str | None = None
    go_on: bool = False
    interrupt_copies: bool = False


def reload(run: ProjectRun, load: Callable[[], ProjectConfig], options: ReloadOptions) -> Reloaded:
    """Take up what the files say now. Call while `run.changing()`.

    Raises `ConfigError` for what is wrong in the files, and `ControlError` for what cannot be taken up. Nothing has
    been changed then, nor where the result is `refused`.
    """
    began = time.monotonic()
    plan = plan_reload(run.config, run.texts, load(), only=options.truck, go_on=options.go_on)
    resolved, findings = examine(run, plan.config)
    if any(finding.level is Level.ERROR and not finding.waits for finding in findings):
        return Reloaded(refused=True, findings=tuple(findings), seconds=_since(began))
    due = {name: each for name, each in resolved.items() if name in plan.sources or has_arrivals(run, each)}
    ended = plan.sources - resolved.keys()
    if not options.interrupt_copies:
        _refuse_copies(run, plan, {*due, *ended})
    troubles = run.take_up(plan.config, plan.texts, due)
    return Reloaded(
        False,
        tuple(troubles),
        plan.added,
        plan.removed,
        plan.changed,
        plan.new_sql,
        tuple(sorted({*due, *ended})),
        _since(began),
    )


def examine(run: ProjectRun, config: ProjectConfig) -> tuple[Mapping[str, ResolvedSource], list[Finding]]:
    """The sources as they are now, and all that a start with this configuration would find."""
    with Situation(config, Instance(os.getpid(), socket.gethostname(), time.time())) as situation:
        findings = walk(situation)
        if not has_errors(finding for finding in findings if not finding.waits):
            findings += run.sql_findings(config, situation.sources, situation.sinks)
        return situation.sources, findings


def has_arrivals(run: ProjectRun, resolved: ResolvedSource) -> bool:
    """Whether a truck of the source has tables now that it did not have; also where the source does not run."""
    source = next((each for each in run.sources if each.name == resolved.name), None)
    if source is None or source.unstarted is not None:
        return True
    before = {truck.name: truck.tables.keys() for truck in source.resolved.trucks}
    return any(truck.tables.keys() - before.get(truck.name, frozenset()) for truck in resolved.trucks)


def copies_in_progress(run: ProjectRun, sources: Collection[str], but: Collection[str] = ()) -> dict[str, list[str]]:
    """The trucks of these sources, `but` some, with their tables that are being copied."""
    return {
        name: sorted(map(str, tables))
        for source in run.sources
        if source.name in sources
        for name in source.runs
        if name not in but and (tables := source.copying(name))
    }


def _refuse_copies(run: ProjectRun, plan: ReloadPlan, sources: Collection[str]) -> None:
    copies = copies_in_progress(run, sources, (*plan.removed, *plan.changed))
    if copies:
        names = "; ".join(f"{truck} ({', '.join(tables[:3])})" for truck, tables in copies.items())
        raise ControlError(
            f"tables are being copied, and a reload would begin these copies anew: {names}: nothing was changed",
            remedy="run `trucker reload` again when they are copied (`trucker status`), or now with --interrupt-copies",
            code="TRK614",
        )


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)
