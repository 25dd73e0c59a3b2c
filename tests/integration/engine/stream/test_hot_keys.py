"""Many changes of few keys, which tasks fold over several pieces of a batch: the outcome is that of every change."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import differences, duckdb_differences
from fixtures.waiting import wait_until
from trucker.engine.stream import batch_runner
from trucker.engine.task.payload import StreamPart

pytestmark = pytest.mark.spark

TABLES = ("counter", "hot", "bag")

BLOCKS = 16
"""At least so many blocks of the log hold the changes: a piece of a batch is one block or more.

Capture writes what it has received as one block, of up to 4 MiB."""

# Counters change and nothing else. Rows of `hot` come, go, exchange their keys and have a value that is seldom sent.
CHANGES = """do $$
declare one int; other int; dice float;
begin
    perform setseed({seed});
    for turn in 1 .. {turns} loop
        one := 1 + floor(20 * random()); other := 1 + floor(20 * random()); dice := random();
        update counter set n = n + 1, last = md5(turn::text) where id = one;
        update counter set n = n - 1 where id = other;
        if dice < 0.5 then
            update hot set n = turn where id = one;
        elsif dice < 0.6 then
            delete from hot where id = one;
        elsif dice < 0.7 then
            insert into hot values (one, turn, repeat(md5(turn::text), 90))
                on conflict (id) do update set n = excluded.n + 1;
        elsif dice < 0.72 then
            update hot set doc = repeat(md5(turn::text), 90) where id = one;
        elsif dice < 0.74 and one <> other then
            update hot set id = -1 where id = one;
            update hot set id = one where id = other;
            update hot set id = other where id = -1;
        elsif dice < 0.76 then
            update hot set id = one + 100 where id = one;
            delete from hot where id = one + 100 and random() < 0.5;
            update hot set id = one where id = one + 100;
        elsif dice < 0.9 then
            insert into bag values (one, other);
        else
            delete from bag where a = one;
        end if;
        if turn % 40 = 0 then
            commit;
        end if;
        if {truncates} and turn = {turns} / 2 then
            truncate bag;
        end if;
    end loop;
end $$"""


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pieces the parts had that were joined."""
    found: list[int] = []

    def joined(parts: Sequence[StreamPart], left: float) -> list[StreamPart]:
        made = real(parts, left)
        found.extend(len(part.pieces) for part in made if len(part.pieces) > 1)
        return made

    real = batch_runner.joined
    monkeypatch.setattr(batch_runner, "joined", joined)
    return found


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is not set no batch is planned, so that changes wait in the log."""
    opened = threading.Event()
    opened.set()
    real = batch_runner.BatchRunner.plan

    def plan(self: batch_runner.BatchRunner, *arguments: Any) -> batch_runner.Staging:
        assert opened.wait(240)
        return real(self, *arguments)

    monkeypatch.setattr(batch_runner.BatchRunner, "plan", plan)
    yield opened
    opened.set()


@contextmanager
def waiting_in_the_log(gate: threading.Event, database: Database) -> Iterator[None]:
    """All that is committed in the block is in the change log, before any of it is taken."""
    gate.clear()
    try:
        yield
        wait_logged(database)
    finally:
        gate.set()


def wait_logged(database: Database) -> None:
    """Wait until all that is committed is in the change log. What is committed later is in blocks of its own."""
    (now,) = database.query("select pg_current_wal_flush_lsn()::text")[0]
    durable = f"select confirmed_flush_lsn >= '{now}' from pg_replication_slots where database = '{database.name}'"
    wait_until(lambda: all(row[0] for row in database.query(durable)), 120)


def test_what_is_folded_over_pieces_is_what_every_change_gives(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    tmp_path: Path,
    spark: Any,
    joins: list[int],
    gate: threading.Event,
) -> None:
    """The changes wait in the log, enough for several batches: what the first ones fold has the next ones joined."""
    database.execute(
        "create table counter (id int primary key, n int, last text)",
        "insert into counter select i, 0 from generate_series(1, 20) i",
        "create table hot (id int primary key, n int, doc text)",
        "alter table hot alter doc set storage external",
        "insert into hot select i, i, repeat(md5(i::text), 90) from generate_series(1, 20) i",
        "create table bag (a int, b int)",
        "alter table bag replica identity full",
    )
    lake = tmp_path / "lake.duckdb"
    project.config["batch"] = {"part_bytes": 65_536, "max_bytes": 2_000_000, "small_bytes": 0}
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    for name in ("replica", "lake"):
        project.truck(name, ["public.*"], {"connection": name})
    with InThread(project, spark) as run:
        run.wait_streaming()
        with waiting_in_the_log(gate, database):
            for number in range(BLOCKS):
                truncates = number % (BLOCKS // 2) == 1
                database.execute(CHANGES.format(seed=number / BLOCKS, turns=750, truncates=truncates))
                wait_logged(database)
        wait_until(lambda: same(database, destination, *TABLES), 120)
    InThread(project, spark, once=True).join()
    assert differences(database, destination, TABLES) == ""
    assert duckdb_differences(database, lake, TABLES) == ""
    assert max(joins, default=0) > 2
