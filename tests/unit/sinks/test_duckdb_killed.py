"""kill -9 while batches are committed: the data is exactly that of the stored position (I3, I4, I5)."""

from __future__ import annotations

from pathlib import Path

import duckdb

from fixtures.killed import KEEPS, TOTALS, kill_repeatedly
from trucker.adapters.duckdb import DuckDBConnection
from trucker.sinks.base import Workspace
from trucker.sinks.duckdb import DuckDBSink


def make_sink(folder: Path) -> DuckDBSink:
    connection = DuckDBConnection(name="d", adapter="duckdb", path=folder / "d.duckdb")
    return DuckDBSink(connection, Workspace("p", folder / "work"))


def test_killed(tmp_path: Path) -> None:
    def check(committed: int) -> None:
        sink = make_sink(tmp_path)
        position = sink.open().states()["main"].lsn
        sink.close()
        last = position // 10 - 1
        assert last >= committed
        with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
            rows = connection.execute("SELECT id, n FROM public.t ORDER BY id").fetchall()
        kept = range(max(1, last - KEEPS + 1), last + 1)
        assert rows == [(0, last), *((number, number) for number in kept)]

    kill_repeatedly("unit.sinks.test_duckdb_killed", tmp_path, check, 2)


def test_killed_while_output_sql_adds(tmp_path: Path) -> None:
    """What is not the same when done twice is done once."""
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        for statement in TOTALS:
            connection.execute(statement)

    def check(committed: int) -> None:
        sink = make_sink(tmp_path)
        last = sink.open().states()["main"].lsn // 10 - 1
        sink.close()
        assert last >= committed
        with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
            rows = connection.execute("SELECT n, batches FROM totals").fetchall()
        assert rows == [(sum(range(last + 1)), last + 1)]

    kill_repeatedly("unit.sinks.test_duckdb_killed", tmp_path, check, 2, "add_for_ever")
