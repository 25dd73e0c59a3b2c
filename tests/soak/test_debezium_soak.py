"""The real Debezium reads the changes that trucker reads: both envelopes say the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from fixtures.debezium import comparison
from fixtures.debezium.connector import Connector, has_maven
from trucker.change import Changes, Frames, TableId
from trucker.pgoutput import decode
from trucker.postgres.catalog import load_table
from trucker.testing.server import Server

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not has_maven(), reason="Maven is missing, which gets Debezium's jars: install maven"),
]
SQL = Path(comparison.__file__).with_name("changes.sql")
TEXT_FORM = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=3 -c bytea_output=hex"
    " -c lc_monetary=C"
)


def decoded(connection: psycopg.Connection[Any]) -> list[Changes]:
    """All changes in the slot, with the columns as the catalogue describes them."""
    rows = connection.execute(
        "select data from pg_logical_slot_get_binary_changes('trucker', null, null,"
        " 'proto_version', '1', 'publication_names', 'trucker')"
    ).fetchall()
    messages = [bytes(row[0]) for row in rows]
    starts = np.concatenate([[0], np.cumsum([len(message) for message in messages])]).astype(np.int64)
    frames = Frames(np.frombuffer(b"".join(messages), np.uint8), starts)
    names = [name for (name,) in connection.execute("select tablename from pg_tables where schemaname = 'public'")]
    tables = [load_table(connection, TableId("public", name)).schema for name in names]
    changes = decode(frames, {table.table: table.key for table in tables})
    by_name = {table.table: table for table in tables}
    return [each.reshaped(by_name[each.schema.table]) for each in changes]


def test_envelopes_are_those_of_the_real_debezium(tmp_path: Path) -> None:
    """Set TRUCKER_RECORD_DEBEZIUM=1 to keep what was said for the test without Debezium."""
    before, _, after = SQL.read_text().partition("-- SNAPSHOT ENDS\n")
    with Server(tmp_path / "server", settings={"wal_level": "logical"}) as server:
        with server.connect(autocommit=True) as connection:
            connection.execute(before.encode())
        with (
            Connector(server, tmp_path).running() as connector,
            server.connect(autocommit=True, options=TEXT_FORM) as connection,
        ):
            connection.execute("create publication trucker for all tables")
            connection.execute("select pg_create_logical_replication_slot('trucker', 'pgoutput')")
            for statement in after.split("-- NEXT\n"):
                connection.execute(statement.encode())
            recording = comparison.Recording(decoded(connection), connector.messages())
    if os.environ.get("TRUCKER_RECORD_DEBEZIUM"):
        recording.save()
    comparison.check(recording, tmp_path)
