"""The schema of each table when its rows were last written, with which new shapes are compared.

A file in the state folder, or beside the change log where that has a place of its own: what a start on another machine
needs is there. It is replaced as a whole. It is written before a copy is committed and after a batch is: after a
crash it may be older than the destination, never newer, and what was done since is found done when it is judged again.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trucker.changelog.document import Document, FileDocument, document_beside
from trucker.changelog.location import location_of
from trucker.config.models import ProjectConfig
from trucker.source.look import Look
from trucker.table import TableId

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """A source table as one truck's destination has it.

    `look` has the columns that have been written, under the names the stream last had. `taken` are those the truck
    takes, `left_out` those of them that the destination has no place for, `names` what the destination calls a column
    where that is another name. `dropped` are columns there that the source has no more. `truncated` is the transaction
    of the last TRUNCATE in the stream. `key` has the numbers of the columns that were the key when the rows were
    copied; None where an older version has not stored it.
    """

    look: Look
    taken: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()
    names: Mapping[int, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    truncated: int = 0
    key: tuple[int, ...] | None = None

    def name_at_destination(self, number: int) -> str | None:
        """What the destination calls a column; None where it does not have it."""
        seen = self.look.by_number.get(number)
        if seen is None or number in self.left_out or number not in self.taken:
            return None
        return self.names.get(number, seen.column.name)

    @property
    def left_out_names(self) -> tuple[str, ...]:
        """The columns that the destination has no place for, by their names at the source."""
        return tuple(sorted(self.look.by_number[number].column.name for number in self.left_out))

    def to_json(self) -> dict[str, Any]:
        return {
            "look": self.look.to_json(),
            "taken": sorted(self.taken),
            "left_out": sorted(self.left_out),
            "names": sorted(self.names.items()),
            "dropped": sorted(self.dropped),
            "truncated": self.truncated,
            **({"key": list(self.key)} if self.key is not None else {}),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> WrittenSchema:
        return cls(
            Look.from_json(raw["look"]),
            frozenset(raw["taken"]),
            frozenset(raw["left_out"]),
            dict(raw["names"]),
            frozenset(raw["dropped"]),
            raw.get("truncated", 0),
            tuple(raw["key"]) if "key" in raw else None,
        )


def shapes_file(config: ProjectConfig, source: str) -> Document:
    """Where the shapes of a source's tables are kept."""
    if config.log.location is None:
        return FileDocument(config.state_folder / "shapes" / f"{source}.json")
    return document_beside(location_of(config, source), "shapes.json")


class SchemaStore:
    """All trucks' tables of one source. Safe to use from several threads."""

    def __init__(self, file: Document) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._tables = _load(file)
        self._changes: Counter[TableId] = Counter()

    def changes(self, table: TableId) -> int:
        """How often what is stored of the table, for any truck, has changed since the start."""
        return self._changes[table]

    def get(self, truck: str, table: TableId) -> WrittenSchema | None:
        return self._tables.get((truck, table))

    def of(self, truck: str) -> dict[TableId, WrittenSchema]:
        """All that is stored of a truck's tables."""
        return {table: written for (name, table), written in self._tables.items() if name == truck}

    def put(self, tables: Mapping[tuple[str, TableId], WrittenSchema]) -> None:
        """Durable when this returns. The file is written once for all of them, never for a look that is only newer."""
        with self._lock:
            if all(says_the_same(self._tables.get(truck_table), written) for truck_table, written in tables.items()):
                return
            self._tables = {**self._tables, **tables}
            self._changes.update(table for _, table in tables)
            self._save()

    def _save(self) -> None:
        content = {
            "format": FORMAT,
            "tables": [
                {"truck": truck, "table": [table.schema, table.name], **written.to_json()}
                for (truck, table), written in sorted(self._tables.items(), key=lambda item: item[0])
            ],
        }
        self._file.write(json.dumps(content, ensure_ascii=False).encode())


def says_the_same(stored: WrittenSchema | None, written: WrittenSchema) -> bool:
    """Whether both are the same but for the time of the look."""
    if stored is None:
        return False
    return replace(stored, look=replace(stored.look, lsn=written.look.lsn, horizon=written.look.horizon)) == written


def _load(file: Document) -> dict[tuple[str, TableId], WrittenSchema]:
    """What is stored. A file of another version says nothing: shapes are then taken as they are found."""
    data = file.read()
    content: dict[str, Any] = json.loads(data) if data is not None else {}
    if content.get("format") != FORMAT:
        return {}
    return {(row["truck"], TableId(*row["table"])): WrittenSchema.from_json(row) for row in content["tables"]}
