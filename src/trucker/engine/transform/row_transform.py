"""Transforms a truck's changes before a sink gets them: folding, rules, and the source's SQL.

Called by the tasks of `stream_task`; imports no pyspark. What may fail: the source, SQL, a rule; the caller turns that
into the truck's failure. All of it may be repeated: nothing is written anywhere.
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
from trucker.engine.transform.fold import Fold, filled, fold, has_truncate, taken_apart, without_truncates
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
    """What a recipe has made of a table's changes in a part: `changes` for the sink, `rows` for Spark SQL.

    `queried` is what input.sql gave, for those who look at it.
    """

    assignment: Assignment
    changes: list[Changes] = field(default_factory=list)
    rows: Rows | None = None
    queried: Rows | None = None


def recipe_of(assignment: Assignment) -> Recipe:
    assert assignment.recipe is not None
    return assignment.recipe


def make(
    shares: Sequence[tuple[Assignment, Sequence[Changes]]],
    source: Source | None,
    part: int,
    *,
    whole: bool = False,
) -> list[TransformedRows]:
    """The rows of one truck's tables in a part; `part` keeps their places apart from other parts'. `whole` says that
    the destination cannot keep cells that were not sent."""
    made = [TransformedRows(assignment) for assignment, _ in shares]
    reader = _SourceReader(source, [changes.xid for _, own in shares for changes in own])
    left = [_prepared(each, changes, reader, whole) for each, (_, changes) in zip(made, shares, strict=True)]
    going = [(each, changes) for each, changes in zip(made, left, strict=True) if changes is not None]
    if not going:
        return made
    recipe = recipe_of(going[0][0].assignment)
    runs = number_runs([changes for _, changes in going], recipe.fold, by_transaction=recipe.by_transaction)
    for (each, changes), run in zip(going, runs, strict=True):
        _queried(each, changes, run, reader, part)
    return made


def whole_rows(changes: Sequence[Changes], source: Source | None) -> list[Changes]:
    """Net changes with every cell, for a destination that cannot keep those that were not sent (I7).

    What is read is the value of now: a later one has its change on the way.
    """
    reader = _SourceReader(source, [each.xid for each in changes if each.unchanged])
    return [whole for each in changes for whole in _whole(each, reader)]


def _whole(changes: Changes, reader: _SourceReader) -> list[Changes]:
    rows = filled(changes)
    if not rows.unchanged:
        return [rows]
    with reader.session() as session:
        return fold([session.reselect(taken_apart(rows))], Fold.NET)


class _SourceReader:
    """Reads at the source for a part: at or after all of its transactions."""

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


def _prepared(made: TransformedRows, changes: Sequence[Changes], reader: _SourceReader, whole: bool) -> Changes | None:
    """What goes through SQL, ready for it; what goes past it is done with."""
    assignment, recipe = made.assignment, recipe_of(made.assignment)
    target = assignment.target
    if (target.statement or target.shared) and has_truncate(changes):
        if not recipe.ignores_truncate:
            raise _truncated(target)
        changes = without_truncates(changes)
    net = [each for each in fold(changes, recipe.fold) if len(each)]
    if not recipe.relation:
        if whole:  # before rules, whose names the source does not know
            net = [rows for each in net for rows in _whole(each, reader)]
        made.changes = _ruled(recipe, net)
        return None
    if not net:
        return None
    rows = filled(Changes.concat([each.reshaped(net[-1].schema) for each in net]))
    rows = _without_truncate(made, rows)
    if rows.unchanged:
        rows = _known(rows, recipe, reader)
    ruled = _ruled(recipe, [rows])
    if not ruled:
        return None
    rows = _without_deletes(made, Changes.concat(ruled)) if recipe.past else Changes.concat(ruled)
    return rows if len(rows) else None


def _ruled(recipe: Recipe, changes: Sequence[Changes]) -> list[Changes]:
    """As the rules leave them; folded again where rows of different keys may have come out with one."""
    left = [ruled for each in changes if len(ruled := recipe.ruled(each))]
    merged = recipe.rules is not None and recipe.rules.merges_keys
    return fold(left, recipe.fold) if merged and recipe.fold is not Fold.NONE else left


def _known(rows: Changes, recipe: Recipe, reader: _SourceReader) -> Changes:
    """Values that were not sent, read again: SQL never sees NULL for one (I7). Before rules, whose names the source
    does not know."""
    used = recipe.query.used if recipe.query else None
    only = recipe.rules.needs if recipe.rules else used
    apart = rows if recipe.fold is Fold.NONE else taken_apart(rows)
    with reader.session() as session:
        known = session.reselect(apart, only=only)
    if apart is rows:
        return known
    folded = fold([known], recipe.fold)
    return Changes.concat(folded) if folded else known.take(np.zeros(len(known), np.bool_))


def _without_truncate(made: TransformedRows, rows: Changes) -> Changes:
    """A truncate goes straight to the destination's table."""
    schema = made.assignment.target.source
    truncates = rows.op == TRUNCATE
    if not truncates.any():
        return rows
    first = rows.take(truncates)
    empty = null_rows(schema, len(first))
    made.changes.append(replace(first, schema=schema, new=empty, old=empty, unchanged={}))
    return rows.take(~truncates)


def _without_deletes(made: TransformedRows, rows: Changes) -> Changes:
    """Deletes for which there is no SQL go straight to the destination, before all other rows: none of those is
    older."""
    schema = made.assignment.target.source
    deletes = rows.op == DELETE
    if not deletes.any():
        return rows
    made.changes.append(last_by_key(only_deletes(rows.take(deletes), schema.key, schema)))
    return rows.take(~(deletes | before_deletes(rows)))


def _queried(made: TransformedRows, changes: Changes, run: Runs, reader: _SourceReader, part: int) -> None:
    recipe = recipe_of(made.assignment)
    order = np.argsort(run, kind="stable")
    rows = rows_of(changes.take(order), recipe.relation, run[order])
    if recipe.query is not None:
        with reader.session() as session:
            rows = made.queried = _enriched(session, recipe, rows)
    if recipe.spark is not None:
        made.rows = rows
    elif len(rows):
        lsn = Lsn(int(changes.commit_lsn.max()))
        made.changes.append(written(rows, made.assignment.target, lsn, part << 32, every=recipe.every))


def written(rows: Rows, target: Target, lsn: Lsn, first: int, *, every: bool, copied: bool = False) -> Changes:
    """The rows that a truck's SQL gives as the target's sink takes them; `every` one where it keeps changes. Of rows
    that are `copied` those to delete are nothing: they have never been there."""
    if target.statement:
        return statement_changes(rows, target.source)
    if copied and (gone := rows.op == DELETE).any():
        rows = rows.take(~gone)
    changes = keyed_changes(rows, target.source, lsn, first)
    return changes if every else last_by_key(changes)


def _enriched(session: QuerySession, recipe: Recipe, rows: Rows) -> Rows:
    """What the query gives for the rows, run by run; in one go where the result tells which row it belongs to."""
    query = recipe.query
    assert query is not None
    known, given = (frozenset(column.name for column in columns) for columns in (rows.columns, query.columns))
    if len(np.unique(rows.run)) > 1 and known.issuperset(PLACE) and given.issuperset(PLACE):
        found = recipe.ask(session, replace(rows, run=np.zeros(len(rows), np.int64)))
        places = pc.index_in(_places(found), _places(rows))
        if not places.null_count:
            order = np.argsort(places.to_numpy(), kind="stable")
            return replace(found.take(order), run=rows.run[places.to_numpy()[order]])
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
    """As `make`, for a chunk of a snapshot: in pieces, each a run of its own."""
    recipe = recipe_of(assignment)
    if recipe.query is None:
        for number, piece in enumerate(pieces):
            yield _made_copy(assignment, piece, number, None, batch.lsn)
        return
    with closing(batch.source.query_session(batch.snapshot)) as session:
        if recipe.rules is not None:
            for number, piece in enumerate(pieces):
                yield _made_copy(assignment, piece, number, session, batch.lsn)
            return
        given = session.run_chunk(recipe.query, chunk, rows_max=recipe.rows_max, lsn=batch.lsn, slow=recipe.slow)
        for number, rows in enumerate(given):
            made = TransformedRows(assignment)
            _finish(made, _numbered(rows, number), batch.lsn, number)
            yield made


def _made_copy(
    assignment: Assignment, piece: CopiedRows, number: int, session: QuerySession | None, lsn: Lsn
) -> TransformedRows:
    recipe, made = recipe_of(assignment), TransformedRows(assignment)
    changes = recipe.ruled(piece.to_changes().reshaped(recipe.reads))
    if not recipe.relation:
        made.changes = [changes] if len(changes) else []
        return made
    rows = rows_of(changes, recipe.relation, np.full(len(changes), number, np.int64))
    if recipe.query is not None and session is not None and len(rows):
        rows = recipe.ask(session, rows)
    _finish(made, rows, lsn, number)
    return made


def _finish(made: TransformedRows, rows: Rows, lsn: Lsn, number: int) -> None:
    if recipe_of(made.assignment).spark is not None:
        made.rows = rows
    elif len(rows):
        every = recipe_of(made.assignment).every
        changes = written(rows, made.assignment.target, lsn or ZERO, number << 32, every=every, copied=True)
        made.changes += [changes] if len(changes) else []
