"""What the manifest says beside the ledger: changes that are there for files to come, and files that are being made.

<location>/_trucker/manifest.json         positions, tables, and the series
<location>/_trucker/open/<n>.arrows       changes of one series, on their way into a file
<location>/<truck>/<schema.table>/…       the files of a series
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from trucker.sinks.files.file_store import HIDDEN
from trucker.table import TableId

MANIFEST: Final = f"{HIDDEN}/manifest.json"
OPEN: Final = f"{HIDDEN}/open"


@dataclass(frozen=True, slots=True)
class OpenChunk:
    """Changes that count, and are in no file yet. `file_type` is what they are made for; `shape` tells chunks apart
    whose columns differ."""

    number: int
    bytes: int
    file_type: str
    shape: str
    since: float

    @property
    def name(self) -> str:
        return f"{OPEN}/{self.number:012d}.arrows"


@dataclass(frozen=True, slots=True)
class Series:
    """The files of one table of one truck: how many there are, and what is open."""

    files: int = 0
    chunks: tuple[OpenChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class DueFile:
    """A file that the manifest counts, and that may have to be made: file number `number` of a series."""

    truck: str
    table: TableId
    number: int
    chunks: tuple[OpenChunk, ...]

    @property
    def folder(self) -> str:
        return f"{_path_name(self.truck)}/{_path_name(str(self.table))}"


@dataclass(frozen=True, slots=True)
class ManifestContents:
    """All series, the files that are due, and the number of the next chunk."""

    series: Mapping[tuple[str, TableId], Series] = field(default_factory=dict)
    due: tuple[DueFile, ...] = ()
    next_chunk: int = 1

    def chunk_names(self) -> set[str]:
        """The chunks that are needed."""
        chunks = [*(each for some in self.series.values() for each in some.chunks), *self.due_chunks()]
        return {each.name for each in chunks}

    def due_chunks(self) -> list[OpenChunk]:
        return [each for file in self.due for each in file.chunks]

    def rotated(self, now: float, *, limit: int, seconds: float, everything: bool = False) -> ManifestContents:
        """The same with the files that are due by size and by time."""
        series, due = dict(self.series), list(self.due)
        for (truck, table), each in self.series.items():
            runs = _runs(each.chunks)
            files = each.files
            rest: tuple[OpenChunk, ...] = ()
            for number, run in enumerate(runs):
                full = sum(chunk.bytes for chunk in run) >= limit or abs(now - run[0].since) >= seconds
                if everything or full or number < len(runs) - 1:
                    files += 1
                    due.append(DueFile(truck, table, files, run))
                else:
                    rest = run
            series[truck, table] = Series(files, rest)
        return replace(self, series=series, due=tuple(due))

    def to_json(self) -> dict[str, Any]:
        return {
            "next_chunk": self.next_chunk,
            "series": [
                {"truck": truck, "schema": table.schema, "table": table.name, **asdict(each)}
                for (truck, table), each in sorted(self.series.items())
            ],
            "due": [
                {"truck": file.truck, "schema": file.table.schema, "table": file.table.name, "number": file.number}
                | {"chunks": [asdict(chunk) for chunk in file.chunks]}
                for file in self.due
            ],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ManifestContents:
        return cls(
            {
                (row["truck"], TableId(row["schema"], row["table"])): Series(row["files"], _chunks(row["chunks"]))
                for row in content["series"]
            },
            tuple(
                DueFile(row["truck"], TableId(row["schema"], row["table"]), row["number"], _chunks(row["chunks"]))
                for row in content["due"]
            ),
            content["next_chunk"],
        )


def _chunks(rows: list[dict[str, Any]]) -> tuple[OpenChunk, ...]:
    return tuple(OpenChunk(**row) for row in rows)


def _runs(chunks: tuple[OpenChunk, ...]) -> list[tuple[OpenChunk, ...]]:
    """Consecutive chunks that can share a file."""
    runs: list[list[OpenChunk]] = []
    for chunk in chunks:
        if not runs or (runs[-1][-1].file_type, runs[-1][-1].shape) != (chunk.file_type, chunk.shape):
            runs.append([])
        runs[-1].append(chunk)
    return [tuple(run) for run in runs]


def _path_name(text: str) -> str:
    """A name as a folder's. Readers leave out names that begin with a dot or an underscore."""
    name = quote(text, safe=" ")
    return f"%{ord(name[0]):02X}{name[1:]}" if name[:1] in (".", "_") else name
