"""How rows of two stores are compared without being brought together: a digest of each row, summed up by groups.

A row belongs to a group by its key, so that the row of a key is in the same group on both sides. Groups of which number
and sum of digests are equal have equal rows; of the others the keys are looked at. Any key will do, whatever its type
and collation, since nothing has to be put in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from trucker.table import Key

GROUP_BYTES: Final = 1 << 16
"""About so many bytes of rows a group has."""

LEAST_GROUPS: Final = 64
MOST_GROUPS: Final = 1 << 16

GroupSums = Mapping[int, tuple[int, int]]
"""For each group that has rows their number, and the sum of their digests."""


class DigestedRow(NamedTuple):
    """A row's key, empty where its table has none, and its digest."""

    key: Key
    digest: int


@dataclass(frozen=True, slots=True)
class DigestedColumns:
    """What of a row is digested, by the names of one side, in the same order on both; and the columns of the key. A
    table without a key has none: its rows are grouped by all columns. `groups` is a power of two."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    groups: int

    @property
    def grouped_by(self) -> tuple[str, ...]:
        return self.key or self.columns


def group_count(size: int) -> int:
    """How many groups to make of a table of so many bytes."""
    wanted = max(LEAST_GROUPS, min(MOST_GROUPS, size // GROUP_BYTES))
    return 1 << (wanted - 1).bit_length()


def added(sums: Iterable[GroupSums]) -> dict[int, tuple[int, int]]:
    """The sums of several sets of rows together."""
    total: dict[int, tuple[int, int]] = {}
    for part in sums:
        for group, (rows, digests) in part.items():
            before = total.get(group, (0, 0))
            total[group] = before[0] + rows, before[1] + digests
    return total


def row_count(sums: GroupSums) -> int:
    return sum(rows for rows, _ in sums.values())


def differing(first: GroupSums, second: GroupSums) -> list[int]:
    """The groups that are not equal, in order."""
    return sorted(group for group in first.keys() | second.keys() if first.get(group) != second.get(group))


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """Rows that are not the same on both sides, by their keys: `missing` are only among the expected ones, `extra` only
    among the others, `different` in both. Of rows without a key there are `keyless_missing` and `keyless_extra`."""

    missing: tuple[Key, ...] = ()
    extra: tuple[Key, ...] = ()
    different: tuple[Key, ...] = ()
    keyless_missing: int = 0
    keyless_extra: int = 0


def differences(expected: Iterable[DigestedRow], stored: Iterable[DigestedRow], *, keyed: bool) -> RowDifferences:
    """What differs. A row that is stored twice is an extra one."""
    wanted, present = Counter(expected), Counter(stored)
    missing, extra = wanted - present, present - wanted
    if not keyed:
        return RowDifferences(keyless_missing=missing.total(), keyless_extra=extra.total())
    lacking, surplus = {row.key for row in missing}, {row.key for row in extra}
    return RowDifferences(
        tuple(sorted(lacking - surplus)), tuple(sorted(surplus - lacking)), tuple(sorted(lacking & surplus))
    )
