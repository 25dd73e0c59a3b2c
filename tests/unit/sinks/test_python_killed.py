"""Handlers whose process is killed at any instant (I4)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from fixtures.handlers import FullJournal, KeepingShelf, connection_of, shelf
from fixtures.killed import KEEPS, SCHEMA, kill_repeatedly
from trucker.sinks.base import Workspace
from trucker.sinks.python import python_sink


def make_sink(folder: Path) -> Any:
    """The sink under test, in the process that is killed: its kind is the name of the folder."""
    kind = {"shelf": KeepingShelf, "journal": FullJournal}[folder.name]
    connection = connection_of(kind, "main", settings={"path": folder / "out"})
    return python_sink(connection, Workspace("killed", folder / "spool"))


def test_a_handler_gets_every_change_at_least_once_and_in_order_from_where_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()

    def check(last: int) -> None:
        lines = [each for each in _whole_lines(folder / "out") if each["call"] in ("insert", "update", "delete")]
        numbers = [each["new"]["id"] for each in lines if each["call"] == "insert" and each["new"]["id"]]
        assert set(range(1, last + 1)) <= set(numbers)
        for before, after in itertools.pairwise(numbers):
            assert after == before + 1 or after <= before, "the order of the changes, or some of them again"
        updates = [each["new"]["n"] for each in lines if each["call"] == "update"]
        assert all(after == before + 1 or after <= before for before, after in itertools.pairwise(updates))

    kill_repeatedly("unit.sinks.test_python_killed", folder, check, times=4)


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """A process that is killed may leave half a line."""
    import json

    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def test_a_batcher_that_stores_the_position_has_every_change_once(tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    folder.mkdir()

    def check(last: int) -> None:
        rows = {int(row["id"] or 0): row for row in shelf(folder / "out", SCHEMA.table)}
        newest = int(rows[0]["n"] or 0)
        assert newest in (last, last + 1)
        assert set(rows) == {0, *range(max(1, newest - KEEPS + 1), newest + 1)}

    kill_repeatedly("unit.sinks.test_python_killed", folder, check, times=4)
