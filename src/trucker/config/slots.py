"""A source split over several slots: which table goes to which, and what the parts are called.

Every slot is a stream of its own, numbered from 1. The first has the names that a source with one slot has; the others
add their number, with a mark that no name of a connection or a truck can hold.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

from trucker.config.patterns import PatternError, parse_pattern, select_tables
from trucker.config.values import refuse
from trucker.table import TableId

MOST: Final = 16
"""The most slots of a source."""

MARK: Final = "~"

Lists = tuple[tuple[str, ...], ...]
"""For each slot the patterns of its tables."""

_REMEDY: Final = (
    f"write a number from 1 to {MOST}, or a list with the tables of each slot:"
    " [[shop.orders, shop.items], [shop.events]]"
)


def parse_slots(value: Any) -> int | Lists:
    """A number of slots, or a list with each one's names and patterns."""
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= MOST:
            raise refuse(f"a source has from 1 to {MOST} slots", remedy=_REMEDY)
        return tuple(_patterns(number, entry) for number, entry in enumerate(value))
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST:
        raise refuse("slots is neither a number nor a list", remedy=_REMEDY)
    return number


def _patterns(number: int, entry: Any) -> tuple[str, ...]:
    texts = [entry] if isinstance(entry, str) else entry
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise refuse("a slot must be a list of tables", key=str(number), remedy=_REMEDY)
    try:
        excluding = [parse_pattern(text).excludes for text in texts]
    except PatternError as error:
        raise refuse(str(error), key=str(number), remedy=_REMEDY) from None
    if all(excluding):
        raise refuse("a slot has only exclusions", key=str(number), remedy=_REMEDY)
    return tuple(texts)


_TEXTS: Final = {"type": "array", "items": {"type": "string"}, "minItems": 1}
Slots = Annotated[
    int | Lists,
    BeforeValidator(parse_slots),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST},
                {
                    "type": "array",
                    "items": {"anyOf": [{"type": "string"}, _TEXTS]},
                    "minItems": 1,
                    "maxItems": MOST,
                },
            ],
            "title": "number, or list of lists of tables",
        }
    ),
]
"""How many there are, or the tables of each."""


def count_slots(slots: int | Lists) -> int:
    return slots if isinstance(slots, int) else len(slots)


def part_name(name: str, number: int) -> str:
    """What slot `number` makes of a connection's or a truck's name."""
    return name if number == 1 else f"{name}{MARK}{number}"


def whole_name(name: str) -> str:
    """The connection or truck that a part is of."""
    return name.partition(MARK)[0]


def object_part(name: str, number: int) -> str:
    """What slot `number` makes of the name of a slot or publication that was made beforehand."""
    return name if number == 1 else f"{name}_{number}"


def slot_of(table: TableId, slots: int | Lists) -> int:
    """The slot that a table goes to.

    It depends on nothing but the table's name and the setting, so that it stays from start to start, whatever other
    tables come and go.
    """
    if isinstance(slots, int):
        return slot_by_name(f"{table.schema}.{table.name}", slots)
    chosen = (number for number, patterns in enumerate(slots, 1) if select_tables(patterns, [table]))
    return next(chosen, 1)


def slot_by_name(text: str, count: int) -> int:
    """One of so many slots, by a hash. With one slot more, what moves moves to that one; the rest stays."""
    return max(range(1, count + 1), key=lambda number: hashlib.sha256(f"{number}:{text}".encode()).digest())
