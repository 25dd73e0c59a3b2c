"""What every benchmark needs: servers, a workload, rounds in alternating order, and figures that survive a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

from figure import Cpu, Figure, Target
from processes import CpuProfile, below
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.testing.process import TruckerProcess
from trucker.testing.project_folder import postgres_entry, write_project
from trucker.testing.server import Server

TRANSACTION_ROWS = 1_000

TABLE = """
create table {name} (
    id integer primary key, customer integer, amount bigint, status smallint, price double precision,
    weight double precision, name text, address text, note text, paid boolean
)
"""

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "60min",
    # Vacuum comes when a measure says so, not in the middle of whichever round it likes.
    "autovacuum": "off",
    # Receivers are stopped while a load is made; nobody shall think they are dead.
    "wal_sender_timeout": "0",
    "wal_receiver_timeout": "0",
}

Side = Literal["trucker", "reference"]


@dataclass
class Bench:
    """The servers and sizes of one run. Servers are durable: fsync is on at both ends.

    `rows` is the size of a load; a measure of a first copy takes five times as many. `repeat` is the number of rounds.
    """

    folder: Path
    rows: int
    repeat: int
    quick: bool
    say: Callable[[str], None]
    figures: list[Figure] = field(default_factory=list)
    source: Server = field(init=False)
    target: Server = field(init=False)
    _measure: str = field(default="", init=False)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __post_init__(self) -> None:
        self.source = Server(self.folder / "source", settings=SETTINGS, durable=True)
        self.target = Server(self.folder / "target", settings=SETTINGS, durable=True)

    @property
    def patience(self) -> float:
        """Seconds that anything may take before it counts as failed."""
        return 90.0 if self.quick else 600.0

    # -- a measure ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """The scope of one measure. What fails in it is noted in its figures; what it made is taken away at the end."""
        self._measure, self._stack = name, contextlib.ExitStack()
        reason = ""
        try:
            for server in (self.source, self.target):
                server.start()
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            self.say(f"[red]{name} failed[/red]: {reason}")
        finally:
            with contextlib.suppress(Exception):
                self._stack.close()
        self._conclude(name, reason)

    def _conclude(self, name: str, reason: str) -> None:
        measured = [figure for figure in self.figures if figure.measure == name]
        if reason and not measured:
            self.figures.append(Figure(name, name, "", missing=reason))
        for figure in measured if reason else ():
            if not figure.trucker:
                figure.missing = figure.missing or reason
            elif len(figure.trucker) < self.repeat:
                figure.note = f"{figure.note} after {len(figure.trucker)} rounds: {reason}".strip()

    def figure(self, name: str, unit: str, target: Target | None = None, against: str = "", rows: int = 0) -> Figure:
        """A new row of the table, to be filled as the rounds go by."""
        figure = Figure(self._measure, name, unit, target, against, rows)
        self.figures.append(figure)
        return figure

    def rounds(self, most: int | None = None) -> range:
        """The rounds of the run; `most` where there is no reference to be held against, and time to be saved."""
        return range(self.repeat if most is None else min(most, self.repeat))

    def alternate(self, number: int, *sides: Callable[[], None]) -> None:
        """Run the sides one after the other, in the opposite order every second time."""
        for side in sides if number % 2 == 0 else reversed(sides):
            side()

    @contextlib.contextmanager
    def profiled(self, *load: psycopg.Connection[Any]) -> Iterator[Cpu]:
        """Fills the dictionary with CPU seconds by group of processes; `load` are the connections that make it."""
        spent: Cpu = {}
        servers = {self.source.pid: "source", self.target.pid: "target"}
        with CpuProfile(servers, frozenset(each.info.backend_pid for each in load)) as profile:
            yield spent
        spent.update(profile.seconds)

    def settle(self) -> None:
        """Write out what is dirty at both ends, so that a round does not pay for the one before it."""
        for server in (self.source, self.target):
            with server.connect() as connection:
                connection.execute("checkpoint")

    # -- what a measure works on ------------------------------------------------------------------------------------

    def database(self, server: Server, name: str, *statements: str) -> psycopg.Connection[Any]:
        """A new database, and a connection to it; both last as long as the measure."""
        server.create_database(name)
        self._stack.callback(self.drop_database, server, name)
        connection = self._stack.enter_context(server.connect(name))
        for statement in statements:
            connection.execute(statement.encode())
        return connection

    def drop_database(self, server: Server, name: str) -> None:
        """Drop a database with its subscriptions and slots; nothing when it is gone."""
        with server.connect() as connection:
            if not connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone():
                return
        with server.connect(name) as connection:
            for (subscription,) in connection.execute(
                "select subname from pg_subscription s join pg_database d on d.oid = subdbid where datname = %s", [name]
            ).fetchall():
                for statement in (
                    "alter subscription {} disable",
                    "alter subscription {} set (slot_name = none)",
                    "drop subscription {}",
                ):
                    connection.execute(sql.SQL(statement).format(sql.Identifier(subscription)))
        server.drop_database(name)

    def postgres(self, server: Server, name: str, database: str) -> dict[str, Any]:
        """A connection's entry in trucker.yml. Its patience is long: receivers are stopped while a load is made."""
        return {**postgres_entry(server.connection(name, database)), "timeouts": {"silence": 3600}}

    def project(
        self,
        name: str,
        source: str,
        target: str | Mapping[str, Any],
        tables: Sequence[str],
        *,
        truck: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        """A project with one truck `bench`, from a database of the source to one of the target or another store.

        `truck` has more keys of truck.yml, `settings` of trucker.yml.
        """
        folder = self.folder / f"project-{name}"
        store = self.postgres(self.target, "target", target) if isinstance(target, str) else dict(target)
        entry = {"input": {"connection": "source", "tables": list(tables)}, "output": {"connection": "target"}}
        connections = [self.postgres(self.source, "source", source), store]
        whole = {"unique_id": name, "connections": connections, **settings}
        write_project(folder, whole, {"bench": {**entry, **(truck or {})}})
        return folder

    def run(self, project: Path, *arguments: str) -> TruckerProcess:
        """`trucker run`, killed when the measure ends if it is still there."""
        process = TruckerProcess(project, *arguments)
        self._stack.callback(process.kill_tree)
        return process

    def callback(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call this when the measure ends."""
        self._stack.callback(function, *arguments)

    def streaming(self, project: Path, *arguments: str) -> TruckerProcess:
        """`trucker run`, once its truck streams."""
        process = self.run(project, *arguments)
        self.streams(process)
        return process

    def streams(self, process: TruckerProcess) -> None:
        """Wait until all trucks of a running project stream."""
        self.wait(lambda: process.check() or _streams(process), every=0.05)

    def run_once(self, project: Path) -> None:
        """`trucker run --once`, to its end."""
        process = self.run(project, "--once")
        if process.wait(self.patience) != 0:
            raise RuntimeError(process.last_words())

    def wait(self, condition: Callable[[], object], every: float = 0.02) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {self.patience:.0f} s")
            time.sleep(every)


# An incremental copy that is not complete has a cursor behind its name.
_COPIED = "select count(*) from trucker.tables where phase <> 'copying' and snapshot not like '%#%'"


class FirstCopy:
    """Watches a first copy by what is at its destination: from the first table that is there to the last that is whole.

    trucker's own status is not precise enough: it is written once a second.
    """

    def __init__(self, bench: Bench, process: TruckerProcess, target: psycopg.Connection[Any], tables: int) -> None:
        self._bench = bench
        self._process = process
        self._target = target
        self._tables = tables
        self.began = time.perf_counter()

    def begin(self) -> None:
        """Wait until it has begun."""
        tables = "select count(*) from pg_class where relnamespace = 'public'::regnamespace"
        self._bench.wait(lambda: self._alive() and value(self._target, tables))
        self.began = time.perf_counter()

    def end(self) -> float:
        """Wait until it is over; the seconds it took."""
        self._bench.wait(lambda: self._alive() and self._copied())
        return time.perf_counter() - self.began

    def _alive(self) -> bool:
        if self._process.process.poll() not in (None, 0):
            raise RuntimeError(self._process.last_words())
        return True

    def _copied(self) -> bool:
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            copied = value(self._target, _COPIED)
            return bool(copied == self._tables)
        return False


def _streams(process: TruckerProcess) -> bool:
    status = process.status()
    return status is not None and bool(status.trucks) and all(t.phase is TruckPhase.STREAMING for t in status.trucks)


# -- the load -------------------------------------------------------------------------------------------------------


def fill(
    connection: psycopg.Connection[Any], table: str, first: int, rows: int, transaction: int = TRANSACTION_ROWS
) -> None:
    """Insert rows in transactions of `transaction` rows."""
    for start in range(first, first + rows, transaction):
        end = min(start + transaction, first + rows) - 1
        connection.execute(
            f"insert into {table} select i, i % 100000, i::bigint * 977, i % 9, i * 0.37, i * 0.11,"
            f" 'customer ' || i, 'street ' || i % 5000 || ', town', md5(i::text), i % 2 = 0"
            f" from generate_series({start}, {end}) i".encode()
        )


def touch(
    connection: psycopg.Connection[Any], table: str, first: int, rows: int, transaction: int = TRANSACTION_ROWS
) -> None:
    """Update rows in transactions of `transaction` rows."""
    for start in range(first, first + rows, transaction):
        end = min(start + transaction, first + rows) - 1
        connection.execute(
            f"update {table} set amount = amount + 1, note = md5(note) where id between {start} and {end}".encode()
        )


def touch_hot(connection: psycopg.Connection[Any], table: str, first: int, rows: int, keys: int) -> None:
    """Update rows of the same `keys` over and over, in transactions of a hundred."""
    for sweep in range(0, rows, keys):
        touch(connection, table, first, min(keys, rows - sweep), 100)


def flushed(connection: psycopg.Connection[Any]) -> Lsn:
    """How far the server's WAL goes now."""
    return Lsn.parse(value(connection, "select pg_current_wal_flush_lsn()::text"))


def value(connection: psycopg.Connection[Any], query: str) -> Any:
    """The one value a query gives."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


# -- stopping a receiver --------------------------------------------------------------------------------------------


def capture_of(process: TruckerProcess) -> list[int]:
    """The capture processes of a running project."""
    pids = []
    for process_seen in below(process.process.pid):
        with contextlib.suppress(OSError):
            if b"trucker.capture.process" in Path(f"/proc/{process_seen.pid}/cmdline").read_bytes():
                pids.append(process_seen.pid)
    return pids


def pause(pids: Sequence[int]) -> None:
    """Stop processes where they are; what they would receive stays at its sender."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def resume(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
