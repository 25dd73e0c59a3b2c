"""A file that records how each truck's tables were published when its destination last had all their changes.

A document beside the shapes (`written_schema`). A truck's table has an entry of its own, because trucks may be behind
each other. An entry is written once the destination has recorded that the table is to be copied, or when a table is
taken up; so after a crash it may be older than the publication, which leads to a copy, never newer, which would hide a
gap. A table that its truck does not read has none: it is copied again when it comes back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trucker.changelog.document import Document, FileDocument, document_beside
from trucker.changelog.location import location_of
from trucker.config.models import ProjectConfig
from trucker.sinks.target import TruckTable
from trucker.source.publication import Membership
from trucker.table import TableId

FORMAT: Final = 1


def record_file(config: ProjectConfig, source: str) -> Document:
    """Where the record of a source's publication is stored."""
    if config.log.location is None:
        return FileDocument(config.state_folder / "publications" / f"{source}.json")
    return document_beside(location_of(config, source), "publication.json")


class PublicationRecord:
    """The entries of all trucks of one source. Safe to use from several threads."""

    def __init__(self, file: Document) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._entries = _load(file)

    def get(self, truck: str, table: TableId) -> Membership | None:
        """None for a table that no version that keeps a record has run with."""
        return self._entries.get((truck, table))

    def put(self, entries: Mapping[TruckTable, Membership]) -> None:
        """Durable when this returns; nothing is written where all of them are stored already."""
        with self._lock:
            if all(self._entries.get(truck_table) == entry for truck_table, entry in entries.items()):
                return
            self._entries = {**self._entries, **entries}
            self._save()

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def keep(self, truck_tables: Iterable[TruckTable]) -> None:
        """Forget the entries of all others: a table that comes back to its truck is none that was read all the time."""
        followed = frozenset(truck_tables)
        with self._lock:
            if not self._entries.keys() <= followed:
                self._entries = {each: entry for each, entry in self._entries.items() if each in followed}
                self._save()

    def clear(self) -> None:
        """Forget all entries, where there are some."""
        with self._lock:
            if self._entries:
                self._entries = {}
                self._save()

    def _save(self) -> None:
        content = {
            "format": FORMAT,
            "tables": [
                {"truck": truck, "table": [table.schema, table.name], "published": entry.to_json()}
                for (truck, table), entry in sorted(self._entries.items(), key=lambda item: item[0])
            ],
        }
        self._file.write(json.dumps(content, ensure_ascii=False).encode())


def _load(file: Document) -> dict[TruckTable, Membership]:
    """What is stored. A file of another version says nothing: the publication is then taken as it is."""
    stored = file.read()
    content: dict[str, Any] = json.loads(stored) if stored is not None else {}
    if content.get("format") != FORMAT:
        return {}
    return {(row["truck"], TableId(*row["table"])): Membership.from_json(row["published"]) for row in content["tables"]}
