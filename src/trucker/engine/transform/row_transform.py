"""Transforms a truck's changes before a sink gets them: folding, rules, and the source's SQL.

Called by the tasks of `stream_task`; imports no pyspark. The source, SQL and rules may raise; the caller makes that the
truck's failure. All of it may be called again: nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, TRUNCATE, Changes, CopiedRows, null_rows
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.compact import has_moves
from trucker.engine.transform.fold import Fold, filled, fold, has_truncate, split_moves, without_truncates
from trucker.engine.transform.recipe import Recipe
from trucker.engine.transform.source_pool import source_session
from trucker.engine.transform.sql_rows import (
    before_deletes,
    keyed_changes,
    last_by_key,
    only_deletes,
    rows_of,
    statement_changes,
)
from trucker.engine.transform.statement_runs import Runs, number_runs
from trucker.errors import SinkError
from trucker.lsn import ZERO, Lsn
from trucker.rows import Rows
from trucker.sinks.output_sql import TRUNCATED
from trucker.sinks.target import Target
from trucker.source.base import QuerySession, Source
from trucker.source.snapshot import SnapshotChunk

PLACE = ("commit_lsn", "ordinal")


class ReadSnapshot(Protocol):
    """The snapshot that a copy reads: of which source, by which name, and as of which position."""

    @property
    def source(self) -> Source: ...
    @property
    def snapshot(self) -> str: ...
    @property
    def lsn(self) -> Lsn: ...


@dataclass(slots=True)
class TransformedRows:
    """A table's changes in a part after the recipe: `changes` for the sink, `rows` for Spark SQL.

    `queried` is the result of input.sql, for `trucker try`. `reselected`: of rows that no SQL changes, unsent values
    were read at the source.
    """

    assignment: Assignment
    changes: list[Changes] = field(default_factory=list)
    rows: Rows | None = None
    queried: Rows | None = None
    reselected: bool = False


def recipe_of(assignment: Assignment) -> Recipe:
    assert assignment.recipe is not None
    return assignment.recipe


def make(
    shares: Sequence[tuple[Assignment, Sequence[Changes]]],
    source: Source | None,
    part: int,
    *,
    whole: bool = False,
    reads_unsent: bool = False,
) -> list[TransformedRows]:
    """The rows of one truck's tables in a part; `part` makes their ordinals differ from other parts'. `whole`: the
    destination needs every cell, also those that were not sent, as a target that may not have the rows does.
    `reads_unsent`: it wants those that can be read at the source."""
    transformed = [TransformedRows(assignment) for assignment, _ in shares]
    reader = _SourceReader(source, [changes.xid for _, parts in shares for changes in parts])
    prepared = [
        _prepared(each, changes, reader, whole, reads_unsent)
        for each, (_, changes) in zip(transformed, shares, strict=True)
    ]
    pending = [(each, changes) for each, changes in zip(transformed, prepared, strict=True) if changes is not None]
    if not pending:
        return transformed
    recipe = recipe_of(pending[0][0].assignment)
    runs = number_runs([changes for _, changes in pending], recipe.fold, by_transaction=recipe.by_transaction)
    for (each, changes), run in zip(pending, runs, strict=True):
        _queried(each, changes, run, reader, part)
    return transformed


def whole_rows(changes: Sequence[Changes], source: Source | None) -> list[Changes]:
    """Net changes with every cell, for a destination that cannot leave a cell unchanged (I7).

    The source is read as of now. Where a value is newer than the batch, its change follows in a later batch.
    """
    reader = _SourceReader(source, [each.xid for each in changes if each.unchanged])
    return [whole for each in changes for whole in _whole(each, reader)]


def with_unsent_values(changes: Sequence[Changes], source: Source | None) -> list[Changes]:
    """Every change, in order, with the values that were not sent as the source has them now. Where the row is gone they
    are unchanged as before: its delete follows."""
    reader = _SourceReader(source, [each.xid for each in changes if each.unchanged])
    return [_with_unsent(each, reader) for each in changes]


def _with_unsent(changes: Changes, reader: _SourceReader) -> Changes:
    rows = filled(changes)
    if not rows.unchanged:
        return rows
    numbers = np.arange(len(rows), dtype=np.int64)
    numbered = replace(rows, ordinal=numbers)
    with reader.session() as session:
        read = session.reselect(numbered)
    gone = numbered.take(np.setdiff1d(numbers, read.ordinal))
    whole = Changes.concat([read, gone]) if len(gone) else read
    return replace(whole.take(np.argsort(whole.ordinal)), ordinal=rows.ordinal)


def _whole(changes: Changes, reader: _SourceReader) -> list[Changes]:
    rows = filled(changes)
    if not rows.unchanged:
        return [rows]
    with reader.session() as session:
        return fold([session.reselect(split_moves(rows))], Fold.NET)


class _SourceReader:
    """Reads at the source for a part, in a snapshot that sees all of its transactions.

    The stream may deliver a commit before other sessions see it, so the first session waits for the transactions.
    """

    def __init__(self, source: Source | None, xids: Sequence[npt.NDArray[np.uint32]]) -> None:
        self._source = source
        self._xids = xids

    @contextmanager
    def session(self) -> Iterator[QuerySession]:
        assert self._source is not None
        with source_session(self._source) as session:
            if self._xids:
                session.await_visible(np.unique(np.concatenate(self._xids)).tolist())
                self._xids = ()
            yield session


def _prepared(
    transformed: TransformedRows, changes: Sequence[Changes], reader: _SourceReader, whole: bool, reads_unsent: bool
) -> Changes | None:
    """The changes for SQL; None where there are none. Changes that bypass SQL are added to `transformed`."""
    assignment, recipe = transformed.assignment, recipe_of(transformed.assignment)
    target = assignment.target
    if (target.statement or target.shared) and has_truncate(changes):
        if not recipe.ignores_truncate:
            raise _truncated(target)
        changes = without_truncates(changes)
    net = [each for each in fold(changes, recipe.fold) if len(each)]
    if not recipe.relation:
        if whole or assignment.whole or target.uncopied or (target.awaits_rows and has_moves(net)):
            # Before the rules: the source does not have their column names.
            transformed.reselected = any(each.unchanged for each in net)
            net = [rows for each in net for rows in _whole(each, reader)]
        elif reads_unsent:
            net = [_with_unsent(each, reader) for each in net]
        transformed.changes = _ruled(recipe, net)
        return None
    if not net:
        return None
    rows = filled(Changes.concat([each.reshaped(net[-1].schema) for each in net]))
    rows = _without_truncate(transformed, rows)
    if rows.unchanged:
        rows = _reselected(rows, recipe, reader)
    ruled = _ruled(recipe, [rows])
    if not ruled:
        return None
    rows = _without_deletes(transformed, Changes.concat(ruled)) if recipe.past else Changes.concat(ruled)
    return rows if len(rows) else None


def _ruled(recipe: Recipe, changes: Sequence[Changes]) -> list[Changes]:
    """The changes after the rules; folded again where rules may have given rows of different keys the same key."""
    remaining = [ruled for each in changes if len(ruled := recipe.ruled(each))]
    merged = recipe.rules is not None and recipe.rules.merges_keys
    return fold(remaining, recipe.fold) if merged and recipe.fold is not Fold.NONE else remaining


def _reselected(rows: Changes, recipe: Recipe, reader: _SourceReader) -> Changes:
    """The rows with the values that were not sent, read at the source: SQL never gets NULL for one (I7). Runs before
    the rules: the source does not have their column names."""
    used = recipe.query.used if recipe.query else None
    only = recipe.rules.needs if recipe.rules else used
    apart = rows if recipe.fold is Fold.NONE else split_moves(rows)
    with reader.session() as session:
        reselected = session.reselect(apart, only=only)
    if apart is rows:
        return reselected
    folded = fold([reselected], recipe.fold)
    return Changes.concat(folded) if folded else reselected.take(np.zeros(len(reselected), np.bool_))


def _without_truncate(transformed: TransformedRows, rows: Changes) -> Changes:
    """The rows without truncates, which bypass SQL."""
    schema = transformed.assignment.target.source
    truncates = rows.op == TRUNCATE
    if not truncates.any():
        return rows
    first = rows.take(truncates)
    empty = null_rows(schema, len(first))
    transformed.changes.append(replace(first, schema=schema, new=empty, old=empty, unchanged={}))
    return rows.take(~truncates)


def _without_deletes(transformed: TransformedRows, rows: Changes) -> Changes:
    """The rows without deletes, which bypass SQL, and without the rows that these delete: then every remaining row is
    newer, and the deletes can be applied first."""
    schema = transformed.assignment.target.source
    deletes = rows.op == DELETE
    if not deletes.any():
        return rows
    transformed.changes.append(last_by_key(only_deletes(rows.take(deletes), schema.key, schema)))
    return rows.take(~(deletes | before_deletes(rows)))


def _queried(transformed: TransformedRows, changes: Changes, run: Runs, reader: _SourceReader, part: int) -> None:
    recipe = recipe_of(transformed.assignment)
    order = np.argsort(run, kind="stable")
    rows = rows_of(changes.take(order), recipe.relation, run[order])
    if recipe.query is not None:
        with reader.session() as session:
            rows = transformed.queried = _enriched(session, recipe, rows)
    if recipe.spark is not None:
        transformed.rows = rows
    elif len(rows):
        lsn = Lsn(int(changes.commit_lsn.max()))
        transformed.changes.append(written(rows, transformed.assignment.target, lsn, part << 32, every=recipe.every))


def written(rows: Rows, target: Target, lsn: Lsn, first: int, *, every: bool, copied: bool = False) -> Changes:
    """The rows that a truck's SQL returns, as changes for the target's sink: one for each key, or `every` row where the
    destination keeps changes. Deletes among `copied` rows are dropped: the destination never had these rows."""
    if target.statement:
        return statement_changes(rows, target.source)
    if copied and (deletes := rows.op == DELETE).any():
        rows = rows.take(~deletes)
    changes = keyed_changes(rows, target.source, lsn, first)
    return changes if every else last_by_key(changes)


def _enriched(session: QuerySession, recipe: Recipe, rows: Rows) -> Rows:
    """The result of the query for the rows, run by run; for all runs at once where the result has the position of its
    row, so that its run is known."""
    query = recipe.query
    assert query is not None
    row_names, result_names = (
        frozenset(column.name for column in columns) for columns in (rows.columns, query.columns)
    )
    if len(np.unique(rows.run)) > 1 and row_names.issuperset(PLACE) and result_names.issuperset(PLACE):
        result = recipe.ask(session, replace(rows, run=np.zeros(len(rows), np.int64)))
        places = pc.index_in(_places(result), _places(rows))
        if not places.null_count:
            order = np.argsort(places.to_numpy(), kind="stable")
            return replace(result.take(order), run=rows.run[places.to_numpy()[order]])
    return recipe.ask(session, rows)


def _places(rows: Rows) -> pa.Array:
    return pc.binary_join_element_wise(*(rows.cells.column(name) for name in PLACE), ":")


def _numbered(rows: Rows, run: int) -> Rows:
    return replace(rows, run=np.full(len(rows), run, np.int64))


def _truncated(target: Target) -> SinkError:
    return SinkError(
        f"truck {target.truck}: {target.source.table} was truncated, and trucker does not know which rows at "
        "the destination belong to it",
        remedy=f"delete them there, run `trucker reset --truck {target.truck}`, then `trucker run`; or write "
        "on_truncate: ignore in truck.yml to keep them",
        code=TRUNCATED,
    )


# -- snapshots --------------------------------------------------------------------------------------------------------


def make_copy(
    batch: ReadSnapshot, chunk: SnapshotChunk, assignment: Assignment, pieces: Iterator[CopiedRows]
) -> Iterator[TransformedRows]:
    """As `make`, for a chunk of a snapshot: in pieces, each a separate run."""
    recipe = recipe_of(assignment)
    if recipe.query is None:
        for number, piece in enumerate(pieces):
            yield _transformed_piece(assignment, piece, number, None, batch.lsn)
        return
    with closing(batch.source.query_session(batch.snapshot)) as session:
        if recipe.rules is not None:
            for number, piece in enumerate(pieces):
                yield _transformed_piece(assignment, piece, number, session, batch.lsn)
            return
        results = session.run_chunk(recipe.query, chunk, rows_max=recipe.rows_max, lsn=batch.lsn, slow=recipe.slow)
        for number, rows in enumerate(results):
            transformed = TransformedRows(assignment)
            _finish(transformed, _numbered(rows, number), batch.lsn, number)
            yield transformed


def _transformed_piece(
    assignment: Assignment, piece: CopiedRows, number: int, session: QuerySession | None, lsn: Lsn
) -> TransformedRows:
    recipe, transformed = recipe_of(assignment), TransformedRows(assignment)
    changes = recipe.ruled(piece.to_changes().reshaped(recipe.reads))
    if not recipe.relation:
        transformed.changes = [changes] if len(changes) else []
        return transformed
    rows = rows_of(changes, recipe.relation, np.full(len(changes), number, np.int64))
    if recipe.query is not None and session is not None and len(rows):
        rows = recipe.ask(session, rows)
    _finish(transformed, rows, lsn, number)
    return transformed


def _finish(transformed: TransformedRows, rows: Rows, lsn: Lsn, number: int) -> None:
    if recipe_of(transformed.assignment).spark is not None:
        transformed.rows = rows
    elif len(rows):
        every = recipe_of(transformed.assignment).every
        changes = written(rows, transformed.assignment.target, lsn or ZERO, number << 32, every=every, copied=True)
        transformed.changes += [changes] if len(changes) else []
