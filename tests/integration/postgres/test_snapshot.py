"""The exported snapshot: every row once, as the server itself would write it, whatever happens meanwhile."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from fixtures.pg import Database
from fixtures.waiting import wait_until
from trucker.change import CopiedRows, Frames, Lsn, TableId
from trucker.errors import SourceError, SourceUnavailable
from trucker.pgoutput import decode
from trucker.postgres.catalog import load_table
from trucker.postgres.connect import connect, parameters
from trucker.postgres.replication.stream import ReplicationStream
from trucker.postgres.slot import create_slot
from trucker.postgres.snapshot import enter_snapshot, plan_chunks, read_chunk
from trucker.source.snapshot import SnapshotChunk


@contextmanager
def snapshot_of(database: Database) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A connection inside a fresh exported snapshot."""
    with create_slot(database.connection, f"trucker_{database.name}", temporary=True) as exported:
        connection = connect(database.connection, application="test")
        try:
            enter_snapshot(connection, exported.snapshot)
            yield connection, exported.snapshot
        finally:
            connection.close()


def public(name: str) -> TableId:
    return TableId("public", name)


def copy_all(connection: psycopg.Connection[Any], chunks: Sequence[SnapshotChunk]) -> list[CopiedRows]:
    return [piece for chunk in chunks for piece in read_chunk(connection, chunk, Lsn(7))]


def values(pieces: Sequence[CopiedRows]) -> list[tuple[str | None, ...]]:
    batches = [piece.to_changes().new for piece in pieces]
    for piece, batch in zip(pieces, batches, strict=True):
        assert piece.rows == batch.num_rows
    return [tuple(row.values()) for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]


def test_many_chunks_hold_every_row_once(any_database: Database) -> None:
    any_database.execute(
        "create table t (id int primary key, note text)",
        "insert into t select i, repeat('x', i % 100) from generate_series(1, 20000) i",
        "delete from t where id % 7 = 0",
    )
    with snapshot_of(any_database) as (connection, _):
        table = load_table(connection, public("t"))
        chunks = plan_chunks(connection, table, 100_000)
        assert len(chunks) > 10
        assert chunks == pickle.loads(pickle.dumps(chunks))
        assert chunks[0].first == 0
        assert chunks[-1].last is None
        assert [chunk.last for chunk in chunks[:-1]] == [chunk.first for chunk in chunks[1:]]
        rows = values(copy_all(connection, chunks))
    expected = any_database.query("select id::text, note from t")
    assert sorted(rows) == sorted(expected)


def test_readers_see_the_snapshot_and_nothing_later(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, v int)", "insert into t select i, 0 from generate_series(1, 5) i"
    )
    with snapshot_of(database) as (connection, snapshot):
        database.execute("insert into t values (6, 1)", "update t set v = 1 where id = 1", "delete from t where id = 2")
        other = connect(database.connection, application="test")
        enter_snapshot(other, snapshot)
        chunks = plan_chunks(connection, load_table(connection, public("t")), 1 << 20)
        rows = values(copy_all(other, chunks))
        other.close()
    assert sorted(rows) == [(str(i), "0") for i in range(1, 6)]


def test_empty_never_analysed_and_single_column_tables(any_database: Database) -> None:
    any_database.execute("create table t (only_one text)", "create table e (id int primary key)")
    any_database.execute("insert into t values (null), (''), (null), (E'a\\n\"b\\r\\n,'), ('\\.'), ('NULL')")
    with snapshot_of(any_database) as (connection, _):
        empty = plan_chunks(connection, load_table(connection, public("e")), 1 << 20)
        assert len(empty) == 1
        assert copy_all(connection, empty) == []
        chunks = plan_chunks(connection, load_table(connection, public("t")), 1 << 20)
        rows = values(copy_all(connection, chunks))
    assert rows == [(None,), ("",), (None,), ('a\n"b\r\n,',), ("\\.",), ("NULL",)]


def test_partitions_of_every_depth_and_column_order(any_database: Database) -> None:
    any_database.execute(
        "create table p (id int, region text, v text, primary key (id, region)) partition by list (region)",
        "create table p_a partition of p for values in ('a')",
        "create table p_b (v text, region text not null, id int not null, primary key (id, region))",
        "alter table p attach partition p_b for values in ('b')",
        "create table p_rest partition of p default partition by range (id)",
        "create table p_rest_1 partition of p_rest for values from (0) to (1000)",
        "create table p_rest_2 partition of p_rest for values from (1000) to (2000)",
        "insert into p select i, (array['a', 'b', 'c'])[i % 3 + 1], 'v' || i from generate_series(1, 900) i",
    )
    with snapshot_of(any_database) as (connection, _):
        table = load_table(connection, public("p"))
        assert table.partitioned
        chunks = plan_chunks(connection, table, 1 << 20)
        assert {chunk.leaf.name for chunk in chunks} == {"p_a", "p_b", "p_rest_1"}
        rows = values(copy_all(connection, chunks))
    assert sorted(rows) == sorted(any_database.query("select id::text, region, v from p"))


def test_an_inheritance_parent_is_read_alone(database: Database) -> None:
    database.execute(
        "create table parent (id int primary key)",
        "create table child (extra int) inherits (parent)",
        "insert into parent values (1)",
        "insert into child values (2, 2)",
    )
    with snapshot_of(database) as (connection, _):
        chunks = plan_chunks(connection, load_table(connection, public("parent")), 1 << 20)
        assert values(copy_all(connection, chunks)) == [("1",)]


def test_columns_and_conditions_limit_what_is_read(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, secret text, v int)",
        "insert into t select i, 'hidden', i from generate_series(1, 10) i",
    )
    with snapshot_of(database) as (connection, _):
        table = load_table(connection, public("t"))
        chunks = plan_chunks(connection, table, 1 << 20, columns=["id", "v"], where="v > 8 -- large ones")
        assert sorted(values(copy_all(connection, chunks))) == [("10", "10"), ("9", "9")]


def test_large_chunks_come_in_pieces_cut_between_rows(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.postgres.snapshot.PIECE_BYTES", 1000)
    database.execute(
        "create table t (id int primary key, v text)",
        "insert into t select i, E'line\\n\"quoted\"\\n' || repeat('y', i) from generate_series(1, 200) i",
    )
    with snapshot_of(database) as (connection, _):
        pieces = copy_all(connection, plan_chunks(connection, load_table(connection, public("t")), 1 << 20))
        assert len(pieces) > 5
        assert sum(piece.rows for piece in pieces) == 200
        rows = values(pieces)
    assert sorted(rows) == sorted(database.query("select id::text, v from t"))


def test_toast_counts_towards_the_size_of_a_chunk(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, v text)",
        "alter table t alter v set storage external",
        "insert into t select i, repeat('z', 20000) from generate_series(1, 300) i",
    )
    with snapshot_of(database) as (connection, _):
        chunks = plan_chunks(connection, load_table(connection, public("t")), 1_000_000)
        assert len(chunks) == 2  # six megabytes of TOAST on two pages
        assert sum(piece.rows for piece in copy_all(connection, chunks)) == 300


@pytest.mark.parametrize(
    "statement",
    ["truncate t", "alter table t alter v type bigint", "vacuum full t", "drop table t"],
    ids=["truncate", "alter type", "vacuum full", "drop"],
)
def test_a_table_rewritten_after_the_snapshot_is_not_read(database: Database, statement: str) -> None:
    database.execute("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    with snapshot_of(database) as (connection, snapshot):
        chunks = plan_chunks(connection, load_table(connection, public("t")), 1 << 20)
        connection.execute("rollback")
        enter_snapshot(connection, snapshot)
        database.execute(statement)
        with pytest.raises(SourceUnavailable):
            copy_all(connection, chunks)


def test_a_lock_queue_is_not_waited_for_endlessly(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    with snapshot_of(database.impatient(0.05)) as (connection, _), database.connect(autocommit=False) as blocker:
        chunks = plan_chunks(connection, load_table(connection, public("t")), 1 << 20)
        connection.execute("commit")
        connection.execute("begin")
        blocker.execute("lock table t in access exclusive mode")
        with pytest.raises(SourceUnavailable, match="locked by another session"):
            copy_all(connection, chunks)


def test_a_snapshot_whose_exporter_is_gone_is_taken_again(database: Database) -> None:
    with create_slot(database.connection, f"trucker_{database.name}", temporary=True) as exported:
        pass
    with connect(database.connection, application="test") as connection:
        with pytest.raises(SourceUnavailable, match="no longer exists"):
            enter_snapshot(connection, exported.snapshot)
        assert connection.execute("select 1").fetchone() == (1,)


def test_row_level_security_is_an_error_and_never_fewer_rows(database: Database) -> None:
    database.execute(
        "create table t (id int primary key)",
        "insert into t values (1), (2)",
        "alter table t enable row level security",
        "create policy half on t using (id = 1)",
        "create role limited login password 'limited'",
        "grant select on t to limited",
    )
    try:
        with connect(database.as_user("limited", "limited"), application="test") as connection:
            table = load_table(connection, public("t"))
            assert table.row_security
            connection.execute("begin isolation level repeatable read read only")
            with pytest.raises(SourceError, match="row-level security") as caught:
                copy_all(connection, plan_chunks(connection, table, 1 << 20))
            assert "BYPASSRLS" in caught.value.remedy
    finally:
        database.execute("drop owned by limited", "drop role limited")


COLUMNS = {
    "c_bool": ("boolean", "true"),
    "c_int2": ("smallint", "-32768"),
    "c_int8": ("bigint", "9223372036854775807"),
    "c_numeric": ("numeric(20,5)", "-12345.67800"),
    "c_nan": ("numeric", "'NaN'"),
    "c_float4": ("real", "0.1"),
    "c_float8": ("double precision", "0.1::float8 + 0.2::float8"),
    "c_inf": ("double precision", "'-Infinity'"),
    "c_money": ("money", "1234.5"),
    "c_text": ("text", "E'tab\\there, \"quotes\" \\\\ back\\nnew line — ünï ☃ 𝄞'"),
    "c_char": ("char(6)", "'ab'"),
    "c_varchar": ("varchar(10)", "''"),
    "c_bytea": ("bytea", "'\\x00ff10'"),
    "c_date": ("date", "'2024-02-29'"),
    "c_bc": ("date", "'0044-03-15 BC'"),
    "c_time": ("time", "'23:59:59.999999'"),
    "c_timetz": ("timetz", "'12:00:00+05:30'"),
    "c_timestamp": ("timestamp", "'infinity'"),
    "c_timestamptz": ("timestamptz", "'2024-06-01 12:34:56.789+02'"),
    "c_interval": ("interval", "'1 year 2 mons -3 days 04:05:06.7'"),
    "c_uuid": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    "c_json": ("json", "'{\"a\":  [1, null]}'"),
    "c_jsonb": ("jsonb", '\'{"b": "x\\ny"}\''),
    "c_xml": ("text", "'<a b=\"c\"/>'"),
    "c_inet": ("inet", "'192.168.0.1/24'"),
    "c_cidr": ("cidr", "'2001:db8::/32'"),
    "c_mac": ("macaddr", "'08:00:2b:01:02:03'"),
    "c_bit": ("bit(3)", "B'101'"),
    "c_varbit": ("varbit", "B''"),
    "c_point": ("point", "'(1.5,-2)'"),
    "c_polygon": ("polygon", "'((0,0),(1,1),(1,0))'"),
    "c_range": ("int4range", "'[1,5)'"),
    "c_multirange": ("tstzmultirange", "'{[2020-01-01 00:00+02,2021-01-01 00:00+02)}'"),
    "c_array": ("text[]", "array['a,b', null, 'NULL', '', '\"q\"']"),
    "c_matrix": ("int[][]", "'{{1,2},{3,4}}'"),
    "c_tsvector": ("tsvector", "'fat:1 cat:2'"),
    "c_tsquery": ("tsquery", "'fat & !cat'"),
    "c_enum": ("mood", "'so so'"),
    "c_domain": ("positive", "7"),
    "c_composite": ("pair", "row(1, 'x, y')"),
    "c_oid": ("oid", "42"),
    "c_regclass": ("regclass", "'some_table'"),
    "c_null": ("text", "null"),
}


# What a database's owner has set must not show.
DEFAULTS = (
    "datestyle = 'German, DMY'",
    "timezone = 'Asia/Tokyo'",
    "intervalstyle = 'sql_standard'",
    "extra_float_digits = '-5'",
    "bytea_output = 'escape'",
    "search_path = 'public'",
)


@pytest.fixture
def typed(any_database: Database) -> Database:
    """A database with a table `t` of one row with every type."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    any_database.execute(
        "create type mood as enum ('so so')",
        "create domain positive as int check (value > 0)",
        "create type pair as (a int, b text)",
        "create table some_table ()",
        f"create table t ({columns})",
        f"insert into t values ({', '.join(value for _, value in COLUMNS.values())})",
        "alter table t replica identity full",
        *(f"alter database {any_database.name} set {setting}" for setting in DEFAULTS),
    )
    return any_database


def copied_row(connection: psycopg.Connection[Any]) -> dict[str, str | None]:
    table = load_table(connection, public("t"))
    [row] = values(copy_all(connection, plan_chunks(connection, table, 1 << 20)))
    return dict(zip(COLUMNS, row, strict=True))


def test_every_type_reads_as_the_server_writes_it(typed: Database) -> None:
    with snapshot_of(typed) as (connection, _):
        found = copied_row(connection)
        # format() calls the type's output function, as a cast to text does, but for char(n) keeps the blanks.
        texts = ", ".join(f"case when {name} is not null then format('%s', {name}) end" for name in COLUMNS)
        expected = connection.execute(f"select {texts} from public.t".encode()).fetchone()
    assert found == dict(zip(COLUMNS, expected or (), strict=True))
    assert found["c_float8"] == "0.30000000000000004"
    assert found["c_timestamptz"] == "2024-06-01 10:34:56.789+00"
    assert found["c_bytea"] == "\\x00ff10"
    assert found["c_regclass"] == "public.some_table"
    assert found["c_null"] is None


def test_snapshot_and_stream_write_the_same_text(typed: Database) -> None:
    typed.execute("create publication everything for all tables")
    name = f"trucker_{typed.name}_stream"
    with create_slot(typed.connection, name) as exported:
        connection = connect(typed.connection, application="test")
        enter_snapshot(connection, exported.snapshot)
        copied = copied_row(connection)
        connection.close()
    typed.execute("insert into t select * from t")
    messages = received(typed, name, exported.lsn)
    bounds = np.cumsum([0, *(len(message) for message in messages)])
    [changes] = decode(Frames(np.frombuffer(b"".join(messages), np.uint8), bounds), {public("t"): ()})
    assert changes.new.to_pylist() == [copied]


def received(database: Database, slot: str, lsn: Lsn) -> list[bytes]:
    """Messages from the slot, up to and with the first commit."""
    conninfo = database.connection.conninfo(**parameters(database.connection, "test", replication=True))
    stream = ReplicationStream.connect(conninfo, slot, "everything")
    messages: list[bytes] = []

    def committed() -> bool:
        stream.wait(0.05)
        stream.receive(messages.extend, 1 << 20)
        return any(message[:1] == b"C" for message in messages)

    try:
        stream.start(lsn)
        wait_until(committed)
    finally:
        stream.close()
    return messages
