"""A reload of a running project: from the command to the first row of a new truck, and how long another truck waits.

Each round adds a truck of one small table to a project that streams, and gives the command from this process, as
`trucker reload` does. Meanwhile small transactions of another truck are committed one after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import yaml

from figure import at_most
from harness import Bench, value
from latency import Listener
from trucker.project import Project

ROWS = 1_000
PING_SECONDS = 0.02

PING = "create table ping (id integer generated always as identity primary key)"
NOTIFY = """
create or replace function ping_seen() returns trigger language plpgsql as
    $$ begin perform pg_notify('ping', new.id::text); return null; end $$;
create trigger ping_seen after insert on ping for each row execute function ping_seen();
"""


def measure(bench: Bench) -> None:
    """How soon a reload shows at the destination."""
    first = bench.figure("reload until the first row of a new truck, warm", "s", at_most(2.0))
    answered = bench.figure("reload until its answer", "s")
    waited = bench.figure("reload: longest commit to visible of another truck", "s")
    source = bench.database(bench.source, "reload", PING, "insert into ping default values")
    target = bench.database(bench.target, "reload")
    folder = bench.project("reload", "reload", "reload", ["public.ping"])
    bench.streaming(folder)
    target.execute(NOTIFY.encode())
    for number in bench.rounds():
        table = f"late_{number}"
        source.execute(f"create table {table} as select i as id from generate_series(1, {ROWS}) i".encode())
        source.execute(f"alter table {table} add primary key (id)".encode())
        add_truck(folder, table, {"tables": [f"public.{table}"]})
        seconds, answer, pause = _reload(bench, folder, source, target, table)
        first.trucker.append(seconds)
        answered.trucker.append(answer)
        waited.trucker.append(pause)
        bench.say(f"first row {seconds:.2f} s, answer {answer:.2f} s, another truck {pause:.2f} s")


def _reload(
    bench: Bench, folder: Path, source: psycopg.Connection[Any], target: psycopg.Connection[Any], table: str
) -> tuple[float, float, float]:
    """Seconds until the first row of the new truck, until the answer, and that another truck waited for at most."""
    answers: list[float] = []
    command = threading.Thread(target=lambda: answers.append(Project.load(folder).reload().seconds))
    with _Pings(bench, source) as pings:
        began = time.perf_counter()
        command.start()
        bench.wait(lambda: pings.ping() and _has_rows(target, table), every=PING_SECONDS)
        first = time.perf_counter() - began
        command.join(bench.patience)
    return first, answers[0], pings.longest


def add_truck(folder: Path, name: str, source: Mapping[str, Any], target: Mapping[str, Any] | None = None) -> None:
    """A truck as that of the project, with other keys of its input and output."""
    trucks = folder / "trucks"
    entry = yaml.safe_load((trucks / "bench" / "truck.yml").read_text())
    entry["input"] |= source
    entry["output"] |= target or {}
    (trucks / name).mkdir()
    (trucks / name / "truck.yml").write_text(yaml.safe_dump(entry))


def _has_rows(target: psycopg.Connection[Any], table: str) -> bool:
    try:
        return bool(value(target, f"select exists (select from {table})"))
    except psycopg.errors.UndefinedTable:
        return False


class _Pings:
    """Small transactions of a truck that streams; `longest` is the longest that one took to become visible."""

    def __init__(self, bench: Bench, source: psycopg.Connection[Any]) -> None:
        self._bench = bench
        self._source = source
        self._committed: dict[int, float] = {}
        self._listener = Listener(bench, "reload")
        self.longest = 0.0

    def ping(self) -> bool:
        number = value(self._source, "insert into ping default values returning id")
        self._committed[number] = time.perf_counter()
        return True

    def __enter__(self) -> _Pings:
        return self

    def __exit__(self, *_: object) -> None:
        visible = self._listener.visible_at
        try:
            self._bench.wait(lambda: self._committed.keys() <= visible.keys())
            self.longest = max(visible[number] - at for number, at in self._committed.items())
        finally:
            self._listener.stop()
