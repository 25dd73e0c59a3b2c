"""Files of a folder or a bucket, by truck and table, for readers that find them with a glob.

A delivery puts the changes of each table into a *chunk*, a file that readers do not look for, and then replaces the
manifest: that is the commit. Once the chunks of a table are large or old enough the manifest names the file that they
become; then the file is made and appears as a whole, and the manifest forgets the chunks. What a crash leaves: chunks
that the manifest does not name, which are removed at `open`, and files that it names and that are not there yet, which
are made then. So no reader ever sees half a file or a change twice (I4), save that the files of one delivery appear one
by one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from trucker.abilities import Abilities
from trucker.adapters.files import FILES, FilesConnection, FileType
from trucker.change import Changes, CopiedRows, as_changes
from trucker.config.events import EventFormat, UnsentValues
from trucker.errors import SinkError, TruckerError
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, TruckState, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.envelope.envelope import EnvelopeSettings, envelope_settings
from trucker.sinks.envelope.flat_envelope import name_taken
from trucker.sinks.files.file_making import DAY, LINE, write_files
from trucker.sinks.files.file_store import FileStore, open_store
from trucker.sinks.files.manifest import MANIFEST, OPEN, DueFile, ManifestContents, OpenChunk, Series
from trucker.sinks.files.typed_rows import typed_rows
from trucker.sinks.ledger import Ledger
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.table import TableId

log = logging.getLogger("trucker.files")

CHUNK_BYTES: Final = 16 << 20
SMALL_BYTES: Final = 1 << 20
_PIECE_ROWS: Final = 8192
_SMALLER: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_DAY_MICROS: Final = 86_400_000_000


class FilesSink(Sink):
    """Guarantee: exactly once: a file that is there is whole, and has changes that no other has."""

    name: ClassVar[str] = "files"
    abilities: ClassVar[Abilities] = FILES.abilities

    def __init__(self, connection: FilesConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._store: FileStore = open_store(connection, workspace.folder)
        self.reads_unsent = connection.unsent is UnsentValues.READ
        self._opened = False
        self._ledger: Ledger | None = None
        self._contents = ManifestContents()

    def check(self) -> list[Finding]:
        """Whether the location can be used, and is this project's. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            self._store.check()
            self._load()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, f"{self._connection.location} can be used")]

    def stored(self) -> Mapping[str, TruckState]:
        self._store.check()
        return self._load()[0].states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """There are no tables to refuse but those whose columns are called as the columns that are added."""
        for target in targets:
            if (error := self._refusal(target)) is not None:
                yield target, error

    def prepare(self, target: Target) -> frozenset[str]:
        if (error := self._refusal(target)) is not None:
            raise error
        return super().prepare(target)

    def open(self) -> Ledger:
        if not self._opened:
            self._spool.clear()
        self._ledger = None
        ledger, contents = self._load()
        self._store.clear_scratch()
        self._finish(ledger, contents)
        needed = self._contents.chunk_names()
        self._store.delete(name for name in self._store.names(OPEN) if name not in needed)
        self._opened = True
        return ledger

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        count = 0

        def pieces() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for value in as_changes(changes):
                if len(value):
                    count += len(value)
                    yield from self._pieces(work, value)

        staged = self._spool.stage(work, pieces())
        return work.receipt(count, staged)

    def publish(self, delivery: Delivery) -> None:
        contents, self._ledger = self._contents, None
        receipts = [receipt for load in delivery.loads_of(delivery.receipts) for receipt in load.parts]
        self._spool.keep_only(delivery.batch, [receipt.staged for receipt in receipts])
        for load in delivery.loads_of(delivery.receipts):
            if any(receipt.staged is not None for receipt in load.parts):
                contents = self._with_chunks(contents, load.target, load.parts)
        self._finish(delivery.ledger, self._rotated(contents))
        self._spool.discard(delivery.batch)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    def close(self) -> None:
        """Finish what is open: nobody would, until trucker runs again. Where that fails it is done then."""
        if self._ledger is None:
            return
        try:
            self._finish(self._ledger, self._rotated(self._contents, everything=True))
        except TruckerError as error:
            log.warning("open files are not finished", extra={"reason": error.message})
        self._ledger = None

    # -- staging --------------------------------------------------------------------------------------------------

    @property
    def _lines(self) -> bool:
        return self._connection.file_type is FileType.JSON

    def _pieces(self, work: Work, changes: Changes) -> Iterator[pa.RecordBatch]:
        snapshot = bool(work.batch.snapshot)
        if self._lines:
            settings: EnvelopeSettings = envelope_settings(self._connection, self._project, lines=True)
            encoded = settings.envelope().encode(changes, work.target, snapshot=snapshot)
            rows, times = pa.RecordBatch.from_arrays([encoded.value], names=[LINE]), encoded.changes.commit_time
        else:
            text = self._connection.file_type is FileType.CSV
            shaped = changes.reshaped(work.target.source)  # all rows of a part have the same columns
            rows = typed_rows(shaped, work.target, snapshot=snapshot, text=text)
            times = rows.column("_commit_time").cast(pa.int64()).fill_null(0).to_numpy()
        if self._connection.by_day:
            days = pa.array((times // _DAY_MICROS).astype(np.int32), mask=times == 0).cast(pa.date32())
            rows = rows.append_column(DAY, days)
        for start in range(0, rows.num_rows, _PIECE_ROWS):
            yield rows.slice(start, _PIECE_ROWS)

    def _refusal(self, target: Target) -> SinkError | None:
        flat = not self._lines or self._connection.format is EventFormat.FLAT
        return name_taken(target.source, target.truck) if flat else None

    # -- chunks and files -----------------------------------------------------------------------------------------

    def _with_chunks(self, contents: ManifestContents, target: Target, parts: Sequence[Receipt]) -> ManifestContents:
        """Put the changes of one table into chunks."""
        key, number, since = (target.truck, target.table), contents.next_chunk, time.time()
        series, file_type = contents.series.get(key, Series()), self._connection.file_type.value
        chunks, pieces = list(series.chunks), self._spool.read_all(parts)
        if chunks and chunks[-1].bytes < SMALL_BYTES and chunks[-1].file_type == file_type:
            # The last one is written anew with what comes: else there would be one for every small delivery.
            last = chunks.pop()
            pieces, since = chain(_read(self._store.get(last.name)), pieces), last.since
        for schema, data in _chunks(pieces):
            shape = blake2b(schema.serialize().to_pybytes(), digest_size=8).hexdigest()
            chunk = OpenChunk(number, len(data), file_type, shape, since)
            self._store.put(chunk.name, data)
            chunks.append(chunk)
            number, since = number + 1, time.time()
        series = Series(series.files, tuple(chunks))
        return replace(contents, series={**contents.series, key: series}, next_chunk=number)

    def _rotated(self, contents: ManifestContents, *, everything: bool = False) -> ManifestContents:
        connection = self._connection
        limit, seconds = connection.rotate_bytes, connection.rotate_seconds
        return contents.rotated(time.time(), limit=limit, seconds=seconds, everything=everything)

    def _finish(self, ledger: Ledger, contents: ManifestContents) -> None:
        """Store the manifest, make the files that it says are due, and remove the chunks that are done with."""
        chunks = self._contents.chunk_names() | contents.chunk_names()
        self._save(ledger, contents)
        if contents.due:
            for file in contents.due:
                self._make(file)
            contents = replace(contents, due=())
            self._save(ledger, contents)
        self._store.delete(chunks - contents.chunk_names())
        self._ledger, self._contents = ledger, contents

    def _make(self, file: DueFile) -> None:
        pieces = (piece for chunk in file.chunks for piece in _read(self._store.get(chunk.name)))
        file_type = FileType(file.chunks[0].file_type)
        with closing(pieces):
            made = write_files(pieces, file_type, self._store.scratch, file.number)
        for name, path in made.items():
            self._store.put_file(f"{file.folder}/{name}", path)

    # -- the manifest ---------------------------------------------------------------------------------------------

    def _load(self) -> tuple[Ledger, ManifestContents]:
        try:
            data = self._store.get(MANIFEST)
        except FileNotFoundError:
            return Ledger(), ManifestContents()
        content = ledger_file.parsed(data, f"{self._connection.location}/{MANIFEST}", self._project)
        return ledger_file.ledger_from_json(content), ManifestContents.from_json(content)

    def _save(self, ledger: Ledger, contents: ManifestContents) -> None:
        data = ledger_file.written(self._project, ledger, **contents.to_json())
        reach("sink.position.before")
        reach("sink.commit.before")
        self._store.put(MANIFEST, data)
        reach("sink.commit.after")
        reach("sink.position.after")


def _chunks(pieces: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Schema, bytes]]:
    """The pieces as Arrow streams of bounded size, each of one schema."""
    buffer, writer, schema = pa.BufferOutputStream(), None, None
    for piece in pieces:
        if writer is not None and (piece.schema != schema or buffer.tell() >= CHUNK_BYTES):
            writer.close()
            yield schema, buffer.getvalue().to_pybytes()
            buffer, writer = pa.BufferOutputStream(), None
        if writer is None:
            schema = piece.schema
            writer = pa.ipc.new_stream(buffer, schema, options=_SMALLER)
        writer.write_batch(piece)
    if writer is not None:
        writer.close()
        yield schema, buffer.getvalue().to_pybytes()


def _read(data: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(data) as reader:
        yield from reader
