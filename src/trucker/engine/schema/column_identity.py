"""Identifies the columns of a shape in the stream, from the table as last written and as it is now.

A column is identified by its number, never by its name. Two looks at the catalogue give a shape's numbers: `earlier`,
the table as the destination has it, and `now`, later than the shape. A column that is in both looks was there all the
time between, so every shape in between has it; a number is never used twice; columns come in the order of numbers. What
these leave open is a `Doubt`, and the table is copied again (I8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from trucker.source.look import Look
from trucker.table import Column, TableSchema

MOST_READINGS = 256

ColumnNumbers = tuple[int, ...]

OwnShapes = Mapping[tuple[Column, ...], TableSchema]
"""A shape's columns as the stream has them, and the same with what the catalogue knows of them."""


class Doubt(Exception):
    """The meaning of a shape is not certain; the text says why."""


def numbers_of(
    shape: Sequence[Column], earlier: Look, now: Look | None, xid: int | None, sent: Collection[int] | None = None
) -> ColumnNumbers:
    """The number of every column of `shape`; negative ones for columns that have come and gone since `earlier`.

    `xid` is the transaction that first used the shape, where that is known. `sent` are the columns that the stream is
    sure to carry: all of them, unless the publication has a list.
    """
    if shape_of(shape) == shape_of([seen.column for seen in earlier.columns]):
        return tuple(earlier.numbers[column.name] for column in shape)
    if now is None or now.oid != earlier.oid:
        now = earlier
    return _passing(shape, _read(shape, earlier, now, sent), earlier, now, xid)


def names_of(shape: Sequence[Column]) -> frozenset[str]:
    return frozenset(column.name for column in shape)


def shape_of(columns: Sequence[Column]) -> list[tuple[str, int, int]]:
    """What the stream tells of columns."""
    return [(column.name, column.type_oid, column.typmod) for column in columns]


def _read(shape: Sequence[Column], earlier: Look, now: Look, sent: Collection[int] | None) -> list[int | None]:
    """Numbers by name, where both looks leave only one reading, with those that stayed and are called otherwise."""
    candidates: list[list[int | None]] = [
        [*{number for look in (now, earlier) if (number := look.numbers.get(column.name)) is not None}] or [None]
        for column in shape
    ]
    count = 1
    for each in candidates:
        count *= len(each)
    if count > MOST_READINGS:
        raise Doubt("too many columns have former names of other columns")
    stayed = sorted(now.by_number.keys() & (earlier.by_number.keys() if sent is None else frozenset(sent)))
    readings = [
        full for reading in product(*candidates) if (full := _filled(list(reading), stayed, earlier)) is not None
    ]
    if len(readings) != 1:
        raise Doubt(
            "its columns can be identified in more than one way" if readings else "its columns cannot be identified"
        )
    return readings[0]


def _filled(reading: list[int | None], stayed: Sequence[int], earlier: Look) -> list[int | None] | None:
    """The reading with the columns that stayed under another name in their places; None where it cannot be."""
    numbers = [number for number in reading if number is not None]
    if any(a >= b for a, b in pairwise(numbers)):
        return None
    lacking = [number for number in stayed if number not in numbers]
    at, full = 0, list(reading)
    while at < len(full):
        if full[at] is not None:
            at += 1
            continue
        end = next((i for i in range(at, len(full)) if full[i] is not None), len(full))
        below = max((n for n in full[:at] if n is not None), default=0)
        above = full[end] if end < len(full) else None
        fitting = [n for n in lacking if n > below and (above is None or n < above)]
        if fitting and len(fitting) != end - at:
            return None
        # What comes before a column of then is one of then itself, called otherwise and dropped since.
        room = [n for n in earlier.by_number if above is not None and below < n < above]
        if above in earlier.by_number and len(room) < end - at:
            return None
        full[at : at + len(fitting)] = fitting
        lacking = [n for n in lacking if n not in fitting]
        at = end
    return None if lacking else full


def _passing(
    shape: Sequence[Column], reading: Sequence[int | None], earlier: Look, now: Look, xid: int | None
) -> ColumnNumbers:
    """The reading with negative numbers for names that are in neither look; `Doubt` where another one is possible."""
    added = now.by_number.keys() - earlier.by_number.keys()
    dropped = earlier.by_number.keys() - now.by_number.keys()
    passed = any(number not in now.by_number for number in range(earlier.width + 1, now.width + 1))
    later = {now.by_number[number].column.type_oid for number in added if number not in reading}
    last = max((at for at, number in enumerate(reading) if number in now.by_number and number not in added), default=-1)
    numbers, negative = [], 0
    for at, (column, number) in enumerate(zip(shape, reading, strict=True)):
        others = bool(dropped) or passed or None in reading or column.type_oid in later
        if others and number is not None and not _surely(column.name, number, earlier, now, xid):
            raise Doubt(f"column {column.name} may have been another column at that time")
        if at > last and (number is None or number in dropped) and column.type_oid in later:
            raise Doubt("an added column may have had another name at that time")
        negative -= number is None
        numbers.append(negative if number is None else number)
    return tuple(numbers)


def _surely(name: str, number: int, earlier: Look, now: Look, xid: int | None) -> bool:
    """Whether a column had this name then, if it is there now: all the time, or since a transaction before `xid`."""
    then, seen = earlier.by_number.get(number), now.by_number.get(number)
    if seen is None:
        return True
    if then is not None and then.column.name == seen.column.name:
        return True
    return name == seen.column.name and xid is not None and is_older(seen.altered, xid)


def is_older(altered: int, xid: int) -> bool:
    """Whether transaction `altered` began to write no later than `xid` did; both count modulo 2^32."""
    return (xid - altered) % (1 << 32) < 1 << 31


@dataclass(frozen=True, slots=True)
class TableRewrite:
    """Whether rows may have been written anew between two looks, without a word in the stream."""

    why: str


def rewritten(earlier: Look, now: Look, numbers: Collection[int]) -> TableRewrite | None:
    """Whether the rows' values in these columns may be others than those in the stream.

    VACUUM FULL and TRUNCATE change files as well, but alter no column.
    """
    if all(now.files.get(leaf, file) == file for leaf, file in earlier.files.items()):
        return None
    for number in sorted(numbers):
        seen, before = now.by_number.get(number), earlier.by_number.get(number)
        if seen is None:
            continue
        if before is None and not seen.filled:
            return TableRewrite(f"column {seen.column.name} was added with a different value for every row")
        if before is not None and seen.altered != before.altered:
            return TableRewrite(f"column {seen.column.name} was altered, and all rows were rewritten")
    return None


def replaced(earlier: Look, now: Look, names: Collection[str]) -> str | None:
    """The name of a column that is another one by now."""
    for name in sorted(names):
        if now.numbers.get(name, earlier.numbers.get(name)) != earlier.numbers.get(name) and name in earlier.numbers:
            return name
    return None


def renaming(shape: Sequence[Column], numbers: ColumnNumbers, wanted: Mapping[int, str]) -> tuple[str, ...]:
    """The names under which a shape's columns are to be read: the wanted ones, and no wanted one for any other."""
    taken = frozenset(wanted.values())
    return tuple(
        wanted.get(number) or (f"{column.name} (was {number})" if column.name in taken else column.name)
        for column, number in zip(shape, numbers, strict=True)
    )
