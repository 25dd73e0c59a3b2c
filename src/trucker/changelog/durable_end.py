"""How readers learn where the log ends: from a file beside it, or by asking the bucket."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from trucker.changelog.format.durable import Durable, DurableFile, Watch, missing, unreadable
from trucker.changelog.location import LogLocation, ObjectLocation

# A read may meet a record that is half written. The other record is whole, unless the writer is at it by then.
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
    return ListedEnd(location)


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
            durable = self._file.read()
            if durable is not None:
                return durable
        raise unreadable(self._folder)

    def watch(self) -> Watch:
        return Watch(self._folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class ListedEnd:
    """By a listing, at most once a second."""

    def __init__(self, location: ObjectLocation) -> None:
        self._location = location
        self._durable: Durable | None = None
        self._next_listing = -math.inf

    def read(self) -> Durable:
        from trucker.changelog.bucket import Bucket
        from trucker.changelog.objects.object_recovery import end_of, read_start

        now = time.monotonic()
        if self._durable is None or now >= self._next_listing:
            bucket = Bucket(self._location)
            self._durable = end_of(self._location, bucket, read_start(self._location, bucket)).durable
            self._next_listing = now + _ASK_SECONDS
        return self._durable

    def watch(self) -> _Nap:
        return _Nap()

    def close(self) -> None:
        self._durable = None


class _Nap:
    def wait(self, deadline: float) -> None:
        time.sleep(max(0.0, min(deadline - time.monotonic(), _ASK_SECONDS)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
