"""Values that a destination's type for a column does not take, where the truck says that they become NULL.

For stores that are to be asked before anything is staged: about the distinct values of a column at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Changes, CopiedRows
from trucker.sinks.target import Target
from trucker.types import Unfit

FindUnfit = Callable[[str, pa.Array], pa.Array]
"""Which of these distinct values a column does not take."""


def fitting(
    target: Target, values: Iterator[Changes | CopiedRows], find_unfit: FindUnfit
) -> Iterator[Changes | CopiedRows]:
    """The values, with NULL for what does not fit in columns of that policy; the very same where there are none."""
    names = [name for name, unfit in target.unfit if unfit is Unfit.NULL]
    return _fitting(names, values, find_unfit) if names else values


def _fitting(names: Sequence[str], values: Iterator[Changes | CopiedRows], find_unfit: FindUnfit) -> Iterator[Changes]:
    for value in values:
        changes = value.to_changes() if isinstance(value, CopiedRows) else value
        for name in names:
            if name in changes.schema.names:
                changes = _nulled(changes, name, find_unfit)
        yield changes


def _nulled(changes: Changes, name: str, find_unfit: FindUnfit) -> Changes:
    """Replace refused values with NULL, in old rows too: rows that were stored with NULL are found by NULL."""
    new, old = changes.new.column(name), changes.old.column(name)
    wrong = find_unfit(name, pa.chunked_array([new, old], pa.string()).unique().drop_null())
    if not len(wrong):
        return changes
    place = changes.schema.names.index(name)
    nothing = pa.scalar(None, pa.string())
    return replace(
        changes,
        new=changes.new.set_column(place, name, pc.if_else(pc.is_in(new, wrong), nothing, new)),
        old=changes.old.set_column(place, name, pc.if_else(pc.is_in(old, wrong), nothing, old)),
    )
