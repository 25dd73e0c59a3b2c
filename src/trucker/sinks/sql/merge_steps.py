"""The statements of a merge, and how many rows each must touch: what a source's change says and a table does not bear
out is another program's doing, and is noticed (I8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trucker.errors import SinkError, SinkUnavailable, TruckFailed
from trucker.sinks.target import Target
from trucker.table import TableId


@dataclass(frozen=True, slots=True)
class Step:
    """A statement, and how many rows it must touch (None: any number).

    `purpose` is what is said when it touched others. A step with `cancels` removes pairs of staged rows; those
    `after_cancel` have that many fewer to touch, and a step that does the `rest` as many fewer as those before it did,
    back to the last one that is no `rest` itself.
    `lost` steps look whether what was staged is still there. A `sure` one relies on rows being there, or not, as the
    source's changes say: where it finds otherwise it is `Unforeseen`, and all is done again without relying on it.
    """

    target: Target
    statement: str
    parameters: tuple[object, ...] = ()
    expected: int | None = None
    purpose: str = ""
    cancels: bool = False
    after_cancel: bool = False
    rest: bool = False
    lost: bool = False
    sure: bool = False
    columns: tuple[str, ...] = ()


class Unforeseen(Exception):
    """The target's rows are not those that the source's changes tell of."""

    def __init__(self, target: Target) -> None:
        super().__init__(str(target.table))
        self.target = target


def still_staged(target: Target, staged: str, rows: int) -> Step:
    """A crash of the destination empties unlogged tables; what is gone must not be taken for nothing to do."""
    statement = f"select from {staged} having count(*) = $1"
    return Step(target, statement, (rows,), expected=1, purpose="find staged rows", lost=True)


def check_touched(done: Sequence[tuple[Step, int]]) -> None:
    """Steps and how many rows each touched, in order; raises for one that touched others than it should."""
    cancelled = before = 0
    for step, touched in done:
        if step.cancels:
            cancelled = touched // 2
        elif step.expected is not None:
            less = cancelled if step.after_cancel else before if step.rest else 0
            _check_touched(step, touched, step.expected - less)
        before = touched + (before if step.rest else 0)


def _check_touched(step: Step, touched: int, expected: int) -> None:
    if touched == expected:
        return
    table = step.target.table
    if step.lost:
        raise gone(table)
    if step.sure:
        raise Unforeseen(step.target)
    raise TruckFailed(
        step.target.truck,
        SinkError(
            f"table {table}: to {step.purpose}, {expected} rows were expected at the destination, but {touched} "
            "were found",
            remedy=f"another program changed {table}, or a trigger discards rows; to copy the table again, run "
            f"`trucker reset --truck {step.target.truck}`, then `trucker run`",
            code="TRK411",
        ),
        step.target.source.table,
    )


def gone(table: TableId) -> SinkUnavailable:
    """Staged rows are not there any more."""
    return SinkUnavailable(
        f"rows staged for table {table} are missing, as after a crash of the destination",
        remedy="none needed: trucker stages them again",
    )
