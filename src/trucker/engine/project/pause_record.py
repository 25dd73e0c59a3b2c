"""The file of trucks that an operator has paused.

That is a wish, not a fact of the destination: so it is kept in the state folder, and stays until `trucker resume`. The
running instance writes it, or a command that holds the project's lock. It is replaced as a whole, and durable then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from trucker.changelog.document import FileDocument
from trucker.errors import FileError

FORMAT: Final = 1


class PauseRecord:
    """The names of paused trucks, each with the time since when. Used by one thread at a time."""

    def __init__(self, state: Path) -> None:
        self._path = state / "paused.json"

    def trucks(self) -> dict[str, float]:
        """The paused trucks, with the seconds since 1970 at which they were paused."""
        content = FileDocument(self._path).read()
        if content is None:
            return {}
        try:
            record: dict[str, Any] = json.loads(content)
            if record["format"] != FORMAT:
                raise ValueError
            return {str(name): float(since) for name, since in record["paused"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileError(
                f"{self._path}, which names the paused trucks, is damaged or was written by another version",
                remedy=f"remove {self._path}, then give `trucker pause` for every truck that is to stay paused",
                code="TRK617",
            ) from None

    def pause(self, names: Collection[str]) -> frozenset[str]:
        """Add trucks; those that were not paused before."""
        record = self.trucks()
        news = frozenset(names) - record.keys()
        if news:
            self._write({**record, **dict.fromkeys(news, time.time())})
        return news

    def resume(self, names: Collection[str]) -> frozenset[str]:
        """Remove trucks; those that were paused before."""
        record = self.trucks()
        freed = record.keys() & frozenset(names)
        if freed:
            self._write({name: since for name, since in record.items() if name not in freed})
        return frozenset(freed)

    def _write(self, record: dict[str, float]) -> None:
        content = {"format": FORMAT, "paused": dict(sorted(record.items()))}
        FileDocument(self._path).write(json.dumps(content, ensure_ascii=False, indent=2).encode())
