"""kill -9 while batches are committed to PostgreSQL: the data is exactly that of the stored position (I3, I4, I5)."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures.killed import KEEPS, SCHEMA, TOTALS, kill_repeatedly
from fixtures.postgres_sink import PostgresDestination
from trucker.adapters.postgres import PostgresConnection
from trucker.sinks.base import Workspace
from trucker.sinks.postgres import PostgresSink


def make_sink(folder: Path) -> PostgresSink:
    connection = PostgresConnection.model_validate(json.loads((folder / "connection.json").read_text()))
    return PostgresSink(connection, Workspace("suite", folder))


def connection_file(place: PostgresDestination, folder: Path) -> None:
    connection = place.database.connection
    given = {**connection.model_dump(mode="json"), "password": connection.password.get_secret_value()}
    (folder / "connection.json").write_text(json.dumps(given))


def test_killed(place: PostgresDestination, tmp_path: Path) -> None:
    connection_file(place, tmp_path)

    def check(committed: int) -> None:
        last = place.committer().open()["main"].lsn // 10 - 1
        assert last >= committed
        rows = sorted((int(row["id"] or -1), int(row["n"] or -1)) for row in place.rows(SCHEMA.table))
        kept = range(max(1, last - KEEPS + 1), last + 1)
        assert rows == [(0, last), *((number, number) for number in kept)]

    kill_repeatedly("integration.sinks.test_postgres_killed", tmp_path, check, 3)


def test_killed_while_output_sql_adds(place: PostgresDestination, tmp_path: Path) -> None:
    """What is not the same when done twice is done once."""
    connection_file(place, tmp_path)
    place.database.execute(*TOTALS)

    def check(committed: int) -> None:
        last = place.committer().open()["main"].lsn // 10 - 1
        assert last >= committed
        assert place.database.query("select n, batches from totals") == [(sum(range(last + 1)), last + 1)]
        assert place.stages() == 0

    kill_repeatedly("integration.sinks.test_postgres_killed", tmp_path, check, 2, "add_for_ever")
