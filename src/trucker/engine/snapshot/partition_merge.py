"""Merges the rows of attached partitions by key into a destination table whose other rows stay (`partitions: keep`).

Who calls: the source's runner, in a thread, with a lane of one table that has left the main lane. At a consistent point
(`SnapshotLane`) the rows that the attached partitions have are written as inserts, which replace rows of the same key.
Until then an update with unchanged cells of a row that is not at the destination is left out (`Target.awaits_rows`):
the merge brings the row as a whole.

What is repeated after a failure or a crash: the merge, at a new snapshot. It counts as done when what is known of the
table has the partitions, which is stored after the last commit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from trucker.engine.schema.schema_changes import SchemaReading
from trucker.engine.snapshot.copier import chunk_bytes
from trucker.engine.snapshot.copy_progress import CopyWatch
from trucker.engine.snapshot.snapshot_lane import COMMIT_BYTES, MOST_COMMITS, SnapshotLane, SnapshotPiece
from trucker.engine.stream.batch_plan import assignment_of, follow
from trucker.engine.task.partition import copy_shares
from trucker.engine.task.payload import CopyPart
from trucker.source.base import SnapshotView
from trucker.source.look import Sighting
from trucker.source.snapshot import ExportedSnapshot, SnapshotChunk

log = logging.getLogger("trucker.merge")


class Merger(SnapshotLane):
    """Merges what the table of one lane needs."""

    doing: ClassVar[str] = "merge"

    def _work(self, exported: ExportedSnapshot) -> bool:
        """Merge the partitions that the snapshot shows as attached, and record it."""
        with self._source.view(exported) as view:
            sighting = view.sighting(self._table)
            reading = self._schemas.examine(self._run.name, self._run.truck.tables[self._table], sighting)
            if reading is None:
                return True
            reading = follow(self._run, reading, self._schemas, self._destination, self._recipes)
            if reading.again:
                self._copy_again(reading.again)
                return True
            chunks = self._chunks(view, sighting, reading) if reading.merge else []
        assignment = assignment_of(self._run, reading, exported.lsn, self._destination, self._recipes)
        parts = [CopyPart(index, chunk, [assignment]) for index, chunk in enumerate(chunks)]
        commits = min(MOST_COMMITS, 1 + sum(part.chunk.bytes for part in parts) // COMMIT_BYTES)
        pieces = [SnapshotPiece(share) for share in copy_shares(parts, commits)] if parts else []
        with CopyWatch(parts, {self._run.name: self._run}) as watch:
            try:
                self._write(exported, assignment, pieces, watch)
            finally:
                self._run.end_progress([self._table])
        self._schemas.follow(reading)
        done = watch.progress((self._run.name, self._table))
        facts = {"partitions": ", ".join(map(str, reading.merge)), "rows": done.rows, "seconds": done.seconds}
        log.info("rows of attached partitions are merged", extra={**self._facts, **facts})
        return True

    def _chunks(self, view: SnapshotView, sighting: Sighting, reading: SchemaReading) -> Sequence[SnapshotChunk]:
        """What is to be read of the attached partitions, as a copy would read it."""
        assert sighting.look is not None
        table = self._run.truck.tables[self._table]
        described = view.describe(self._table)
        leaves = tuple(leaf for leaf in described.leaves if leaf.table in reading.merge)
        key = table.key_by({number: name for name, number in sighting.look.numbers.items()})
        columns = [name for name in described.schema.names if name in key or table.chooses(name)]
        size = chunk_bytes(described.bytes, self._jobs.cores)
        return view.chunks(replace(described, leaves=leaves), size, columns=columns, where=table.where)
