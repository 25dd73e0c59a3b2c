"""How an executor hands what it staged to the driver, where a destination has but one writer.

What is small travels inside the receipt. The rest becomes a file of the folder that driver and executors share:
an Arrow IPC stream, written under a temporary name and renamed when whole. The name says
what is in it (truck, table, batch, part) and ends in a token of the attempt, so that a repeated part never writes
to a file that another attempt's receipt names. A spool holds nothing that could not be made again: nothing in it is
fsynced, and whatever no receipt names is removed, at the first `open` and at every commit.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

import pyarrow as pa

from trucker import private
from trucker.errors import SinkUnavailable
from trucker.sinks.batch import CARRIED, Batch, Receipt, Work
from trucker.sinks.target import Target
from trucker.table import TableId

SUFFIX: Final = ".arrows"
_PLAIN: Final = pa.ipc.IpcWriteOptions()
_SMALLER: Final = pa.ipc.IpcWriteOptions(compression="lz4")
# Four such parts, two numbers, a token and suffixes stay below the 255 bytes a file's name may have.
_LONGEST_PART: Final = 45


@dataclass(frozen=True, slots=True)
class Inline:
    """Staged data that travels in the receipt."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Spooled:
    """Staged data in a file of the spool's folder."""

    file: str


Staged = Inline | Spooled


class Spool:
    """A folder of staged parts. Cheap to make, holds nothing open."""

    def __init__(self, folder: Path, *, inline_bytes: int = CARRIED, near: bool = False) -> None:
        """What travels is made smaller first; where all is `near` that costs more than it saves."""
        self._folder = folder
        self._inline_bytes = inline_bytes
        self._near = near

    def stage(self, work: Work, batches: Iterable[pa.RecordBatch]) -> Staged | None:
        """Take all of `batches`, one at a time; None where there are none. They share one schema."""
        writer = _PartWriter(
            self._folder, _stem(work), min(self._inline_bytes, work.room), _PLAIN if self._near else _SMALLER
        )
        try:
            for batch in batches:
                writer.write(batch)
            return writer.finish()
        except OSError as error:
            raise cannot_stage(work.target.table, self._folder, error) from error
        finally:
            writer.abandon()

    def read(self, staged: Staged) -> Iterator[pa.RecordBatch]:
        """The batches again, one at a time; a file is mapped, so what was read can leave memory."""
        if isinstance(staged, Inline):
            with pa.ipc.open_stream(staged.data) as reader:
                yield from reader
            return
        try:
            source = pa.memory_map(str(self._folder / staged.file))
        except OSError as error:
            raise not_staged(staged.file, self._folder, error) from error
        with source, pa.ipc.open_stream(source) as reader:
            yield from reader

    def read_all(self, receipts: Sequence[Receipt]) -> Iterator[pa.RecordBatch]:
        """The batches of several receipts, in the order of their parts."""
        for receipt in sorted(receipts, key=lambda receipt: receipt.part):
            if receipt.staged is not None:
                yield from self.read(receipt.staged)

    def keep_only(self, batch: Batch, staged: Iterable[Staged | None]) -> None:
        """Remove what other attempts staged for the batch's targets: `staged` is what the receipts in hand name.

        A table of a truck has one batch under way at a time, and perhaps the next one is staged already: whatever else
        is there was given up.
        """
        named = {part.file for part in staged if isinstance(part, Spooled)}
        for target in batch.targets:
            prefix = _prefix(target)
            for file in self._folder.glob(f"{prefix}.*"):
                begins = int(file.name[len(prefix) + 1 :].partition(".")[0], 16)
                if file.name not in named and (batch.snapshot or begins < batch.end):
                    file.unlink(missing_ok=True)

    def discard(self, batch: Batch) -> None:
        """Remove all that was staged for the batch's targets: it is committed."""
        self.keep_only(batch, ())

    def clear(self) -> None:
        """Remove everything: no receipt outlives the process that commits."""
        for file in self._folder.glob(f"*{SUFFIX}*"):
            file.unlink(missing_ok=True)


class _PartWriter:
    """One part on its way: in memory at first, in a file once it is too large for a receipt."""

    def __init__(self, folder: Path, stem: str, inline_bytes: int, options: pa.ipc.IpcWriteOptions) -> None:
        self._folder = folder
        self._options = options
        self._stem = stem
        self._inline_bytes = inline_bytes
        self._memory = pa.BufferOutputStream()
        self._file: IO[bytes] | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._temporary: Path | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._memory, batch.schema, options=self._options)
        self._stream.write_batch(batch)
        if self._file is None and self._memory.tell() > self._inline_bytes:
            self._spill(batch.schema)

    def finish(self) -> Staged | None:
        if self._stream is None:
            return None
        self._stream.close()
        self._stream = None
        if self._file is None or self._temporary is None:
            return Inline(self._memory.getvalue().to_pybytes())
        self._file.close()
        self._file = None
        final = self._temporary.with_suffix("")
        self._temporary.rename(final)
        self._temporary = None
        return Spooled(final.name)

    def abandon(self) -> None:
        """Leave nothing of a part that was not finished."""
        if self._file is not None:
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def _spill(self, schema: pa.Schema) -> None:
        """Move to a file what memory holds, and go on there."""
        assert self._stream is not None
        self._stream.close()
        private.make_folder(self._folder)
        self._temporary = self._folder / f"{self._stem}.{secrets.token_hex(6)}{SUFFIX}.part"
        self._file = open(self._temporary, "xb", opener=private.open_file)  # noqa: SIM115
        self._stream = pa.ipc.new_stream(self._file, schema, options=self._options)
        with pa.ipc.open_stream(self._memory.getvalue()) as reader:
            for batch in reader:
                self._stream.write_batch(batch)
        self._memory = pa.BufferOutputStream()


def cannot_stage(table: TableId, folder: Path, error: OSError) -> SinkUnavailable:
    return SinkUnavailable(
        f"staging for {table} failed in {folder}: {error.strerror or error}",
        remedy="free disk space for, or give trucker access to, the project's state folder",
        code="TRK450",
    )


def not_staged(file: str, folder: Path, error: OSError) -> SinkUnavailable:
    return SinkUnavailable(
        f"staged file {file} is not in {folder}: {error.strerror or error}",
        remedy="check that driver and executors share the state folder; trucker stages the batch again",
        code="TRK451",
    )


def _stem(work: Work) -> str:
    batch = work.batch
    return f"{_prefix(work.target)}.{int(batch.start):016x}.{_safe(batch.name)}.{work.part:05d}"


def _prefix(target: Target) -> str:
    table = target.source.table
    return f"{_safe(target.truck)}.{_safe(table.schema)}.{_safe(table.name)}"


def _safe(text: str) -> str:
    """`text` as a part of a file's name, without dots; a long one is cut and ends in a hash."""
    name = quote(text, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(name) <= _LONGEST_PART:
        return name
    return f"{name[: _LONGEST_PART - 13]}~{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
