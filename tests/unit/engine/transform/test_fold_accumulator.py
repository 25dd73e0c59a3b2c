"""The net change over several pieces: what waits for the next one, and what does not."""

from __future__ import annotations

import pytest

from trucker.change import Changes, Lsn, TableId
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.compact import compact, has_moves
from trucker.engine.transform.fold_accumulator import FoldAccumulator
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, update

SCHEMA = schema_of(TableId("public", "t"), {"id": "integer", "a": "text", "b": "text"}, ["id"])


def changes(*given: Change) -> Changes:
    return changes_of(SCHEMA, list(given))


def write(key: int, a: str) -> Change:
    return update({"id": str(key), "a": a, "b": "b"})


def move(key: int, to: int, *unsent: str) -> Change:
    row = {"id": str(to), "a": "a", "b": "b"}
    return update({name: cell for name, cell in row.items() if name not in unsent}, {"id": str(key)}, list(unsent))


def texts(net: list[Changes]) -> list[tuple[str, str]]:
    return [(row["id"], row["a"]) for each in net for row in each.new.to_pylist()]


@pytest.fixture
def net() -> FoldAccumulator:
    return FoldAccumulator([Assignment("here", Target("truck", SCHEMA, SCHEMA.table), Lsn(1))])


def test_few_keys_wait_and_become_a_row_each(net: FoldAccumulator) -> None:
    for piece in range(3, 6):
        net.add(piece, [changes(*(write(key, f"{piece} {n}") for n in range(4) for key in (1, 2)))])
        assert not net.due
    number, left = net.take()
    assert number == 3
    assert texts(left) == [("1", "5 3"), ("2", "5 3")]
    assert (net.read, net.left) == (24, 2)


def test_many_keys_do_not_wait(net: FoldAccumulator) -> None:
    net.add(0, [changes(write(1, "x"), write(2, "x"), write(3, "x"))])
    assert net.due


def test_it_begins_anew_with_the_piece_that_comes_next(net: FoldAccumulator) -> None:
    net.add(0, [changes(write(1, "x"))])
    assert net.take()[0] == 0
    net.add(1, [])
    assert net.take() == (0, []), "nothing"
    net.add(2, [changes(write(1, "y"))])
    number, left = net.take()
    assert (number, texts(left)) == (2, [("1", "y")])


def test_what_comes_to_nothing_leaves_its_number_to_the_next(net: FoldAccumulator) -> None:
    net.add(0, [changes(insert({"id": "1", "a": "x", "b": "b"}), delete({"id": "1"}))])
    assert not net.due
    net.add(1, [changes(write(2, "x"))])
    assert net.take()[0] == 1


def test_rows_that_exchange_their_keys_are_one_step(net: FoldAccumulator) -> None:
    """A later change of one of the keys must find the row that has moved there."""
    swap = changes(move(1, 3, "b"), move(2, 1, "b"), move(3, 2, "b"), *(write(9, str(n)) for n in range(12)))
    net.add(0, [swap])
    assert net.due
    assert has_moves(compact([swap]))
    assert not has_moves(compact([changes(move(1, 3), move(2, 1), move(3, 2))])), "with all cells they are new rows"
