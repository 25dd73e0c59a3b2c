"""The net change of a batch: what a destination has to do, once per key.

`compact` takes all changes of one table of one batch, in order, and folds the changes of a key into one: old of the
first, new of the last.

    insert … update   insert         update … update   update         delete … insert   update
    insert … delete   nothing        update … delete   delete         truncate          forgets all before it

A truncate is a single first row. An update of the key is a delete of the old key and an insert of the new one. That is
impossible only where the new row has cells that were not sent (TOAST) and no earlier change of the batch holds them:
they live at the destination, in the row that had another key before the batch. Then it stays an update, one that
*moves* a row: its `old` has that key, `old_kind` is OLD_KEY, and `unchanged` marks the cells to take from there. No
other update that comes out has OLD_KEY.

What comes out is to be applied in this order:

1. the truncate, if there is one;
2. all deletes;
3. all moves, as a set, from the rows as they were before the batch (keys may have been swapped);
4. all the others, as upserts that leave unchanged cells alone.

A row that had the new key of a move before is deleted by a delete of its own. A key whose row moved away and was
taken by another row comes as an insert.

Shapes. Where the table changed its columns within the batch, everything comes in the newest shape (`Changes.reshaped`).

Without key (the whole row identifies) rows may be there many times: what comes out is the difference, inserts and
deletes with their multiplicity, deletes with the whole row in `old`; NULLs are equal.

What comes out can be folded with what happened later, by giving it to `compact` before that: each of its rows is of a
key of its own, so that their order makes no difference. Not so moves, which are one step together (`has_moves`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trucker.change import OLD_KEY, TRUNCATE, UPDATE, Changes
from trucker.engine.transform.compact.bag import net_of_bag
from trucker.engine.transform.compact.keyed import moved, net_by_key

__all__ = ["compact", "has_moves", "moved"]


def compact(parts: Sequence[Changes]) -> list[Changes]:
    """The net change of `parts`, the changes of one table in order; at most one row per key, normally one value."""
    present = [part for part in parts if len(part)]
    if not present:
        return []
    newest = present[-1].schema
    truncate, rest = _since_truncate([part.reshaped(newest) for part in present])
    net = (net_by_key if newest.key else net_of_bag)(rest) if rest else []
    if truncate is None:
        return net
    return [Changes.concat([truncate, *net[:1]]), *net[1:]]


def has_moves(net: Sequence[Changes]) -> bool:
    """Whether a net change has updates that move rows, so that it must be applied before anything else is."""
    return any(((changes.op == UPDATE) & (changes.old_kind == OLD_KEY)).any() for changes in net)


def _since_truncate(parts: Sequence[Changes]) -> tuple[Changes | None, list[Changes]]:
    """The last truncate, and the changes after it."""
    for number in reversed(range(len(parts))):
        truncates = np.flatnonzero(parts[number].op == TRUNCATE)
        if len(truncates):
            last = int(truncates[-1])
            rest = parts[number].take(np.arange(last + 1, len(parts[number])))
            return parts[number].take(truncates[-1:]), [part for part in (rest, *parts[number + 1 :]) if len(part)]
    return None, list(parts)
