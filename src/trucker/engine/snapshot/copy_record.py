"""What an attempt at copying tables in one go was going to read, for a start that finds it interrupted.

A file of the state folder for each attempt, written when the destination has stored that the copy has begun, and
removed when it counts. Which parts of it the destination has, the destination says (`KeepsCopiedParts`). Without the
file, or at another place, the tables are copied from their beginning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from trucker.changelog.document import FileDocument
from trucker.engine.schema.written_schema import WrittenSchema
from trucker.engine.snapshot.copy_cursor import CopiedPages, CopyCursor, joined
from trucker.engine.truck.truck import InputTable
from trucker.lsn import Lsn
from trucker.sinks.target import TruckTable
from trucker.table import TableId

FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A part of an attempt: pages of a leaf, as `CopiedPages` has them."""

    part: int
    oid: int
    file: int
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """The copy of one table of a truck: which rows, to where, and its chunks, which together have so many `bytes`.

    `steps` is a digest of what makes the rows (`row_steps`)."""

    output: TableId
    where: str | None
    bytes: int
    chunks: tuple[PlannedChunk, ...]
    steps: str = ""

    def serves(self, table: InputTable, written: WrittenSchema, steps: str) -> bool:
        """Whether the truck still wants the same of the table, of which `written` was copied, at the same place."""
        columns = written.look.columns
        chosen = {
            seen.number for seen in columns if seen.number in table.key_numbers or table.chooses(seen.column.name)
        }
        wanted = table.output, table.where, steps
        return (self.output, self.where, self.steps) == wanted and chosen == written.taken

    def cursor(self, parts: Collection[int]) -> CopyCursor:
        """The cursor of a copy that has these parts."""
        pages = (CopiedPages(c.oid, c.file, c.first, c.last) for c in self.chunks if c.part in parts)
        return CopyCursor(copied=joined(pages))


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One attempt: the position of its snapshot, and the copies by truck and table."""

    lsn: Lsn
    copies: Mapping[TruckTable, PlannedCopy]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "lsn": str(self.lsn),
            "copies": [
                {"truck": truck, "table": table, **asdict(copy)} for (truck, table), copy in self.copies.items()
            ],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        copies = {
            (each["truck"], TableId(*each["table"])): PlannedCopy(
                TableId(*each["output"]),
                each["where"],
                each["bytes"],
                tuple(PlannedChunk(**chunk) for chunk in each["chunks"]),
                each["steps"],
            )
            for each in raw["copies"]
        }
        return cls(Lsn.parse(raw["lsn"]), copies)


class CopyRecord:
    """The plans of one source's attempts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, attempt: str, plan: CopyPlan) -> None:
        """Durable when this returns."""
        self._file(attempt).write(json.dumps(plan.to_json()).encode())

    def get(self, attempt: str) -> CopyPlan | None:
        """None where there is none, or one of another version."""
        content = self._file(attempt).read()
        raw = json.loads(content) if content is not None else {}
        return CopyPlan.from_json(raw) if raw.get("format") == FORMAT else None

    def remove(self, attempts: Iterable[str]) -> None:
        """Forget attempts that are over."""
        for attempt in attempts:
            self._file(attempt).path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all attempts."""
        self.remove([path.stem for path in self._folder.glob("*.json")])

    def _file(self, attempt: str) -> FileDocument:
        return FileDocument(self._folder / f"{attempt}.json")
