"""How much is folded, which rows go together, and changes as rows and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.change import DELETE, INSERT, OPERATIONS, UPDATE, Changes, Lsn, TableId
from trucker.engine.transform.fold import Fold, filled, fold, has_truncate, split_moves, vacate_keys, without_truncates
from trucker.engine.transform.sql_rows import keyed_changes, only_deletes, relation_of, rows_of, statement_changes
from trucker.engine.transform.statement_runs import number_runs
from trucker.errors import ConfigError, SinkError
from trucker.rows import Rows, concat_rows
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, truncate, update

SCHEMA = schema_of(TableId("public", "items"), {"id": "integer", "n": "integer", "note": "text"}, ["id"])
OTHER = schema_of(TableId("public", "others"), {"id": "integer", "n": "integer"}, ["id"])


def row(key: int, n: int | None = None, note: str | None = None) -> dict[str, str | None]:
    return {"id": str(key), "n": None if n is None else str(n), "note": note}


def at(lsn: int, *changes: Change) -> Changes:
    return changes_of(SCHEMA, changes, lsn=Lsn(lsn), xid=lsn, time=1_700_000_000_000_000 + lsn)


def words(changes: Changes) -> list[str]:
    return [
        f"{lsn} {OPERATIONS[op]} {old['id'] or '-'}:{old['n'] or '-'} {new['id'] or '-'}:{new['n'] or '-'}"
        for lsn, op, old, new in zip(
            changes.commit_lsn.tolist(),
            changes.op.tolist(),
            changes.old.to_pylist(),
            changes.new.to_pylist(),
            strict=True,
        )
    ]


HISTORY = [
    at(1, insert(row(1, 10)), insert(row(2, 20))),
    at(2, update(row(1, 11), row(1, 10, "")), delete(row(2, 20, "")), insert(row(3, 30))),
    at(3, update(row(1, 12), row(1, 11, "")), update(row(1, 13), row(1, 12, ""))),
]


def test_no_row_is_left_under_a_key_that_another_row_moves_to() -> None:
    moves = at(1, insert(row(1, 10)), update(row(3, 11), row(1)), update(row(3, 12)), update(row(4, 13), row(3)))
    vacated = vacate_keys(moves)
    assert words(vacated) == [
        "1 insert -:- 1:10",
        "1 delete 3:- -:-",
        "1 update 1:- 3:11",
        "1 update -:- 3:12",
        "1 delete 4:- -:-",
        "1 update 3:- 4:13",
    ]
    (net,) = fold([vacated], Fold.NET)
    assert sorted(words(net)) == ["1 delete 3:- -:-", "1 update -:- 4:13"]


def test_changes_without_moves_are_left_as_they_are() -> None:
    changes = at(1, insert(row(1, 10)), update(row(1, 11)), delete(row(2)))
    assert vacate_keys(changes) is changes


def test_nothing_is_folded() -> None:
    (kept,) = fold(HISTORY, Fold.NONE)
    assert words(kept) == [
        "1 insert -:- 1:10",
        "1 insert -:- 2:20",
        "2 update 1:10 1:11",
        "2 delete 2:20 -:-",
        "2 insert -:- 3:30",
        "3 update 1:11 1:12",
        "3 update 1:12 1:13",
    ]


def test_each_transaction_is_folded_separately() -> None:
    (net,) = fold(HISTORY, Fold.TRANSACTION)
    assert net.schema == SCHEMA
    assert words(net) == [
        "1 insert -:- 1:10",
        "1 insert -:- 2:20",
        "2 update 1:10 1:11",
        "2 delete 2:20 -:-",
        "2 insert -:- 3:30",
        "3 update 1:11 1:13",
    ]


def test_a_part_is_folded_as_a_whole() -> None:
    (net,) = fold(HISTORY, Fold.NET)
    assert sorted(words(net)) == ["2 insert -:- 3:30", "3 insert -:- 1:13"]
    assert fold([], Fold.NET) == []


@st.composite
def histories(draw: st.DrawFn) -> list[Changes]:
    """Random changes that a table could have made, in transactions, whole old rows with them."""
    rows: dict[int, int] = {}
    parts = []
    for lsn in range(1, draw(st.integers(1, 6)) + 1):
        changes = []
        for _ in range(draw(st.integers(1, 5))):
            key, n = draw(st.integers(1, 3)), draw(st.integers(0, 99))
            if key not in rows:
                changes.append(insert(row(key, n)))
                rows[key] = n
                continue
            match draw(st.sampled_from(["update", "delete", "move"])):
                case "update":
                    changes.append(update(row(key, n), row(key, rows[key], "")))
                    rows[key] = n
                case "delete":
                    changes.append(delete(row(key, rows.pop(key), "")))
                case _ if (other := draw(st.integers(1, 3))) not in rows:
                    changes.append(update(row(other, n), row(key, rows.pop(key), "")))
                    rows[other] = n
        if changes:
            parts.append(at(lsn, *changes))
    return parts


@settings(deadline=None)
@given(histories(), st.sampled_from(list(Fold)))
def test_the_sum_of_new_less_old_is_the_same_however_it_is_folded(history: list[Changes], how: Fold) -> None:
    """What live aggregates stand on: the difference of every key over all changes."""
    assert totals(fold(history, how)) == totals(history)


def totals(parts: list[Changes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for side, sign in ((part.new, 1), (part.old, -1)):
            for cells in side.to_pylist():
                if cells["id"] is not None:
                    found[cells["id"]] = found.get(cells["id"], 0) + sign * int(cells["n"])
    return {key: total for key, total in found.items() if total}


@settings(deadline=None)
@given(histories())
def test_a_transaction_has_each_key_at_most_once(history: list[Changes]) -> None:
    for net in fold(history, Fold.TRANSACTION):
        keys = [
            (lsn, new["id"] or old["id"])
            for lsn, new, old in zip(net.commit_lsn, net.new.to_pylist(), net.old.to_pylist(), strict=True)
        ]
        assert len(set(keys)) == len(keys)


def test_runs_are_stretches_of_one_table_and_one_operation() -> None:
    mine = changes_of(SCHEMA, [insert(row(1)), insert(row(2)), delete(row(1))], lsn=Lsn(5))
    others = changes_of(OTHER, [insert({"id": "1"}), update({"id": "1"})], lsn=Lsn(5))
    mine.ordinal[:] = [0, 1, 4]
    others.ordinal[:] = [2, 3]
    first, second = number_runs([mine, others], Fold.NONE, by_transaction=False)
    assert (first.tolist(), second.tolist()) == ([0, 0, 3], [1, 2])


def test_a_run_spans_transactions_unless_by_transaction_is_set() -> None:
    table = Changes.concat([at(1, insert(row(1))), at(2, insert(row(2)))])
    assert number_runs([table], Fold.NONE, by_transaction=False)[0].tolist() == [0, 0]
    assert number_runs([table], Fold.NONE, by_transaction=True)[0].tolist() == [0, 1]
    assert number_runs([table], Fold.TRANSACTION, by_transaction=True)[0].tolist() == [0, 1]
    assert number_runs([table], Fold.NET, by_transaction=False)[0].tolist() == [0, 0]
    assert number_runs([], Fold.NONE, by_transaction=False) == []


def test_unsent_cells_come_from_the_whole_old_row_alone() -> None:
    changes = at(1, update(row(1, 5), row(1, 4, "long"), ["note"]), update(row(2, 5), None, ["note"]))
    whole = filled(changes)
    assert whole.new.column("note").to_pylist() == ["long", None]
    assert whole.unchanged["note"].tolist() == [False, True]


def test_a_move_becomes_a_delete_and_an_insert() -> None:
    (net,) = fold([at(1, update(row(2, 5), {"id": "1"}, ["note"]))], Fold.NET)
    assert words(net) == ["1 update 1:- 2:5"]
    assert words(split_moves(net)) == ["1 delete 1:- -:-", "1 insert -:- 2:5"]
    plain = at(1, update(row(2, 5)))
    assert split_moves(plain) is plain


def test_keys_that_swap_are_updates_once_split() -> None:
    moves = at(1, update(row(9, 1), {"id": "1"}, ["note"]), update(row(1, 2), {"id": "2"}, ["note"]))
    moves = Changes.concat([moves, at(1, update(row(2, 1), {"id": "9"}, ["note"]))])
    (net,) = fold([moves], Fold.NET)
    known = replace(split_moves(net), unchanged={})
    (again,) = fold([known], Fold.NET)
    assert sorted(words(again)) == ["1 update -:- 1:2", "1 update -:- 2:1"]


def test_truncates_can_be_left_out() -> None:
    changes = [at(1, insert(row(1)), truncate()), at(2, truncate())]
    assert has_truncate(changes)
    assert [len(each) for each in without_truncates(changes)] == [1]


def relation(changes: Changes, *, positions: bool = False) -> Rows:
    return rows_of(changes, relation_of(SCHEMA, positions=positions), np.zeros(len(changes), np.int64))


def test_rows_have_new_and_old_values() -> None:
    rows = relation(at(1, insert(row(1, 1)), update(row(2, 2)), delete(row(3, 3, "x"))))
    assert rows.names == ("id", "n", "note", "old__id", "old__n", "old__note")
    assert rows.cells.to_pylist() == [
        {"id": "1", "n": "1", "note": None, "old__id": None, "old__n": None, "old__note": None},
        {"id": "2", "n": "2", "note": None, "old__id": "2", "old__n": None, "old__note": None},
        {"id": None, "n": None, "note": None, "old__id": "3", "old__n": "3", "old__note": "x"},
    ]


def test_rows_of_kept_changes_have_their_place() -> None:
    changes = changes_of(SCHEMA, [insert(row(1))], lsn=Lsn(0x1_0000_00AB), xid=77, time=1_700_000_000_120_000)
    cells = relation(changes, positions=True).cells.to_pylist()[0]
    assert {name: cells[name] for name in ("commit_lsn", "commit_time", "xid", "ordinal")} == {
        "commit_lsn": "1/AB",
        "commit_time": "2023-11-14 22:13:20.12+00",
        "xid": "77",
        "ordinal": "0",
    }
    whole = changes_of(SCHEMA, [insert(row(1))], time=1_700_000_000_000_000)
    assert relation(whole, positions=True).cells.column("commit_time").to_pylist() == ["2023-11-14 22:13:20+00"]


@pytest.mark.parametrize("name", ["operation", "old__id"])
def test_a_name_that_rows_have_already_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        relation_of(schema_of(TableId("s", "t"), {"id": "integer", name: "text"}), positions=False)
    assert "rename" in caught.value.remedy


def result(op: list[int], **cells: list[str | None]) -> Rows:
    schema = schema_of(SCHEMA.table, dict.fromkeys(cells, "text"))
    texts = [{name: values[i] for name, values in cells.items()} for i in range(len(op))]
    changes = changes_of(schema, [insert(cell) for cell in texts])
    return Rows(schema.columns, changes.new, np.array(op, np.uint8), np.arange(len(op), dtype=np.int64))


def test_the_result_of_sql_is_written_by_key() -> None:
    schema = schema_of(SCHEMA.table, {"id": "text", "name": "text"}, ["id"])
    rows = result([INSERT, UPDATE, DELETE, DELETE], id=["1", "2", None, "4"], name=["a", "b", "c", "d"],
                  old__id=[None, "2", "3", None])  # fmt: skip
    changes = keyed_changes(rows, schema, Lsn(9), 100)
    assert changes.new.to_pylist() == [
        {"id": "1", "name": "a"},
        {"id": "2", "name": "b"},
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]
    assert changes.old.column("id").to_pylist() == [None, None, "3", "4"]
    assert changes.ordinal.tolist() == [100, 101, 102, 103]


def test_a_delete_without_its_key_is_an_error() -> None:
    schema = schema_of(SCHEMA.table, {"id": "text"}, ["id"])
    with pytest.raises(SinkError, match="without its key") as caught:
        keyed_changes(result([DELETE], id=[None]), schema, Lsn(1), 0)
    assert "coalesce" in caught.value.remedy


def test_output_sql_gets_every_row_as_it_is() -> None:
    rows = result([DELETE, INSERT], id=[None, "1"], old__id=["7", None])
    schema = schema_of(SCHEMA.table, {"id": "text", "old__id": "text"})
    changes = statement_changes(rows, schema)
    assert changes.new.to_pylist() == [{"id": None, "old__id": "7"}, {"id": "1", "old__id": None}]
    assert changes.ordinal.tolist() == [0, 1]


def test_deletes_that_go_past_the_sql() -> None:
    schema = schema_of(SCHEMA.table, {"id": "integer", "name": "text"}, ["id"])
    changes = only_deletes(at(1, delete(row(3, 4, "x"))), ["id"], schema)
    assert changes.old.to_pylist() == [{"id": "3", "name": None}]
    assert changes.schema == schema


def test_rows_joined() -> None:
    one = result([INSERT], id=["1"])
    joined = concat_rows([one, one])
    assert joined is not None
    assert len(joined) == 2
    assert len(joined.take(np.array([True, False]))) == 1
    assert concat_rows([]) is None
