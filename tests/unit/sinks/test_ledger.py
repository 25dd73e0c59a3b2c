"""What a batch still has to do, given what is stored (I3, I4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.change import Lsn, TableId
from trucker.config.sql.sql_files import SqlFile
from trucker.errors import SinkError, TruckFailed
from trucker.sinks.batch import Batch, Phase, TableState, TruckState
from trucker.sinks.ledger import Entry, Ledger
from trucker.sinks.target import Target
from trucker.testing.suites.sink_suite import ITEMS, target_of

ITEM = target_of(ITEMS)
SLOT = ("main", ITEMS.table)
AT = Lsn(100)


def begun(name: str, at: Lsn = AT) -> Batch:
    return Batch(at, at, tables={SLOT: TableState(Phase.COPYING, at)}, targets=(ITEM,), snapshot=name)


def copied(name: str, phase: Phase = Phase.STREAMING, at: Lsn = AT) -> Batch:
    positions = {"main": at} if phase is Phase.STREAMING else {}
    return Batch(at, at, positions, {SLOT: TableState(phase, at)}, (ITEM,), name)


def stored(*batches: Batch) -> Ledger:
    ledger = Ledger()
    for batch in batches:
        ledger = ledger.after(ledger.plan(batch))
    return ledger


def test_the_first_copy_is_of_a_table_that_is_not_ours() -> None:
    plan = Ledger().plan(begun("a"))
    assert [copy.ours for copy in plan.copies] == [False]
    assert plan.entries == {SLOT: Entry(Phase.COPYING, AT, ITEMS.table, "a")}
    assert not plan.apply


def test_a_second_attempt_may_delete_the_rows_of_the_first() -> None:
    plan = stored(begun("a")).plan(begun("b"))
    assert [copy.ours for copy in plan.copies] == [True]


def test_another_output_table_is_not_ours() -> None:
    elsewhere = replace(ITEM, table=TableId("public", "elsewhere"))
    plan = stored(begun("a"), copied("a")).plan(replace(begun("b"), targets=(elsewhere,)))
    assert [copy.ours for copy in plan.copies] == [False]


@pytest.mark.parametrize("batch", [begun("a"), copied("a"), copied("a", Phase.CATCHING_UP)])
def test_what_is_stored_is_not_done_again(batch: Batch) -> None:
    before = stored(begun("a")) if batch.tables[SLOT].phase is not Phase.COPYING else Ledger()
    assert not before.plan(batch).empty
    assert before.after(before.plan(batch)).plan(batch).empty


def test_a_replaced_copy_is_refused() -> None:
    with pytest.raises(TruckFailed, match="replaced"):
        stored(begun("a"), begun("b")).plan(copied("a"))
    with pytest.raises(TruckFailed, match="replaced"):
        stored(begun("a"), copied("a"), begun("b"), copied("b")).plan(copied("a"))


def test_a_truck_is_applied_by_its_position() -> None:
    ledger = stored(begun("a"), copied("a"))
    batch = Batch(AT, Lsn(200), {"main": Lsn(200)}, targets=(ITEM,))
    assert ledger.plan(batch).apply == {SLOT}
    done = ledger.after(ledger.plan(batch))
    assert done.plan(batch).empty
    assert done.plan(replace(batch, positions={"main": Lsn(150)})).empty
    assert done.states() == {"main": TruckState(Lsn(200), {ITEMS.table: TableState(Phase.STREAMING, AT)})}


def test_a_table_that_catches_up_goes_by_its_own() -> None:
    """Even where the batch names the truck's position, which is stored already."""
    ledger = replace(stored(begun("a"), copied("a", Phase.CATCHING_UP)), positions={"main": Lsn(300)})
    step = Batch(AT, Lsn(200), tables={SLOT: TableState(Phase.CATCHING_UP, Lsn(200))}, targets=(ITEM,))
    assert ledger.plan(step).apply == {SLOT}
    ledger = ledger.after(ledger.plan(step))
    assert ledger.plan(step).empty
    last = Batch(
        Lsn(200),
        Lsn(300),
        {"main": Lsn(300)},
        {SLOT: TableState(Phase.STREAMING, Lsn(300))},
        (ITEM,),
    )
    plan = ledger.plan(last)
    assert plan.apply == {SLOT}
    assert not plan.positions
    assert ledger.after(plan).plan(last).empty


def test_rows_without_a_position_are_refused() -> None:
    with pytest.raises(SinkError, match="no position"):
        stored(begun("a"), copied("a")).plan(Batch(AT, Lsn(200), targets=(ITEM,)))


def test_forget() -> None:
    ledger = stored(begun("a"), copied("a"))
    plan = ledger.plan(Batch(Lsn(0), Lsn(0), forget=("main",)))
    assert plan.trucks == ("main",)
    after = ledger.after(plan)
    assert after.states() == {"main": TruckState(Lsn(0), {ITEMS.table: TableState(Phase.COPYING, Lsn(0))})}
    assert [copy.ours for copy in after.plan(begun("b")).copies] == [True]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_every_batch_is_applied_once_however_often_it_comes(ends: list[int]) -> None:
    """Batches that are repeated, or come late, leave the same positions and are applied once each."""
    ledger = stored(begun("a"), copied("a"))
    reached = 0
    for end in ends:
        batch = Batch(AT, Lsn(100 + end), {"main": Lsn(100 + end)}, targets=(ITEM,))
        plan = ledger.plan(batch)
        assert bool(plan.apply) == (end > reached)
        reached = max(reached, end)
        ledger = ledger.after(plan)
        assert ledger.positions == {"main": Lsn(100 + reached)}


# -- several tables into one, and output.sql --------------------------------------------------------------------------

EAST, WEST = (
    replace(ITEM, source=replace(ITEMS, table=TableId("public", name)), shared=True) for name in ("east", "west")
)
BY_SQL = replace(ITEM, statement=SqlFile("output.sql", "trucks/main/output.sql", "select 1"))


def _shared(name: str, phase: Phase, *targets: Target) -> Batch:
    tables = {(target.truck, target.source.table): TableState(phase, AT) for target in targets}
    positions = {} if phase is Phase.COPYING else {"main": AT}
    return Batch(AT, AT, positions, tables, targets, name)


def test_tables_that_are_copied_together_into_one() -> None:
    first = _shared("a", Phase.COPYING, EAST, WEST)
    assert [(copy.ours, copy.adds) for copy in Ledger().plan(first).copies] == [(False, False)] * 2
    assert stored(first).plan(_shared("a", Phase.STREAMING, EAST, WEST)).adds == frozenset()


def test_a_table_that_joins_adds() -> None:
    ledger = stored(_shared("a", Phase.COPYING, EAST), _shared("a", Phase.STREAMING, EAST))
    joining = _shared("b", Phase.COPYING, WEST)
    assert [(copy.ours, copy.adds) for copy in ledger.plan(joining).copies] == [(True, True)]
    again = ledger.after(ledger.plan(joining))
    assert [copy.adds for copy in again.plan(_shared("c", Phase.COPYING, WEST)).copies] == [True]
    done = _shared("b", Phase.CATCHING_UP, WEST)
    assert again.plan(done).adds == {("main", WEST.source.table)}


def test_one_of_several_is_copied_again_with_all_of_them_only() -> None:
    ledger = stored(_shared("a", Phase.COPYING, EAST, WEST), _shared("a", Phase.STREAMING, EAST, WEST))
    with pytest.raises(TruckFailed) as caught:
        ledger.plan(_shared("b", Phase.COPYING, WEST))
    assert caught.value.code == "TRK483"
    anew = _shared("b", Phase.COPYING, EAST, WEST)
    assert [(copy.ours, copy.adds) for copy in ledger.plan(anew).copies] == [(True, False)] * 2


def test_what_output_sql_wrote_is_written_again_after_a_reset_only() -> None:
    begin, end = (replace(batch, targets=(BY_SQL,)) for batch in (begun("a"), copied("a")))
    ledger = stored(begin, end)
    again = replace(begun("b"), targets=(BY_SQL,))
    with pytest.raises(TruckFailed) as caught:
        ledger.plan(again)
    assert caught.value.code == "TRK484"
    reset = ledger.after(ledger.plan(Batch(Lsn(0), Lsn(0), forget=("main",))))
    assert len(reset.plan(again).copies) == 1
    # A first copy that was never finished has written nothing.
    assert len(stored(begin).plan(again).copies) == 1


@pytest.mark.parametrize(("before", "after"), [(ITEM, BY_SQL), (BY_SQL, ITEM)])
def test_from_table_to_statement_and_back_by_a_reset_only(before: Target, after: Target) -> None:
    ledger = stored(*(replace(batch, targets=(before,)) for batch in (begun("a"), copied("a"))))
    with pytest.raises(TruckFailed) as caught:
        ledger.plan(Batch(AT, Lsn(200), {"main": Lsn(200)}, targets=(after,)))
    assert caught.value.code == "TRK418"
    assert "to output.sql, but" in caught.value.message or "its output is now output.sql" in caught.value.message
