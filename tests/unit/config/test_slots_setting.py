"""`slots` of a connection: what may be written, which table goes where, and what parts are called."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trucker.adapters.postgres import PostgresConnection
from trucker.change import TableId
from trucker.config.slots import MOST, object_part, part_name, slot_of, whole_name


def _slots(value: Any) -> Any:
    return PostgresConnection(name="shop", slots=value)


@pytest.mark.parametrize(
    ("given", "count"), [(1, 1), ("2", 2), (MOST, MOST), (["shop.orders", ["shop.events", "!shop.x"]], 2)]
)
def test_what_may_be_written(given: Any, count: int) -> None:
    assert _slots(given).slot_count == count


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (0, "slots is neither a number nor a list"),
        (MOST + 1, "slots is neither a number nor a list"),
        (True, "slots is neither a number nor a list"),
        ("many", "slots is neither a number nor a list"),
        (1.5, "slots is neither a number nor a list"),
        ([], "a source has from 1 to 16 slots"),
        ([["a"]] * (MOST + 1), "a source has from 1 to 16 slots"),
        ([[]], "a slot must be a list of tables"),
        ([["a"], [3]], "a slot must be a list of tables"),
        ([["!a"]], "a slot has only exclusions"),
        ([["a..b"]], "this is not a table name or pattern"),
    ],
)
def test_what_may_not(given: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        _slots(given)


def test_a_table_goes_to_the_first_slot_whose_list_has_it_or_to_the_first() -> None:
    spread = (("shop.orders",), ("shop.*", "!shop.notes"))
    tables = {name: slot_of(TableId("shop", name), spread) for name in ("orders", "events", "notes")}
    assert tables == {"orders": 1, "events": 2, "notes": 1}


def test_names_decide_and_nothing_else() -> None:
    """By a hash, of which these are what they always must be: another would copy tables again."""
    names = ["orders", "items", "events", "customers", "Ä.ö"]
    assert [slot_of(TableId("shop", name), 2) for name in names] == PINNED


PINNED = [2, 1, 2, 2, 2]


def test_with_one_slot_more_tables_move_to_that_one_only() -> None:
    tables = [TableId("shop", f"t{number}") for number in range(1000)]
    for count in range(1, MOST):
        before = [slot_of(table, count) for table in tables]
        after = [slot_of(table, count + 1) for table in tables]
        moved = [new for old, new in zip(before, after, strict=True) if old != new]
        assert set(moved) == {count + 1}
        assert 0.5 < len(moved) * (count + 1) / len(tables) < 1.5


def test_what_parts_are_called() -> None:
    assert [part_name("shop", number) for number in (1, 2)] == ["shop", "shop~2"]
    assert {whole_name(part_name("shop", number)) for number in range(1, MOST + 1)} == {"shop"}
    assert [object_part("changes", number) for number in (1, 2)] == ["changes", "changes_2"]
    with pytest.raises(ValidationError):
        PostgresConnection(name="shop~2")
