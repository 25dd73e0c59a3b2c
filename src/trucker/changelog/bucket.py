"""A folder of objects in a bucket: put, get, list, delete, and the errors of each.

The one module that loads a client for object storage (obstore: S3's protocol with conditional writes, which pyarrow's
file systems do not have). What may pass is `ChangeLogUnavailable`; what trying again will not cure is `ChangeLogError`.
Messages of the client are not passed on: they hold whole answers of the server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from trucker.changelog.location import ObjectLocation
from trucker.errors import ChangeLogError, ChangeLogUnavailable

REQUEST_SECONDS: Final = 20.0
CONNECT_SECONDS: Final = 5.0
# For all tries to put one object; after that the storage counts as unavailable.
PUT_SECONDS: Final = 5.0
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_REFUSED = frozenset({"400", "401", "403", "405", "501"})
_PASSING = frozenset({"RequestTimeout", "RequestTimeTooSkewed", "SlowDown"})


class BucketEntry(NamedTuple):
    """An object in a listing; `modified` in seconds since 1970."""

    name: str
    bytes: int
    modified: float


class TakenError(Exception):
    """There is an object of that name already, and it is another one."""


class Bucket:
    """The objects below a location. Safe to use from several threads."""

    def __init__(self, location: ObjectLocation) -> None:
        self._uri = location.uri
        self._store = _open(location)

    def put_new(self, name: str, data: bytes) -> None:
        """Create an object, whole or not at all; `TakenError` where another one has that name.

        A lost answer leaves open whether the object was created. The next try then finds an object with the same
        bytes, which counts as success.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def attempt() -> None:
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                if self.get(name) != data:
                    raise TakenError(name) from None

        self._retry_for(PUT_SECONDS, name, attempt)

    def put(self, name: str, data: bytes) -> None:
        """Make an object, or replace it."""
        import obstore

        self._retry_for(PUT_SECONDS, name, lambda: obstore.put(self._store, name, data, use_multipart=False))

    def get(self, name: str) -> bytes:
        """A whole object; FileNotFoundError where there is none."""
        import obstore

        with self._translating_errors(name):
            return bytes(obstore.get(self._store, name).bytes())

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Some of an object, fewer bytes where it ends; FileNotFoundError where there is none."""
        import obstore

        with self._translating_errors(name):
            try:
                return bytes(obstore.get_range(self._store, name, start=offset, length=length))
            except obstore.exceptions.GenericError as error:
                # 416 Range Not Satisfiable: the range begins at the object's end or after it.
                if "416" in _STATUS.findall(str(error)) or "StartTooLarge" in str(error):
                    return b""
                raise

    def size(self, name: str) -> int:
        """An object's bytes; FileNotFoundError where there is none."""
        import obstore

        with self._translating_errors(name):
            return int(obstore.head(self._store, name)["size"])

    def list(self, after: str = "") -> list[BucketEntry]:
        """The objects whose names come after `after`, in the order of their names."""
        import obstore

        with self._translating_errors(""):
            entries = [
                BucketEntry(entry["path"], entry["size"], entry["last_modified"].timestamp())
                for page in obstore.list(self._store, offset=after or None)
                for entry in page
            ]
        return sorted(entries)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, in any order; one that is not there does not matter."""
        import obstore

        with self._translating_errors(""):
            if names:
                obstore.delete(self._store, list(names))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _retry_for(self, seconds: float, name: str, attempt: Callable[[], object]) -> None:
        """Try until it succeeds, fails for good or the time is over."""
        deadline = time.monotonic() + seconds
        for pause in _pauses():
            try:
                with self._translating_errors(name):
                    attempt()
                return
            except FileNotFoundError:
                pass  # `put_new` met an object of that name, which was deleted before it was read
            except ChangeLogUnavailable:
                if time.monotonic() + pause >= deadline:
                    raise
            time.sleep(pause)

    @contextmanager
    def _translating_errors(self, name: str) -> Iterator[None]:
        """Raises trucker's errors for the client's, whose messages hold whole answers of the server."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, OSError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
                raise
            raise self._failure(f"{self._uri}/{name}" if name else self._uri, text) from None

    def _failure(self, what: str, text: str) -> ChangeLogError:
        status, code = _STATUS.search(text), _CODE.search(text)
        why = " ".join(match[1] for match in (status, code) if match) or _without_answer(text)
        if code and code[1] == "NoSuchBucket":
            return ChangeLogError(
                f"the bucket of {what} does not exist",
                code="TRK311",
                remedy="create the bucket, or correct log.location",
            )
        if status and status[1] in _REFUSED and not (code and code[1] in _PASSING):
            return ChangeLogError(
                f"the object storage refuses {what} ({why})",
                code="TRK311",
                remedy="check log.s3, and that its key may list, get, put and delete below log.location",
            )
        return ChangeLogUnavailable(
            f"the object storage of {what} does not answer as expected ({why})",
            remedy="check that the storage can be reached; nothing is lost, because the source keeps changes "
            "that are not stored",
        )


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]


def _without_answer(text: str) -> str:
    lowered = text.lower()
    for sign in ("timed out", "timeout", "connect", "dns", "tls", "certificate"):
        if sign in lowered:
            return {"timeout": "timed out", "connect": "no connection", "dns": "unknown host"}.get(sign, sign)
    return "no answer"


def _open(location: ObjectLocation) -> Any:
    """The client's store for a location."""
    scheme = urlsplit(location.uri).scheme
    return STORES[scheme](location.uri, location.revealed())


def _s3(uri: str, access: Mapping[str, str]) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise ChangeLogError(
            "the change log is on object storage, but the client is not installed",
            code="TRK311",
            remedy='run: pip install "trucker[s3]"',
        ) from None
    parts = urlsplit(uri)
    settings: dict[str, Any] = dict(access)
    options: Any = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "allow_http": str(settings.get("endpoint", "")).startswith("http://"),
    }
    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/"),
        client_options=options,
        # The client repeats idempotent requests, briefly; `_retry_for` repeats the others, and for longer.
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)},
        **settings,
    )


STORES: Final[dict[str, Callable[[str, Mapping[str, str]], Any]]] = {"s3": _s3}
