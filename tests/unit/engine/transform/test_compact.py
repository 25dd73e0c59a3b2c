"""The rules of compaction, one by one."""

from __future__ import annotations

import pytest

from trucker.change import Changes, Column, TableId, TableSchema
from trucker.engine.transform.compact import compact
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, truncate, update

SCHEMA = schema_of(TableId("public", "items"), {"id": "text", "name": "text", "note": "text"}, ["id"])


def item(key: str, name: str | None = None, note: str | None = None) -> dict[str, str | None]:
    return {"id": key, "name": name, "note": note}


def net(*changes: Change, schema: TableSchema = SCHEMA, block: int = 2) -> list[str]:
    """The net change in words, the changes cut into blocks: `U 1→2 name=x note=…`."""
    parts = [changes_of(schema, changes[at : at + block]) for at in range(0, len(changes), block)]
    return [line for value in compact(parts) for line in words(value)]


def words(value: Changes) -> list[str]:
    lines = []
    for i, (new, old) in enumerate(zip(value.new.to_pylist(), value.old.to_pylist(), strict=True)):
        op = chr(value.op[i])
        key = "→".join(row["id"] for row in (old, new) if row["id"] is not None)
        cells = [
            f"{name}={'…' if name in value.unchanged and value.unchanged[name][i] else new[name]}"
            for name in value.schema.names
            if name != "id" and op in "IU"
        ]
        lines.append(" ".join([op, key, *cells]).strip())
    return lines


def test_ten_events_on_three_keys_are_three_writes() -> None:
    assert net(
        update(item("K1", "1")),
        delete({"id": "K1"}),
        insert(item("K1", "3")),
        update(item("K2", "4")),
        update(item("K2", "5")),
        update(item("K2", "6")),
        insert(item("K3", "7")),
        delete({"id": "K2"}),
        insert(item("K2", "9")),
        delete({"id": "K1"}),
    ) == ["I K3 name=7 note=None", "U K2 name=9 note=None", "D K1"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([insert(item("1", "a")), update(item("1", "b"))], ["I 1 name=b note=None"]),
        ([insert(item("1", "a")), delete({"id": "1"})], []),
        ([update(item("1", "a")), update(item("1", "b"))], ["U 1 name=b note=None"]),
        ([update(item("1", "a")), delete({"id": "1"})], ["D 1"]),
        ([delete({"id": "1"}), insert(item("1", "b"))], ["U 1 name=b note=None"]),
        ([insert(item("1")), delete({"id": "1"}), insert(item("1", "z"))], ["I 1 name=z note=None"]),
        ([update(item("1", "a", "long")), update(item("1"), unchanged=["name"])], ["U 1 name=a note=None"]),
        ([update(item("1", "a"), unchanged=["note"])], ["U 1 name=a note=…"]),
        ([insert(item("1", "a", "long")), update(item("1", "b"), unchanged=["note"])], ["I 1 name=b note=long"]),
    ],
)
def test_two_changes_of_a_key_become_one(changes: list[Change], expected: list[str]) -> None:
    assert net(*changes) == expected
    assert net(*changes, block=1) == expected


def test_truncate_forgets_what_was_before() -> None:
    changes = [update(item("1", "a")), truncate(), insert(item("2", "b")), truncate(), insert(item("3", "c"))]
    assert net(*changes) == ["T", "I 3 name=c note=None"]
    assert net(*changes[:4]) == ["T"]


def test_a_key_that_changes_is_a_delete_and_an_insert() -> None:
    assert net(update(item("2", "a", "n"), {"id": "1"})) == ["D 1", "I 2 name=a note=n"]


def test_a_row_with_cells_that_were_not_sent_moves() -> None:
    assert net(update(item("2", "a"), {"id": "1"}, ["note"])) == ["U 1→2 name=a note=…"]


def test_a_chain_of_moves_starts_where_the_cells_are() -> None:
    assert net(
        update(item("2", "a"), {"id": "1"}, ["note"]),
        update(item("3"), {"id": "2"}, ["note", "name"]),
    ) == ["U 1→3 name=a note=…"]


def test_a_row_that_comes_back_is_updated_in_place() -> None:
    assert net(
        update(item("2", "a"), {"id": "1"}, ["note"]),
        update(item("1", "b"), {"id": "2"}, ["note"]),
    ) == ["U 1 name=b note=…"]


def test_swapped_keys_are_two_moves() -> None:
    assert net(
        update(item("3", "a"), {"id": "1"}, ["note"]),
        update(item("1", "b"), {"id": "2"}, ["note"]),
        update(item("2", "a"), {"id": "3"}, ["note"]),
    ) == ["U 2→1 name=b note=…", "U 1→2 name=a note=…"]


def test_an_inserted_row_that_moves_is_an_insert() -> None:
    assert net(insert(item("1", "a", "long")), update(item("2", "b"), {"id": "1"}, ["note"])) == [
        "I 2 name=b note=long"
    ]


def test_a_moved_row_that_is_deleted_is_a_delete_of_its_first_key() -> None:
    assert net(update(item("2", "b"), {"id": "1"}, ["note"]), delete({"id": "2"})) == ["D 1"]


def test_a_move_to_a_deleted_key_deletes_it_and_the_key_it_left_can_be_taken() -> None:
    assert net(
        delete({"id": "2"}),
        update(item("2", "a"), {"id": "1"}, ["note"]),
        insert(item("1", "new")),
    ) == ["D 2", "U 1→2 name=a note=…", "I 1 name=new note=None"]


def test_a_moved_row_takes_what_the_batch_already_sent() -> None:
    assert net(update(item("1", "a", "long")), update(item("2", "b"), {"id": "1"}, ["note"])) == [
        "D 1",
        "I 2 name=b note=long",
    ]


def test_null_after_a_value_is_null() -> None:
    assert net(update(item("1", "a", "n")), update(item("1", None), unchanged=["note"])) == ["U 1 name=None note=n"]


def test_old_is_the_first_and_new_the_last() -> None:
    first, second, third = item("1", "a", "x"), item("1", "b", "x"), item("1", "c", "y")
    (value,) = compact([changes_of(SCHEMA, [update(second, first), update(third, second)])])
    assert value.old.to_pylist() == [first]
    assert value.new.to_pylist() == [third]
    (value,) = compact([changes_of(SCHEMA, [update(second, first), delete(second)])])
    assert value.old.to_pylist() == [first]


def test_a_key_sent_though_it_did_not_change_is_no_move() -> None:
    """PostgreSQL sends the old key of a row whose key lives out of line."""
    (value,) = compact([changes_of(SCHEMA, [update(item("1", "a"), {"id": "1"}, ["note"])])])
    assert words(value) == ["U 1 name=a note=…"]
    assert value.old_kind.tolist() == [0]


def test_distinct_inserts_pass_as_they_are() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "a": "text"}, ["id"])
    parts = [changes_of(schema, [insert({"id": str(n), "a": "x"})]) for n in (1, 20, 3)]
    assert [value is part for value, part in zip(compact(parts), parts, strict=True)] == [True] * 3


def test_the_newest_shape_counts() -> None:
    before = SCHEMA
    added = Column("size", 25, missing_value="9")
    after = TableSchema(before.table, (before.columns[0], before.columns[2], added), before.key)
    old = changes_of(before, [insert(item("1", "a", "n")), update(item("2", "b")), update(item("3", "c", "m"))])
    new = changes_of(after, [update({"id": "3", "note": None, "size": "7"}, unchanged=["note"])])
    (value,) = compact([old, new])
    assert words(value) == ["I 1 note=n size=9", "U 2 note=None size=…", "U 3 note=m size=7"]


def test_nothing_comes_of_nothing() -> None:
    assert compact([]) == []
    assert compact([changes_of(SCHEMA, [])]) == []


def test_rows_keep_the_place_of_their_last_change() -> None:
    parts = [changes_of(SCHEMA, [update(item("1", str(n))), update(item("2", str(n)))], xid=n) for n in (7, 8)]
    (value,) = compact(parts)
    assert value.xid.tolist() == [8, 8]
    assert value.ordinal.tolist() == [0, 1]
