"""Python programs that use trucker, each in a process of its own: those of the documentation, and a sink of theirs."""

from __future__ import annotations

import json
import os
import shelve
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest

from fixtures.documents import ROOT, blocks
from fixtures.pg import Database
from fixtures.waiting import busy

Run = Callable[[str], str]

LIBRARY = ROOT / "docs" / "reference" / "library.md"
HOWTO = ROOT / "docs" / "howto" / "python.md"


def _url(database: Database) -> str:
    c = database.connection
    login = f"{quote(c.user)}:{quote(c.password.get_secret_value())}"
    return f"postgresql://{login}@{quote(c.host, safe='')}:{c.port}/{c.database}"


def _programs(page: Path, folder: Path) -> set[str]:
    """Save the page's programs in the folder; their names."""
    programs = {block.file: block.text for block in blocks(page) if block.language == "python" and block.file}
    for name, text in programs.items():
        (folder / name).write_text(text)
    return set(programs)


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "create table customers (id int primary key, name text, email text)",
        "create table orders (id int primary key, customer int, total numeric)",
        "insert into customers values (1, 'Ada', 'ada@example.com')",
        "insert into orders values (1, 1, 9.5), (2, 1, 3)",
    )
    return database


@pytest.fixture
def run(shop: Database, destination: Database, tmp_path: Path) -> Run:
    """Runs a program of the folder, as a user does from there; what it prints."""
    environment = {**os.environ, "SHOP_URL": _url(shop), "WAREHOUSE_URL": _url(destination)}

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180 * busy(),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def _lines(file: Path) -> list[tuple[str, int]]:
    changes = [json.loads(line) for line in file.read_text().splitlines()]
    return [(change["operation"], (change["new"] or change["old"])["id"]) for change in changes]


def test_the_programs_of_the_reference_do_what_it_says(
    run: Run, shop: Database, destination: Database, tmp_path: Path
) -> None:
    assert _programs(LIBRARY, tmp_path) == {"sales.py", "replica.py", "totals.py", "event_file.py", "events.py"}
    for program in ("sales.py", "replica.py", "totals.py", "events.py"):
        run(program)
    shop.execute("insert into orders values (3, 1, 7)", "delete from orders where id = 1")
    assert "customers" in run("sales.py")
    with duckdb.connect(str(tmp_path / "warehouse.duckdb"), read_only=True) as warehouse:
        flat = warehouse.execute("select id, customer, total::float from public.flat_orders order by id").fetchall()
        assert flat == [(2, "Ada", 3.0), (3, "Ada", 7.0)]
        assert warehouse.execute("select email from public.customers").fetchall() == [("a**************",)]
    run("replica.py")
    for query in ("select * from orders order by id", "select * from customers"):
        assert destination.query(query) == shop.query(query)
    run("totals.py")
    with shelve.open(str(tmp_path / "totals")) as totals:
        assert dict(totals) == {"2": Decimal(3), "3": Decimal(7)}
    run("events.py")
    assert _lines(tmp_path / "events" / "events.jsonl") == [("insert", 1), ("insert", 2), ("insert", 3), ("delete", 1)]


def test_the_programs_of_the_guide_do_what_it_says(
    run: Run, shop: Database, destination: Database, tmp_path: Path
) -> None:
    assert _programs(HOWTO, tmp_path) == {"job.py", "service.py"}
    run("job.py")
    shop.execute("update customers set name = 'Grace'")
    run("job.py")
    assert destination.query("select name from nightly.customers") == [("Grace",)]
    run("service.py")
    assert destination.query("select count(*) from service.orders") == [(2,)]


WORKERS = """
import os
from functools import partial
from pathlib import Path

from event_file import EventFile
from trucker import Pipeline


def take() -> None:
    status = Pipeline(
        source={"url": os.environ["SHOP_URL"]},
        sink=partial(EventFile, Path.cwd() / "events"),
        name="events",
        tables="public.orders",
        state="state",
        project={"batch": {"small_bytes": 0}, "spark": {"master": "local[1]"}},
    ).run(once=True)
    assert not status.failures, status.failures


if __name__ == "__main__":
    import psycopg

    take()
    with psycopg.connect(os.environ["SHOP_URL"]) as connection:
        connection.execute("insert into orders values (3, 1, 7)")
    take()
    take()
"""


def test_a_program_runs_several_times_and_workers_import_the_module_beside_it(run: Run, tmp_path: Path) -> None:
    """The driver stages nothing: Spark's workers do, and find `event_file` where the program does, which is not the
    working folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    _programs(LIBRARY, folder)
    (folder / "program.py").write_text(WORKERS)
    run("programs/program.py")
    assert _lines(tmp_path / "events" / "events.jsonl") == [("insert", 1), ("insert", 2), ("insert", 3)]
