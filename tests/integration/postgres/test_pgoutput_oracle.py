"""PostgreSQL is the oracle: what it streams, decoded, is what it shows as text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pytest

from fixtures.pg import Database
from trucker.change import (
    DELETE,
    INSERT,
    OLD_FULL,
    OLD_KEY,
    TRUNCATE,
    UPDATE,
    Changes,
    Frames,
    TableId,
    TableSchema,
    parse_copy_csv,
)
from trucker.engine.transform.compact import compact
from trucker.pgoutput import decode

TYPES = {
    "boolean": ["true", "null"],
    "smallint": ["-32768"],
    "integer": ["2147483647"],
    "bigint": ["-9223372036854775808"],
    "numeric": ["'NaN'", "'Infinity'", "1234567890123456789012345678901234567890.000000000100"],
    "numeric(10,3)": ["1.5"],
    "real": ["'-Infinity'", "1e-30", "0.1"],
    "double precision": ["'NaN'", "1e300", "0.1", "-0.0"],
    "money": ["12.34"],
    "text": ["''", "'ä€💥'", "E'tab\\tline\\nback\\\\'", "'null'", "repeat('long ', 1000)"],
    "varchar(9)": ["'x'"],
    "char(5)": ["'ab'"],
    "name": ["'a_name'"],
    "bytea": ["'\\x00ff10'", "''"],
    "date": ["'0044-03-15 BC'", "'infinity'", "'2024-02-29'"],
    "time": ["'23:59:59.999999'"],
    "timetz": ["'04:05:06-08'"],
    "timestamp": ["'2024-01-01 00:00:00.000001'"],
    "timestamptz": ["'2024-07-01 12:00:00+02'", "'-infinity'"],
    "interval": ["'1 year -2 days 03:04:05.6'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "json": ["'{\"a\":  [1, null]}'"],
    "jsonb": ['\'{"b": {"c": "ä"}}\''],
    "inet": ["'192.168.0.1/24'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "bit(3)": ["B'101'"],
    "varbit": ["B'1'"],
    "point": ["'(1,2.5)'"],
    "box": ["'((0,0),(1,1))'"],
    "polygon": ["'((0,0),(1,1),(2,0))'"],
    "tsvector": ["'a fat cat'::tsvector"],
    "int4range": ["'[1,5)'", "'empty'"],
    "tstzrange": ["'[2024-01-01,)'"],
    "int4multirange": ["'{[1,3), [5,9)}'"],
    "integer[]": ["'{1,null,3}'", "'{{1,2},{3,4}}'"],
    "text[]": ["array['a \"quote\"', '', null, 'comma,']"],
    "mood": ["'happy'"],
    "positive": ["7"],
    "pair": ["row(1, 'two, \"words\"')"],
    "pg_lsn": ["'16/B374D848'"],
    "oid": ["4294967295"],
}


class Slot:
    """A pgoutput slot, read through SQL."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def frames(self) -> Frames:
        """Everything since the last call."""
        rows = self.connection.execute(
            "select data from pg_logical_slot_get_binary_changes('s', null, null,"
            " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
        ).fetchall()
        messages = [bytes(row[0]) for row in rows]
        starts = np.concatenate([[0], np.cumsum([len(message) for message in messages])]).astype(np.int64)
        return Frames(np.frombuffer(b"".join(messages), np.uint8), starts)


@contextmanager
def published(database: Database, *statements: str) -> Iterator[Slot]:
    """The statements done, everything published, a slot created."""
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())
        connection.execute("create publication p for all tables with (publish_via_partition_root)")
        connection.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
        try:
            yield Slot(connection)
        finally:
            connection.execute("select pg_drop_replication_slot('s')")


def copied(connection: psycopg.Connection[Any], schema: TableSchema) -> list[dict[str, str | None]]:
    """The table's rows as COPY gives them, which the snapshot uses."""
    with connection.cursor().copy(f"copy {schema.table} to stdout (format csv, force_quote *)".encode()) as copy:
        data = b"".join(bytes(part) for part in copy)
    rows: list[dict[str, str | None]] = parse_copy_csv(schema, data).to_pylist()
    return rows


def shown(connection: psycopg.Connection[Any], schema: TableSchema) -> list[dict[str, str | None]]:
    """The table's rows by their types' output functions (a cast to text differs for boolean and char)."""
    cells = ", ".join(
        f'case when not "{n}" is not distinct from null then format(\'%s\', "{n}") end' for n in schema.names
    )
    rows = connection.execute(f"select {cells} from {schema.table}".encode()).fetchall()
    return [dict(zip(schema.names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("identity", ["default", "full"])
def test_every_type_is_what_the_server_shows(any_database: Database, identity: str) -> None:
    columns = ", ".join(f'"{name}" {name}' for name in TYPES)
    with published(
        any_database,
        "create type mood as enum ('happy', 'sad')",
        "create domain positive as integer check (value > 0)",
        "create type pair as (a integer, b text)",
        f"create table t (id integer primary key, {columns})",
        f"alter table t replica identity {identity}",
    ) as slot:
        for number in range(max(map(len, TYPES.values()))):
            values = ", ".join(options[number] if number < len(options) else "null" for options in TYPES.values())
            slot.connection.execute(f"insert into t values ({number}, {values})".encode())
        slot.connection.execute("update t set id = id + 100, mood = 'sad' where id = 0")
        [changes] = decode(slot.frames(), {TableId("public", "t"): ("id",)})
        assert changes.schema.names == ("id", *TYPES)
        [net] = compact([changes])
        streamed = [row for row in net.new.to_pylist() if row["id"] is not None]
        for expected in (shown(slot.connection, changes.schema), copied(slot.connection, changes.schema)):
            assert sorted(streamed, key=by_id) == sorted(expected, key=by_id)


def by_id(row: dict[str, str | None]) -> int:
    return int(row["id"] or 0)


def test_old_tuples_truncates_messages_and_partitions(any_database: Database) -> None:
    with published(
        any_database,
        "create table d (id integer primary key, note text, big text)",
        "create table f (id integer primary key, note text, big text)",
        "alter table f replica identity full",
        "alter table d alter big set storage external",
        "alter table f alter big set storage external",
        "create table parts (id integer primary key, a text) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (10)",
        "create table parts_2 partition of parts for values from (10) to (20)",
    ) as slot:
        for table in "df":
            slot.connection.execute(f"insert into {table} values (1, 'a', repeat('x', 9000)), (2, 'b', null)".encode())
            slot.connection.execute(f"update {table} set note = 'c' where id = 1".encode())
            slot.connection.execute(f"update {table} set id = 3 where id = 1".encode())
            slot.connection.execute(f"delete from {table} where id = 2".encode())
        slot.connection.execute("select pg_logical_emit_message(true, 'trucker', 'hello')")
        slot.connection.execute("select pg_logical_emit_message(false, 'trucker', 'hello')")
        slot.connection.execute("insert into parts values (1, 'a'), (11, 'b')")
        slot.connection.execute("update parts set id = 12 where id = 1")
        slot.connection.execute("truncate d, f restart identity")
        frames = slot.frames()

    keys = {TableId("public", name): ("id",) for name in ("d", "f", "parts")}
    d, f, parts = decode(frames, keys)
    big = "x" * 9000
    assert d.op.tolist() == f.op.tolist() == [INSERT, INSERT, UPDATE, UPDATE, DELETE, TRUNCATE]
    assert d.old_kind.tolist() == [0, 0, 0, OLD_KEY, OLD_KEY, 0]
    assert f.old_kind.tolist() == [0, 0, OLD_FULL, OLD_FULL, OLD_FULL, 0]
    assert d.unchanged["big"].tolist() == [False, False, True, True, False, False]
    assert not f.unchanged
    assert f.new.column("big").to_pylist() == [big, None, big, big, None, None]
    assert [row["id"] for row in d.old.to_pylist()] == [None, None, None, "1", "2", None]
    assert f.old.to_pylist()[4] == {"id": "2", "note": "b", "big": None}
    assert (np.diff(d.commit_lsn.astype(np.int64)) >= 0).all()
    assert d.ordinal.tolist() == [0, 1, 0, 0, 0, 0]
    assert parts.schema.table == TableId("public", "parts")
    assert sorted(row["id"] for row in compact([parts])[0].new.to_pylist()) == ["11", "12"]


def test_a_shape_that_changes_in_the_middle(database: Database) -> None:
    with published(database, "create table t (id integer primary key, a text)") as slot:
        slot.connection.execute("insert into t values (1, 'x')")
        slot.connection.execute("alter table t add b text default 'new'")
        slot.connection.execute("update t set a = 'y'")
        slot.connection.execute("alter table t drop a")
        slot.connection.execute("insert into t values (2, 'z')")
        parts: list[Changes] = decode(slot.frames(), {TableId("public", "t"): ("id",)})
    assert [part.schema.names for part in parts] == [("id", "a"), ("id", "a", "b"), ("id", "b")]
    [net] = compact(parts)
    assert net.new.to_pylist() == [{"id": "1", "b": "new"}, {"id": "2", "b": "z"}]
