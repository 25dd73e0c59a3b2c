"""Reads rows again by their keys, and sets the destination right: rows that the source no longer has are deleted there.

Who calls: the queue of refreshes, in its thread, with a lane of one table that has left the main lane. At a consistent
point (`SnapshotLane`) the rows of the next keys are written as inserts, which replace rows of the same key, and keys
without a row as deletes; both go through the truck's rules and SQL. A snapshot is held for one slice of the keys: the
table's changes are applied before the next one is taken.

What is repeated after a failure or a crash: the slice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from trucker.change import Changes
from trucker.engine.snapshot.copy_progress import CopyWatch
from trucker.engine.snapshot.snapshot_lane import MOST_COMMITS, SnapshotLane, SnapshotPiece
from trucker.engine.stream.batch_plan import assignment_of
from trucker.engine.task.payload import CopyPart
from trucker.engine.transform.assignment import Assignment
from trucker.source.base import SnapshotView
from trucker.source.look import Sighting
from trucker.source.snapshot import ExportedSnapshot, SnapshotChunk
from trucker.source.source_table import SourceTable
from trucker.table import Key

log = logging.getLogger("trucker.refresh")

COMMIT_KEYS: Final = 10_000
"""So many rows one commit brings: other tables of the destination wait for it."""

SLICE_KEYS: Final = COMMIT_KEYS * MOST_COMMITS
"""So many rows are read in one snapshot."""


class Refresher(SnapshotLane):
    """Refreshes the rows of keys of the table of one lane."""

    doing: ClassVar[str] = "refresh"

    def __init__(
        self,
        *lane: Any,
        keys: Callable[[int], Sequence[Key]],
        done: int,
        advanced: Callable[[int, int], bool],
        **settings: Any,
    ) -> None:
        """`keys` gives the keys of a slice that begins with a number, the first being `done`; none behind the last.
        `advanced` records how many have been refreshed, and how many of the slice are not at the source; whether to go
        on."""
        super().__init__(*lane, **settings)
        self._keys = keys
        self._done = done
        self._advanced = advanced
        self.copied_again = False
        """The whole table is copied again instead: it has changed in a way that needs that."""

    def run(self, stop: threading.Event) -> bool:
        if not self._keys(self._done):  # no snapshot for nothing
            self._spawn(self.lane)
            return True
        return super().run(stop)

    def _work(self, exported: ExportedSnapshot) -> bool:
        keys = self._keys(self._done)
        with self._source.view(exported) as view:
            seen = self._see(view)
            if seen is None:
                self.copied_again = True
                return True
            slices = [keys[first : first + COMMIT_KEYS] for first in range(0, len(keys), COMMIT_KEYS)]
            described = view.describe(self._table)
            chosen = [self._choose(view, described, seen.sighting, some) for some in slices]
        assignment = assignment_of(self._run, seen.reading, exported.lsn, self._destination, self._recipes)
        names = self._key_names(seen.sighting)
        parts: list[CopyPart] = []
        pieces = []
        for chunks, absent in chosen:
            share = tuple(CopyPart(len(parts) + index, chunk, [assignment]) for index, chunk in enumerate(chunks))
            parts += share
            pieces.append(SnapshotPiece(share, self._deletes(assignment, described, names, absent, exported)))
        with CopyWatch(parts, {self._run.name: self._run}) as watch:
            try:
                self._write(exported, assignment, pieces, watch)
            finally:
                self._run.end_progress([self._table])
        self._follow(seen)
        self._done += len(keys)
        return not self._advanced(self._done, sum(len(absent) for _, absent in chosen)) or not self._keys(self._done)

    def _choose(
        self, view: SnapshotView, described: SourceTable, sighting: Sighting, keys: Sequence[Key]
    ) -> tuple[Sequence[SnapshotChunk], Sequence[Key]]:
        """What is to be read for these keys, as a copy would read it, and the keys without a row."""
        table, names = self._run.truck.tables[self._table], self._key_names(sighting)
        columns = [name for name in described.schema.names if name in names or table.chooses(name)]
        return view.keyed_chunks(described, names, keys, columns=columns, where=table.where)

    def _deletes(
        self,
        assignment: Assignment,
        described: SourceTable,
        names: Sequence[str],
        keys: Sequence[Key],
        exported: ExportedSnapshot,
    ) -> Changes | None:
        if not keys:
            return None
        schema, called = described.schema, list(names)
        for columns, others in assignment.renames:
            now = dict(zip(columns, others, strict=True))
            schema, called = schema.called(now), [now.get(name, name) for name in called]
        return Changes.deletes(schema, called, keys, exported.lsn).reshaped(assignment.reads)
