"""How readers learn where the log ends: from a file beside it, or by asking the bucket."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from trucker.changelog.format.durable import Durable, DurableFile, Watch, missing, unreadable
from trucker.changelog.location import LogLocation, ObjectLocation

_TRIES: Final = 5
_ASK_SECONDS: Final = 1.0


class EndWatch(Protocol):
    """Sleeps until the end may have moved."""

    def wait(self, deadline: float) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class EndReader(Protocol):
    """Reads the durable end."""

    def read(self) -> Durable: ...

    def watch(self) -> EndWatch: ...

    def close(self) -> None:
        """Give back descriptors; it can be used again."""


def end_reader(location: LogLocation) -> EndReader:
    if not isinstance(location, ObjectLocation):
        return FileEnd(location, location, wide=False)
    if location.folder is not None:
        return FileEnd(location.folder, location, wide=True)
    return AskedEnd(location)


class FileEnd:
    """By the file `durable`, which the writer overwrites."""

    def __init__(self, folder: Path, location: LogLocation, *, wide: bool) -> None:
        self._folder = folder
        self._location = location
        self._wide = wide
        self._file: DurableFile | None = None

    def read(self) -> Durable:
        if self._file is None:
            try:
                self._file = DurableFile(self._folder, wide=self._wide)
            except FileNotFoundError:
                raise missing(self._location) from None
        for _ in range(_TRIES):
            found = self._file.read()
            if found is not None:
                return found
        raise unreadable(self._folder)

    def watch(self) -> Watch:
        return Watch(self._folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class AskedEnd:
    """By a listing, every second at the most."""

    def __init__(self, location: ObjectLocation) -> None:
        self._location = location
        self._found: Durable | None = None
        self._ask_again = -math.inf

    def read(self) -> Durable:
        from trucker.changelog.bucket import Bucket
        from trucker.changelog.objects.object_recovery import end_of, read_start

        now = time.monotonic()
        if self._found is None or now >= self._ask_again:
            bucket = Bucket(self._location)
            self._found = end_of(self._location, bucket, read_start(self._location, bucket)).durable
            self._ask_again = now + _ASK_SECONDS
        return self._found

    def watch(self) -> _Nap:
        return _Nap()

    def close(self) -> None:
        self._found = None


class _Nap:
    def wait(self, deadline: float) -> None:
        time.sleep(max(0.0, min(deadline - time.monotonic(), _ASK_SECONDS)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
