"""The conformance suite of table sinks that notice when somebody drops or alters what they have filled (I8).

Inherit `ChangedTablesSuite` in place of `TableSinkSuite`, and say how somebody else does DDL at the destination.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from trucker.errors import SinkError, SinkUnavailable, TruckFailed
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, Phase, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.table_identity import CODE, TableChange
from trucker.sinks.target import Target
from trucker.table import Column, TableId
from trucker.testing.handmade import copied_rows_of, insert, update
from trucker.testing.suites.sink_suite import ITEMS, START, target_of
from trucker.testing.suites.table_suite import TableSinkSuite, item

SLOT = ("main", ITEMS.table)
HAPPENINGS = ("dropped", "made again", "column dropped", "column added again", "last column added again")


class ChangedTablesSuite(TableSinkSuite):
    """For sinks that keep an identity of each table that they fill (`sinks.table_identity`)."""

    # -- what somebody else does ---------------------------------------------------------------------------------

    def drop_table(self, table: TableId) -> None:
        raise NotImplementedError

    def make_table(self, target: Target) -> None:
        """Make the target's table with the target's columns and key."""
        raise NotImplementedError

    def drop_column(self, table: TableId, column: str) -> None:
        raise NotImplementedError

    def add_column(self, table: TableId, column: str) -> None:
        """Add a column of text."""
        raise NotImplementedError

    def forget_identities(self) -> None:
        """Make what is stored look as if a version had written it that stored no identities."""
        raise NotImplementedError

    def happen(self, what: str, target: Target) -> None:
        if what in ("dropped", "made again"):
            self.drop_table(target.table)
        if what == "made again":
            self.make_table(target)
        if "column" in what:
            column = "note" if what.startswith("last") else "name"
            self.drop_column(target.table, column)
            if what.endswith("added again"):
                self.add_column(target.table, column)

    def again(self, sink: Committer, target: Target) -> None:
        """The table is to be copied again."""
        state = TableState(Phase.COPYING, Lsn(0))
        sink.commit(Batch(Lsn(0), Lsn(0), tables={(target.truck, target.source.table): state}), [])

    def only_change(self, sink: Committer) -> TableChange:
        (change,) = sink.changed_tables()
        assert (change.truck, change.source, change.table) == (*SLOT, ITEMS.table)
        return change

    # -- noticed -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("what", HAPPENINGS)
    def test_a_start_notices(self, what: str) -> None:
        """Neither a table nor a column that was filled is made again."""
        items = target_of(ITEMS)
        self.filled(items, item(1)).close()
        assert not self.committer().changed_tables()
        self.happen(what, items)
        self.only_change(self.committer())
        sink = self.committer()
        sink.open()
        before = self.rows(items.table)
        with pytest.raises(SinkError) as caught:
            sink.prepare(items)
        assert caught.value.code == CODE
        assert "trucker reset --truck main --table public.items" in caught.value.remedy
        assert "trucker accept --truck main --table public.items" in caught.value.remedy
        assert self.rows(items.table) == before
        self.only_change(sink)
        sink.close()

    @pytest.mark.parametrize("what", HAPPENINGS)
    def test_the_next_commit_notices(self, what: str) -> None:
        items, other = target_of(ITEMS), target_of(replace(ITEMS, table=TableId("public", "others")), "other")
        sink = self.committer()
        sink.open()
        self.copy(sink, {t: [[copied_rows_of(t.source, [item(1)])]] for t in (items, other)})
        self.change(sink, items, insert(item(2)), step=1)
        self.happen(what, items)
        # It is the fault of the truck whose table it is; the failure may show when rows are staged.
        with pytest.raises((TruckFailed, SinkError)) as caught:
            self.change(sink, items, insert(item(3)), update(item(1, "new")), step=2)
        assert caught.value.code == CODE
        if isinstance(caught.value, TruckFailed):
            assert caught.value.truck == "main"
        assert self.committer().open()["main"].lsn == self.batch([items], 1).end
        self.change(sink, other, insert(item(4)), step=2)
        self.holds(other, item(1), item(4))
        assert "items" in self.only_change(sink).what()

    def test_what_is_missing_is_named(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        self.happen("column dropped", items)
        assert self.only_change(sink).missing_columns == ("name",)
        self.happen("dropped", items)
        assert self.only_change(sink).missing
        sink.close()

    def test_columns_that_are_not_written_are_not_looked_at(self) -> None:
        """Such as somebody's own, and those that the source has dropped."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        self.add_column(items.table, "own")
        self.change(sink, items, insert(item(2)))
        self.drop_column(items.table, "own")
        assert not sink.changed_tables()
        self.drop_column(items.table, "name")
        narrow = replace(items, source=ITEMS.only(["id", "qty", "note"]), dropped=("name",))
        (change,) = sink.changed_tables()
        assert change.among(narrow.source.names) is None
        sink.prepare(narrow)
        assert not sink.changed_tables()
        row = {"id": "3", "qty": "0", "note": None}
        self.change(sink, narrow, insert(row), step=2)
        assert row in self.rows(items.table)

    def test_own_changes_are_not_taken_for_others(self) -> None:
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        more = Column("more", 25, type_name="text")
        wide = replace(items, source=replace(ITEMS, columns=(*ITEMS.columns, more)))
        sink.prepare(wide)
        assert not sink.changed_tables()
        self.change(sink, wide, insert({**item(2), "more": "x"}))
        assert not self.committer().changed_tables()
        self.drop_column(items.table, "more")
        self.add_column(items.table, "more")
        with pytest.raises((TruckFailed, SinkError)) as caught:
            self.change(sink, wide, insert({**item(3), "more": "y"}), step=2)
        assert caught.value.code == CODE

    # -- the choice ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("what", HAPPENINGS)
    def test_copied_again(self, what: str) -> None:
        items = target_of(ITEMS)
        self.filled(items, item(1), item(2)).close()
        self.happen(what, items)
        sink = self.committer()
        sink.open()
        self.again(sink, items)
        assert not sink.changed_tables()
        self.copy(sink, {items: [[copied_rows_of(ITEMS, [item(1), item(3)])]]}, name="again")
        self.holds(items, item(1), item(3))
        assert not sink.changed_tables()
        self.change(sink, items, insert(item(4)))
        self.holds(items, item(1), item(3), item(4))

    @pytest.mark.parametrize("what", HAPPENINGS)
    def test_accepted(self, what: str) -> None:
        """What is missing is made again, without what was in it."""
        items = target_of(ITEMS)
        self.filled(items, item(1, "one", note="x")).close()
        self.happen(what, items)
        sink = self.committer()
        sink.open()
        sink.accept_tables([SLOT])
        assert not sink.changed_tables()
        assert not self.committer().changed_tables()
        sink.open()
        sink.prepare(items)
        self.change(sink, items, insert(item(2)))
        rows = {row["id"]: row for row in self.rows(items.table)}
        assert rows["2"] == item(2)
        if "column" in what:
            emptied = "note" if what.startswith("last") else "name"
            assert rows["1"][emptied] is None
        else:
            assert rows.keys() == {"2"}
        self.drop_table(items.table)
        assert self.only_change(sink).missing

    def test_a_table_replaced_while_it_is_copied_is_copied_again(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [items])
        copied_batch = self.copied([items])
        receipt = self.write_part(Work(copied_batch, items, 0), [copied_rows_of(ITEMS, [item(1)])])
        self.happen("made again", items)
        with pytest.raises(TruckFailed) as caught:
            sink.commit(copied_batch, [receipt])
        assert isinstance(caught.value.reason, SinkUnavailable)
        self.copy(sink, {items: [[copied_rows_of(ITEMS, [item(1)])]]}, name="second")
        self.holds(items, item(1))

    # -- an older state ------------------------------------------------------------------------------------------

    def test_a_state_without_identities_is_taken_as_it_is_found(self) -> None:
        items, dropped = target_of(ITEMS), target_of(replace(ITEMS, table=TableId("public", "lost")), "lost")
        sink = self.committer()
        sink.open()
        self.copy(sink, {t: [[copied_rows_of(t.source, [item(1)])]] for t in (items, dropped)})
        sink.close()
        self.drop_table(dropped.table)
        self.forget_identities()
        sink = self.committer()
        assert [change.truck for change in sink.changed_tables()] == ["lost"]
        sink.open()
        assert [change.truck for change in sink.changed_tables()] == ["lost"]
        sink.prepare(items)
        self.change(sink, items, insert(item(2)))
        with pytest.raises(SinkError) as caught:
            sink.prepare(dropped)
        assert caught.value.code == CODE
        self.happen("made again", items)
        assert {change.truck for change in sink.changed_tables()} == {"lost", "main"}
        assert self.committer().open()["main"].lsn == Lsn(START + 0x100)
