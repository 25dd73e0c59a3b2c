"""A project's life: it stops when asked, runs once only, and one bad truck does not stop the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, TruckerProcess, json_lines, postgres, run_cli
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase

Start = Callable[..., TruckerProcess]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table orders (id int primary key, total numeric(10,2))",
        "insert into orders select i, i from generate_series(1, 100) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("orders", ["public.orders"], {"connection": "replica"})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_and_it_resumes(
    shop: ProjectFolder, database: Database, destination: Database, start: Start, number: signal.Signals, spark: Any
) -> None:
    trucker = start()
    trucker.wait_streaming()
    database.execute("insert into orders values (101, 1)")
    wait_until(lambda: same(database, destination, "orders"))
    assert trucker.stop(number) == 0, trucker.output()
    assert "Traceback" not in trucker.output()
    database.execute("insert into orders values (102, 1)", "delete from orders where id = 1")
    InThread(shop, spark, once=True).join()
    assert same(database, destination, "orders")


def test_a_second_instance_names_the_process_that_holds_the_project(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    """And meanwhile `status` and `peek` show what the first one does."""
    trucker = start()
    trucker.wait_streaming()
    _look_at_it(shop, database, destination)
    second = run_cli("run", str(shop.folder))
    assert second.returncode == 4
    assert str(trucker.process.pid) in second.stderr
    waiting = start("--wait", "--once")
    assert trucker.stop() == 0
    assert waiting.process.wait(60) == 0, waiting.output()
    assert json.loads(run_cli("status", "--json", str(shop.folder)).stdout)["running"] is False


def _look_at_it(shop: ProjectFolder, database: Database, destination: Database) -> None:
    database.execute("update orders set total = 7.50 where id = 3")
    wait_until(lambda: same(database, destination, "orders"))
    found = run_cli("status", "--json", str(shop.folder))
    assert found.returncode == 0, found.stderr
    status = json.loads(found.stdout)
    assert status["running"] is True
    assert status["trucks"][0]["phase"] == "streaming"
    assert status["trucks"][0]["position"]
    assert "orders" in run_cli("status", str(shop.folder)).stdout
    peeked = run_cli("peek", str(shop.folder))
    assert peeked.returncode == 0, peeked.stderr
    changes = json_lines(peeked.stdout)
    assert changes[-1]["operation"] == "update"
    assert changes[-1]["new"]["total"] == 7.5


def test_a_failed_truck_does_not_stop_the_others(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute("create table fine (id int primary key)", "create table bad (id int primary key, v int)")
    shop.truck("fine", ["public.fine"], {"connection": "replica"})
    shop.truck("bad", ["public.bad"], {"connection": "replica"})
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("alter table bad add constraint small check (v < 10)")
        database.execute(
            "insert into bad values (1, 5)", "insert into bad values (2, 50)", "insert into fine values (1)"
        )
        wait_until(lambda: same(database, destination, "fine"))

        def failed() -> bool:
            truck = run.truck("bad")
            return truck is not None and truck.phase is TruckPhase.FAILED

        wait_until(failed)
        bad = run.truck("bad")
        assert bad is not None
        assert bad.error is not None
        assert "small" in bad.error
        assert "50" not in bad.error, "a row's data is in the error (I10)"
        database.execute("insert into fine values (2)")
        wait_until(lambda: same(database, destination, "fine"))
        fine = run.truck("fine")
        assert fine is not None
        assert fine.phase is TruckPhase.STREAMING
    destination.execute("alter table bad drop constraint small")
    InThread(shop, spark, once=True).join()
    assert same(database, destination, "bad", "fine")


def test_reset_begins_anew(shop: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    InThread(shop, spark, once=True).join()
    refused = run_cli("reset", str(shop.folder))
    assert refused.returncode != 0, "without a terminal to ask at, reset needs --yes"
    done = run_cli("reset", "--yes", str(shop.folder))
    assert done.returncode == 0, done.stderr
    assert database.query(f"select 1 from pg_replication_slots where database = '{database.name}'") == []
    assert database.query("select 1 from pg_publication") == []
    assert same(database, destination, "orders"), "rows at the destination stay"
    database.execute("insert into orders values (500, 5)")
    InThread(shop, spark, once=True).join()
    assert same(database, destination, "orders")


def test_all_sinks_from_one_project(
    shop: ProjectFolder, database: Database, destination: Database, tmp_path: Path
) -> None:
    lake = tmp_path / "lake.duckdb"
    shop.connect(
        {"name": "lake", "adapter": "duckdb", "path": str(lake)},
        {"name": "files", "adapter": "jsonl", "path": str(tmp_path / "lines")},
        {"name": "screen", "adapter": "stdout"},
    )
    for name in ("lake", "files", "screen"):
        shop.truck(f"to_{name}", ["public.orders"], {"connection": name})
    first = run_cli("run", "--once", str(shop.folder))
    assert first.returncode == 0, first.stderr
    assert len(json_lines(first.stdout)) == 100
    database.execute("update orders set total = total + 1 where id <= 10", "delete from orders where id = 100")
    second = run_cli("run", "--once", str(shop.folder))
    assert second.returncode == 0, second.stderr
    operations = [line["operation"] for line in json_lines(second.stdout)]
    assert operations == ["update"] * 10 + ["delete"]
    paths = sorted((tmp_path / "lines").rglob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert [line["operation"] for line in lines] == ["insert"] * 100 + operations
    with duckdb.connect(str(lake), read_only=True) as connection:
        rows = connection.execute("select id, total from public.orders order by id").fetchall()
    assert rows == database.query("select id, total from orders order by id")
    assert same(database, destination, "orders")
