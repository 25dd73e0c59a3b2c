"""A small document that is replaced as a whole, in a file or in an object."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trucker import private
from trucker.changelog.location import LogLocation, ObjectLocation
from trucker.errors import ChangeLogError, ChangeLogFull
from trucker.file_errors import explaining, file_error


class Document(Protocol):
    """Read whole, written whole; durable when `write` returns."""

    def read(self) -> bytes | None:
        """None where it is not there."""

    def write(self, content: bytes) -> None: ...


def document_beside(location: LogLocation, name: str) -> Document:
    """A document in the folder or below the URI of a log, which moves and is deleted with it."""
    return ObjectDocument(location, name) if isinstance(location, ObjectLocation) else FileDocument(location / name)


@dataclass(frozen=True, slots=True)
class FileDocument:
    """In a file."""

    path: Path

    def read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise file_error(error, "reading", self.path, ChangeLogError, code="TRK306") from error

    def write(self, content: bytes) -> None:
        with explaining("writing", self.path, ChangeLogError, code="TRK306", full=ChangeLogFull):
            private.make_folder(self.path.parent)
            temporary = self.path.with_suffix(".new")
            with open(temporary, "wb", opener=private.open_file) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)


@dataclass(frozen=True, slots=True)
class ObjectDocument:
    """In an object."""

    location: ObjectLocation
    name: str

    def read(self) -> bytes | None:
        from trucker.changelog.bucket import Bucket

        try:
            return Bucket(self.location).get(self.name)
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> None:
        from trucker.changelog.bucket import Bucket

        Bucket(self.location).put(self.name, content)
