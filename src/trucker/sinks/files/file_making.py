"""Makes the files of a series out of its chunks: JSON lines, CSV or Parquet, one for each day where they are by day."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from trucker.adapters.files import FileType
from trucker.sinks.envelope.json_text import block

DAY: Final = "_day"
"""A column of chunks, where files are by day: days since 1970, null in rows without a time."""
GROUP_ROWS: Final = 1 << 18
GROUP_BYTES: Final = 64 << 20
LINE: Final = "_line"
"""The column of chunks of lines."""

RowsWriter = Callable[[pa.RecordBatch], None]
_ENDING: Final = {FileType.JSON: "jsonl", FileType.CSV: "csv", FileType.PARQUET: "parquet"}


def write_files(pieces: Iterator[pa.RecordBatch], file_type: FileType, scratch: Path, number: int) -> dict[str, Path]:
    """Write the pieces into files of `scratch`; by the name that each is to have in its series."""
    files: dict[str, Path] = {}
    writers: dict[str, RowsWriter] = {}
    scratch.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for piece in pieces:
            for folder, rows in _by_day(piece):
                name = f"{folder}{number:08d}.{_ENDING[file_type]}"
                if name not in writers:
                    files[name] = scratch / f"{number:08d}-{len(files)}.{_ENDING[file_type]}"
                    writers[name] = _open(stack, file_type, files[name], rows.schema)
                writers[name](rows)
    return files


def _by_day(piece: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if DAY not in piece.schema.names:
        yield "", piece
        return
    days, rows = piece.column(DAY), piece.drop_columns([DAY])
    for day in pc.unique(days).to_pylist():
        mine = pc.is_null(days) if day is None else pc.fill_null(pc.equal(days, day), False)
        yield f"day={_UNKNOWN if day is None else day.isoformat()}/", rows.filter(mine)


_UNKNOWN: Final = "__HIVE_DEFAULT_PARTITION__"


def _open(stack: ExitStack, file_type: FileType, path: Path, schema: pa.Schema) -> RowsWriter:
    if file_type is FileType.PARQUET:
        import pyarrow.parquet as pq

        group = _RowGroup(stack.enter_context(pq.ParquetWriter(path, schema, compression="zstd")))
        stack.callback(group.write)
        return group.add
    if file_type is FileType.CSV:
        flat = pa.schema([field if field.type != pa.list_(pa.string()) else _TEXTS for field in schema])
        # A value is in quotes, whatever it is; nothing at all is NULL.
        options = pacsv.WriteOptions(quoting_style="all_valid")
        csv: Any = stack.enter_context(pacsv.CSVWriter(path, flat, write_options=options))
        return lambda rows: csv.write_batch(_with_joined_lists(rows, flat))
    lines: IO[bytes] = stack.enter_context(path.open("wb"))
    return lambda rows: _write_lines(lines, rows)


class _RowGroup:
    """Pieces gathered into row groups of a size that readers like."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._pieces: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._pieces.append(rows)
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self.write()

    def write(self) -> None:
        if self._pieces:
            self._writer.write_table(pa.Table.from_batches(self._pieces), row_group_size=self._rows)
        self._pieces, self._rows, self._bytes = [], 0, 0


_TEXTS: Final = pa.field("_unsent", pa.string())


def _with_joined_lists(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pc.binary_join(column, ",") if pa.types.is_list(column.type) else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _write_lines(file: IO[bytes], rows: pa.RecordBatch) -> None:
    file.write(block(rows.column(LINE)))
