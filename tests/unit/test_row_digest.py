"""Sums of digests say which groups differ, and the digests of their rows which keys."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trucker.row_digest import (
    LEAST_GROUPS,
    MOST_GROUPS,
    DigestedRow,
    GroupSums,
    RowDifferences,
    added,
    differences,
    differing,
    group_count,
    row_count,
)

Rows = dict[str, int]

ROWS = st.dictionaries(st.integers(0, 30).map(str), st.integers(-(2**63), 2**63 - 1), max_size=20)


def _digested(rows: Rows) -> list[DigestedRow]:
    return [DigestedRow((key,), digest) for key, digest in rows.items()]


def _sums(rows: Rows) -> GroupSums:
    return added({int(key) % 4: (1, digest)} for key, digest in rows.items())


@given(ROWS, ROWS)
def test_just_the_keys_of_rows_that_differ_are_named(expected: Rows, stored: Rows) -> None:
    both = expected.keys() & stored.keys()
    assert differences(_digested(expected), _digested(stored), keyed=True) == RowDifferences(
        missing=tuple(sorted((key,) for key in expected.keys() - both)),
        extra=tuple(sorted((key,) for key in stored.keys() - both)),
        different=tuple(sorted((key,) for key in both if expected[key] != stored[key])),
    )


@given(ROWS, ROWS)
def test_groups_without_a_difference_have_equal_rows(expected: Rows, stored: Rows) -> None:
    """Digests of several rows may cancel out only where their sums are equal."""
    groups = differing(_sums(expected), _sums(stored))
    for group in range(4):
        here = {key: digest for key, digest in expected.items() if int(key) % 4 == group}
        there = {key: digest for key, digest in stored.items() if int(key) % 4 == group}
        alike = (len(here), sum(here.values())) == (len(there), sum(there.values()))
        assert (group not in groups) == alike
    assert row_count(_sums(expected)) == len(expected)


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_rows_without_a_key_are_counted(expected: list[int], stored: list[int]) -> None:
    wanted, present = Counter(expected), Counter(stored)
    compared = differences(
        [DigestedRow((), digest) for digest in expected], [DigestedRow((), digest) for digest in stored], keyed=False
    )
    assert (compared.keyless_missing, compared.keyless_extra) == (
        (wanted - present).total(),
        (present - wanted).total(),
    )


def test_a_row_that_is_stored_twice_is_an_extra_one() -> None:
    row = DigestedRow(("1",), 7)
    assert differences([row], [row, row], keyed=True) == RowDifferences(extra=(("1",),))


@given(st.integers(0, 2**50))
def test_the_number_of_groups_is_a_power_of_two_within_bounds(size: int) -> None:
    count = group_count(size)
    assert LEAST_GROUPS <= count <= MOST_GROUPS
    assert count & (count - 1) == 0
