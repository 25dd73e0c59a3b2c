"""The one connection to a DuckDB file.

DuckDB locks its file for the one process that writes. A session therefore lets go of it after a quiet second, so that
others can read in the pauses: closing costs some milliseconds (what the log holds is checkpointed), opening again about
twenty, far less than the pause that caused it.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import duckdb

from trucker.errors import SinkError, SinkHeld, SinkUnavailable, TruckerError
from trucker.table import TableId, quote_identifier

log = logging.getLogger("trucker.sinks.duckdb")

IDLE_SECONDS: Final = 1.0
_written: Final[set[Path]] = set()
_open: Final[list[Path]] = []
_opening: Final = threading.Lock()
_FLOCK: Final = "hhqqi"
MEMORY: Final = 1 << 30
_HOLDER: Final = re.compile(r"lock is held in (.+?) \(PID (\d+)\)")
_SETTINGS: Final = (
    "SET TimeZone = 'UTC'",
    # Rows of a table have no order to rely on; keeping one costs memory.
    "SET preserve_insertion_order = false",
)


class Session:
    """Opens the file when it is needed and closes it when it is not. Safe in several threads; pickles closed.

    `tables` is a cache for what was learnt of the file's tables; no other process can change them while it is open.
    """

    def __init__(self, path: Path, memory: int | None = None) -> None:
        self._path = path
        self._memory = memory
        self._lock = threading.RLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.tables: dict[TableId, Any] = {}
        self._timer: threading.Timer | None = None
        self._used = time.monotonic()
        self._writers = 0
        self._readers = 0
        self._last_files: tuple[tuple[int, int] | None, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (Session, (self._path, self._memory))

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def writers(self) -> int:
        """A number that grows when another process may have written to the file, which it cannot while it is open."""
        with self._lock:
            self._count_writers()
            return self._writers

    def _count_writers(self) -> None:
        if self._connection is None and self._last_files != (now := self._files()):
            self._last_files = now
            self._writers += 1

    def _files(self) -> tuple[tuple[int, int] | None, ...]:
        """Size and time of change of the file and of its log."""
        return tuple(_signature(path) for path in (self._path, self._path.with_name(f"{self._path.name}.wal")))

    @contextmanager
    def use(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection, for as long as the block runs."""
        with self._lock:
            if self._connection is None:
                _written.add(self._path.resolve())
                self._count_writers()
                with _opening:
                    self._connection = connect(self._path, memory=self._memory)
                    _open.append(self._path.resolve())
                # A process that ends without closing still leaves no log to replay, and no complaint of the binding.
                atexit.register(self.close)
            try:
                yield self._connection
            except duckdb.FatalException as error:
                # The instance has declared itself unusable; a new one recovers from its log.
                self.close()
                raise SinkUnavailable(
                    f"DuckDB gave up on {self._path}", remedy="none needed: the file is opened again", code="TRK430"
                ) from error
            finally:
                self._used = time.monotonic()
                self._watch(IDLE_SECONDS)

    @contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection inside a transaction, committed at the end of the block and rolled back by an error."""
        with self.use() as connection:
            run(connection, "BEGIN TRANSACTION")
            try:
                yield connection
                run(connection, "COMMIT")
            except BaseException:
                self.tables.clear()
                with suppress(duckdb.Error):
                    run(connection, "ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection, for one thread, in a transaction that only reads. The file stays open, and can be written."""
        with self.use() as connection:
            reader = connection.cursor()
            self._readers += 1
        try:
            run(reader, "BEGIN TRANSACTION")
            yield reader
        finally:
            with self._lock:
                self._readers -= 1
            with suppress(duckdb.Error):
                run(reader, "ROLLBACK")
            reader.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.tables.clear()
            if self._connection is not None:
                atexit.unregister(self.close)
                connection, self._connection = self._connection, None
                with _opening:
                    _open.remove(self._path.resolve())
                    connection.close()
                    self._last_files = self._files()

    def _watch(self, seconds: float) -> None:
        if self._timer is None and self._connection is not None:
            self._timer = threading.Timer(seconds, self._close_if_idle)
            self._timer.daemon = True
            self._timer.name = f"idle {self._path.name}"
            self._timer.start()

    def _close_if_idle(self) -> None:
        with self._lock:
            self._timer = None
            remaining = self._used + IDLE_SECONDS - time.monotonic()
            if remaining > 0 or self._readers:
                self._watch(max(remaining, IDLE_SECONDS))
                return
            try:
                self.close()
            except duckdb.Error:
                log.warning("closing an idle database failed", exc_info=True)


def _signature(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def written_here(path: Path) -> bool:
    """Whether a session of this process writes to the file: no other connection may be of another kind then."""
    return path.resolve() in _written


def refuse_held(path: Path) -> None:
    """Raise `SinkHeld` where another process has the file open, to read or to write: it cannot be written then.

    The kernel is asked whose lock is in the way, so that nothing is opened for writing. Not where a session of this
    process is open: to close another descriptor of the file would end its lock.
    """
    with _opening:
        if path.resolve() in _open:
            return
        with path.open("rb") as file:
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
    if kind != fcntl.F_UNLCK:
        raise _held(path, pid, _program(pid))


def _program(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def connect(path: Path, *, memory: int | None = None, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Open the file, to use `memory` bytes at most. Raises `SinkUnavailable` while another process holds it.

    The driver shares its machine with Spark; what does not fit into memory spills to <file>.tmp.
    """
    try:
        connection = duckdb.connect(str(path), read_only=read_only)
        for setting in (*_SETTINGS, f"SET memory_limit = '{(memory or MEMORY) >> 10} KiB'"):
            run(connection, setting)
    except duckdb.Error as error:
        raise _explained(path, error) from error
    return connection


def run(
    connection: duckdb.DuckDBPyConnection, statement: str, parameters: Sequence[object] | None = None
) -> list[tuple[Any, ...]]:
    """Run a statement; all rows of its result. A result that is not read to its end blocks the connection."""
    rows: list[tuple[Any, ...]] = connection.execute(statement, parameters).fetchall()
    return rows


def catalog(connection: duckdb.DuckDBPyConnection) -> str:
    """The file's name for SQL. Needed in every name: a schema called like the file is ambiguous without it."""
    ((name,),) = run(connection, "SELECT current_database()")
    return quote_identifier(name)


def _explained(path: Path, error: duckdb.Error) -> TruckerError:
    if "different configuration" in str(error):  # a connection of another kind, in this process
        return SinkHeld(f"{path} is held by this process", remedy="none needed: trucker retries", pid=os.getpid())
    holder = _HOLDER.search(str(error))
    if holder or "Could not set lock" in str(error):
        return _held(path, int(holder[2]) if holder else 0, holder[1] if holder else "")
    if isinstance(error, duckdb.IOException) and path.exists() and path.is_file():
        return SinkError(
            f"{path} cannot be opened: {_first_line(error)}",
            remedy="name a new file, or a DuckDB file written by a version no newer than the installed one",
            code="TRK432",
        )
    return SinkError(
        f"{path} cannot be opened: {_first_line(error)}",
        remedy="name a file in an existing folder where trucker may write",
        code="TRK433",
    )


def _held(path: Path, pid: int, program: str) -> SinkHeld:
    who = f"{program or 'another program'}, process {pid}" if pid > 0 else "another process"
    return SinkHeld(
        f"{path} is held by {who}",
        remedy="close the file in that process (usually a DuckDB shell, a notebook, a BI tool or another "
        "trucker): DuckDB allows one process to write; a run that has used the file before retries until then",
        pid=max(pid, 0),
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
