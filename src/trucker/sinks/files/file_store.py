"""Where files are put: a folder, or a bucket with the protocol of S3. A file appears whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trucker.adapters.files import FilesConnection
from trucker.errors import ConfigError, SinkError, SinkUnavailable, TruckerError
from trucker.file_errors import FULL, file_error, folder_trouble
from trucker.sinks.ledger_file import sync_folder

REQUEST_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 20.0
HIDDEN: Final = "_trucker"
"""The folder of what is not for readers. Spark and Hive leave out names that begin with an underscore."""


class FileStore(ABC):
    """Files by name; `/` in a name is a folder. Errors are `SinkUnavailable` where trying again may help."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make a file, or replace it; durable when this returns."""

    @abstractmethod
    def put_file(self, name: str, file: Path) -> None:
        """The same with the content of a file of `scratch`, which may be gone then."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """A whole file; FileNotFoundError where there is none."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of all files below a folder, in order."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove files; one that is not there does not matter."""

    @abstractmethod
    def check(self) -> None:
        """Raise what makes it impossible to write there, as far as that can be seen without writing."""

    @property
    @abstractmethod
    def scratch(self) -> Path:
        """A local folder for files on their way."""

    def clear_scratch(self) -> None:
        """Remove what a crash left of files on their way."""
        for file in self.scratch.glob("*"):
            file.unlink(missing_ok=True)


def open_store(connection: FilesConnection, spool: Path) -> FileStore:
    """The store of a connection; `spool` is a local folder of the project's."""
    if isinstance(connection.location, Path):
        return FolderStore(connection.location)
    return BucketStore(connection, spool)


class FolderStore(FileStore):
    """Files of a folder: written beside it, made durable, and renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def scratch(self) -> Path:
        return self._folder / HIDDEN / "scratch"

    def put(self, name: str, data: bytes) -> None:
        with self._failing_as("writing"):
            self.scratch.mkdir(parents=True, exist_ok=True)
            file = self.scratch / secrets.token_hex(8)
            file.write_bytes(data)
        self.put_file(name, file)

    def put_file(self, name: str, file: Path) -> None:
        with self._failing_as("writing"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
            path = self._folder / name
            above = [folder for folder in path.parents if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            file.replace(path)
            for folder in (path.parent, *(each.parent for each in above)):
                sync_folder(folder)

    def get(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unusable(error, "reading") from error

    def names(self, folder: str) -> list[str]:
        with self._failing_as("reading"):
            files = (path for path in (self._folder / folder).rglob("*") if path.is_file())
            return sorted(str(path.relative_to(self._folder)) for path in files)

    def delete(self, names: Iterable[str]) -> None:
        with self._failing_as("writing to"):
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    def check(self) -> None:
        if (trouble := folder_trouble(self._folder)) is not None:
            raise self._unusable(trouble, "writing to")

    @contextmanager
    def _failing_as(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unusable(error, doing) from error

    def _unusable(self, error: OSError, doing: str) -> TruckerError:
        full = SinkUnavailable if error.errno in FULL else None
        return file_error(error, doing, self._folder, SinkError, code="TRK750", full=full, setting="location")


_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_REFUSED: Final = frozenset({"400", "401", "403", "405", "501"})
_PASSING: Final = frozenset({"RequestTimeout", "RequestTimeTooSkewed", "SlowDown"})


class BucketStore(FileStore):
    """Objects below a prefix of a bucket. A put replaces an object at once."""

    def __init__(self, connection: FilesConnection, spool: Path) -> None:
        self._uri = str(connection.location)
        self._connection = connection
        self._spool = spool
        self._opened: Any = None

    @property
    def scratch(self) -> Path:
        return self._spool / "scratch"

    @property
    def _store(self) -> Any:
        if self._opened is None:
            self._opened = _client(self._connection)
        return self._opened

    def put(self, name: str, data: bytes) -> None:
        import obstore

        with self._failing_as(name):
            obstore.put(self._store, name, data, use_multipart=False)

    def put_file(self, name: str, file: Path) -> None:
        import obstore

        with self._failing_as(name):
            obstore.put(self._store, name, file)
        file.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        import obstore

        with self._failing_as(name):
            return bytes(obstore.get(self._store, name).bytes())

    def names(self, folder: str) -> list[str]:
        import obstore

        with self._failing_as(folder):
            return sorted(entry["path"] for page in obstore.list(self._store, prefix=folder) for entry in page)

    def delete(self, names: Iterable[str]) -> None:
        import obstore

        chosen = list(names)
        with self._failing_as(""):
            if chosen:
                obstore.delete(self._store, chosen)

    def check(self) -> None:
        self.names(HIDDEN)

    @contextmanager
    def _failing_as(self, name: str) -> Iterator[None]:
        """Raises trucker's errors for the client's, whose messages hold whole answers of the server."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
                raise
            raise self._failure(f"{self._uri}/{name}" if name else self._uri, text) from None

    def _failure(self, what: str, text: str) -> SinkError:
        status, code = _STATUS.search(text), _CODE.search(text)
        why = " ".join(match[1] for match in (status, code) if match) or "no answer"
        if code and code[1] == "NoSuchBucket":
            return SinkError(
                f"the bucket of {what} does not exist",
                remedy="create the bucket, or correct the connection's location",
                code="TRK752",
            )
        if status and status[1] in _REFUSED and not (code and code[1] in _PASSING):
            return SinkError(
                f"the object storage refuses {what} ({why})",
                remedy="check the connection's s3, and that its key may list, get, put and delete below its location",
                code="TRK752",
            )
        return SinkUnavailable(
            f"the object storage of {what} does not answer as expected ({why})",
            remedy="check that the storage can be reached; trucker retries, and nothing is lost",
            code="TRK752",
        )


def _client(connection: FilesConnection) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise ConfigError(
            f"connection {connection.name} is on object storage, but the client is not installed",
            remedy='run: pip install "trucker[s3]"',
            code="TRK114",
        ) from None
    access = connection.s3.access() if connection.s3 is not None else {}
    shown = {key: getattr(value, "get_secret_value", lambda v=value: v)() for key, value in access.items()}
    parts = urlsplit(str(connection.location))
    options: Any = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "allow_http": str(shown.get("endpoint", "")).startswith("http://"),
    }
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    prefix = parts.path.strip("/")
    return S3Store(parts.netloc, prefix=prefix, client_options=options, retry_config=retries, **shown)
