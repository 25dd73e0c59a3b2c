"""Changes as Python values, with psycopg as the oracle: it reads the same values from PostgreSQL."""

from __future__ import annotations

import pytest

from fixtures.pg import Database
from trucker.row_changes import row_changes
from trucker.table import TableId
from trucker.testing.handmade import changes_of, delete, insert, schema_of, truncate, update

TYPES = {
    "smallint": "'-7'",
    "integer": "2147483647",
    "bigint": "'-9223372036854775808'",
    "real": "1.5",
    "double precision": "1e-300",
    "numeric": "'123456789012345678901234567890.12345'",
    "boolean": "true",
    "bytea": r"'\x00ff41'",
    "date": "'2024-02-29'",
    "time without time zone": "'23:59:59.123456'",
    "timestamp without time zone": "'1999-12-31 23:59:59.000001'",
    "timestamp with time zone": "'2024-02-29 12:00:00.5+00'",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "jsonb": """'{"a": [1, null, "x"]}'""",
    "text": "'plain'",
    "integer[]": "'{1,NULL,3}'",
    "integer[] ": "'[0:1][1:2]={{1,2},{3,NULL}}'",
    "text[]": r"""array['a', 'NULL', null, 'with "quotes"', 'back\slash', 'a,b{c}', '']""",
    "numeric[]": "'{1.50,-2}'",
    "boolean[]": "'{t,f}'",
    "uuid[]": "array['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid]",
    "text[] ": "'{}'",
}


def test_values_are_those_that_psycopg_reads(database: Database) -> None:
    columns = {f"c{number}": name.strip() for number, name in enumerate(TYPES)}
    casts = [f"{value}::{name}" for name, value in TYPES.items()]
    (expected,) = database.query(f"select {', '.join(casts)}")
    (texts,) = database.query(f"select {', '.join(f'({cast})::text' for cast in casts)}")
    # A boolean's cast to text is not its output.
    cells = {name: {"true": "t", "false": "f"}.get(text, text) for name, text in zip(columns, texts, strict=True)}
    schema = schema_of(TableId("public", "t"), columns)
    (change,) = row_changes(changes_of(schema, [insert(cells)]))
    assert change.operation == "insert"
    assert change.new is not None
    for name, value in zip(columns, expected, strict=True):
        assert change.new[name] == value, columns[name]
        assert type(change.new[name]) is type(value)


@pytest.mark.parametrize("text", ["infinity", "0044-03-15 BC", "10000-01-01"])
def test_what_python_cannot_hold_stays_text(text: str) -> None:
    schema = schema_of(TableId("public", "t"), {"d": "date"})
    (change,) = row_changes(changes_of(schema, [insert({"d": text})]))
    assert change.new == {"d": text}


def test_rows_before_and_after() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer not null", "a": "text", "long": "text"}, ["id"])
    changes = [
        update({"id": "2", "a": "x"}, old={"id": "1"}, unchanged=["long"]),
        delete({"id": "3"}),
        truncate(),
    ]
    moved, gone, emptied = row_changes(changes_of(schema, changes))
    assert (moved.new, moved.old, moved.unsent) == ({"id": 2, "a": "x"}, {"id": 1}, frozenset({"long"}))
    assert (gone.operation, gone.new, gone.old) == ("delete", None, {"id": 3})
    assert (emptied.operation, emptied.new, emptied.old) == ("truncate", None, None)
    assert moved.commit_lsn == emptied.commit_lsn
    assert [each.ordinal for each in (moved, gone, emptied)] == sorted({moved.ordinal, gone.ordinal, emptied.ordinal})
    (text,) = row_changes(changes_of(schema, changes[:1]), typed=False)
    assert text.new == {"id": "2", "a": "x"}
