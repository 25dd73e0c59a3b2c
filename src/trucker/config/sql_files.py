"""The SQL files a truck's folder may hold, by name. Their place is kept: this version refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAMES: Final = ("input.sql", "transform.sql", "insert.sql", "update.sql", "delete.sql", "output.sql")


def sql_files(folder: Path) -> list[Path]:
    """Those of the six that are in a truck's folder, whatever their letters' case."""
    return sorted(path for path in folder.iterdir() if path.name.lower() in NAMES and path.is_file())
