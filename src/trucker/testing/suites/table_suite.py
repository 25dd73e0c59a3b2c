"""The conformance suite of sinks that keep tables in step; `sink_suite` says how to use it.

Size: the suite is one class, so that a sink inherits all of it or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sized
from dataclasses import replace

import pyarrow as pa
import pytest

from trucker.change import Changes, CopiedRows
from trucker.errors import DataError, SinkError, TruckFailed
from trucker.lsn import Lsn
from trucker.row_digest import RowDifferences, added, differences, differing, row_count
from trucker.sinks.batch import Batch, Phase, Receipt, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.compared_table import ComparesTables
from trucker.sinks.target import Target
from trucker.table import Column, TableId
from trucker.testing.handmade import TextRow, copied_rows_of, delete, insert, schema_of, truncate, update
from trucker.testing.suites.sink_suite import (
    BAG,
    ITEMS,
    ODD_NAMES,
    ODD_VALUES,
    START,
    SinkSuite,
    TargetLoad,
    Values,
    needs,
    target_of,
)

PAIRS = schema_of(
    TableId("public", "pairs"),
    {"a": "integer not null", "b": "text not null", "n": "integer", "note": "text"},
    ["a", "b"],
)


def item(number: int, name: str | None = "n", qty: int | None = 0, note: str | None = None) -> dict[str, str | None]:
    return {"id": str(number), "name": name, "qty": None if qty is None else str(qty), "note": note}


def ordered(rows: Iterable[TextRow]) -> list[TextRow]:
    return sorted(rows, key=lambda row: [(cell is None, cell or "") for cell in row.values()])


class TableSinkSuite(SinkSuite):
    """For sinks that take net changes: after every commit the destination's tables are what the source's were."""

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        """All rows of a destination table, as text, in any order; none where there is no such table."""
        raise NotImplementedError

    def put_foreign_row(self, table: TableId) -> None:
        """Put a row with `id` 77 into an existing table by other means than trucker."""
        raise NotImplementedError

    def content(self, target: Target) -> Sized:
        return ordered(self.rows(target.table))

    def write_part(self, work: Work, values: Values) -> Receipt:
        """A sink that cannot keep cells gets whole rows, as from the framework, which reads them at the source."""
        if not self.make_sink().abilities.partial_rows:
            values = [self._whole(work.target, value) for value in values]
        return super().write_part(work, values)

    def _whole(self, target: Target, value: Changes | CopiedRows) -> Changes | CopiedRows:
        if isinstance(value, CopiedRows) or not value.unchanged:
            return value
        key = target.source.key
        rows = {tuple(row[name] for name in key): row for row in self.rows(target.table)}
        new = value.new.to_pylist()
        for number, old in enumerate(value.old.to_pylist()):
            cells = old if value.old_kind[number] else new[number]
            stored = rows.get(tuple(cells[name] for name in key), {})
            unsent = [name for name, mask in value.unchanged.items() if mask[number]]
            new[number].update({name: stored.get(name) for name in unsent})
        return replace(value, new=pa.RecordBatch.from_pylist(new, value.new.schema), unchanged={})

    def holds(self, target: Target, *rows: TextRow) -> None:
        assert ordered(self.rows(target.table)) == ordered(rows)

    def filled(self, target: Target, *rows: TextRow) -> Committer:
        """An open sink whose target was copied with these rows."""
        sink = self.committer()
        sink.open()
        self.copy(sink, {target: [[copied_rows_of(target.source, rows)]]})
        return sink

    # -- snapshot (I6) -------------------------------------------------------------------------------------------

    def test_prepare_makes_the_table_and_may_be_repeated(self) -> None:
        items = target_of(ITEMS, table=TableId("elsewhere", "items copy"))
        sink = self.committer()
        sink.open()
        sink.prepare(items)
        sink.prepare(items)
        assert self.rows(items.table) == []

    @needs("keyless")
    def test_a_copy_in_several_parts(self) -> None:
        items, bag = target_of(ITEMS), target_of(BAG, "other")
        sink = self.committer()
        sink.open()
        halves = [[copied_rows_of(ITEMS, [item(n) for n in part])] for part in ((1, 2), (3, 4), ())]
        bags = [{"a": "1", "b": None}, {"a": None, "b": ""}, {"a": "1", "b": None}]
        self.copy(sink, {items: halves, bag: [[copied_rows_of(BAG, bags[:1]), copied_rows_of(BAG, bags[1:])]]})
        self.holds(items, *(item(n) for n in (1, 2, 3, 4)))
        self.holds(bag, *bags)
        assert self.committer().open()["main"].lsn == START

    def test_copied_rows_may_come_as_changes(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        self.copy(sink, {items: [[copied_rows_of(ITEMS, [item(1)]).to_changes()]]})
        self.holds(items, item(1))

    @needs("keyless")
    def test_a_part_of_a_copy_written_twice_counts_once(self) -> None:
        bag = target_of(BAG)
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [bag])
        copied_batch = self.copied([bag])
        values = [copied_rows_of(BAG, [{"a": "1", "b": "x"}])]
        first, second = (self.write_part(Work(copied_batch, bag, 0), values) for _ in range(2))
        assert first.rows == second.rows == 1
        sink.commit(copied_batch, [second])
        self.holds(bag, {"a": "1", "b": "x"})
        sink.commit(copied_batch, [second])
        self.holds(bag, {"a": "1", "b": "x"})

    @needs("keyless")
    def test_a_part_that_comes_after_the_copy_counts_for_nothing(self) -> None:
        """I4: a task that was given up may go on, and write a part that another has written long ago."""
        bag = target_of(BAG)
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [bag])
        copied_batch = self.copied([bag])
        values = [copied_rows_of(BAG, [{"a": "1", "b": "x"}])]
        sink.commit(copied_batch, [self.write_part(Work(copied_batch, bag, 0), values)])
        with contextlib.suppress(SinkError):
            self.write_part(Work(copied_batch, bag, 0), values)
        sink.commit(copied_batch, [])
        self.holds(bag, {"a": "1", "b": "x"})

    def test_half_a_copy_leaves_nothing_to_the_next(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [items], name="killed")
        self.write_part(Work(self.copied([items], name="killed"), items, 0), [copied_rows_of(ITEMS, [item(1)])])
        sink.close()
        again = self.committer()
        assert again.open()["main"].tables[ITEMS.table].phase is Phase.COPYING
        self.copy(again, {items: [[copied_rows_of(ITEMS, [item(2)])]]}, name="second")
        self.holds(items, item(2))

    def test_a_replaced_copy_can_no_longer_be_committed(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [items], name="old")
        old = self.copied([items], name="old")
        receipts = self.write(old, {items: [[copied_rows_of(ITEMS, [item(1)])]]})
        self.copy(sink, {items: [[copied_rows_of(ITEMS, [item(2)])]]}, name="new")
        with pytest.raises(TruckFailed):
            sink.commit(old, receipts)
        self.holds(items, item(2))

    def test_a_copy_after_forget_replaces_the_rows(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1), item(2))
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
        self.holds(items, item(1), item(2))
        self.copy(sink, {items: [[copied_rows_of(ITEMS, [item(3)])]]}, name="again")
        self.holds(items, item(3))

    @needs("keyless")
    def test_old_rows_stay_readable_until_a_new_copy_counts(self) -> None:
        """Not even a copy that breaks off shows; then the rows are those of the new copy, and no others."""
        items, bag = target_of(ITEMS), target_of(BAG, "other")
        before: list[TextRow] = [{"a": "1", "b": None}, {"a": "1", "b": None}, {"a": "2", "b": "x"}]
        sink = self.committer()
        sink.open()
        rows = [item(1), item(2), item(3, note="old")]
        self.copy(sink, {items: [[copied_rows_of(ITEMS, rows)]], bag: [[copied_rows_of(BAG, before)]]})
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main", "other")), [])
        for name in ("breaks off", "again"):
            self.begin_copy(sink, [items, bag], name=name)
            load: TargetLoad = {
                items: [[copied_rows_of(ITEMS, [item(2), item(3, note="new")])], [copied_rows_of(ITEMS, [item(4)])]],
                bag: [[copied_rows_of(BAG, before[1:])]],
            }
            copied_batch = self.copied([items, bag], name=name)
            receipts = self.write(copied_batch, load)
            self.holds(items, *rows)
            self.holds(bag, *before)
        sink.commit(copied_batch, receipts)
        self.holds(items, item(2), item(3, note="new"), item(4))
        self.holds(bag, *before[1:])
        sink.commit(copied_batch, receipts)
        self.holds(items, item(2), item(3, note="new"), item(4))
        self.copy(sink, {items: [], bag: []}, name="emptied")
        self.holds(items)
        self.holds(bag)

    def test_a_copy_into_foreign_rows_is_refused(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        sink.prepare(items)
        self.put_foreign_row(items.table)
        with pytest.raises(TruckFailed) as refused:
            self.begin_copy(sink, [items])
        assert refused.value.truck == "main"
        assert refused.value.remedy
        assert [row["id"] for row in self.rows(items.table)] == ["77"]
        assert dict(self.committer().open()) == {}

    def test_a_truck_pointed_at_another_table_does_not_empty_it(self) -> None:
        sink = self.filled(target_of(ITEMS), item(1))
        elsewhere = target_of(ITEMS, table=TableId("public", "precious"))
        sink.prepare(elsewhere)
        self.put_foreign_row(elsewhere.table)
        with pytest.raises(TruckFailed):
            self.begin_copy(sink, [elsewhere], name="moved")
        assert [row["id"] for row in self.rows(elsewhere.table)] == ["77"]

    def test_an_empty_table_made_beforehand_is_taken(self) -> None:
        items = target_of(ITEMS)
        self.committer().open()
        other = self.committer("another")
        other.open()
        other.prepare(items)
        self.filled(items, item(1))
        self.holds(items, item(1))

    # -- changes -------------------------------------------------------------------------------------------------

    def test_insert_update_delete(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1), item(2), item(3))
        self.change(sink, items, insert(item(4)), update(item(2, "new", 5, "x")), delete({"id": "3"}))
        self.holds(items, item(1), item(2, "new", 5, "x"), item(4))
        self.change(sink, items, delete({"id": "1"}), delete(item(2)), insert(item(3, None, None)), step=2)
        self.holds(items, item(3, None, None), item(4))

    def test_an_insert_of_a_row_that_is_there_replaces_it(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "old", 1, "old"))
        self.change(sink, items, insert(item(1, "new", None, None)))
        self.holds(items, item(1, "new", None, None))

    def test_a_delete_of_a_row_that_is_not_there(self) -> None:
        """Inserted and deleted in one batch: the net change is a delete that finds nothing."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        self.change(sink, items, delete({"id": "9"}))
        self.holds(items, item(1))

    def test_a_key_of_several_columns(self) -> None:
        pairs = target_of(PAIRS)
        rows = [{"a": a, "b": b, "n": "0", "note": "x"} for a in "12" for b in ("", "x", "y")]
        sink = self.filled(pairs, *rows)
        self.change(
            sink,
            pairs,
            delete({"a": "1", "b": ""}),
            update({**rows[1], "n": "7"}, unchanged=["note"]),
            update({"a": "3", "b": "y", "n": "8"}, old={"a": "2", "b": "y"}, unchanged=["note"]),
        )
        self.holds(pairs, {**rows[1], "n": "7"}, rows[2], rows[3], rows[4], {"a": "3", "b": "y", "n": "8", "note": "x"})

    def test_a_table_that_is_all_key(self) -> None:
        keys = schema_of(TableId("public", "keys"), {"a": "integer not null", "b": "integer not null"}, ["a", "b"])
        target = target_of(keys)
        sink = self.filled(target, {"a": "1", "b": "1"}, {"a": "1", "b": "2"})
        self.change(
            sink, target, insert({"a": "1", "b": "1"}), insert({"a": "2", "b": "2"}), delete({"a": "1", "b": "2"})
        )
        self.holds(target, {"a": "1", "b": "1"}, {"a": "2", "b": "2"})

    def test_many_parts_and_values(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, *(item(n) for n in range(60)))
        parts = [
            [self.values(ITEMS, *(update(item(n, f"part {part}")) for n in range(start, start + 3)))
             for start in (part * 6, part * 6 + 3)]
            for part in range(10)
        ]  # fmt: skip
        batch = self.batch([items])
        sink.commit(batch, list(reversed(self.write(batch, {items: parts}))))
        self.holds(items, *(item(n, f"part {n // 6}") for n in range(60)))

    @needs("partial_rows")
    def test_the_values_of_a_part_come_in_order(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1), item(2))
        part = [
            self.values(ITEMS, update(item(1, "first", 1)), delete({"id": "2"})),
            self.values(ITEMS, update(item(1, "second"), unchanged=["qty"]), insert(item(2, "again"))),
        ]
        self.apply(sink, {items: [part]})
        self.holds(items, item(1, "second", 1), item(2, "again"))

    @needs("partial_rows")
    def test_the_parts_come_in_order(self) -> None:
        """A transaction too large for one part: the same keys in several, each to be applied to what the last left."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a", 1, "kept"), item(2, "b", 2, "of b"), item(3))
        moved = update(item(5, "moved"), old={"id": "4"}, unchanged=["qty", "note"])
        values = [
            [update(item(1, "first"), unchanged=["qty", "note"]), insert(item(4, "new", 4, "four"))],
            [moved, delete({"id": "3"})],
            [insert(item(3, "back")), update(item(4, "B"), old={"id": "2"}, unchanged=["note"])],
            [update(item(1, "last", 9), unchanged=["note"]), delete({"id": "5"})],
        ]
        batch = self.batch([items])
        receipts = self.write(batch, {items: [[self.values(ITEMS, *changes)] for changes in values]})
        sink.commit(batch, list(reversed(receipts)))
        self.holds(items, item(1, "last", 9, "kept"), item(3, "back"), item(4, "B", note="of b"))

    # -- unchanged cells (I7) ------------------------------------------------------------------------------------

    def test_unchanged_cells_keep_the_destinations_values(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a", 1, "long"), item(2, "b", 2, None), item(3, "c", 3, "x"))
        self.change(
            sink,
            items,
            update(item(1, "A"), unchanged=["note", "qty"]),
            update(item(2, None, 22), unchanged=["note"]),
            update(item(3, "C", 33, None)),
        )
        self.holds(items, item(1, "A", 1, "long"), item(2, None, 22, None), item(3, "C", 33, None))

    def test_an_update_that_changed_nothing(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a", 1, "long"))
        self.change(sink, items, update({"id": "1"}, unchanged=["name", "qty", "note"]))
        self.holds(items, item(1, "a", 1, "long"))

    @needs("partial_rows")
    def test_unchanged_cells_of_a_row_that_is_not_there_stop_the_truck(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        batch = self.batch([items])
        receipts = self.write(batch, {items: [[self.values(ITEMS, update(item(9), unchanged=["note"]))]]})
        with pytest.raises(TruckFailed):
            sink.commit(batch, receipts)
        self.holds(items, item(1))
        assert self.committer().open()["main"].lsn == START

    # -- keys that move ------------------------------------------------------------------------------------------

    @needs("partial_rows")
    def test_unchanged_cells_of_a_row_that_is_to_come_are_left_out(self) -> None:
        """Rows of an attached partition, which are written later: all other changes count."""
        items = replace(target_of(ITEMS), awaits_rows=True)
        sink = self.filled(items, item(1, "a", 1, "one"), item(2, "b", 2, "two"), item(3, "c", 3, "three"))
        self.change(
            sink,
            items,
            update(item(1, "A"), unchanged=["note", "qty"]),
            update(item(7, "to come", 7), unchanged=["note"]),
            update(item(9, "moved", 8), old={"id": "8"}, unchanged=["note"]),
            update(item(4, "B"), old={"id": "2"}, unchanged=["note", "qty"]),
            update(item(6, "whole", 6, "six")),
            delete({"id": "3"}),
        )
        self.holds(items, item(1, "A", 1, "one"), item(4, "B", 2, "two"), item(6, "whole", 6, "six"))
        self.change(sink, items, insert(item(7, "to come", 7, "seven")), insert(item(1, "again", 1, "one")), step=2)
        rest = (item(4, "B", 2, "two"), item(6, "whole", 6, "six"), item(7, "to come", 7, "seven"))
        self.holds(items, item(1, "again", 1, "one"), *rest)

    def test_a_key_moves(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a"), item(2, "b"))
        self.change(sink, items, update(item(9, "A"), old={"id": "1"}))
        self.holds(items, item(2, "b"), item(9, "A"))

    def test_a_key_moves_with_unchanged_cells(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a", 1, "kept"), item(2, "b"))
        self.change(sink, items, update(item(9, "A"), old={"id": "1"}, unchanged=["note", "qty"]))
        self.holds(items, item(2, "b"), item(9, "A", 1, "kept"))

    @pytest.mark.parametrize("unchanged", [[], ["note"]])
    def test_keys_swap(self, unchanged: list[str]) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a", note="of a"), item(2, "b", note="of b"))
        self.change(
            sink,
            items,
            update(item(2, "a", note=None if unchanged else "of a"), old={"id": "1"}, unchanged=unchanged),
            update(item(1, "b", note=None if unchanged else "of b"), old={"id": "2"}, unchanged=unchanged),
        )
        self.holds(items, item(2, "a", note="of a"), item(1, "b", note="of b"))

    @pytest.mark.parametrize("rotated", [False, True])
    def test_keys_move_along_a_chain(self, rotated: bool) -> None:
        """1→2→3 with different cells unchanged, the end free or, rotated, moving to the beginning."""
        items = target_of(ITEMS)
        sink = self.filled(items, *(item(n, f"name {n}", n, f"note {n}") for n in (1, 2, 3)))
        last = update(item(1 if rotated else 4, "moved 3", 3, "note 3"), old={"id": "3"})
        self.change(
            sink,
            items,
            update(item(2, "moved 1", 1), old={"id": "1"}, unchanged=["note"]),
            update(item(3, None, None), old={"id": "2"}, unchanged=["name", "qty", "note"]),
            last,
        )
        self.holds(
            items,
            item(2, "moved 1", 1, "note 1"),
            item(3, "name 2", 2, "note 2"),
            item(1 if rotated else 4, "moved 3", 3, "note 3"),
        )

    def test_a_key_moves_to_where_a_row_was_deleted_and_its_own_is_taken(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1, "a", note="of a"), item(2, "b", note="of b"))
        self.change(
            sink,
            items,
            delete({"id": "2"}),
            update(item(2, "a"), old={"id": "1"}, unchanged=["note"]),
            insert(item(1, "new")),
        )
        self.holds(items, item(1, "new"), item(2, "a", note="of a"))

    # -- truncate ------------------------------------------------------------------------------------------------

    @needs("keyless")
    def test_truncate(self) -> None:
        items, bag = target_of(ITEMS), target_of(BAG)
        sink = self.filled(items, item(1), item(2))
        self.copy(sink, {bag: [[copied_rows_of(BAG, [{"a": "1", "b": "x"}])]]}, name="bag", at=START)
        self.apply(
            sink,
            {
                items: [[self.values(ITEMS, truncate(), insert(item(2, "after")))]],
                bag: [[self.values(BAG, truncate())]],
            },
        )
        self.holds(items, item(2, "after"))
        self.holds(bag)

    def test_truncate_in_several_parts_and_values(self) -> None:
        """What comes before the last truncate is void, in its own part and in those before it."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1), item(2))
        parts = [
            [self.values(ITEMS, truncate(), insert(item(3)))],
            [self.values(ITEMS, insert(item(4))), self.values(ITEMS, truncate(), insert(item(5)))],
            [self.values(ITEMS, insert(item(6)), update(item(5, "again")))],
        ]
        batch = self.batch([items])
        sink.commit(batch, list(reversed(self.write(batch, {items: parts}))))
        self.holds(items, item(5, "again"), item(6))

    @needs("keyless")
    def test_truncate_in_a_later_part_of_a_table_without_key(self) -> None:
        bag = target_of(BAG)
        sink = self.filled(bag, {"a": "1", "b": "x"})
        one, two = {"a": "1", "b": "y"}, {"a": "2", "b": "y"}
        self.apply(
            sink,
            {
                bag: [
                    [self.values(BAG, insert(one), insert(two), delete({"a": "1", "b": "x"}))],
                    [self.values(BAG, truncate(), insert(one), insert(one))],
                    [self.values(BAG, delete(one), insert(two))],
                ]
            },
        )
        self.holds(bag, one, two)

    # -- tables without a key ------------------------------------------------------------------------------------

    @needs("keyless")
    def test_a_delete_takes_exactly_one_of_equal_rows(self) -> None:
        bag = target_of(BAG)
        one, none, empty = {"a": "1", "b": "x"}, {"a": None, "b": None}, {"a": None, "b": ""}
        sink = self.filled(bag, one, one, one, none, none, empty)
        self.change(sink, bag, delete(one), delete(one), delete(none), insert(empty))
        self.holds(bag, one, none, empty, empty)

    @needs("keyless")
    def test_an_update_of_a_whole_row(self) -> None:
        bag = target_of(BAG)
        one = {"a": "1", "b": "x"}
        sink = self.filled(bag, one, one)
        self.change(sink, bag, update({"a": "2"}, old=one, unchanged=["b"]))
        self.holds(bag, one, {"a": "2", "b": "x"})

    @needs("keyless")
    def test_a_row_inserted_and_deleted_in_one_batch(self) -> None:
        bag = target_of(BAG)
        one = {"a": "1", "b": None}
        sink = self.filled(bag, one)
        self.change(sink, bag, insert(one), insert({"a": "2", "b": "y"}), delete({"a": "2", "b": "y"}))
        self.holds(bag, one, one)

    @needs("keyless")
    def test_a_delete_that_finds_no_row_stops_the_truck(self) -> None:
        bag = target_of(BAG)
        sink = self.filled(bag, {"a": "1", "b": ""})
        batch = self.batch([bag])
        receipts = self.write(batch, {bag: [[self.values(BAG, delete({"a": "1", "b": None}))]]})
        with pytest.raises(TruckFailed):
            sink.commit(batch, receipts)
        self.holds(bag, {"a": "1", "b": ""})

    # -- columns that come and go --------------------------------------------------------------------------------

    def test_a_new_column(self) -> None:
        sink = self.filled(target_of(ITEMS), item(1))
        wider = self.with_column(Column("added", 23, type_name="integer", missing_value="5"))
        sink.prepare(wider)
        self.holds(wider, {**item(1), "added": "5"})
        self.change(sink, wider, insert({**item(2), "added": None}), update({**item(1), "added": "6"}))
        self.holds(wider, {**item(1), "added": "6"}, {**item(2), "added": None})

    def test_a_new_column_in_the_middle_of_a_batch(self) -> None:
        """Rows written before the column was added hold its missing value, as at the source."""
        sink = self.filled(target_of(ITEMS), item(1))
        wider = self.with_column(Column("added", 25, type_name="text", missing_value="it's"))
        sink.prepare(wider)
        part = [
            self.values(ITEMS, insert(item(2)), update(item(1, "changed"))),
            self.values(wider.source, insert({**item(3), "added": "own"})),
        ]
        self.apply(sink, {wider: [part]})
        self.holds(
            wider, {**item(1, "changed"), "added": "it's"}, {**item(2), "added": "it's"}, {**item(3), "added": "own"}
        )

    @needs("partial_rows")
    def test_a_dropped_column_stays(self) -> None:
        """Its NOT NULL goes, so that rows without it can come; so do values of it that are still under way."""
        full = schema_of(ITEMS.table, {"id": "integer not null", "name": "text", "gone": "integer not null"}, ["id"])
        sink = self.filled(target_of(full), {"id": "1", "name": "a", "gone": "7"})
        narrow = target_of(replace(full, columns=full.columns[:2]))
        sink.prepare(narrow)
        part = [
            self.values(full, insert({"id": "2", "name": "b", "gone": "8"})),
            self.values(narrow.source, insert({"id": "3", "name": "c"}), update({"id": "1", "name": "A"})),
        ]
        self.apply(sink, {narrow: [part]})
        assert {row["id"]: row["name"] for row in self.rows(narrow.table)} == {"1": "A", "2": "b", "3": "c"}
        assert {row["id"]: row["gone"] for row in self.rows(narrow.table)}["1"] == "7"

    def with_column(self, column: Column) -> Target:
        return target_of(replace(ITEMS, columns=(*ITEMS.columns, column)))

    # -- all or nothing (I5) -------------------------------------------------------------------------------------

    @needs("keyless")
    def test_several_trucks_and_tables_in_one_commit(self) -> None:
        items, bag = target_of(ITEMS), target_of(BAG)
        copy = target_of(ITEMS, "second", TableId("other", "items"))
        sink = self.started(items, bag, copy)
        values = [[self.values(ITEMS, insert(item(1)))]]
        batch = self.apply(sink, {items: values, bag: [[self.values(BAG, insert({"a": "1", "b": "x"}))]], copy: values})
        self.holds(items, item(1))
        self.holds(copy, item(1))
        self.holds(bag, {"a": "1", "b": "x"})
        states = self.committer().open()
        assert [states[truck].lsn for truck in ("main", "second")] == [batch.end, batch.end]

    @needs("visible")
    def test_bad_data_of_one_truck_leaves_nothing_and_names_it(self) -> None:
        good, bad = target_of(ITEMS, "good"), target_of(PAIRS, "bad")
        sink = self.started(good, bad)
        load: TargetLoad = {
            good: [[self.values(ITEMS, insert(item(1)))]],
            bad: [[self.values(PAIRS, insert({"a": "1", "b": "x", "n": "secret"}))]],
        }
        batch = self.batch([good, bad])
        receipts = self.write(batch, load)
        with pytest.raises(TruckFailed) as failed:
            sink.commit(batch, receipts)
        assert failed.value.truck == "bad"
        assert "pairs" in str(failed.value)
        assert "secret" not in str(failed.value)
        assert "no number" not in str(failed.value)
        self.holds(good)
        assert {truck: state.lsn for truck, state in self.committer().open().items()} == {"good": START, "bad": START}
        rest = Batch(batch.start, batch.end, {"good": batch.end}, targets=(good,))
        sink.commit(rest, [receipt for receipt in receipts if receipt.truck == "good"])
        self.holds(good, item(1))
        assert {t: s.lsn for t, s in self.committer().open().items()} == {"good": batch.end, "bad": START}

    @needs("keyless")
    def test_a_truck_that_is_ahead_is_left_alone(self) -> None:
        """Two trucks, one of which has the batch already: a lane that rejoins after a crash."""
        one, two = target_of(BAG, "one"), target_of(BAG, "two", TableId("public", "bag2"))
        sink = self.started(one, two)
        values = [[self.values(BAG, insert({"a": "1", "b": "x"}))]]
        self.apply(sink, {one: values})
        self.apply(sink, {one: values, two: values})
        self.holds(one, {"a": "1", "b": "x"})
        self.holds(two, {"a": "1", "b": "x"})

    @needs("keyless")
    def test_a_part_written_twice_counts_once(self) -> None:
        bag = target_of(BAG)
        sink = self.started(bag)
        batch = self.batch([bag])
        values = [self.values(BAG, insert({"a": "1", "b": "x"}))]
        self.write_part(Work(batch, bag, 0), values)
        sink.commit(batch, [self.write_part(Work(batch, bag, 0), values)])
        self.holds(bag, {"a": "1", "b": "x"})

    @needs("keyless")
    def test_a_write_without_commit_leaves_nothing(self) -> None:
        bag = target_of(BAG)
        sink = self.started(bag)
        self.write(self.batch([bag]), {bag: [[self.values(BAG, insert({"a": "1"}))]]})
        self.holds(bag)
        sink.close()
        again = self.committer()
        again.open()
        self.change(again, bag, insert({"a": "2", "b": None}))
        self.holds(bag, {"a": "2", "b": None})

    def test_a_receipt_for_no_position_is_refused(self) -> None:
        items = target_of(ITEMS)
        sink = self.started(items)
        batch = replace(self.batch([items]), positions={})
        receipts = self.write(batch, {items: [[self.values(ITEMS, insert(item(1)))]]})
        with pytest.raises((SinkError, TruckFailed)):
            sink.commit(batch, receipts)
        self.holds(items)

    # -- values and names ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("way", ["copied", "inserted", "updated"])
    def test_odd_values(self, way: str) -> None:
        items = target_of(ITEMS)
        rows = [item(n, value, None, value) for n, value in enumerate(ODD_VALUES)]
        if way == "copied":
            self.filled(items, *rows)
        elif way == "inserted":
            self.change(self.started(items), items, *(insert(row) for row in rows))
        else:
            sink = self.filled(items, *(item(n) for n in range(len(rows))))
            self.change(sink, items, *(update(row, unchanged=["qty"]) for row in rows))
            rows = [{**row, "qty": "0"} for row in rows]
        self.holds(items, *rows)

    @needs("keyless")
    def test_odd_values_in_a_table_without_key(self) -> None:
        bag = target_of(BAG)
        rows = [{"a": "1", "b": value} for value in ODD_VALUES]
        sink = self.filled(bag, *rows, *rows)
        self.change(sink, bag, *(delete(row) for row in rows))
        self.holds(bag, *rows)

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names(self, name: str) -> None:
        schema = schema_of(
            TableId(name, name), {name: "integer not null", f"{name[:20]} 2": "text", "k": "text", "op": "text"}, [name]
        )
        target = Target(f"truck {name}", schema, schema.table)
        row = dict(zip(schema.names, ("1", "a", "b", "c"), strict=True))
        sink = self.filled(target, row)
        other, moved = {**row, name: "2"}, {**row, name: "3"}
        self.change(sink, target, insert(other))
        self.change(sink, target, update({name: "3"}, {name: "1"}, schema.names[1:]), delete({name: "2"}), step=2)
        self.holds(target, moved)
        assert self.committer().open()[f"truck {name}"].lsn == Lsn(START + 0x200)

    def test_a_batch_of_some_size(self) -> None:
        """Large enough for sinks that stage large parts in another way than small ones."""
        items = target_of(ITEMS)
        text = "0123456789abcdef" * 8
        sink = self.filled(items, *(item(n, text, n, text) for n in range(0, 20_000, 2)))
        self.apply(
            sink,
            {
                items: [
                    [self.values(ITEMS, *(insert(item(n, text, n)) for n in range(1, 20_000, 2)))],
                    [self.values(ITEMS, *(update(item(n, text, -n), unchanged=["note"]) for n in range(0, 20_000, 4)))],
                    [self.values(ITEMS, *(delete({"id": str(n)}) for n in range(2, 20_000, 4)))],
                ]
            },
        )
        rows = {int(row["id"] or -1): row for row in self.rows(items.table)}
        assert len(rows) == 15_000
        assert rows[1] == item(1, text, 1)
        assert rows[4] == item(4, text, -4, text)

    # -- comparisons ---------------------------------------------------------------------------------------------

    def test_a_comparison_digests_expected_rows_as_it_does_stored_ones(self) -> None:
        """Of the moment when it began, and with every kind of text (`ComparesTables`)."""
        items = target_of(ITEMS)
        rows = [item(number, note=value) for number, value in enumerate(ODD_VALUES)]
        committer = self.filled(items, *rows)
        sink = committer.sink
        if not isinstance(sink, ComparesTables):
            pytest.skip(f"a {sink.name} destination offers no comparison")
        expected = copied_rows_of(ITEMS, rows).to_changes().new
        with contextlib.closing(sink.compare(items, 8)) as table:
            self.change(committer, items, update(item(3, "other")), delete({"id": "5"}))
            assert table.sums() == table.sums_of(expected)
            assert row_count(table.sums()) == len(rows)
            assert sorted(table.rows(range(4))) == sorted(table.rows_of(expected, range(4)))
            with pytest.raises(DataError):
                table.sums_of(copied_rows_of(ITEMS, [item(1), item(2) | {"qty": "no number"}]).to_changes().new)
            assert added(table.sums_of(half) for half in (expected.slice(0, 9), expected.slice(9))) == table.sums()
        with contextlib.closing(sink.compare(items, 8)) as table:
            groups = differing(table.sums_of(expected), table.sums())
            named = differences(table.rows_of(expected, groups), table.rows(groups), keyed=True)
        assert named == RowDifferences(missing=(("5",),), different=(("3",),))

    # -- the result of SQL or rules ------------------------------------------------------------------------------

    def test_a_strict_table_has_the_columns_of_the_rows(self) -> None:
        """A missing or an additional one is refused, with both sides; nothing is altered."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        sink.prepare(replace(items, strict=True))
        other = schema_of(
            ITEMS.table, {"id": "integer not null", "name": "text", "qty": "integer", "size": "text"}, ["id"]
        )
        with pytest.raises(SinkError) as caught:
            sink.prepare(replace(target_of(other), strict=True))
        assert caught.value.code == "TRK486"
        assert "only the rows have size; only the table has note" in caught.value.message
        self.holds(items, item(1))

    def test_a_strict_table_is_made_where_there_is_none(self) -> None:
        items = replace(target_of(ITEMS), strict=True)
        sink = self.filled(items, item(1))
        sink.prepare(items)
        self.change(sink, items, insert(item(2)))
        self.holds(items, item(1), item(2))

    # -- several tables into one ---------------------------------------------------------------------------------

    def shared(self) -> tuple[Target, Target]:
        """Two tables of one truck whose rows go to a third."""
        one, two = (replace(ITEMS, table=TableId("public", name)) for name in ("east", "west"))
        into = TableId("public", "all items")
        return Target("main", one, into, shared=True), Target("main", two, into, shared=True)

    def test_tables_share_an_output(self) -> None:
        """Copied together, then changed alone; a key that both have is the last one's."""
        east, west = self.shared()
        sink = self.committer()
        sink.open()
        rows = {n: item(n, "east" if n < 3 else "west") for n in range(1, 5)}
        both = {
            east: [[copied_rows_of(east.source, [rows[1], item(3, "east")])], [copied_rows_of(east.source, [rows[2]])]]
        }
        self.copy(sink, {**both, west: [[copied_rows_of(west.source, [rows[3], rows[4]])]]})
        self.holds(east, *rows.values())
        self.change(sink, east, update(item(1, "new")), delete({"id": "2"}))
        self.change(sink, west, insert(item(5)), step=2)
        self.holds(east, item(1, "new"), rows[3], rows[4], item(5))

    def test_a_table_joins_a_shared_output(self) -> None:
        """What is there stays, and a copy that breaks off adds nothing."""
        east, west = self.shared()
        sink = self.filled(east, item(1), item(2))
        self.begin_copy(sink, [west], name="broken")
        self.write(self.copied([west], name="broken"), {west: [[copied_rows_of(west.source, [item(9)])]]})
        sink.close()
        sink = self.committer()
        sink.open()
        self.copy(sink, {west: [[copied_rows_of(west.source, [item(2, "west"), item(3)])]]}, name="second")
        self.holds(east, item(1), item(2, "west"), item(3))

    def test_a_shared_output_must_be_empty_at_first(self) -> None:
        east, west = self.shared()
        sink = self.committer()
        sink.open()
        for target in (east, west):
            sink.prepare(target)
        self.put_foreign_row(east.table)
        with pytest.raises(TruckFailed) as caught:
            self.begin_copy(sink, [east, west])
        assert caught.value.code == "TRK410"

    def test_one_of_several_is_not_copied_again_alone(self) -> None:
        """Its rows cannot be told from the others'; all together can be, and the table then has those only."""
        east, west = self.shared()
        sink = self.committer()
        sink.open()
        first: TargetLoad = {
            east: [[copied_rows_of(east.source, [item(1), item(2)])]],
            west: [[copied_rows_of(west.source, [item(3)])]],
        }
        self.copy(sink, first)
        truck_table = ("main", west.source.table)
        sink.commit(Batch(START, START, tables={truck_table: TableState(Phase.COPYING, Lsn(0))}), [])
        with pytest.raises(TruckFailed) as caught:
            self.begin_copy(sink, [west], name="alone")
        assert caught.value.code == "TRK483"
        assert "trucker reset --truck main" in caught.value.remedy
        self.holds(east, item(1), item(2), item(3))
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
        self.begin_copy(sink, [east, west], name="anew")
        again: TargetLoad = {
            east: [[copied_rows_of(east.source, [item(2, "two")])]],
            west: [[copied_rows_of(west.source, [item(4)])]],
        }
        copied_batch = self.copied([east, west], name="anew")
        receipts = self.write(copied_batch, again)
        self.holds(east, item(1), item(2), item(3))
        sink.commit(copied_batch, receipts)
        self.holds(east, item(2, "two"), item(4))

    def test_what_is_left_of_a_new_copy_follows(self) -> None:
        """Of all tables copied anew one is late: the others' commit takes its old rows away, its own adds."""
        east, west = self.shared()
        sink = self.committer()
        sink.open()
        self.copy(sink, {t: [[copied_rows_of(t.source, [item(n)])]] for n, t in enumerate((east, west))})
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
        self.begin_copy(sink, [east, west], name="anew")
        copied_batch = self.copied([east], name="anew")
        sink.commit(copied_batch, self.write(copied_batch, {east: [[copied_rows_of(east.source, [item(5)])]]}))
        self.holds(east, item(5))
        self.begin_copy(sink, [west], name="late")
        late = self.copied([west], name="late")
        sink.commit(late, self.write(late, {west: [[copied_rows_of(west.source, [item(6)])]]}))
        self.holds(east, item(5), item(6))

    def test_a_truncate_of_one_of_several_is_refused(self) -> None:
        east, west = self.shared()
        sink = self.committer()
        sink.open()
        self.copy(sink, {t: [[copied_rows_of(t.source, [item(n)])]] for n, t in enumerate((east, west))})
        with pytest.raises(SinkError) as caught:
            self.change(sink, east, truncate())
        assert caught.value.code == "TRK482"
