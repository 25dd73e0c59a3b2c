"""Unique constraints that a destination has beside the key: rows of a batch take values from each other."""

from __future__ import annotations

import pytest

from fixtures.postgres_sink import PostgresDestination
from trucker.errors import TruckFailed
from trucker.testing.handmade import delete, insert, update
from trucker.testing.suites.sink_suite import ITEMS, target_of
from trucker.testing.suites.table_suite import item

UNIQUE = {
    "constraint": "alter table items add constraint one_name unique (name)",
    "index": "create unique index one_name on items (name) include (qty)",
    "partial": "create unique index one_name on items (name) where qty > 0",
    "expression": "create unique index one_name on items (lower(name), (qty + 0)) where note is null",
    "nulls": "alter table items add constraint one_name unique nulls not distinct (name)",
    "several": "create unique index one_name on items (name); create unique index one_more on items ((name || qty))",
}


@pytest.mark.parametrize("made", UNIQUE.values(), ids=UNIQUE)
def test_values_change_hands(place: PostgresDestination, made: str) -> None:
    """A swap, a chain with a new row at its end, and one that goes: legal in steps at the source, and at the end."""
    items = target_of(ITEMS)
    rows = [item(n, name, 1) for n, name in enumerate("abcdefg")]
    sink = place.filled(items, *rows)
    place.database.execute(*made.split("; "))
    place.change(
        sink,
        items,
        insert(item(10, "c", 1)),
        update(item(1, "a", 1)),
        update(item(0, "b", 1)),
        update(item(2, "d", 1)),
        update(item(3, None, 1) if "nulls" in made else item(3, "x", 1)),
        delete({"id": "4"}),
        update(item(5, "e", 1)),
    )
    place.holds(
        items,
        item(0, "b", 1),
        item(1, "a", 1),
        item(2, "d", 1),
        item(3, None, 1) if "nulls" in made else item(3, "x", 1),
        item(10, "c", 1),
        item(5, "e", 1),
        item(6, "g", 1),
    )


def test_values_change_hands_between_rows_with_unchanged_cells(place: PostgresDestination) -> None:
    """I7: what was not sent comes back with the row."""
    items = target_of(ITEMS)
    sink = place.filled(items, item(0, "a", 1, "kept 0"), item(1, "b", 1, "kept 1"), item(2, "c", 1, "kept 2"))
    place.database.execute("create unique index one_name on items (name)")
    place.change(
        sink,
        items,
        update(item(0, "b", 1), unchanged=["note"]),
        update({"id": "1", "name": "a"}, unchanged=["note", "qty"]),
        update(item(7, "d", 7), {"id": "2"}, ["note"]),
        insert(item(3, "c", 3)),
    )
    place.holds(
        items,
        item(0, "b", 1, "kept 0"),
        item(1, "a", 1, "kept 1"),
        item(7, "d", 7, "kept 2"),
        item(3, "c", 3),
    )


def test_many_rows_shift_their_values(place: PostgresDestination) -> None:
    """More than are upserted: they are updated in place, but for those in the way."""
    items = target_of(ITEMS)
    sink = place.filled(items, *(item(n, f"n{n}") for n in range(1200)))
    place.database.execute("create unique index one_name on items (name)")
    place.change(sink, items, *(update(item(n, f"n{(n + 1) % 1200}")) for n in range(1200)))
    place.holds(items, *(item(n, f"n{(n + 1) % 1200}") for n in range(1200)))


def test_a_value_that_is_there_twice_is_still_an_error(place: PostgresDestination) -> None:
    """I8: only rows of the batch make way."""
    items = target_of(ITEMS)
    sink = place.filled(items, item(0, "a"), item(1, "b"), item(2, "c"))
    place.database.execute("create unique index one_name on items (name)")
    with pytest.raises(TruckFailed, match="constraint one_name"):
        place.change(sink, items, update(item(0, "c")), update(item(1, "a")))
    place.holds(items, item(0, "a"), item(1, "b"), item(2, "c"))


@pytest.mark.parametrize("action", ["cascade", "set null", "no action"])
def test_rows_that_others_refer_to_stay_where_they_are(place: PostgresDestination, action: str) -> None:
    """Taking them out would take others along: the truck stops with the remedy instead."""
    items = target_of(ITEMS)
    sink = place.filled(items, item(0, "a"), item(1, "b"))
    place.database.execute(
        "create unique index one_name on items (name)",
        f"create table of (id int references items on delete {action})",
        "insert into of values (0), (1)",
    )
    with pytest.raises(TruckFailed, match="constraint one_name") as failed:
        place.change(sink, items, update(item(0, "b")), update(item(1, "a")))
    assert "DEFERRABLE INITIALLY DEFERRED" in str(failed.value)
    assert place.database.query("select id from of order by 1") == [(0,), (1,)]


def test_columns_of_ones_own_are_not_lost(place: PostgresDestination) -> None:
    items = target_of(ITEMS)
    sink = place.filled(items, item(0, "a"), item(1, "b"))
    place.database.execute("alter table items add column own text", "update items set own = 'mine'")
    place.database.execute("create unique index one_name on items (name)")
    with pytest.raises(TruckFailed, match="constraint one_name"):
        place.change(sink, items, update(item(0, "b")), update(item(1, "a")))
    place.database.execute("drop index one_name", "alter table items add unique (name) deferrable initially deferred")
    place.change(sink, items, update(item(0, "b")), update(item(1, "a")))
    assert place.database.query("select id, name, own from items order by 1") == [(0, "b", "mine"), (1, "a", "mine")]
