"""Values that were not sent because they did not change are read again by key, and never become NULL (I7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from fixtures.pg import Database
from fixtures.source_rows import listed, schema_of, sql_session
from trucker.change import DELETE, INSERT, UPDATE, Changes, TableId, TableSchema
from trucker.errors import SourceError
from trucker.postgres.source_query import reselect
from trucker.rows import Rows

Cells = Sequence[str | None]


def changes_of(
    schema: TableSchema, new: Sequence[Cells], op: Sequence[int], unchanged: Mapping[str, Sequence[bool]]
) -> Changes:
    cells = pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in new], names=list(schema.names))
    made = Changes.inserts(schema, cells)
    return replace(made, op=np.array(op, np.uint8), unchanged={n: np.array(m, np.bool_) for n, m in unchanged.items()})


def values(changes: Changes) -> list[tuple[str | None, ...]]:
    return listed(Rows(changes.schema.columns, changes.new, changes.op, changes.ordinal))


def test_what_was_not_sent_is_read_again(any_database: Database) -> None:
    """Only the cells that are lacking; rows that are gone are left out, deletes are not looked at."""
    any_database.execute(
        "create table t (id int primary key, a text, b jsonb, c int)",
        "insert into t values (1, 'now 1', '{\"x\": 1}', 10), (2, 'now 2', null, 20), (3, null, '[]', 30)",
    )
    schema = schema_of(any_database.connection, TableId("public", "t"))
    nothing: Cells = [None] * 6
    changes = changes_of(
        schema,
        [["1", "2", "3", "4", "5", "1"], ["sent", *nothing[1:]], nothing, ["7", "8", "9", "0", None, "6"]],
        [UPDATE, UPDATE, INSERT, UPDATE, DELETE, UPDATE],
        {"a": [False, True, True, True, False, False], "b": [True, True, False, True, True, False]},
    )
    with sql_session(any_database.connection) as connection:
        found = reselect(connection, changes)
        assert values(reselect(connection, found)) == values(found)
        fewer = reselect(connection, changes, only={"a", "c"})
    assert found.unchanged == {}
    assert values(found) == [
        ("1", "sent", '{"x": 1}', "7"),
        ("2", "now 2", None, "8"),
        ("3", None, None, "9"),
        ("5", None, None, None),
        ("1", None, None, "6"),
    ]
    assert found.op.tolist() == [UPDATE, UPDATE, INSERT, DELETE, UPDATE]
    assert fewer.unchanged == {}
    assert [row[:3] for row in values(fewer)[:3]] == [("1", "sent", None), ("2", "now 2", None), ("3", None, None)]


def test_keys_of_any_type_and_odd_names(database: Database) -> None:
    """Equality is the key's own: 1.0 is 1.00, and the operator of a user's type need not be in the search path."""
    database.execute(
        'create schema "Odd ""types"""',
        'create type "Odd ""types""".mood as enum (\'a \'\'b"\', \'c,d\')',
        'create domain "Odd ""types""".code as text not null',
        'create table "T ""1""" ("n N" numeric, m "Odd ""types""".mood, k "Odd ""types""".code, at interval,'
        ' "big ""one""" text, primary key ("n N", m, k, at))',
        """insert into "T ""1\""" values (1.00, 'a ''b"', E'x\\\\"', '24 hours', repeat('ü', 5000)),
           (1, 'c,d', 'y', '1 day', 'other')""",
    )
    schema = schema_of(database.connection, TableId("public", 'T "1"'))
    changes = changes_of(
        schema,
        [["1.0", "1.000"], ["a 'b\"", "c,d"], ['x\\"', "y"], ["1 day", "24:00:00"], [None, None]],
        [UPDATE, UPDATE],
        {'big "one"': [True, True]},
    )
    with sql_session(database.connection) as connection:
        found = reselect(connection, changes)
    assert found.new.column(4).to_pylist() == ["ü" * 5000, "other"]


def test_equality_of_an_extension_type(database: Database) -> None:
    """Its `=` is in a schema of its own, out of the search path, and the default one would not find the row."""
    database.execute(
        "create schema ext",
        "create function ext.same(text, text) returns bool language sql immutable as 'select lower($1) = lower($2)'",
        "create function ext.less(text, text) returns bool language sql immutable as 'select lower($1) < lower($2)'",
        "create function ext.more(text, text) returns bool language sql immutable as 'select lower($1) > lower($2)'",
        "create function ext.compare(text, text) returns int language sql immutable as"
        " 'select case when lower($1) < lower($2) then -1 when lower($1) > lower($2) then 1 else 0 end'",
        "create operator ext.=== (leftarg = text, rightarg = text, function = ext.same)",
        "create operator ext.<<< (leftarg = text, rightarg = text, function = ext.less)",
        "create operator ext.>>> (leftarg = text, rightarg = text, function = ext.more)",
        "create operator class ext.ci for type text using btree as operator 1 ext.<<<, operator 3 ext.===,"
        " operator 5 ext.>>>, function 1 ext.compare(text, text)",
        "create table t (id text not null, big text)",
        "create unique index t_id on t (id ext.ci)",
        "alter table t replica identity using index t_id",
        "insert into t values ('Anna', 'her own')",
    )
    schema = schema_of(database.connection, TableId("public", "t"))
    assert schema.key == ("id",)
    with sql_session(database.connection) as connection:
        found = reselect(connection, changes_of(schema, [["ANNA"], [None]], [UPDATE], {"big": [True]}))
    assert values(found) == [("ANNA", "her own")]


def test_many_rows(database: Database) -> None:
    database.execute(
        "create table t (id int, part int, big text, primary key (id, part)) partition by list (part)",
        "create table t1 partition of t for values in (1)",
        "create table t2 partition of t for values in (2)",
        "insert into t select i, i % 2 + 1, md5(i::text) from generate_series(1, 20000) i",
    )
    schema = schema_of(database.connection, TableId("public", "t"))
    ids = [str(i) for i in range(1, 30001)]
    parts = [str(i % 2 + 1) for i in range(1, 30001)]
    lacking = [i % 3 == 0 for i in range(30000)]
    changes = changes_of(schema, [ids, parts, ["sent"] * 30000], [UPDATE] * 30000, {"big": lacking})
    with sql_session(database.connection) as connection:
        found = dict(
            zip(*(column.to_pylist() for column in reselect(connection, changes).new.select([0, 2])), strict=True)
        )
    expected = dict(database.query("select id::text, big from t"))
    wanted = {
        i: ("sent" if not lack else expected[i])
        for i, lack in zip(ids, lacking, strict=True)
        if not lack or i in expected
    }
    assert found == wanted


@pytest.mark.parametrize("statement", ["alter table t drop column big", "alter table t rename to u"])
def test_a_value_that_cannot_be_read_any_more_stops_the_truck(database: Database, statement: str) -> None:
    database.execute("create table t (id int primary key, big text)")
    schema = schema_of(database.connection, TableId("public", "t"))
    database.execute(statement)
    with sql_session(database.connection) as connection:
        with pytest.raises(SourceError, match="cannot be read again") as caught:
            reselect(connection, changes_of(schema, [["1"], [None]], [UPDATE], {"big": [True]}))
        assert (caught.value.code, caught.value.transient) == ("TRK273", False)
        nothing = changes_of(schema, [["1"], ["x"]], [UPDATE], {})
        assert values(reselect(connection, nothing)) == [("1", "x")]


def test_without_a_key_there_is_nothing_to_read_by(database: Database) -> None:
    database.execute("create table t (id int, big text)")
    schema = schema_of(database.connection, TableId("public", "t"))
    with sql_session(database.connection) as connection, pytest.raises(SourceError, match="no key") as caught:
        reselect(connection, changes_of(schema, [["1"], [None]], [UPDATE], {"big": [True]}))
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in caught.value.remedy
