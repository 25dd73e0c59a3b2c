"""What commands print. Rich is imported when something is drawn, so that `--help` stays quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from trucker.cli.keys_file import key_line
from trucker.errors import TruckerError
from trucker.finding import Finding, Level
from trucker.observe.status import ProjectStatus, TruckPhase, TruckStatus
from trucker.observe.units import counted, duration, lag_text, moment, rate, size

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from trucker.control.answers import Refresh, Reloaded, Replay, StopRequest, TruckPause, Verification
    from trucker.engine.transform.try_truck import Shown
    from trucker.sinks.letters import Redriven
    from trucker.sinks.table_identity import TableChange

_PHASE_STYLE: Final = {
    TruckPhase.STREAMING: "green",
    TruckPhase.FAILED: "bold red",
    TruckPhase.RETRYING: "yellow",
    TruckPhase.PAUSED: "yellow",
    TruckPhase.STOPPED: "dim",
}
_LEVEL_STYLE: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_PLAIN_WIDTH: Final = 200
_MOST_COPIES: Final = 8
_BAR_WIDTH: Final = 24
KEYS_SHOWN: Final = 20


def console() -> Console:
    """Standard output. Where it is no terminal, lines are not cut to eighty columns."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return Console(width=wide, highlight=False, markup=False, emoji=False)


def say(line: str) -> None:
    """One line on standard output."""
    sys.stdout.write(line + "\n")


def report(line: str) -> None:
    """One line on standard error."""
    sys.stderr.write(line + "\n")


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
        f"{counted(counts[Level.ERROR], 'error')}, {counted(counts[Level.WARNING], 'warning')},"
        f" {counts[Level.OK]} of {len(findings)} fine"
    )


def findings_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def status_view(status: ProjectStatus, rates: Mapping[str, float] | None = None) -> Group:
    """The trucks, what is being copied, and every error once with the trucks it concerns."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Table | Text] = [status_table(status, rates)]
    if any(truck.copying for truck in status.trucks):
        parts.append(copies_table(status))
    parts += [Text(line, overflow="fold") for line in error_lines(status.trucks)]
    return Group(*parts)


def status_table(status: ProjectStatus, rates: Mapping[str, float] | None = None) -> Table:
    """The trucks of a project, one line each; `rates` are rows per second where they are known."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("truck", "state", "from → to", "position", "lag", "rows"):
        table.add_column(heading, justify="right" if heading in ("lag", "rows") else "left", no_wrap=True)
    table.add_column("")
    for truck in status.trucks:
        table.add_row(
            truck.name,
            state(truck),
            f"{truck.source} → {truck.destination}",
            truck.position or "-",
            lag(truck),
            rows(truck.rows, (rates or {}).get(truck.name)),
            note(truck),
        )
    return table


def state(truck: TruckStatus) -> Text:
    """The truck's phase; not in green where the source is not heard."""
    from rich.text import Text

    words = truck.phase.value.replace("_", " ")
    if truck.blind_since is not None:
        return Text(f"{words}, blind", "bold red" if truck.phase is TruckPhase.FAILED else "yellow")
    return Text(words, _PHASE_STYLE.get(truck.phase, ""))


def copies_table(status: ProjectStatus) -> Table:
    """The tables that are being copied: how far, how fast, how long still; with a bar on a terminal."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    bars = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("copying", *([""] if bars else []), "done", "rows", "rate", "left"):
        table.add_column(heading, justify="left" if heading in ("copying", "") else "right", no_wrap=True)
    copies = [(truck, progress) for truck in status.trucks for progress in truck.copying]
    # Copies in progress first: of hundreds of tables most wait or are finished.
    copies.sort(key=lambda each: each[1].percent in (0, 100))
    for truck, progress in copies[:_MOST_COPIES]:
        bar = [ProgressBar(total=100, completed=progress.percent, width=_BAR_WIDTH)] if bars else []
        speed, seconds_left = progress.rows_per_second, progress.seconds_left
        table.add_row(
            f"{truck.name}: {progress.table}",
            *bar,
            f"{progress.percent} %",
            f"{progress.rows:,}",
            "-" if speed is None else rate(speed),
            "-" if seconds_left is None else duration(seconds_left),
        )
    if copies[_MOST_COPIES:]:
        table.add_row(f"and {counted(len(copies) - _MOST_COPIES, 'table')} more")
    return table


def status_text(status: ProjectStatus) -> None:
    """A project's state: who runs it, its trucks, and errors in full."""
    screen = console()
    screen.print(f"{status.project}: {_who_runs(status)}", soft_wrap=True)
    if status.trucks:
        screen.print(status_table(status))
    if any(truck.copying for truck in status.trucks):
        screen.print(copies_table(status))
    for refresh in status.refreshes:
        screen.print(_refresh_line(refresh), soft_wrap=True)
    for line in error_lines(status.trucks):
        screen.print(line, soft_wrap=True)


def _who_runs(status: ProjectStatus) -> str:
    if status.running:
        return f"running as process {status.pid} on {status.host}"
    if status.gone:
        last = f"process {status.pid} on {status.host}"
        return f"not running, although it was not stopped: {last} was last seen at {moment(status.updated)}"
    return "not running"


def error_lines(trucks: Sequence[TruckStatus]) -> list[str]:
    """Every error once, in full, after the names of the trucks it concerns."""
    concerned: dict[str, list[str]] = {}
    for truck in trucks:
        if truck.error:
            concerned.setdefault(truck.error, []).append(truck.name)
        for failed in truck.failed:
            then = "waits for your decision" if failed.held else "is copied again once the cause is gone"
            concerned.setdefault(f"table {failed.table} failed and {then}: {failed.error}", []).append(truck.name)
    return [f"{', '.join(names)}: {error}" for error, names in concerned.items()]


def redriven_text(redriven: Sequence[Redriven], *, dry_run: bool) -> None:
    """The outcome of each letter, one line each, and a summary."""
    screen = console()
    for result in redriven:
        letter = result.letter
        key = ", ".join(f"{name} = {value}" for name, value in letter.key_row.items()) or "no key"
        outcome = "applied" if result.applied else letter.reason.message
        outcome = f"not tried; last time: {outcome}" if result.applied is None else outcome
        screen.print(
            f"{letter.number} {letter.truck} {letter.operation} {letter.source} ({key}): {outcome}", soft_wrap=True
        )
    applied, refused, untried = (
        sum(result.applied is outcome for result in redriven) for outcome in (True, False, None)
    )
    rest = f", {untried} not tried (what is sent to a stream cannot be taken back)" if untried else ""
    would = " (dry run: nothing was changed)" if dry_run else ""
    screen.print(f"{counted(len(redriven), 'dead letter')}, {applied} applied, {refused} refused again{rest}{would}")


def redriven_json(redriven: Sequence[Redriven]) -> str:
    return json.dumps([result.shown() for result in redriven], indent=2)


def pauses_text(pauses: Sequence[TruckPause]) -> None:
    """What was done with each truck, and what that means for the change log."""
    for pause in pauses:
        say(f"truck {pause.truck}: {'; '.join(_pause_words(pause))}")
    if any(pause.paused for pause in pauses):
        say("the change log keeps what paused trucks have not applied, without limit, until `trucker resume`")


def _pause_words(pause: TruckPause) -> list[str]:
    if not pause.changed:
        words = ["is paused already" if pause.paused else "is not paused"]
    elif not pause.running:
        words = [f"{'is paused' if pause.paused else 'goes on'} from the next `trucker run` on; no instance runs now"]
    else:
        words = ["paused" if pause.paused else "goes on"]
    if not pause.running or not pause.paused:
        return words
    if pause.phase == TruckPhase.FAILED:
        words.append("has failed, which `trucker status` explains")
    if pause.busy:
        words.append("a batch is still being applied")
    if pause.copying:
        words.append(f"the copy of {', '.join(pause.copying)} is finished first")
    if pause.position is not None:
        words.append(f"at {pause.position}")
    if pause.kept_bytes is not None:
        words.append(f"the change log keeps {size(pause.kept_bytes)} for it")
    return words


def pauses_json(pauses: Sequence[TruckPause]) -> str:
    return json.dumps([asdict(pause) for pause in pauses], indent=2)


def reloaded_text(reloaded: Reloaded) -> None:
    """What was taken up; or what is wrong, as `check` shows it."""
    if reloaded.refused:
        findings_text(reloaded.findings)
        say("nothing was changed")
        return
    parts = {"added": reloaded.added, "removed": reloaded.removed, "changed": reloaded.changed}
    for word, names in parts.items():
        if names:
            say(f"{word}: {', '.join(names)}")
    if reloaded.new_sql:
        say(f"go on with the new SQL or rules: {', '.join(reloaded.new_sql)}")
    if not reloaded.sources:
        say("nothing has changed")
        return
    say(f"restarted: {', '.join(reloaded.sources)}, in {duration(reloaded.seconds)}")
    if reloaded.findings:
        findings_text(reloaded.findings)


def reloaded_json(reloaded: Reloaded) -> str:
    return json.dumps(reloaded.to_json(), indent=2)


def stop_text(request: StopRequest) -> None:
    say(f"process {request.pid} on {request.host} {'has ended' if request.ended else 'is stopping'}")


def stop_json(request: StopRequest) -> str:
    return json.dumps(asdict(request), indent=2)


def trial_text(steps: Sequence[Shown]) -> None:
    """Every step: its SQL and its rows."""
    from rich.table import Table
    from rich.text import Text

    if not steps:
        say("the change log has no changes of the truck's tables; give some with --rows changes.jsonl")
    for step in steps:
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


def lines_json(lines: Sequence[str]) -> str:
    return json.dumps(list(lines), indent=2)


def accepted_text(accepted: Sequence[TableChange]) -> None:
    if not accepted:
        say("nothing to accept: no destination table was dropped or altered")
    for change in accepted:
        say(f"truck {change.truck}: {change.what()}; accepted")


def accepted_json(accepted: Sequence[TableChange]) -> str:
    return json.dumps(
        [
            {**asdict(change), "source": str(change.source), "table": str(change.table), "what": change.what()}
            for change in accepted
        ],
        indent=2,
    )


def trial_json(steps: Sequence[Shown]) -> str:
    return json.dumps([asdict(step) for step in steps], indent=2, ensure_ascii=False)


def lag(truck: TruckStatus) -> str:
    """How far behind: time, and bytes of the source's WAL."""
    if truck.lag_seconds is None and truck.phase in (TruckPhase.COPYING, TruckPhase.STOPPED, TruckPhase.FAILED):
        return "-"
    return lag_text(truck.lag_seconds, truck.lag_bytes)


def rows(count: int, rows_per_second: float | None = None) -> str:
    return f"{count:,}" if rows_per_second is None else f"{count:,} ({rate(rows_per_second)})"


def note(truck: TruckStatus) -> str:
    """What a truck's line ends with. Its error is printed in full elsewhere; here is its code."""
    notes = [truck.error.split("]")[0] + "]"] if truck.error and truck.error.startswith("[") else []
    if truck.phase is TruckPhase.PAUSED and truck.lag_bytes is not None:
        notes.append(f"the change log keeps {size(truck.lag_bytes)} for it")
    if truck.blind_since is not None:
        notes.append(f"lag unknown since {moment(truck.blind_since)}")
    if truck.failed:
        tables = ", ".join(failed.table for failed in truck.failed[:3])
        notes.append(f"{counted(len(truck.failed), 'failed table')}: {tables}{' …' if truck.failed[3:] else ''}")
    if truck.dead_letters:
        notes.append(counted(truck.dead_letters, "dead letter"))
    if truck.left_out:
        notes.append(f"columns left out: {', '.join(truck.left_out[:3])}{' …' if truck.left_out[3:] else ''}")
    return "; ".join(notes)


def refreshes_text(refreshes: Sequence[Refresh]) -> None:
    """A line for each."""
    for refresh in refreshes:
        say(_refresh_line(refresh))
    if not refreshes:
        say("no refresh is listed")


def refreshes_json(refreshes: Sequence[Refresh]) -> str:
    return json.dumps([refresh.to_json() for refresh in refreshes], indent=2)


def _refresh_line(refresh: Refresh) -> str:
    what = f"all of {refresh.table}" if refresh.whole else refresh.table
    if refresh.where is not None:
        what += f" where {' '.join(refresh.where.split())}"
    if refresh.keys is not None:
        what += f", {counted(refresh.keys, 'key')}"
    words = [f"refresh {refresh.id}: truck {refresh.truck}, {what}: {refresh.state.value}"]
    if not refresh.whole and refresh.total is not None:
        words.append(f"{refresh.done} of {refresh.total} read, {refresh.deleted} deleted")
    if refresh.reason:
        words.append(refresh.reason)
    return "; ".join(words)


def verification_text(verification: Verification) -> None:
    """A line with the result; the keys of rows that differ below it."""
    say(_verification_line(verification))
    for kind, keys in (
        ("missing", verification.missing),
        ("extra", verification.extra),
        ("different", verification.different),
    ):
        for key in keys[:KEYS_SHOWN]:
            say(f"  {kind}: {key_line(key)}")
        if len(keys) > KEYS_SHOWN:
            say(f"  {kind}: {len(keys) - KEYS_SHOWN:,} more; --keys FILE writes all of them")


def verifications_json(verifications: Sequence[Verification]) -> str:
    return json.dumps([verification.to_json() for verification in verifications], indent=2)


def replay_lines(replay: Replay) -> Iterator[str]:
    """What was replayed, and how far."""
    reached = f"{replay.end} ({replay.end_time})" if replay.end_time else replay.end
    what = f"truck {replay.truck}: {counted(replay.rows, 'row')} written to {replay.into}"
    yield f"{what}, from {replay.start} to {reached}, {duration(replay.seconds)}"
    if not replay.complete:
        yield "stopped before the end"


def replay_json(replay: Replay) -> str:
    return json.dumps(replay.to_json(), indent=2)


def _verification_line(verification: Verification) -> str:
    what = f"truck {verification.truck}" + (f", {verification.table}" if verification.table else "")
    if verification.error or verification.skipped:
        return f"{what}: not verified: {verification.error or verification.skipped}"
    repaired = f"{counted(verification.repaired, 'row')} refreshed, now " if verification.repaired else ""
    where = f"at {verification.position}, {duration(verification.seconds)}"
    if verification.equal:
        return f"{what}: {repaired}equal; {counted(verification.source_rows, 'row')} {where}"
    differing = counted(verification.differing, "row")
    counts = {
        "missing": len(verification.missing) + verification.keyless_missing,
        "extra": len(verification.extra) + verification.keyless_extra,
        "different": len(verification.different),
    }
    parts = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    least = "" if verification.complete else "at least "
    rows = f"{verification.source_rows:,} rows at the source, {verification.destination_rows:,} at the destination"
    return f"{what}: {repaired}{least}{differing} differ: {parts}; {rows} {where}"
