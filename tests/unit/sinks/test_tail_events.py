"""Which events are in a stream already: exactly those that were read back, until they cannot come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.ledger import Entry, Ledger
from trucker.sinks.nats.tail_events import TailEvents, is_stable
from trucker.table import TableId

LSNS = st.integers(1, 2**40).map(lambda number: str(Lsn(number)))
CHANGES = st.builds(
    lambda lsn, ordinal, form: f"{lsn}/{ordinal}{form}",
    LSNS,
    st.integers(0, 5000),
    st.sampled_from(["", "/delete", "/insert", "/tombstone"]),
)
MARKS = st.builds(lambda lsn, mark: f"{lsn}/{mark}", LSNS, st.sampled_from(["begin", "end", "begin/public.a\nb"]))
IDS = st.tuples(st.sampled_from(["one", "two"]), CHANGES | MARKS)


@given(st.sets(IDS), st.sets(IDS))
def test_it_has_what_was_added_and_nothing_else(added: set[tuple[str, str]], others: set[tuple[str, str]]) -> None:
    sent = TailEvents()
    for truck, event_id in added:
        sent.add(truck, event_id)
    assert bool(sent) == bool(added)
    for each in added | others:
        assert sent.has(*each) == (each in added)


@given(CHANGES | MARKS)
def test_ids_of_changes_and_marks_are_stable(event_id: str) -> None:
    assert is_stable(event_id, snapshot=False)
    assert not is_stable(event_id, snapshot=True)


@pytest.mark.parametrize("event_id", ["first-0c1d/7/12", "16/B374D848/3/9f3c0a", "0c1d2e3f/7/12", "16/B374D848", ""])
def test_ids_of_copied_rows_and_of_rows_that_sql_returned_are_not(event_id: str) -> None:
    assert not is_stable(event_id, snapshot=False)


def test_a_large_transaction_takes_a_bit_for_each_form_of_a_change() -> None:
    sent = TailEvents()
    sent.add("main", "0/10/7999999")
    (bits,) = sent._changes["main"].values()
    assert len(bits) == 4_000_000
    assert sent.has("main", "0/10/7999999")
    assert not sent.has("main", "0/10/7999998")


def test_a_truck_is_forgotten_when_all_of_it_is_past() -> None:
    table = ("main", TableId("public", "t"))
    sent = TailEvents()
    sent.add("main", "0/20/0")
    sent.add("main", "0/10/0")
    sent.add("other", "0/10/0")
    behind = {table: Entry(Phase.CATCHING_UP, Lsn(0x20))}
    for ledger in (Ledger(), Ledger({"main": Lsn(0x20)}), Ledger({"main": Lsn(0x21)}, behind)):
        sent.settle(ledger)
        assert sent.has("main", "0/20/0")
    ahead = {table: Entry(Phase.STREAMING, Lsn(0x5))}
    sent.settle(Ledger({"main": Lsn(0x21)}, ahead))
    assert sent.trucks == {"other"}
    assert not sent.has("main", "0/20/0")
