"""The file of refreshes that were asked for, and the files of their keys.

That is a wish, not a fact of the destination: so it is kept in the state folder, until it has been carried out. The
running instance writes it, or a command that holds the project's lock. The file is replaced as a whole, and durable
then. A refresh that was interrupted is taken up where it was recorded last: to read rows again changes nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trucker import private
from trucker.changelog.document import FileDocument
from trucker.control.answers import Refresh, RefreshState
from trucker.errors import ControlError, FileError
from trucker.file_errors import explaining
from trucker.table import Key, TableId

FORMAT: Final = 1
ENDED: Final = 50
"""So many refreshes that have ended are listed."""


class RefreshRecord:
    """The refreshes of a project, the oldest first. Several threads may use it."""

    def __init__(self, state: Path) -> None:
        self._path = state / "refreshes.json"
        self._folder = state / "refreshes"
        self._lock = threading.Lock()

    # -- refreshes ----------------------------------------------------------------------------------------------------

    def all(self) -> list[Refresh]:
        content = FileDocument(self._path).read()
        if content is None:
            return []
        try:
            record: dict[str, Any] = json.loads(content)
            if record["format"] != FORMAT:
                raise ValueError
            return [Refresh.from_json(fields) for fields in record["refreshes"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileError(
                f"{self._path}, which lists the refreshes, is damaged or was written by another version",
                remedy=f"remove {self._path}, then give `trucker refresh` again for what is still to be read",
                code="TRK617",
            ) from None

    def get(self, number: int) -> Refresh:
        for refresh in self.all():
            if refresh.id == number:
                return refresh
        raise ControlError(f"there is no refresh {number}", remedy="list them: trucker refresh --list", code="TRK633")

    def active(self) -> list[Refresh]:
        """Those that are still to be carried out."""
        return [each for each in self.all() if not each.is_over]

    def next(self, trucks: Collection[str]) -> Refresh | None:
        """The oldest that is still to be carried out, of these trucks."""
        return next((each for each in self.active() if each.truck in trucks), None)

    def add(self, refreshes: Sequence[tuple[Refresh, Iterable[Key] | None]]) -> list[Refresh]:
        """Add refreshes, with their keys; they get their ids. Raises, and adds none, where one is queued already."""
        with self._lock:
            listed = self.all()
            first = 1 + max((each.id for each in listed), default=0)
            added = []
            for number, (refresh, keys) in enumerate(refreshes, first):
                count = self._write_keys(number, keys) if keys is not None else None
                numbered = replace(refresh, id=number, queued=time.time(), keys=count, total=count)
                self._refuse_same(numbered, number, listed)
                added.append(numbered)
            self._write([*listed, *added])
            return added

    def _refuse_same(self, refresh: Refresh, number: int, listed: Sequence[Refresh]) -> None:
        for other in listed:
            same = (other.truck, other.table, other.where, other.keys) == (
                refresh.truck,
                refresh.table,
                refresh.where,
                refresh.keys,
            )
            if same and not other.is_over and self._same_keys(other, number):
                self._remove_keys(number)
                raise ControlError(
                    f"these rows of {refresh.table} are read again by refresh {other.id} already, which is "
                    f"{other.state.value}",
                    remedy=f"wait for its end; or cancel it: trucker refresh --cancel {other.id}",
                    code="TRK631",
                )

    def _same_keys(self, other: Refresh, number: int) -> bool:
        if other.keys is None:
            return True
        try:
            return self._keys_path(other.id).read_bytes() == self._keys_path(number).read_bytes()
        except OSError:
            return False

    def change(self, number: int, **fields: Any) -> Refresh:
        """Record what has become of a refresh; nothing where it is over. What there is of it now."""
        with self._lock:
            listed = self.all()
            changed = [replace(each, **fields) if each.id == number and not each.is_over else each for each in listed]
            if changed != listed:
                self._write(changed)
        refresh = self.get(number)
        if refresh.is_over:
            self._remove_keys(number)
        return refresh

    def copies(self, truck: str, table: TableId) -> bool:
        """Whether all of a table is to be read again, or is being read."""
        return any(
            each.whole and not each.is_over and (each.truck, each.table) == (truck, str(table)) for each in self.all()
        )

    def cancel(self, number: int) -> Refresh:
        """Cancel a refresh that has not ended."""
        refresh = self.get(number)
        if refresh.is_over:
            raise ControlError(
                f"refresh {number} is {refresh.state.value} already", remedy="nothing is to be cancelled", code="TRK633"
            )
        if refresh.whole and refresh.state is RefreshState.RUNNING:
            raise ControlError(
                f"the copy of {refresh.table} has begun, and must be completed",
                remedy="wait for its end: trucker status",
                code="TRK633",
            )
        return self.change(number, state=RefreshState.CANCELLED, ended=time.time(), reason="")

    def _write(self, refreshes: Sequence[Refresh]) -> None:
        over = [each.id for each in refreshes if each.is_over]
        forgotten = frozenset(over[: max(0, len(over) - ENDED)])
        listed = [each.to_json() for each in refreshes if each.id not in forgotten]
        content = {"format": FORMAT, "refreshes": listed}
        FileDocument(self._path).write(json.dumps(content, ensure_ascii=False, indent=2).encode())

    # -- keys ---------------------------------------------------------------------------------------------------------

    def hand_in(self, keys: Iterable[Sequence[str]]) -> str:
        """Write keys for the running instance, which takes them with `handed_in`; the name of their file."""
        name = f"{uuid.uuid4().hex}.given"
        self._write_lines(self._folder / name, keys)
        return name

    def handed_in(self, name: str) -> list[Key]:
        """The keys that `hand_in` has written. Their file is removed."""
        path = self._folder / Path(name).name
        with explaining("reading", path, ControlError, code="TRK630"):
            keys = [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
            path.unlink()
        return keys

    def discard(self, name: str | None) -> None:
        """Remove keys that were handed in and not taken."""
        if name is not None:
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def keys(self, number: int, first: int, count: int) -> list[Key]:
        """Some keys of a refresh, in order."""
        with self._keys_path(number).open(encoding="utf-8", newline="\n") as file:
            return [tuple(json.loads(line)) for line in islice(file, first, first + count)]

    def select(self, number: int, keys: Iterable[Key]) -> int:
        """Store the keys that meet a refresh's condition; how many there are."""
        return self._write_keys(number, keys)

    def _write_keys(self, number: int, keys: Iterable[Key]) -> int:
        return self._write_lines(self._keys_path(number), keys)

    def _write_lines(self, path: Path, keys: Iterable[Sequence[str]]) -> int:
        """One JSON array a line, with `\\n` inside escaped. Durable, and replaced as a whole."""
        count = 0
        with explaining("writing", path, ControlError, code="TRK630"):
            private.make_folder(self._folder)
            temporary = path.with_suffix(f".{os.getpid()}.new")
            with open(temporary, "w", encoding="utf-8", newline="\n", opener=private.open_file) as file:
                for key in keys:
                    file.write(json.dumps(key) + "\n")
                    count += 1
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        return count

    def _keys_path(self, number: int) -> Path:
        return self._folder / f"{number}.keys"

    def _remove_keys(self, number: int) -> None:
        with suppress(OSError):
            self._keys_path(number).unlink(missing_ok=True)
