"""Keys of rows as a person gives and gets them: a CSV file with a key in each line."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from trucker.errors import ConfigError, FileError
from trucker.file_errors import explaining


def read_keys(path: Path) -> list[tuple[str, ...]]:
    """The keys in a file, or from standard input where it is called `-`. Empty lines are left out."""
    standard = str(path) == "-"
    with (
        explaining("reading", path, FileError),
        nullcontext(sys.stdin) if standard else path.open(encoding="utf-8", newline="") as file,
    ):
        reader = csv.reader(file, strict=True)
        try:
            return [tuple(row) for row in reader if row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}:{reader.line_num}: this is no line of a CSV file in UTF-8: {type(error).__name__}",
                remedy="give one key per line, its values separated by commas, with quotes where a value has a comma",
                code="TRK630",
            ) from None


def write_keys(path: Path, keys: Iterable[Sequence[str]]) -> None:
    """Write keys as `read_keys` reads them."""
    with explaining("writing", path, FileError), path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(keys)


def key_line(key: Sequence[str]) -> str:
    """A key as such a file has it."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(key)
    return line.getvalue()
