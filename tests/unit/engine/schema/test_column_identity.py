"""Which column a name means, by comparison of two looks at the catalogue; doubt where that leaves it open (I8)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from trucker.change import Column, Lsn, TableId
from trucker.engine.schema.column_identity import Doubt, numbers_of, renaming, replaced, rewritten
from trucker.sinks.postgres.ddl.widening import holds, widens
from trucker.source.look import Look, SeenColumn

T = TableId("public", "t")
INT, TEXT = 23, 25


def look(*columns: tuple[int, str] | tuple[int, str, int] | tuple[int, str, int, int], width: int = 0) -> Look:
    """Columns by number and name, with their type's oid and the transaction that altered them last."""
    full = [(*column, *(INT, 1)[len(column) - 2 :]) for column in columns]
    seen = tuple(SeenColumn(n, Column(name, kind), False, altered) for n, name, kind, altered in full)  # type: ignore[misc]
    return Look(T, 1, Lsn(1), (), width or max(n for n, *_ in full), seen, {1: 1})  # type: ignore[type-var]


def shape(*names: str, **kinds: int) -> list[Column]:
    return [Column(name, kinds.get(name, INT)) for name in names]


KNOWN = look((1, "a"), (2, "b"), (3, "c"))


@pytest.mark.parametrize(
    ("now", "names", "numbers"),
    [
        (KNOWN, ("a", "b", "c"), (1, 2, 3)),
        (look((1, "a"), (2, "x"), (3, "c")), ("a", "x", "c"), (1, 2, 3)),
        (look((1, "a"), (2, "b"), (3, "c"), (4, "d")), ("a", "b", "c", "d"), (1, 2, 3, 4)),
        (look((1, "a"), (3, "c"), width=3), ("a", "c"), (1, 3)),
        (look((1, "a"), (2, "c"), width=3), ("a", "c"), (1, 2)),  # c went, and b has its name
        (look((1, "b"), (2, "a"), (3, "c")), ("b", "a", "c"), (1, 2, 3)),  # names exchanged
        (look((1, "a"), (2, "z"), (3, "c")), ("a", "y", "c"), (1, 2, 3)),  # called y meanwhile
        (look((1, "a"), (2, "b"), (3, "c"), width=4), ("a", "b", "c", "d"), (1, 2, 3, -1)),  # come and gone
        (None, ("a", "b", "c", "d"), (1, 2, 3, -1)),  # the table is gone
    ],
)
def test_numbers(now: Look | None, names: tuple[str, ...], numbers: tuple[int, ...]) -> None:
    assert numbers_of(shape(*names), KNOWN, now, 9) == numbers


def test_a_column_dropped_and_another_added_is_told_by_its_transaction() -> None:
    """Renamed, dropped and added again under the same name looks alike: unless the shape is younger than the column."""
    now = look((1, "a"), (2, "b"), (4, "x", INT, 50))
    assert numbers_of(shape("a", "b", "x"), KNOWN, now, 50) == (1, 2, 4)
    for xid in (49, None):
        with pytest.raises(Doubt):
            numbers_of(shape("a", "b", "x"), KNOWN, now, xid)


def test_transactions_are_compared_round_the_clock() -> None:
    now = look((1, "a"), (2, "b"), (4, "x", INT, 2**32 - 5))
    assert numbers_of(shape("a", "b", "x"), KNOWN, now, 3) == (1, 2, 4)


@pytest.mark.parametrize(
    ("now", "columns"),
    [
        (look((1, "a"), (2, "b"), (3, "c"), (4, "z")), shape("a", "b", "c", "y")),  # added as y, called z now
        (look((1, "b"), (2, "a"), (3, "c")), shape("c", "a", "b")),  # no order of numbers
    ],
)
def test_doubt(now: Look, columns: list[Column]) -> None:
    with pytest.raises(Doubt):
        numbers_of(columns, KNOWN, now, 99)


def test_a_publication_that_does_not_send_every_column() -> None:
    now = look((1, "a"), (2, "b"), (3, "c"), (4, "d"))
    assert numbers_of(shape("a", "c"), KNOWN, now, 9, (1, 3)) == (1, 3)


def test_no_reading_is_ever_wrong() -> None:
    """Random DDL with shapes in between: each is read as it was, or not at all."""
    dice = random.Random(1)
    read = doubts = 0
    for _ in range(3000):
        columns, width, xid = {1: "a", 2: "b", 3: "c"}, 3, 100
        altered = dict.fromkeys(columns, 1)
        seen: list[tuple[dict[int, str], int]] = []
        for _ in range(dice.randrange(1, 5)):
            xid += 1
            kind = dice.choice(("add", "drop", "rename"))
            free = [name for name in "abcdxyzw" if name not in columns.values()]
            if kind == "add":
                width += 1
                columns[width], altered[width] = dice.choice(free), xid
            elif kind == "drop" and len(columns) > 1:
                del columns[dice.choice(list(columns))]
            elif kind == "rename":
                number = dice.choice(list(columns))
                columns[number], altered[number] = dice.choice(free), xid
            xid += 1
            if dice.random() < 0.6:
                seen.append((dict(columns), xid))
        now = look(*((n, name, INT, altered[n]) for n, name in sorted(columns.items())), width=width)
        for then, user in seen:
            truth = sorted(then.items())
            if list(then.values()) == ["a", "b", "c"]:
                continue  # the stream tells nothing: `replaced` finds it
            try:
                numbers = numbers_of(shape(*(name for _, name in truth)), KNOWN, now, user)
            except Doubt:
                doubts += 1
                continue
            read += 1
            for number, (real, _) in zip(numbers, truth, strict=True):
                # What is gone by now may be taken for another that is gone, which changes nothing that stays.
                assert number == real or (number not in now.by_number and real not in now.by_number), (then, columns)
    assert read > doubts


def test_rewrites() -> None:
    other = replace(KNOWN, files={1: 2})
    assert rewritten(KNOWN, KNOWN, [1, 2, 3]) is None
    assert rewritten(KNOWN, other, [1, 2, 3]) is None  # VACUUM FULL
    touched = replace(other, columns=(replace(KNOWN.columns[0], altered=7), *KNOWN.columns[1:]))
    assert rewritten(KNOWN, touched, [1, 2]) is not None
    assert rewritten(KNOWN, touched, [2, 3]) is None  # a column that nobody takes
    assert rewritten(KNOWN, replace(touched, files={1: 1}), [1]) is None
    added = replace(other, columns=(*KNOWN.columns, SeenColumn(4, Column("d", INT), False, 7)))
    assert rewritten(KNOWN, added, [1, 2, 3, 4]) is not None
    filled = replace(other, columns=(*KNOWN.columns, SeenColumn(4, Column("d", INT), True, 7)))
    assert rewritten(KNOWN, filled, [1, 2, 3, 4]) is None
    assert rewritten(KNOWN, replace(touched, files={9: 2}), [1]) is None  # another partition


def test_a_column_that_is_another_one() -> None:
    assert replaced(KNOWN, look((1, "a"), (2, "b"), (4, "c")), ["a", "b", "c"]) == "c"
    assert replaced(KNOWN, look((1, "a"), (2, "b"), (4, "c")), ["a", "b"]) is None
    assert replaced(KNOWN, look((1, "a"), (2, "x"), (3, "c")), ["a", "b", "c"]) is None


def test_names_to_read_columns_by() -> None:
    """A column that is gone must not be read as one that has its name."""
    assert renaming(shape("a", "b"), (1, 2), {1: "a", 2: "x"}) == ("a", "x")
    assert renaming(shape("a", "b"), (1, 2), {1: "a", 3: "b"}) == ("a", "b (was 2)")
    assert renaming(shape("a", "b"), (1, 2), {1: "a"}) == ("a", "b")


def test_a_look_comes_back_from_its_file() -> None:
    column = Column("a", INT, -1, "integer", True, "7", labels=("x",))
    made = replace(KNOWN, columns=(SeenColumn(1, column, True, 5),), files={1: 2, 3: 4})
    assert Look.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("integer", "smallint"),
        ("bigint", "integer"),
        ("numeric", "bigint"),
        ("numeric(12,2)", "integer"),
        ("text", "character varying(10)"),
        ("character varying", "character varying(10)"),
        ("character varying(20)", "character varying(10)"),
        ("numeric(10,2)", "numeric(8,2)"),
        ("numeric(12,4)", "numeric(10,2)"),
        ("numeric", "numeric(8,2)"),
        ("double precision", "real"),
        ("timestamp without time zone", "timestamp(3) without time zone"),
        ("timestamp(6) with time zone", "timestamp(3) with time zone"),
        ("bigint[]", "integer[]"),
    ],
)
def test_widening(wide: str, narrow: str) -> None:
    assert widens(wide, narrow)
    assert holds(wide, narrow)
    assert not widens(narrow, wide)
    assert not holds(narrow, wide) or narrow == "text"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("numeric(10,4)", "numeric(10,2)"),
        ("numeric(8,2)", "bigint"),
        ("text", "integer"),
        ("integer", "integer"),
        ("timestamp with time zone", "timestamp without time zone"),
        ("character(20)", "character(10)"),
        ("real", "integer"),
        ("integer", "real"),
    ],
)
def test_no_widening(one: str, other: str) -> None:
    assert not widens(one, other)
