"""What commands print. Rich is imported when something is drawn, so that `--help` stays quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from trucker.errors import TruckerError
from trucker.finding import Finding, Level
from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase, TruckStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trucker.engine.trial import Shown
    from trucker.sinks.letters import Redriven

_PHASE_STYLE: Final = {
    TruckPhase.STREAMING: "green",
    TruckPhase.FAILED: "bold red",
    TruckPhase.RETRYING: "yellow",
    TruckPhase.STOPPED: "dim",
}
_LEVEL_STYLE: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_PLAIN_WIDTH: Final = 200


def console() -> Console:
    """Standard output. Where it is no terminal, lines are not cut to eighty columns."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return Console(width=wide, highlight=False, markup=False, emoji=False)


def say(line: str) -> None:
    """One line on standard output."""
    sys.stdout.write(line + "\n")


def complain(error: TruckerError) -> None:
    """An error and its next step on standard error; several, where one holds several."""
    for single in getattr(error, "errors", (error,)):
        sys.stderr.write(f"error: [{single.code}] {single.message}\n")
        if single.remedy:
            sys.stderr.write(f"next: {single.remedy}\n")


def findings_text(findings: Sequence[Finding]) -> None:
    """What `check` found, the remedies under it, and a summary."""
    from rich.text import Text

    screen = console()
    for finding in findings:
        line = Text.assemble((f"{finding.level.value:<8}", _LEVEL_STYLE[finding.level]), f"{finding.subject}: ")
        code = f"[{finding.code}] " if finding.code else ""
        screen.print(line.append(code + finding.message), soft_wrap=True)
        if finding.remedy and finding.level is not Level.OK:
            screen.print(Text(f"        next: {finding.remedy}"), soft_wrap=True)
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    screen.print(
        f"{_count(counts[Level.ERROR], 'error')}, {_count(counts[Level.WARNING], 'warning')},"
        f" {counts[Level.OK]} of {len(findings)} fine"
    )


def findings_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def status_table(status: ProjectStatus, rates: Mapping[str, float] | None = None) -> Table:
    """The trucks of a project, one line each; `rates` are rows per second where they are known."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("truck", "state", "from → to", "position", "lag", "rows"):
        table.add_column(heading, justify="right" if heading in ("lag", "rows") else "left", no_wrap=True)
    table.add_column("")
    for truck in status.trucks:
        table.add_row(
            truck.name,
            Text(truck.phase.value.replace("_", " "), _PHASE_STYLE.get(truck.phase, "")),
            f"{truck.source} → {truck.destination}",
            truck.position or "-",
            lag(truck),
            rows(truck.rows, (rates or {}).get(truck.name)),
            note(truck),
        )
    return table


def status_text(status: ProjectStatus) -> None:
    """A project's state: who runs it, its trucks, and errors in full."""
    screen = console()
    who = f"running as process {status.pid} on {status.host}" if status.running else "not running"
    screen.print(f"{status.project}: {who}", soft_wrap=True)
    if status.trucks:
        screen.print(status_table(status))
    for truck in status.trucks:
        if truck.error:
            screen.print(f"{truck.name}: {truck.error}", soft_wrap=True)


def redriven_text(done: Sequence[Redriven], *, dry_run: bool) -> None:
    """What became of letters, one line each, and a summary."""
    screen = console()
    for one in done:
        letter = one.letter
        key = ", ".join(f"{name} = {value}" for name, value in letter.key_row.items()) or "no key"
        outcome = "applied" if one.applied else letter.reason.message
        screen.print(
            f"{letter.number} {letter.truck} {letter.operation} {letter.source} ({key}): {outcome}", soft_wrap=True
        )
    applied = sum(one.applied for one in done)
    would = " (dry run: nothing was changed)" if dry_run else ""
    screen.print(f"{_count(len(done), 'letter')}, {applied} applied, {len(done) - applied} refused again{would}")


def redriven_json(done: Sequence[Redriven]) -> str:
    return json.dumps([one.shown() for one in done], indent=2)


def trial_text(shown: Sequence[Shown]) -> None:
    """Every step: its SQL, and the rows that came of it."""
    from rich.table import Table
    from rich.text import Text

    if not shown:
        say("there are no changes of the truck's tables to try it with; give some: --rows changes.jsonl")
    for step in shown:
        console().print(Text(f"{step.table} · {step.step}", style="bold"), Text(f"  {step.of}", style="dim"))
        if step.sql:
            console().print(Text(step.sql, style="cyan"))
        table = Table(box=None, header_style="dim", pad_edge=False)
        for name in step.columns:
            table.add_column(Text(name), overflow="fold")
        for row in step.rows:
            table.add_row(*(Text("NULL", style="dim") if cell is None else Text(cell) for cell in row))
        console().print(table if step.rows else Text("no rows", style="dim"))
        console().print()


def trial_json(shown: Sequence[Shown]) -> str:
    return json.dumps([asdict(step) for step in shown], indent=2, ensure_ascii=False)


def lag(truck: TruckStatus) -> str:
    """How far behind: time, and bytes of the source's log."""
    parts = []
    if truck.lag_seconds is not None:
        parts.append(duration(truck.lag_seconds))
    if truck.lag_bytes is not None:
        parts.append(size(truck.lag_bytes))
    return ", ".join(parts) or "-"


def rows(count: int, rate: float | None = None) -> str:
    return f"{count:,}" if rate is None else f"{count:,} ({rate:,.0f}/s)"


def note(truck: TruckStatus) -> str:
    """What a truck's line ends with: its error's first line, or how far its copies are, or what is left out."""
    if truck.error:
        return truck.error.splitlines()[0]
    notes = [copy_progress(progress) for progress in truck.copying[:3]]
    if truck.dead_letters:
        notes.append(_count(truck.dead_letters, "dead letter"))
    if truck.left_out:
        notes.append(f"left out: {', '.join(truck.left_out[:3])}{' …' if truck.left_out[3:] else ''}")
    return "; ".join(notes)


def copy_progress(progress: CopyProgress) -> str:
    percent = 100 * progress.done // progress.chunks if progress.chunks else 0
    return f"{progress.table} {percent} %, {progress.rows:,} rows"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
