"""The types everything meets in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.change import Changes, Column, Lsn, TableId, TableSchema, parse_copy_csv
from trucker.testing.handmade import changes_of, copied_rows_of, delete, insert, schema_of, truncate, update

SCHEMA = schema_of(TableId("public", "t"), {"id": "integer", "a": "text", "b": "text"}, ["id"])
CHANGES = changes_of(
    SCHEMA,
    [
        insert({"id": "1", "a": "x", "b": None}),
        update({"id": "2", "a": "y"}, {"id": "1"}, ["b"]),
        update({"id": "3", "a": None}, {"id": "3", "a": "o", "b": "p"}),
        delete({"id": "2"}),
        truncate(),
    ],
    lsn=Lsn(7),
)


def rows(changes: Changes) -> list[object]:
    unchanged = [sorted(name for name, mask in changes.unchanged.items() if mask[i]) for i in range(len(changes))]
    fixed = (changes.op, changes.old_kind, changes.commit_lsn, changes.commit_time, changes.xid, changes.ordinal)
    return list(
        zip(
            changes.new.to_pylist(),
            changes.old.to_pylist(),
            unchanged,
            *(array.tolist() for array in fixed),
            strict=True,
        )
    )


@given(st.integers(0, 2**64 - 1))
def test_an_lsn_reads_as_it_is_written(number: int) -> None:
    assert Lsn.parse(str(Lsn(number))) == number


def test_an_lsn_looks_like_postgres() -> None:
    assert str(Lsn(0x16B374D848)) == "16/B374D848"
    assert repr(Lsn(1)) == "Lsn('0/1')"


def test_take_chooses_by_mask_and_by_place() -> None:
    everything = rows(CHANGES)
    assert rows(CHANGES.take(np.array([4, 1]))) == [everything[4], everything[1]]
    assert rows(CHANGES.take(np.array([True, False, True, False, False]))) == [everything[0], everything[2]]
    assert not CHANGES.take(np.array([0])).unchanged


def test_concat_and_ipc_keep_everything() -> None:
    twice = Changes.concat([CHANGES, CHANGES.take(np.array([0])), CHANGES])
    assert rows(twice) == [*rows(CHANGES), rows(CHANGES)[0], *rows(CHANGES)]
    again = Changes.from_ipc(twice.to_ipc())
    assert rows(again) == rows(twice)
    assert again.schema == SCHEMA
    assert len(Changes.from_ipc(CHANGES.take(np.array([], np.int64)).to_ipc())) == 0


def test_only_keeps_the_order_of_the_table() -> None:
    changes = CHANGES.only(["b", "id"])
    assert changes.schema.names == ("id", "b")
    assert list(changes.unchanged) == ["b"]


def test_reshaped_gives_added_columns_what_the_source_shows() -> None:
    added = Column("n", 25, missing_value="9")
    schema = TableSchema(SCHEMA.table, (SCHEMA.columns[0], added, SCHEMA.columns[1]), ("id",))
    changes = CHANGES.reshaped(schema)
    assert changes.new.column("n").to_pylist() == ["9", None, None, None, None]
    assert changes.old.column("n").to_pylist() == [None, None, "9", None, None]
    assert changes.unchanged["n"].tolist() == [False, True, True, False, False]
    assert "b" not in changes.unchanged
    assert changes.new.column("a").to_pylist() == CHANGES.new.column("a").to_pylist()
    assert CHANGES.reshaped(SCHEMA) is CHANGES


def test_reshaped_without_key_gives_whole_rows() -> None:
    bag = TableSchema(SCHEMA.table, SCHEMA.columns)
    whole = {"id": "1", "a": "x", "b": "y"}
    changes = changes_of(bag, [update({**whole, "a": "z"}, whole), delete(whole)])
    wider = changes.reshaped(TableSchema(bag.table, (*bag.columns, Column("n", 25, missing_value="9"))))
    assert wider.new.column("n").to_pylist() == ["9", None]
    assert wider.old.column("n").to_pylist() == ["9", "9"]
    assert not wider.unchanged


TEXTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=9)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=5))
def test_copied_rows_are_inserts(cells: list[tuple[str | None, str | None, str | None]]) -> None:
    expected = [dict(zip(SCHEMA.names, row, strict=True)) for row in cells]
    copied = copied_rows_of(SCHEMA, expected, lsn=Lsn(3))
    changes = copied.to_changes()
    assert changes.new.to_pylist() == expected
    assert changes.commit_lsn.tolist() == [3] * len(cells)
    assert {chr(op) for op in changes.op} <= {"I"}


@pytest.mark.parametrize("text", ['"a\r\nb","c ""d""",\n'])
def test_copy_keeps_line_ends_inside_values(text: str) -> None:
    assert parse_copy_csv(SCHEMA, text.encode()).to_pylist() == [{"id": "a\r\nb", "a": 'c "d"', "b": None}]


def test_a_schema_survives_json() -> None:
    schema = TableSchema(TableId("s", 'odd "name"'), (Column("a", 25, 5, "text", True, "x"),), ("a",))
    assert TableSchema.from_json(schema.to_json()) == schema


def test_a_null_in_a_table_of_one_column_is_a_row() -> None:
    schema = schema_of(TableId("public", "t"), {"a": "text"})
    assert parse_copy_csv(schema, b'"1"\n\n""\n').to_pylist() == [{"a": "1"}, {"a": None}, {"a": ""}]
