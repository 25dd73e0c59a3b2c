"""Groups the rows of a truck into runs: the rows of a run go into one statement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trucker.change import Changes
from trucker.engine.transform.fold import Fold

Runs = npt.NDArray[np.int64]


def number_runs(tables: Sequence[Changes], how: Fold, *, by_transaction: bool) -> list[Runs]:
    """For each table's changes the run of each row.

    All are one where a part is folded as a whole, those of a transaction where that is. Where every change is kept, in
    commit order, a run ends where another table's change, another operation or (`by_transaction`) another transaction
    begins.
    """
    if how is Fold.NET:
        return [np.zeros(len(changes), np.int64) for changes in tables]
    lsn = np.concatenate([changes.commit_lsn for changes in tables]) if tables else np.zeros(0, np.uint64)
    if how is Fold.TRANSACTION:
        return _apart(np.unique(lsn, return_inverse=True)[1].astype(np.int64), tables)
    ordinal = np.concatenate([changes.ordinal for changes in tables]) if tables else np.zeros(0, np.int64)
    op = np.concatenate([changes.op for changes in tables]) if tables else np.zeros(0, np.uint8)
    table = np.repeat(np.arange(len(tables)), [len(changes) for changes in tables])
    order = np.lexsort((ordinal, lsn))
    begins = np.zeros(len(order), np.bool_)
    for kind in (op, table, lsn) if by_transaction else (op, table):
        begins[1:] |= kind[order][1:] != kind[order][:-1]
    run = np.empty(len(order), np.int64)
    run[order] = np.cumsum(begins)
    return _apart(run, tables)


def _apart(run: Runs, tables: Sequence[Changes]) -> list[Runs]:
    return np.split(run, np.cumsum([len(changes) for changes in tables])[:-1]) if tables else []
