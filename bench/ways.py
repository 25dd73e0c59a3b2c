"""Ways from a source table to a destination: a native subscription, and trucker.

All ways of a measure read the same WAL of the same tables, `bench` and `marker`. Each can be held: its receiver, the
subscription's worker or trucker's capture process, is stopped where it is, and what it would receive waits in its
slot. So a load is made once, with nobody at work beside it, and then each way in turn is let go and timed until a
marker, committed after the load, is visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg

from harness import Bench, capture_of, flushed, pause, resume, value
from trucker.testing.process import TruckerProcess

MARKER = "create table marker (id integer primary key)"
TABLES = ("public.bench", "public.marker")


class Way:
    """One way to a destination. `held` says whether its receiver is stopped."""

    name: str

    def __init__(self, bench: Bench, source: psycopg.Connection[Any]) -> None:
        self.bench = bench
        self.source = source
        self._paused: list[int] = []

    def ready(self) -> None:
        """Wait until it streams."""

    def receivers(self) -> list[int]:
        """The processes to stop so that nothing is received."""
        raise NotImplementedError

    def visible_since(self, number: int) -> float | None:
        """When (by `time.time()`) the marker became visible at the destination; None while it is not."""
        raise NotImplementedError

    def hold(self) -> None:
        self._paused = self.receivers()
        if not self._paused:
            raise RuntimeError(f"{self.name}: nobody receives")
        pause(self._paused)

    def release(self) -> float:
        """Let it go on; when that was."""
        began = time.time()
        resume(self._paused)
        self._paused = []
        return began

    def wait(self, number: int) -> float:
        """Wait for a marker; when it became visible."""
        times: list[float] = []

        def visible() -> bool:
            at = self.visible_since(number)
            if at is not None:
                times.append(at)
            return at is not None

        self.bench.wait(visible)
        return times[0]

    def catch_up(self, number: int) -> float:
        """Seconds from letting it go until the marker is visible."""
        began = self.release()
        return self.wait(number) - began


class Native(Way):
    """PostgreSQL's own logical replication into a database of its own."""

    name = "native subscription"

    def __init__(self, bench: Bench, source: psycopg.Connection[Any], database: str, *tables: str) -> None:
        super().__init__(bench, source)
        self.target = bench.database(bench.target, database, *tables)
        self._subscription = f"{database}_native"
        source.execute(f"create publication {self._subscription} for all tables".encode())
        source.execute(f"select pg_create_logical_replication_slot('{self._subscription}', 'pgoutput')".encode())
        conninfo = bench.source.connection("source", source.info.dbname).conninfo()
        text = " ".join(f"{key}={word}" for key, word in conninfo.items())
        self.target.execute(
            f"create subscription {self._subscription} connection '{text}' publication {self._subscription}"
            " with (create_slot = false, copy_data = false)".encode()
        )

    def receivers(self) -> list[int]:
        query = f"select pid from pg_stat_subscription where subname = '{self._subscription}' and pid is not null"
        return [pid for (pid,) in self.target.execute(query.encode()).fetchall()]

    def visible_since(self, number: int) -> float | None:
        return _marked(self.target, number)


class Truck(Way):
    """A running trucker with one truck, into PostgreSQL."""

    name = "trucker"

    def __init__(
        self, bench: Bench, source: psycopg.Connection[Any], database: str, *tables: str, **settings: Any
    ) -> None:
        super().__init__(bench, source)
        self.target = bench.database(bench.target, database)
        replicated = tables or TABLES
        self.project = bench.project(f"bench_{database}", source.info.dbname, database, replicated, **settings)
        self.process = bench.run(self.project)

    def ready(self) -> None:
        self.bench.streams(self.process)

    def receivers(self) -> list[int]:
        return capture_of(self.process)

    def visible_since(self, number: int) -> float | None:
        self.process.check()
        return _marked(self.target, number)


class FileTruck(Way):
    """A running trucker with one truck into files, which only it can read while it runs.

    The marker is visible by the time the files were last written, once trucker says that it has applied all there is.
    """

    def __init__(self, bench: Bench, source: psycopg.Connection[Any], name: str, store: Mapping[str, Any]) -> None:
        super().__init__(bench, source)
        self.name = name
        self.project = bench.project(f"bench_file_{store['adapter']}", source.info.dbname, store, TABLES)
        self.process: TruckerProcess = bench.run(self.project)
        self._files: Callable[[], list[Path]] = lambda: (
            list(self.project.glob("out*")) + list(self.project.glob("out*/**/*"))
        )

    def receivers(self) -> list[int]:
        return capture_of(self.process)

    def ready(self) -> None:
        self.bench.streams(self.process)

    def visible_since(self, number: int) -> float | None:
        self.process.check()
        if not self.process.caught_up(self._goal):
            return None
        return max(file.stat().st_mtime for file in self._files())

    def wait(self, number: int) -> float:
        self._goal = flushed(self.source)
        return super().wait(number)


def _marked(target: psycopg.Connection[Any], number: int) -> float | None:
    return time.time() if value(target, f"select count(*) from marker where id = {number}") else None


class Markers:
    """Rows that tell how far a way is."""

    def __init__(self, source: psycopg.Connection[Any]) -> None:
        self._source = source
        self.last = 0

    def put(self) -> int:
        self.last += 1
        self._source.execute(f"insert into marker values ({self.last})".encode())
        return self.last
