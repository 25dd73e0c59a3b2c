"""The SQL files a truck's folder may hold, by name."""

from __future__ import annotations

import difflib
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


FUNCTIONS: Final = "functions.py"
HANDLER: Final = "handler.py"
_ALL: Final = (*NAMES, FUNCTIONS, HANDLER)


def misnamed_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files of a truck's folder that are not used, and the name that each was likely meant to have.

    All that end in .sql, and Python files whose name is much like that of functions.py or handler.py.
    """
    for path in sorted(folder.iterdir()):
        name = path.name.lower()
        if name in _ALL or name.startswith("."):
            continue
        likely = next(iter(difflib.get_close_matches(name, _ALL, 1, 0.75)), "")
        if likely or name.endswith(".sql"):
            yield path, likely


def sql_files(folder: Path) -> Iterator[Path]:
    """The SQL files in a truck's folder, in any case of letters, readable or not."""
    yield from sorted(path for path in folder.iterdir() if path.name.lower() in NAMES)
