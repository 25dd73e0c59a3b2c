"""The Spark task of a batch: reads blocks, decodes them, folds changes and has sinks stage them.

Called by executors; imports no pyspark, so that it is tested without one. A failure of one truck's share never
raises: it comes back as a `Failure`, so that the others' shares of the same part count (I8). A part may run
twice (a lost executor, a retried task): sinks expect that.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from trucker.change import DELETE, INSERT, UPDATE, Changes, CopiedRows, Lsn, TableId, TableSchema
from trucker.changelog.reader import BlockRef
from trucker.engine.destination import task_sinks
from trucker.engine.task.payload import CopyBatch, Failure, Outcome, StreamBatch, StreamPart, WaitingRows
from trucker.engine.task.slow_statements import noting_slow
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.compact import has_moves
from trucker.engine.transform.fold import has_truncate, vacate_keys
from trucker.engine.transform.fold_accumulator import FoldAccumulator
from trucker.engine.transform.recipe import Recipe
from trucker.engine.transform.row_transform import make, whole_rows, with_unsent_values
from trucker.engine.transform.spark_sql.spark_plan import spool_rows
from trucker.errors import EngineError, SinkError, TruckerError
from trucker.pgoutput import ShapeKeys, decode
from trucker.rows import Rows
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.target import Target

log = logging.getLogger("trucker.work")


@noting_slow
def stream_part(batch: StreamBatch, part: StreamPart) -> Outcome:
    """Decode the part's changes and hand each truck its share: the net change, or all of them where they are kept."""
    keepers = {name for name, spec in batch.sinks.items() if task_sinks.sink_for(spec).abilities.every_change}
    receipts: dict[str, list[Receipt]] = defaultdict(list)
    failures: list[Failure] = []
    waiting: list[WaitingRows] = []
    nets: list[FoldAccumulator] = []
    reselected = False
    truncated: frozenset[TableId] = frozenset()
    last = part.index + len(part.pieces) - 1
    for assignments in _alike(batch.assignments):
        unfolded, folded = list[Assignment](), list[Assignment]()
        for each in assignments:
            if each.recipe is None:
                (unfolded if each.destination in keepers or each.own else folded).append(each)
        group_nets = _nets(folded)
        nets += group_nets
        for number, blocks in enumerate(part.pieces, part.index):
            shares = _read(batch, blocks, assignments, failures)
            if shares is None:
                break
            truncated |= shares.truncated
            for truck in _by_truck(_unfailed(assignments, failures)):
                reselected |= _make(batch, number, truck, shares, receipts, failures, waiting)
            for assignment in _unfailed(unfolded, failures):
                _keep(batch, number, assignment, shares, receipts, failures)
            for net in group_nets:
                _fold(batch, number, net, shares, receipts, failures, last=number == last)
            del shares  # before the next piece is read: no more than one is in memory
    read, remaining = sum([net.read for net in nets]), sum([net.left for net in nets])
    reselected = reselected or any(net.reselected for net in nets)
    return Outcome(receipts, failures, waiting, read=read, left=remaining, truncated=truncated, reselected=reselected)


def _read(
    batch: StreamBatch, blocks: Sequence[BlockRef], assignments: Sequence[Assignment], failures: list[Failure]
) -> _Shares | None:
    """A piece's changes for those that have not failed. A table whose changes cannot be decoded fails its trucks alone;
    None where no truck is left, or the blocks cannot be read."""
    while remaining := _unfailed(assignments, failures):
        try:
            return _Shares(_load(batch, blocks, remaining))
        except Exception as error:
            reason = reason_of(error, "reading the change log")
            failed = [each for each in remaining if reason.table in (None, each.reads.table)] or remaining
            failures += [Failure(truck, reason) for truck in {each.target.truck for each in failed}]
    return None


def _unfailed(assignments: Sequence[Assignment], failures: Sequence[Failure]) -> list[Assignment]:
    if not failures:
        return list(assignments)
    failed = {failure.truck for failure in failures}
    return [each for each in assignments if each.target.truck not in failed]


def _keep(
    batch: StreamBatch,
    number: int,
    assignment: Assignment,
    shares: _Shares,
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
) -> None:
    """Have every change of a piece written."""
    try:
        changes = shares.of(assignment)
        if task_sinks.sink_for(batch.sinks[assignment.destination]).reads_unsent:
            changes = with_unsent_values(changes, batch.source)
    except Exception as error:
        table = assignment.target.source.table
        reason = reason_of(error, f"reading changes of {table}").of_table(table)
        failures.append(Failure(assignment.target.truck, reason))
        return
    _write_some(batch, number, assignment, changes, receipts, failures)


def _nets(assignments: Sequence[Assignment]) -> list[FoldAccumulator]:
    """Trucks that share a table and a position share the work."""
    groups: dict[tuple[TableSchema, Lsn], list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        groups[assignment.reads, assignment.after].append(assignment)
    return [FoldAccumulator(group) for group in groups.values()]


def _fold(
    batch: StreamBatch,
    number: int,
    net: FoldAccumulator,
    shares: _Shares,
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
    *,
    last: bool,
) -> None:
    """Add a piece to a net change, and have it written if it is the `last`, or too large to wait for the next one."""
    assignments = _unfailed(net.assignments, failures)
    if not assignments:
        return
    try:
        changes = shares.of(assignments[0])
        net.add(number, _of_any_rows(changes) if assignments[0].whole else changes)
    except Exception as error:
        table = assignments[0].target.source.table
        reason = reason_of(error, f"folding changes of {table}").of_table(table)
        failures += [Failure(each.target.truck, reason) for each in assignments]
        return
    if last or net.due:
        number, changes = net.take()
        for each in assignments:
            net.reselected |= _write_net(batch, number, each, changes, receipts, failures)


def _of_any_rows(changes: Sequence[Changes]) -> list[Changes]:
    """Changes of which none says that a key is new: its row may be at the destination already, so that a later delete
    must not cancel them. Inserts as updates, and before a row gets another key a delete of that one."""
    vacated = [vacate_keys(each) for each in changes]
    return [replace(each, op=np.where(each.op == INSERT, UPDATE, each.op).astype(np.uint8)) for each in vacated]


def _write_net(
    batch: StreamBatch,
    part: int,
    assignment: Assignment,
    changes: Sequence[Changes],
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
) -> bool:
    """Net changes as they are, or whole rows for a sink that cannot keep the cells it has, for a target that may not
    have the rows yet or at all, and for rows that move while others are awaited. Whether values were read at the source
    for it."""
    target, abilities = assignment.target, task_sinks.sink_for(batch.sinks[assignment.destination]).abilities
    moved = target.awaits_rows and batch.source is not None and has_moves(changes)
    whole = assignment.whole or target.uncopied or moved or not abilities.partial_rows
    reselected = whole and any(each.unchanged for each in changes)
    if reselected:
        try:
            changes = whole_rows(changes, batch.source)
        except Exception as error:
            reason = reason_of(error, f"reading unsent values of {target.source.table}").of_table(target.source.table)
            failures.append(Failure(target.truck, reason))
            return False
    _write_some(batch, part, assignment, changes, receipts, failures)
    return reselected


def _by_truck(assignments: Sequence[Assignment]) -> list[list[Assignment]]:
    """Those with a recipe: a truck's tables together, since their rows go in one order."""
    by_truck: dict[str, list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        if assignment.recipe is not None:
            by_truck[assignment.target.truck].append(assignment)
    return list(by_truck.values())


def _make(
    batch: StreamBatch,
    part: int,
    assignments: Sequence[Assignment],
    shares: _Shares,
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
    waiting: list[WaitingRows],
) -> bool:
    """What a truck's recipes make of its tables' changes, written or left for Spark SQL. Whether unsent values were
    read at the source for it that its rules do not need."""
    truck = assignments[0].target.truck
    try:
        raw = [(each, shares.of(each)) for each in assignments]
        sink = task_sinks.sink_for(batch.sinks[assignments[0].destination])
        whole = not (sink.abilities.partial_rows or sink.abilities.every_change)
        given = [share for share in raw if share[1]]
        transformed = make(given, batch.source, part, whole=whole, reads_unsent=sink.reads_unsent)
        for each in transformed:
            hand_on(batch, part, each.assignment, each.changes, each.rows, receipts, failures, waiting)
        return any(each.reselected for each in transformed)
    except Exception as error:
        failures.append(Failure(truck, reason_of(error, f"the rules and SQL of truck {truck}")))
        return False


def hand_on(
    batch: StreamBatch | CopyBatch,
    part: int,
    assignment: Assignment,
    changes: Iterable[Changes],
    rows: Rows | None,
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
    waiting: list[WaitingRows],
) -> None:
    """To the sink, or to Spark SQL; a part of which both get something is two, what goes past the SQL first. So is one
    for a table that others write to as well: a row that left one of them may have come to another, and a part's deletes
    come before all else that it has for the table."""
    all_changes, recipe = list(changes), assignment.recipe
    if recipe is not None and recipe.spark is not None:
        _write_some(batch, 2 * part, assignment, all_changes, receipts, failures)
        if rows is not None and len(rows):
            assert batch.folder is not None
            waiting.append(WaitingRows(assignment, after_spark(part), spool_rows(batch.folder, rows, recipe.spark)))
    elif recipe is not None and _is_joint(assignment.target, recipe) and isinstance(batch, StreamBatch):
        deletes = [each.op == DELETE for each in all_changes]
        deleted = [each.take(mask) for each, mask in zip(all_changes, deletes, strict=True)]
        others = [each.take(~mask) for each, mask in zip(all_changes, deletes, strict=True)]
        _write_some(batch, 2 * part, assignment, deleted, receipts, failures)
        _write_some(batch, 2 * part + 1, assignment, others, receipts, failures)
    else:
        _write_some(batch, part, assignment, all_changes, receipts, failures)


def after_spark(part: int) -> int:
    """The number of the part that Spark SQL makes of a part's rows."""
    return 2 * part + 1


def _is_joint(target: Target, recipe: Recipe) -> bool:
    """Whether rows of several tables are kept by their keys in one."""
    return target.shared and target.statement is None and not recipe.every


def _write_some(
    batch: StreamBatch | CopyBatch,
    part: int,
    assignment: Assignment,
    changes: Sequence[Changes],
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
) -> None:
    some = [each for each in changes if len(each)]
    if some:
        write_share(batch, part, assignment, some, receipts, failures)


def write_share(
    batch: StreamBatch | CopyBatch,
    part: int,
    assignment: Assignment,
    changes: Iterable[Changes | CopiedRows],
    receipts: dict[str, list[Receipt]],
    failures: list[Failure],
) -> None:
    """Have the sink stage an assignment's share of a part."""
    target, destination = assignment.target, assignment.destination
    work = Work(batch.batches[destination], target, part, batch.room)
    with failing_alone(target, failures):
        receipts[destination].append(task_sinks.staged(batch.sinks[destination], work, iter(changes)))


@contextmanager
def failing_alone(target: Target, failures: list[Failure]) -> Iterator[None]:
    """A failure is the target's alone: it is added to `failures`."""
    try:
        yield
    except TruckerError as error:
        failures.append(Failure(target.truck, error.of_table(target.source.table), target.source.table))
    except Exception as error:
        log.exception("sink failed unexpectedly", extra={"truck": target.truck, "table": str(target.table)})
        reason = SinkError(
            f"truck {target.truck}: writing {target.table} failed: {type(error).__name__}", code="TRK499"
        )
        failures.append(Failure(target.truck, reason.of_table(target.source.table), target.source.table))


def reason_of(error: Exception, doing: str) -> TruckerError:
    """Why a share failed. A bug stops the trucks it hits, not every other one with them (I8)."""
    if isinstance(error, TruckerError):
        return error
    log.exception("task failed unexpectedly", extra={"doing": doing})
    return EngineError(f"{doing} failed unexpectedly: {type(error).__name__}", remedy="read the log", code="TRK599")


Tables = Mapping[TableId, Sequence[Changes]]


def _alike(assignments: Sequence[Assignment]) -> list[list[Assignment]]:
    """Assignments that read each table by the same names and the same key: nearly always all of them."""
    if len(assignments) == 1:
        return [list(assignments)]
    groups: list[dict[TableId, list[Assignment]]] = []
    for assignment in assignments:
        table = assignment.target.source.table
        group = next((g for g in groups if table not in g or _reads(g[table][0]) == _reads(assignment)), None)
        if group is None:
            groups.append(group := {})
        group.setdefault(table, []).append(assignment)
    return [[assignment for members in group.values() for assignment in members] for group in groups]


def _reads(assignment: Assignment) -> tuple[object, ...]:
    """What has to be the same in assignments of one table that are decoded together."""
    return assignment.target.source.key, assignment.renames, _shape_keys(assignment)


def _shape_keys(assignment: Assignment) -> ShapeKeys:
    key = assignment.target.source.key
    return {columns: schema.key for columns, schema in assignment.own.items() if schema.key != key}


def _load(batch: StreamBatch, blocks: Sequence[BlockRef], assignments: Sequence[Assignment]) -> Tables:
    """Every change of the blocks that these want, in order."""
    keys, after = _keys_and_positions(assignments)
    renames = {each.target.source.table: each.renames for each in assignments if each.renames}
    shape_keys = {each.target.source.table: _shape_keys(each) for each in assignments if each.own}
    tables: dict[TableId, list[Changes]] = defaultdict(list)
    for ref in blocks:
        for changes in decode(batch.log.read(ref), keys, after=after, renames=renames, shape_keys=shape_keys):
            tables[changes.schema.table].append(changes)
    return tables


def _keys_and_positions(assignments: Sequence[Assignment]) -> tuple[dict[TableId, tuple[str, ...]], dict[TableId, Lsn]]:
    keys: dict[TableId, tuple[str, ...]] = {}
    after: dict[TableId, Lsn] = {}
    for assignment in assignments:
        table = assignment.reads.table
        keys[table] = assignment.reads.key
        after[table] = min(after.get(table, assignment.after), assignment.after)
    return keys, after


class _Shares:
    """The changes for each assignment; trucks that share a table and a position share the work."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._done: dict[tuple[TableSchema, Lsn], list[Changes]] = {}

    @property
    def truncated(self) -> frozenset[TableId]:
        """The tables with a truncate among their changes."""
        return frozenset(table for table, changes in self._tables.items() if has_truncate(changes))

    def of(self, assignment: Assignment) -> list[Changes]:
        """All of them, in order; in the shapes they had, where those are the assignment's own."""
        if assignment.own:
            return [changes for changes in self._in_own_shapes(assignment) if len(changes)]
        key = (assignment.reads, assignment.after)
        if key not in self._done:
            self._done[key] = self._shaped(*key)
        return self._done[key]

    def _in_own_shapes(self, assignment: Assignment) -> Iterator[Changes]:
        for changes in self._tables.get(assignment.target.source.table, ()):
            yield _since(changes, assignment.after).reshaped(assignment.own[changes.schema.columns])

    def _shaped(self, source: TableSchema, after: Lsn) -> list[Changes]:
        parts = [_since(changes, after) for changes in self._tables.get(source.table, ())]
        return [changes.reshaped(source) for changes in parts if len(changes)]


def _since(changes: Changes, after: Lsn) -> Changes:
    fresh = changes.commit_lsn >= np.uint64(after)
    return changes if fresh.all() else changes.take(fresh)
