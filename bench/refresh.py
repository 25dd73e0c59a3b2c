"""A refresh of one row in a hundred of a table that streams against one of all of it, from the command to its end.

The table is copied first; before each refresh the rows that it is to set right are changed at the destination.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from figure import ratio_at_most
from harness import TABLE, Bench, fill, value
from trucker.control.answers import RefreshState
from trucker.project import Project

SHARE = 100
SOME = f"id % {SHARE} = 0"
_NAME = "refresh"


def measure(bench: Bench) -> None:
    """Seconds of either refresh, in the same round."""
    some = bench.figure(
        "refresh of 1 % of a table, by a condition", "s", ratio_at_most(0.5), "refresh of all of it", bench.rows
    )
    source = bench.database(bench.source, _NAME, TABLE.format(name="bench"))
    fill(source, "bench", 1, bench.rows, 100_000)
    source.execute(b"vacuum analyze bench")
    target = bench.database(bench.target, _NAME)
    folder = bench.project(_NAME, _NAME, _NAME, ["public.bench"])
    bench.streaming(folder)
    bench.wait(lambda: value(target, "select count(*) from bench") == bench.rows)
    turns: list[Callable[[], None]] = [
        lambda: some.trucker.append(_refreshed(bench, folder, target, SOME)),
        lambda: some.reference.append(_refreshed(bench, folder, target, None)),
    ]
    for number in bench.rounds():
        bench.alternate(number, *turns)
        bench.say(f"1 %: {some.trucker[-1]:.2f} s, all: {some.reference[-1]:.2f} s")


def _refreshed(bench: Bench, folder: Path, target: psycopg.Connection[Any], where: str | None) -> float:
    """The seconds of one refresh."""
    target.execute(f"update bench set note = 'damaged' where {SOME}".encode())
    bench.settle()
    project = Project.load(folder)
    (ended,) = project.await_refreshes(project.refresh("bench", where=where))
    if ended.state is not RefreshState.DONE or ended.ended is None:
        raise RuntimeError(f"the refresh is {ended.state.value}: {ended.reason}")
    if value(target, "select count(*) from bench where note = 'damaged'"):
        raise RuntimeError("rows are not refreshed")
    return ended.ended - ended.queued
