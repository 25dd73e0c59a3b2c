"""A sink as a store of columns has them: a folder of Parquet parts per table, nothing ever changed in place.

    <folder>/<project>.json          positions and the states of tables
    <folder>/<table>/000001.parquet  versioned rows

An insert adds a part: no transactions, no updates. Of the rows of one key the one with the highest version counts,
unless it says that the row is gone (`rows` stands for a view). An example to copy: `docs/howto/write_a_sink.md`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from trucker.adapters import Abilities, Adapter, Connection, ProjectPath, Visible
from trucker.errors import SinkError
from trucker.sinks import ledger_file
from trucker.sinks.base import Workspace
from trucker.sinks.ledger import Ledger
from trucker.sinks.merging import DELETED, VERSION, MergeSink
from trucker.sinks.strict import refuse_columns
from trucker.sinks.target import Target
from trucker.table import TableId


class VersionedConnection(Connection):
    """A folder of Parquet parts as a destination."""

    adapter: Literal["versioned"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The folder; relative to the project's folder.")


VERSIONED: Final = Adapter(
    name="versioned",
    connection=VersionedConnection,
    sink="trucker.testing.versioned_sink:VersionedSink",
    abilities=Abilities(
        visible=Visible.TABLE,
        keyless=False,
        partial_rows=False,
        guarantee="exactly once; one table becomes visible after the other",
    ),
)


class VersionedSink(MergeSink):
    """Guarantee: exactly once for readers of the rows that count; one table becomes visible after the other."""

    name, abilities = VERSIONED.name, VERSIONED.abilities

    def __init__(self, connection: VersionedConnection, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._folder = connection.path

    @property
    def _ledger_file(self) -> Path:
        return self._folder / f"{quote(self._project)}.json"

    def read_ledger(self) -> Ledger:
        content = ledger_file.load(self._ledger_file, self._project)
        return ledger_file.ledger_from_json(content) if content else Ledger()

    def store(self, ledger: Ledger) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ledger_file.save(self._ledger_file, self._project, ledger)

    # -- tables -----------------------------------------------------------------------------------------------------

    def prepare(self, target: Target) -> frozenset[str]:
        super().prepare(target)  # refuses output.sql
        folder = self._table(target.table)
        described = folder / "table.json"
        columns = {column.name: column.missing_value for column in target.source.columns}
        if described.exists():
            stored: dict[str, Any] = json.loads(described.read_text())
            if stored["key"] != list(target.source.key):
                raise SinkError(f"table {target.table} has another key", remedy=f"remove {folder} and reset the truck")
            if target.strict:
                refuse_columns(target, stored["columns"], ())
            old = dict(target.renames(stored["columns"]))
            columns = {old.get(name, name): value for name, value in stored["columns"].items()} | columns
        folder.mkdir(parents=True, exist_ok=True)
        described.write_text(json.dumps({"key": target.source.key, "columns": columns}))
        return frozenset()

    def is_empty(self, table: TableId) -> bool:
        return not any(self._table(table).glob("*.parquet"))

    def empty(self, target: Target) -> None:
        for part in self._table(target.table).glob("*.parquet"):
            part.unlink()

    def merge(self, target: Target, rows: Iterator[pa.RecordBatch]) -> None:
        folder = self._table(target.table)
        _insert(folder, sum(1 for _ in folder.glob("*.parquet")) + 1, rows)

    def replace(self, target: Target, rows: Iterator[pa.RecordBatch]) -> None:
        """Writes a new folder, which replaces the table's when it has all rows."""
        table = self._table(target.table)
        new_folder = table.with_name(f"{table.name}.new")
        shutil.rmtree(new_folder, ignore_errors=True)
        new_folder.mkdir()
        shutil.copy(table / "table.json", new_folder)
        _insert(new_folder, 1, rows)
        shutil.rmtree(table)
        new_folder.rename(table)

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        """The rows that count."""
        folder = self._table(table)
        if not (folder / "table.json").exists():
            return []
        described = json.loads((folder / "table.json").read_text())
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for part in sorted(folder.glob("*.parquet")):
            with part.open("rb") as file:  # once: another one may take its place meanwhile
                rows = pq.read_table(file).to_pylist()
            for row in rows:
                key = tuple(row[name] for name in described["key"])
                if key not in newest or newest[key][VERSION] <= row[VERSION]:
                    newest[key] = row
        columns: dict[str, str | None] = described["columns"]
        return [
            {name: row.get(name, missing) for name, missing in columns.items()}
            for row in newest.values()
            if not row[DELETED]
        ]

    def _table(self, table: TableId) -> Path:
        return self._folder / str(table).replace("/", "%2F")


def _insert(folder: Path, number: int, rows: Iterator[pa.RecordBatch]) -> None:
    """Add a part; it counts when it is whole."""
    first = next(rows, None)
    if first is None:
        return
    with pq.ParquetWriter(folder / "unfinished", first.schema) as writer:
        writer.write_batch(first)
        for batch in rows:
            writer.write_batch(batch)
    (folder / "unfinished").rename(folder / f"{number:06d}.parquet")
