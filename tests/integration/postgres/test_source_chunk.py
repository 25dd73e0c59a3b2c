"""`input.sql` for rows of a snapshot: the chunk itself is `{{ rows }}`, and what it joins is as of the snapshot too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fixtures.pg import Database
from fixtures.source_rows import Connection, listed, prepared, rows_of, schema_of, sql_session, texts
from fixtures.standby import Pair
from fixtures.type_values import all_kinds, columns_of, create, create_user_types, fill
from trucker.adapters.postgres import PostgresConnection
from trucker.change import INSERT, Lsn, TableId, quote_identifier
from trucker.errors import SourceUnavailable, TruckerError
from trucker.postgres.catalog import load_table
from trucker.postgres.connect import connect
from trucker.postgres.slot import create_slot
from trucker.postgres.snapshot import enter_snapshot, plan_chunks
from trucker.postgres.source_query import query_chunk, run_query
from trucker.rows import OLD
from trucker.source.snapshot import SnapshotChunk

MOST = 1_000_000


@contextmanager
def inside(config: PostgresConnection, name: str) -> Iterator[tuple[Connection, str]]:
    """A session for a truck's SQL inside a fresh exported snapshot, and the snapshot."""
    with create_slot(config, f"trucker_{name}", temporary=True) as exported, sql_session(config) as connection:
        enter_snapshot(connection, exported.snapshot)
        yield connection, exported.snapshot


def chunks_of(
    config: PostgresConnection, snapshot: str, table: str, size: int, where: str | None = None
) -> list[SnapshotChunk]:
    with connect(config, application="test") as connection:
        enter_snapshot(connection, snapshot)
        return plan_chunks(connection, load_table(connection, TableId("public", table)), size, where=where)


def test_chunks_give_what_changes_with_the_same_rows_give(any_database: Database) -> None:
    """Every type, in many chunks; a join; the old values NULL, of the same types."""
    with any_database.connect() as connection:
        create_user_types(connection)
        columns = columns_of(all_kinds(connection, arrays=False))
        connection.execute("select setseed(0.7)")
        connection.execute(create("public.every", columns).encode())
        connection.execute(fill("public.every", columns, rows=150).encode())
        connection.execute("create table public.extra as select id, 'extra ' || id as more from public.every")
    config = any_database.connection
    schema = schema_of(config, TableId("public", "every"))
    names = ", ".join(quote_identifier(name) for name in schema.names)
    with inside(config, any_database.name) as (connection, snapshot):
        chunks = chunks_of(config, snapshot, "every", 50_000)
        assert len(chunks) > 3
        any_database.execute("update public.extra set more = 'later'", "delete from public.every")
        query = prepared(connection, "select r.*, e.more from {{ rows }} join extra e using (id)", schema)
        pieces = [piece for chunk in chunks for piece in query_chunk(connection, query, chunk, rows_max=MOST)]
        cells = texts(connection, f"select {names} from public.every order by id")
        changed = run_query(connection, query, rows_of(schema, cells), rows_max=MOST)
    copied = sorted((row for piece in pieces for row in listed(piece)), key=lambda row: int(row[0] or 0))
    assert copied == sorted(listed(changed), key=lambda row: int(row[0] or 0))
    assert {row[-1] for row in copied} == {f"extra {number}" for number in range(1, 151)}
    assert all(piece.op.tolist() == [INSERT] * len(piece) for piece in pieces)
    place = pieces[0].names.index(OLD + "id")
    assert {row[place] for row in copied} == {None}


def test_a_partitioned_table_with_a_condition(database: Database) -> None:
    database.execute(
        "create table t (id int, part int, note text, primary key (id, part)) partition by list (part)",
        "create table t1 partition of t for values in (1)",
        "create table t2 partition of t for values in (2)",
        "insert into t select i, i % 2 + 1, 'n' || i from generate_series(1, 100) i",
    )
    schema = schema_of(database.connection, TableId("public", "t"))
    with inside(database.connection, database.name) as (connection, snapshot):
        chunks = chunks_of(database.connection, snapshot, "t", 1 << 20, "id > 90 -- and no more")
        text = """select r.id, r.operation, {{ old.note }} as was, '{{ input_table }}' as from_table,
            {% if operation == "insert" %}r.note || '!'{% else %}r.note{% endif %} as note from {{ rows }}"""
        query = prepared(connection, text, schema)
        rows = [
            row
            for chunk in chunks
            for piece in query_chunk(connection, query, chunk, rows_max=MOST)
            for row in listed(piece)
        ]
    assert sorted(rows) == sorted((str(i), None, "public.t", f"n{i}!") for i in range(91, 101))


def test_where_rows_of_a_snapshot_stand(database: Database) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    schema = schema_of(database.connection, TableId("public", "t"))
    with inside(database.connection, database.name) as (connection, snapshot):
        (chunk,) = chunks_of(database.connection, snapshot, "t", 1 << 20)
        query = prepared(connection, "select * from {{ rows }}", schema, positions=True)
        (piece,) = query_chunk(connection, query, chunk, rows_max=MOST, lsn=Lsn(0x10000002A))
    assert listed(piece) == [("1", None, "1/2A", None, None, None)]


def test_a_bound_on_what_a_chunk_gives(database: Database) -> None:
    """A row for each of the chunk's is always fine; a product is not."""
    database.execute("create table t (id int primary key)", "insert into t select generate_series(1, 2000)")
    schema = schema_of(database.connection, TableId("public", "t"))
    with inside(database.connection, database.name) as (connection, snapshot):
        (chunk,) = chunks_of(database.connection, snapshot, "t", 1 << 20)
        query = prepared(connection, "select r.id from {{ rows }}", schema)
        assert sum(len(piece) for piece in query_chunk(connection, query, chunk, rows_max=1)) == 2000
        query = prepared(connection, "select r.id from {{ rows }}, t", schema)
        with pytest.raises(TruckerError, match="returns more than"):
            list(query_chunk(connection, query, chunk, rows_max=1))


@pytest.mark.parametrize("table", ["t", "other"])
def test_a_table_that_was_rewritten_since_asks_for_a_new_snapshot(database: Database, table: str) -> None:
    """A snapshot would show a rewritten table as empty, the joined one as well as the copied one (I6)."""
    database.execute(
        "create table t (id int primary key)",
        "create table other (id int primary key)",
        "insert into t select generate_series(1, 20)",
        "insert into other select generate_series(1, 20)",
    )
    schema = schema_of(database.connection, TableId("public", "t"))
    with inside(database.connection, database.name) as (connection, snapshot):
        (chunk,) = chunks_of(database.connection, snapshot, "t", 1 << 20)
        database.execute(f"truncate {table}")
        text = "select r.id, o.id as other from {{ rows }} left join other o using (id)"
        query = prepared(connection, text, schema)
        with pytest.raises(SourceUnavailable, match=f"table public.{table} was rewritten"):
            list(query_chunk(connection, query, chunk, rows_max=MOST))


def test_an_iteration_left_early_leaves_the_session_usable(database: Database) -> None:
    database.execute("create table t (id int primary key)", "insert into t select generate_series(1, 100000)")
    schema = schema_of(database.connection, TableId("public", "t"))
    with inside(database.connection, database.name) as (connection, snapshot):
        (chunk,) = chunks_of(database.connection, snapshot, "t", 1 << 30)
        query = prepared(connection, "select r.id, repeat('x', 100) as x from {{ rows }}", schema)
        count = [len(piece) for piece in query_chunk(connection, query, chunk, rows_max=MOST)]
        assert (len(count), sum(count)) == (3, 100_000)
        pieces = query_chunk(connection, query, chunk, rows_max=MOST)
        next(iter(pieces))
        pieces.close()
        connection.execute("rollback")
        assert connection.execute("select 1").fetchone() == (1,)


def test_on_a_standby(any_pair: Pair) -> None:
    """No temporary table, nothing written: changes and chunks alike."""
    any_pair.database.execute(
        "create table t (id int primary key, tags text[])",
        "insert into t select i, array['a', i::text] from generate_series(1, 50) i",
    )
    any_pair.standby.catch_up()
    schema = schema_of(any_pair.replica, TableId("public", "t"))
    with sql_session(any_pair.replica) as connection:
        query = prepared(connection, "select r.id, r.tags, t.tags as now from {{ rows }} join t using (id)", schema)
        found = run_query(connection, query, rows_of(schema, [["7", "99"], ["{x}", "{y}"]]), rows_max=MOST)
        assert listed(found) == [("7", "{x}", "{a,7}")]
        connection.execute("begin isolation level repeatable read read only")
        chunk = SnapshotChunk(schema, schema.table, load_table(connection, schema.table).oid, 0, None)
        (piece,) = query_chunk(connection, query, chunk, rows_max=MOST)
        assert len(piece) == 50
