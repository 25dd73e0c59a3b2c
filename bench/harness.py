"""What every benchmark needs: servers, a workload, figures, and the table they end in."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from trucker.lsn import Lsn
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


@dataclass(frozen=True)
class Figure:
    """One result: trucker's values, and the reference's from the same run where there is one."""

    name: str
    unit: str
    trucker: Sequence[float]
    reference: Sequence[float] = ()
    reference_name: str = ""

    @property
    def ratio(self) -> float | None:
        """trucker's median over the reference's."""
        if not self.reference:
            return None
        return statistics.median(self.trucker) / statistics.median(self.reference)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "trucker": statistics.median(self.trucker),
            "trucker_runs": list(self.trucker),
            "reference_name": self.reference_name or None,
            "reference": statistics.median(self.reference) if self.reference else None,
            "reference_runs": list(self.reference),
            "ratio": self.ratio,
        }


@dataclass
class Bench:
    """The servers and sizes of one run. Servers are durable: fsync is on at both ends."""

    folder: Path
    rows: int
    repeat: int
    stack: contextlib.ExitStack
    say: Callable[[str], None]
    source: Server = field(init=False)
    target: Server = field(init=False)

    def __post_init__(self) -> None:
        settings = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
        self.source = Server(self.folder / "source", settings=settings, durable=True)
        self.target = Server(self.folder / "target", settings=settings, durable=True)
        for server in (self.source, self.target):
            self.stack.callback(server.destroy)
            server.start()

    def database(self, server: Server, name: str, *statements: str) -> psycopg.Connection[Any]:
        """A new database, and a connection to it that lasts as long as the run."""
        server.create_database(name)
        connection = self.stack.enter_context(server.connect(name))
        for statement in statements:
            connection.execute(statement.encode())
        return connection

    def project(self, name: str, source: str, target: str, tables: Sequence[str], **settings: Any) -> Path:
        """A project with one truck from a database of the source to one of the target."""
        folder = self.folder / f"project-{name}"
        connections = [
            postgres_entry(self.source.connection("source", source)),
            postgres_entry(self.target.connection("target", target)),
        ]
        truck = {"input": {"connection": "source", "tables": list(tables)}, "output": {"connection": "target"}}
        write_project(folder, {"unique_id": name, "connections": connections, **settings}, {"bench": truck})
        return folder

    def run(self, project: Path, *arguments: str) -> TruckerProcess:
        """`trucker run`, killed at the end if it is still there."""
        process = TruckerProcess(project, *arguments)
        self.stack.callback(process.kill_tree)
        return process

    def alternate(self, number: int, *measures: Callable[[], None]) -> None:
        """Run the measures one after the other, in the opposite order every second time."""
        for measure in measures if number % 2 == 0 else reversed(measures):
            measure()


def fill(connection: psycopg.Connection[Any], table: str, first: int, rows: int) -> None:
    """Insert rows in transactions of a thousand."""
    for start in range(first, first + rows, TRANSACTION_ROWS):
        end = min(start + TRANSACTION_ROWS, first + rows) - 1
        connection.execute(
            f"insert into {table} select i, i % 100000, i::bigint * 977, i % 9, i * 0.37, i * 0.11,"
            f" 'customer ' || i, 'street ' || i % 5000 || ', town', md5(i::text), i % 2 = 0"
            f" from generate_series({start}, {end}) i".encode()
        )


def touch(connection: psycopg.Connection[Any], table: str, first: int, rows: int) -> None:
    """Update rows in transactions of a thousand."""
    for start in range(first, first + rows, TRANSACTION_ROWS):
        end = min(start + TRANSACTION_ROWS, first + rows) - 1
        connection.execute(
            f"update {table} set amount = amount + 1, note = md5(note) where id between {start} and {end}".encode()
        )


def flushed(connection: psycopg.Connection[Any]) -> Lsn:
    """How far the source's WAL goes now."""
    return Lsn.parse(value(connection, "select pg_current_wal_flush_lsn()::text"))


def value(connection: psycopg.Connection[Any], query: str) -> Any:
    """The one value a query gives."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def wait(condition: Callable[[], object], timeout: float = 600.0, every: float = 0.005) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s")
        time.sleep(every)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
