"""A file that records which destinations a project has written to, and each truck's last known position there.

What counts is what a destination stores itself (I3). This is for a start at which one does not answer: that it has been
used before, which tables it has, and from where on its trucks may need the change log. A position here is never ahead
of the one at the destination, so that retention by it deletes nothing that is needed (I2).

A file in the state folder, or beside the change log where that has a place of its own. It is replaced as a whole.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from trucker.changelog.document import Document, FileDocument, document_beside
from trucker.changelog.location import location_of
from trucker.config.models import ProjectConfig
from trucker.errors import TruckerError
from trucker.lsn import ZERO, Lsn
from trucker.sinks.batch import Phase, TableState, TruckState
from trucker.table import TableId

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """A truck at its destination: the tables it had copied there, and from where on it may need the log.

    `again` are tables that must be copied again, which the destination has not recorded yet.
    """

    destination: str
    lsn: Lsn = ZERO
    tables: frozenset[TableId] = frozenset()
    again: frozenset[TableId] = frozenset()

    @property
    def state(self) -> TruckState:
        """What stands in for the destination's own word as long as that is not known."""
        return TruckState(self.lsn, dict.fromkeys(self.tables, TableState(Phase.STREAMING, self.lsn)))


def destinations_file(config: ProjectConfig, source: str) -> Document:
    """Where the record of a source's trucks is kept."""
    if config.log.location is None:
        return FileDocument(config.state_folder / "destinations" / f"{source}.json")
    return document_beside(location_of(config, source), "destinations.json")


class DestinationRecord:
    """The trucks of one source. Safe to use from several threads."""

    def __init__(self, file: Document) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._trucks = _load(file)

    def get(self, truck: str) -> Recorded | None:
        return self._trucks.get(truck)

    @property
    def trucks(self) -> list[str]:
        return list(self._trucks)

    def uses(self, destination: str) -> bool:
        """Whether a truck has been taken there."""
        return any(recorded.destination == destination for recorded in self._trucks.values())

    def states(self, destinations: Iterable[str]) -> dict[str, TruckState]:
        """What is noted of the trucks to these destinations."""
        wanted = frozenset(destinations)
        return {name: recorded.state for name, recorded in self._trucks.items() if recorded.destination in wanted}

    def again(self, truck: str) -> frozenset[TableId]:
        """The truck's tables that must be copied again, which its destination has not recorded yet."""
        recorded = self._trucks.get(truck)
        return recorded.again if recorded is not None else frozenset()

    def mark(self, truck: str, again: frozenset[TableId]) -> None:
        """Note that these tables, and no others, must be copied again. Durable when this returns."""
        recorded = self._trucks.get(truck)
        if recorded is not None and recorded.again != again:
            self.put({truck: replace(recorded, again=again)})

    def put(self, trucks: Mapping[str, Recorded]) -> None:
        """Durable when this returns."""
        with self._lock:
            updated = {**self._trucks, **trucks}
            if updated == self._trucks:
                return
            self._file.write(json.dumps(_to_json(updated), ensure_ascii=False).encode())
            self._trucks = updated

    def forget(self, trucks: Iterable[str]) -> None:
        """These trucks begin anew; that their destinations have been used stays known."""
        self.put({name: Recorded(self._trucks[name].destination) for name in trucks if name in self._trucks})


def records(config: ProjectConfig) -> list[DestinationRecord]:
    """The records of the project's sources; those that can be read."""
    readable = []
    for connection in config.sources:
        # A storage that does not answer is reported with the change log.
        with suppress(TruckerError):
            readable.append(DestinationRecord(destinations_file(config, connection.name)))
    return readable


def _to_json(trucks: Mapping[str, Recorded]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "trucks": [
            {
                "truck": name,
                "destination": recorded.destination,
                "lsn": str(recorded.lsn),
                "tables": [[table.schema, table.name] for table in sorted(recorded.tables)],
                "again": [[table.schema, table.name] for table in sorted(recorded.again)],
            }
            for name, recorded in sorted(trucks.items())
        ],
    }


def _load(file: Document) -> dict[str, Recorded]:
    """What is stored. A file that is damaged, or of another version, says nothing."""
    try:
        content: dict[str, Any] = json.loads(file.read() or b"{}")
        if content.get("format") != FORMAT:
            return {}
        return {
            row["truck"]: Recorded(
                row["destination"],
                Lsn.parse(row["lsn"]),
                frozenset(TableId(*table) for table in row["tables"]),
                frozenset(TableId(*table) for table in row["again"]),
            )
            for row in content["trucks"]
        }
    except (ValueError, KeyError, TypeError):
        return {}
