"""The commands: each parses, calls one method of `Project` and renders what it gives.

What they need is imported when they run: `trucker --help` loads neither Spark nor Arrow nor a driver.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trucker.cli import live, output
from trucker.cli.exits import ExitCode, status_code
from trucker.cli.keys_file import read_keys, write_keys
from trucker.cli.options import AsJson, Debug, ProjectFolder, ProjectOption, SqlChange
from trucker.control.answers import RefreshState
from trucker.errors import ConfigError, TruckerError
from trucker.finding import Level
from trucker.observe import logs
from trucker.observe.logs import LogFormat
from trucker.observe.status import ProjectStatus, TruckPhase

if TYPE_CHECKING:
    from trucker.project import Project

HERE = Path()
_NO_CHANGES = (
    "the change log has no changes: it deletes those that every truck has applied, unless `log.keep` is set in "
    "trucker.yml; --follow waits for new ones"
)


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to create.", show_default="the current folder")
    ] = HERE,
    debug: Debug = False,
) -> None:
    """Write a commented starter project.

    Existing files are not overwritten.
    """
    from trucker.config.starter import write_starter

    for path in write_starter(folder):
        output.say(f"wrote {path}")
    output.say(f"next: describe your connections in {folder / 'trucker.yml'}, then run `trucker check {folder}`")


def check(project: ProjectFolder = HERE, as_json: AsJson = False, debug: Debug = False) -> None:
    """Check the project, the source and the destinations.

    Prints errors and warnings with their remedies, and changes nothing. Exit code 1 when there are errors.
    """
    findings = _open(project, debug).check()
    if as_json:
        output.say(output.findings_json(findings))
    else:
        output.findings_text(findings)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def run(
    project: ProjectFolder = HERE,
    once: Annotated[bool, typer.Option("--once", help="Apply all changes that exist now, then exit.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="If another instance holds the project, wait until it ends.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Start only if `check` finds no error, even if only some trucks would have to wait."
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only; show no table.")] = False,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="The format of log lines.")] = LogFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Run the trucks until stopped.

    SIGINT and SIGTERM stop the run after the current batch. `trucker PROJECT` does the same as `trucker run PROJECT`.
    """
    opened = _open(project, debug)
    # Where the log shares the terminal with the table, only warnings are logged; a redirected log is complete.
    shared = sys.stderr.isatty()
    as_table = live.shows_table(opened.config, quiet=quiet) and not (shared and log_format is LogFormat.JSON)
    logs.set_up(_level(verbose or debug, quiet or (as_table and shared)), log_format, debug=debug)
    with live.table() if as_table else nullcontext() as on_status:
        final = opened.run(once=once, wait=wait, strict=strict, on_status=on_status)
    _exit_if_failed(final)


def status(project: ProjectFolder = HERE, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the state of every truck.

    Prints state, position, lag, rows, copies and errors. Exit code 1 when a truck has failed, 6 when the project is not
    running although it was not stopped, 5 when the lag of the trucks is not known.
    """
    current = _open(project, debug).status()
    if as_json:
        output.say(current.to_json())
    else:
        output.status_text(current)
    if (code := status_code(current)) is not ExitCode.FINE:
        raise typer.Exit(code)


def replay(
    truck: Annotated[str, typer.Argument(metavar="TRUCK", help="The truck's name.", show_default=False)],
    project: ProjectOption = HERE,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="LSN|TIME",
            help="Only changes that were committed after this LSN, or at this time or later.",
            show_default="where the copy ends",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="LSN|TIME",
            help="Only changes that were committed up to this LSN or time.",
            show_default="the end of the change log",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="CONNECTION",
            help="The connection to write to.",
            show_default="the truck's destination, where it keeps every change",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write changes of a truck from the change log again.

    A destination that keeps every change gets them once more, as a series of its own. Tables are brought forward from a
    copy of the truck's destination to a moment. The source is not asked. Exit code 1 when it was stopped before the
    end.
    """
    opened = _open(project, debug)
    logs.set_up(logging.INFO, LogFormat.TEXT, debug=debug)
    replayed = opened.replay(truck, start=start, end=end, into=into)
    # Where the changes went to standard output, nothing else may.
    say = output.report if live.writes_to_stdout(opened.config, [replayed.into]) else output.say
    for line in [output.replay_json(replayed)] if as_json else output.replay_lines(replayed):
        say(line)
    if not replayed.complete:
        raise typer.Exit(ExitCode.FAILED)


def peek(
    project: ProjectFolder = HERE,
    truck: Annotated[
        str | None, typer.Option("--truck", "-t", metavar="NAME", help="Only changes that this truck reads.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="COUNT", min=1, help="Print only the last COUNT changes."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep waiting for new changes.")] = False,
    debug: Debug = False,
) -> None:
    """Print the changes in the change log as JSON lines.

    Nothing is applied or acknowledged.
    """
    count = 0
    try:
        lines = _open(project, debug).peek(truck=truck, limit=limit, follow=follow)
        if follow:
            sys.stderr.write("waiting for new changes; press Ctrl-C to stop\n")
        for line in lines:
            sys.stdout.write(line + "\n")
            count += 1
            if follow:
                sys.stdout.flush()
        sys.stdout.flush()
        if not count:
            sys.stderr.write(f"{_NO_CHANGES}\n")
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # The reader (`head`) has closed the pipe; the flush when Python ends must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def try_(
    truck: Annotated[str, typer.Argument(metavar="TRUCK", help="The truck's name.")],
    project: ProjectFolder = HERE,
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows", metavar="FILE", help="Use the changes in this file: JSON lines as `trucker peek` prints them."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="How many of the latest changes to use.")
    ] = 10,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run recent changes through a truck's steps, and show the result of each.

    Runs rules and SQL, and prepares output.sql without running it. Writes nothing and moves no position.
    """
    steps = _open(project, debug).try_truck(truck, rows=rows, limit=limit)
    if as_json:
        output.say(output.trial_json(steps))
    else:
        output.trial_text(steps)


def reset(
    project: ProjectFolder = HERE,
    truck: Annotated[
        list[str] | None, typer.Option("--truck", "-t", metavar="NAME", help="Only this truck; may be repeated.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="TABLE", help="Only this source table, schema.table; needs --truck."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete stored positions, so that the next run copies the tables again.

    Asks first, then drops the slots, the publications, the change logs and the positions; with --truck only the
    positions of those trucks, with --table only the state of that table.
    """
    opened = _open(project, debug)
    _ask(opened.reset_plan(truck or None, table=table), yes=yes)
    dropped = opened.reset(truck or None, table=table)
    if as_json:
        output.say(output.lines_json(dropped))
        return
    for line in dropped:
        output.say(f"dropped: {line}")
    output.say("next: `trucker run` copies the tables again; rows at the destination stay until then")


def accept(
    project: ProjectFolder = HERE,
    truck: Annotated[
        list[str] | None, typer.Option("--truck", "-t", metavar="NAME", help="Only this truck; may be repeated.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="Only this source table, schema.table.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Accept destination tables that were dropped or altered.

    The next run creates a dropped table, empty, and goes on from the truck's position; it treats a dropped column as a
    new one. To copy the rows again, use `trucker reset --table` instead.
    """
    accepted = _open(project, debug).accept(truck or None, table=table)
    if as_json:
        output.say(output.accepted_json(accepted))
    else:
        output.accepted_text(accepted)


def redrive(
    project: ProjectFolder = HERE,
    truck: Annotated[
        str | None, typer.Option("--truck", "-t", metavar="NAME", help="Only dead letters of this truck.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="TABLE", help="Only dead letters of this source table, schema.table."),
    ] = None,
    number: Annotated[
        list[int] | None, typer.Option("--id", metavar="ID", help="Only the dead letter with this id; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Apply dead letters again.

    Applies the rows that a destination refused, in the order of their positions, and deletes the dead letters of those
    that succeed. The project may be running. Exit code 1 when rows are refused again. Events of a stream are sent again
    as they were; --dry-run only lists them.
    """
    redriven = _open(project, debug).redrive(truck, table=table, ids=number, dry_run=dry_run)
    if as_json:
        output.say(output.redriven_json(redriven))
    else:
        output.redriven_text(redriven, dry_run=dry_run)
    if any(result.applied is False for result in redriven):
        raise typer.Exit(ExitCode.FAILED)


def pause(
    trucks: Annotated[list[str], typer.Argument(metavar="TRUCK…", help="The trucks' names.")],
    project: ProjectOption = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Pause trucks; the others go on.

    A truck stops at the end of its batch, and stays paused over restarts until `trucker resume`. Its position stays,
    and the change log keeps what it has not applied. Copies in progress are finished first. While the project does not
    run, this is recorded for the next run.
    """
    paused = _open(project, debug).pause(trucks)
    output.say(output.pauses_json(paused)) if as_json else output.pauses_text(paused)


def resume(
    trucks: Annotated[list[str], typer.Argument(metavar="TRUCK…", help="The trucks' names.")],
    project: ProjectOption = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Resume trucks that are paused, from their positions.

    While the project does not run, this is recorded for the next run.
    """
    resumed = _open(project, debug).resume(trucks)
    output.say(output.pauses_json(resumed)) if as_json else output.pauses_text(resumed)


def reload(
    project: ProjectFolder = HERE,
    truck: Annotated[str | None, typer.Option("--truck", "-t", metavar="NAME", help="Only this truck.")] = None,
    on_sql_change: Annotated[
        SqlChange,
        typer.Option(
            "--on-sql-change",
            help="What to do with a truck whose SQL, rules, lookups or functions changed: `refuse` changes nothing and "
            "says what to run; `go-on` uses the new ones from the current position.",
        ),
    ] = SqlChange.REFUSE,
    interrupt_copies: Annotated[
        bool, typer.Option("--interrupt-copies", help="Reload even if copies in progress have to begin anew.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take up changed trucks in the running instance.

    Takes up trucks that were added, removed or changed, and new connections, without a restart of the process. The
    files are checked as by `trucker check`: if there are errors, or a change needs a restart, nothing changes. Exit
    code 1 when there are errors.
    """
    opened = _open(project, debug)
    reloaded = opened.reload(truck=truck, on_sql_change=on_sql_change.value, interrupt_copies=interrupt_copies)
    output.say(output.reloaded_json(reloaded)) if as_json else output.reloaded_text(reloaded)
    if reloaded.errors:
        raise typer.Exit(ExitCode.FAILED)


def stop(
    project: ProjectFolder = HERE,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the instance has ended.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Stop the running instance.

    It stops after the current batch, as with SIGTERM. Exit code 1 when no instance runs.
    """
    request = _open(project, debug).stop(wait=wait)
    output.say(output.stop_json(request)) if as_json else output.stop_text(request)


def refresh(
    truck: Annotated[str | None, typer.Argument(metavar="TRUCK", help="The truck's name.", show_default=False)] = None,
    project: ProjectOption = HERE,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="TABLE", help="Only this source table, schema.table."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Only rows that meet this condition, which is SQL at the source."),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help="Only rows with the keys in this CSV file: one key per line, without a header; - for standard input.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the rows have been refreshed.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List refreshes instead.")] = False,
    cancelled: Annotated[
        int | None, typer.Option("--cancel", metavar="ID", help="Cancel a queued or running refresh instead.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read rows of a truck again while the stream goes on.

    Queues the refresh of a table, of the rows that meet a condition, or of the rows with given keys. Rows are read
    again at the source and replaced at the destination; rows that the source no longer has are deleted there. Without a
    running instance the next run does it. With --wait, exit code 1 when the refresh fails or is cancelled.
    """
    opened = _open(project, debug)
    if listed or cancelled is not None:
        refreshes = opened.refreshes() if listed else [opened.cancel_refresh(cancelled or 0)]
    else:
        if truck is None:
            raise ConfigError("no truck is given", remedy="name one: trucker refresh TRUCK; or --list, --cancel ID")
        given = read_keys(keys) if keys is not None else None
        refreshes = opened.refresh(truck, table=table, where=where, keys=given)
        if wait:
            refreshes = opened.await_refreshes(refreshes)
    output.say(output.refreshes_json(refreshes)) if as_json else output.refreshes_text(refreshes)
    if wait and any(each.state in (RefreshState.FAILED, RefreshState.CANCELLED) for each in refreshes):
        raise typer.Exit(ExitCode.FAILED)


def verify(
    truck: Annotated[str | None, typer.Argument(metavar="TRUCK", help="The truck's name.", show_default=False)] = None,
    project: ProjectOption = HERE,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="TABLE", help="Only this source table, schema.table."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Refresh the rows that differ, and compare the table again.")
    ] = False,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help="Write the keys of rows that differ to this CSV file, for `trucker refresh`. Needs --table.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare tables at their destination with the source.

    Both sides are compared as they were at one position, while the stream goes on. Shows how many rows differ, and
    their keys. Needs a running instance. Exit code 0 only if all rows are equal.
    """
    opened = _open(project, debug)
    if table is not None and truck is None:
        raise ConfigError("--table is given without a truck", remedy="name it: trucker verify TRUCK --table TABLE")
    if keys is not None and table is None:
        raise ConfigError("--keys is for the keys of one table", remedy="name it: --table TABLE")
    verifications = []
    for each in opened.verify(truck, table=table, repair=repair):
        verifications.append(each)
        if not as_json:
            output.verification_text(each)
    if as_json:
        output.say(output.verifications_json(verifications))
    if keys is not None:
        write_keys(keys, verifications[0].keys)
    compared = [each for each in verifications if not each.skipped]
    if not compared or not all(each.equal for each in compared):
        raise typer.Exit(ExitCode.FAILED)


def demo(debug: Debug = False) -> None:
    """Run a demonstration, in about a minute.

    Replicates a small shop on an embedded PostgreSQL to two stores, with a crash in the middle.
    """
    logs.set_up(logging.DEBUG if debug else logging.WARNING, debug=debug)
    try:
        from trucker.testing.demo import main
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != "trucker":
            raise TruckerError(
                f"the demo needs the package {error.name}", remedy='run: pip install "trucker[demo]"', code="TRK602"
            ) from None
        raise
    raise typer.Exit(main())


def _open(folder: Path, debug: bool) -> Project:
    logs.set_up(logging.DEBUG if debug else logging.WARNING, debug=debug)
    from trucker.project import Project

    return Project.load(folder)


def _level(verbose: bool, quiet: bool) -> int:
    if verbose:
        return logging.DEBUG
    return logging.WARNING if quiet else logging.INFO


def _failed(status: ProjectStatus) -> bool:
    return any(truck.phase is TruckPhase.FAILED or truck.failed for truck in status.trucks)


def _exit_if_failed(final: ProjectStatus) -> None:
    """Every error once, with the trucks that it stopped."""
    reasons: dict[str, list[str]] = {}
    for truck in final.trucks:
        for table in truck.failed:
            sys.stderr.write(f"error: table {table.table} of truck {truck.name} failed: {table.error}\n")
        if truck.phase is TruckPhase.FAILED:
            reasons.setdefault(truck.error or "no reason given", []).append(truck.name)
    for reason, names in reasons.items():
        which = f"truck {names[0]}" if len(names) == 1 else f"{len(names)} trucks ({', '.join(names)})"
        sys.stderr.write(f"error: {which} failed: {reason}\n")
    if _failed(final):
        raise typer.Exit(ExitCode.FAILED)


def _ask(plan: Sequence[str], *, yes: bool) -> None:
    """Show what would be dropped and ask for confirmation; without a terminal, only `--yes` confirms."""
    if not plan:
        output.say("nothing to reset")
        raise typer.Exit(ExitCode.FINE)
    if yes:
        return
    output.say("this would be dropped:")
    for line in plan:
        output.say(f"  {line}")
    if not sys.stdin.isatty():
        sys.stderr.write(
            "error: cannot ask for confirmation: standard input is not a terminal\nnext: use --yes to reset "
            "without confirmation\n"
        )
        raise typer.Exit(ExitCode.WRONG)
    if not typer.confirm("go ahead?"):
        output.say("nothing was changed")
        raise typer.Exit(ExitCode.FAILED)
