"""The SQL files a truck's folder may hold, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INPUT: Final = "input.sql"
TRANSFORM: Final = "transform.sql"
OUTPUT: Final = "output.sql"
BY_OPERATION: Final = {"insert": "insert.sql", "update": "update.sql", "delete": "delete.sql"}
ON_SPARK: Final = (TRANSFORM, *BY_OPERATION.values())
NAMES: Final = (INPUT, *ON_SPARK, OUTPUT)


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file, read. `label` is what errors call it: its path as the user would write it.

    `folder` is the project's, from which a template's `file()` looks.
    """

    name: str
    label: str
    text: str
    folder: Path = Path()


def sql_files(folder: Path) -> Iterator[Path]:
    """Those of the six that are in a truck's folder, whatever their letters' case; whether they can be read or not."""
    yield from sorted(path for path in folder.iterdir() if path.name.lower() in NAMES)
