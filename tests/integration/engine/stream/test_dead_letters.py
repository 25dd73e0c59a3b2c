"""Rows that a destination refuses, through the whole engine: one truck sets them aside, one stops, one goes on (I8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.finding import Level
from trucker.observe.status import TruckPhase, TruckStatus
from trucker.project import Project

pytestmark = pytest.mark.spark

SOURCE = (
    "create table parents (id int primary key, name text)",
    "create table orders (id int primary key, qty int, note text, parent int)",
    "alter table orders alter note set storage external",
    "create table loose (id int primary key, qty int)",
    "insert into parents select i, 'p' || i from generate_series(1, 50) i",
    """insert into orders select i, case when i % 400 = 0 then -1 else i end, repeat(md5(i::text), 200), 1 + i % 50
        from generate_series(1, 2000) i""",
    "insert into loose select i, i from generate_series(1, 20) i",
)
STRICT = (
    "create schema strict",
    "create table strict.parents (id int primary key, name text)",
    "create table strict.orders (id int primary key, qty int check (qty >= 0), note text, parent int)",
    "create schema stopping",
    "create table stopping.loose (id int primary key, qty int check (qty >= 0))",
)


def set_aside(project: ProjectFolder, truck: str) -> None:
    file = project.folder / "trucks" / truck / "truck.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "on_error": "dead_letter"}))


def status_of(run: InThread, name: str) -> TruckStatus:
    found = run.truck(name)
    assert found is not None
    return found


def letters(destination: Database) -> list[tuple[Any, ...]]:
    return destination.query(
        "select truck, source_table, operation, key::text, sqlstate, constraint_name from trucker.dead_letters"
        " order by source_table, (key->>'id')::int"
    )


def test_what_is_refused_in_the_copy_and_in_the_stream(
    project: ProjectFolder, database: Database, destination: Database, spark: Any, tmp_path: Path
) -> None:
    """Set aside with the position, healed by the source or by redrive; the truck beside it stops, the third goes on."""
    database.execute(*SOURCE)
    destination.execute(*STRICT)
    file = tmp_path / "store.duckdb"
    with duckdb.connect(str(file)) as duck:
        duck.execute("create schema public; create table public.loose (id integer, qty integer check (qty < 100))")
    project.connect(postgres("replica", destination), {"name": "duck", "adapter": "duckdb", "path": str(file)})
    project.truck("aside", ["public.orders", "public.parents"], {"connection": "replica", "schema": "strict"})
    project.truck("stops", ["public.loose"], {"connection": "replica", "schema": "stopping"})
    project.truck("fine", ["public.*"], {"connection": "replica"})
    project.truck("duck", ["public.loose"], {"connection": "duck"})
    set_aside(project, "aside")
    set_aside(project, "duck")

    with InThread(project, spark) as run:
        run.wait_streaming()
        assert [row[3] for row in letters(destination)] == [f'{{"id": "{n}"}}' for n in range(400, 2001, 400)]
        assert {row[4:] for row in letters(destination)} == {("23514", "orders_qty_check")}
        destination.execute("alter table strict.orders add foreign key (parent) references strict.parents")
        database.execute(
            "update orders set qty = 1 where id = 400",  # mended at the source: the long text was not sent (I7)
            "delete from orders where id = 800",
            "begin; insert into orders values (3001, 1, 'child first', 99); insert into parents values (99, 'late');"
            " commit",
            "insert into orders values (3002, 1, 'no parent', null), (3003, -5, 'refused', 1)",
            "update loose set qty = 500 where id = 1",
            "update loose set qty = -1 where id = 2",
        )
        wait_until(lambda: same(database, destination, "orders", "parents", "loose"))
        wait_until(lambda: status_of(run, "stops").phase is TruckPhase.FAILED)
        wait_until(
            lambda: (
                [row[3] for row in letters(destination)]
                == ['{"id": "1200"}', '{"id": "1600"}', '{"id": "2000"}', '{"id": "3003"}']
            )
        )
        wait_until(lambda: [status_of(run, name).dead_letters for name in ("aside", "duck")] == [4, 1])
        loaded = Project.load(project.folder)
        shown = [f for f in loaded.check() if f.code == "TRK473"]
        assert (Level.WARNING, "truck aside") in [(f.level, f.subject) for f in shown]

        # Redriven while the project runs: refused again, then mended and applied.
        again = loaded.redrive("aside")
        assert [(done.applied, done.letter.tries) for done in again] == [(False, 2)] * 4
        destination.execute("alter table strict.orders drop constraint orders_qty_check")
        assert [done.applied for done in loaded.redrive("aside", dry_run=True)] == [True] * 4
        assert len(letters(destination)) == 4
        assert all(done.applied for done in loaded.redrive("aside", table="public.orders"))
        assert letters(destination) == []
        compared = "select * from {}.orders order by id"
        assert destination.query(compared.format("strict")) == database.query(compared.format("public"))

    stopped = next(t for t in loaded.status().trucks if t.name == "stops")
    assert stopped.error is not None
    assert "row (id = 2) of table stopping.loose: check violation (SQLSTATE 23514)" in stopped.error
    assert destination.query("select qty from stopping.loose where id = 2") == [(2,)]
    assert [f.subject for f in loaded.check() if f.code == "TRK473"] == ["truck duck"]
    with duckdb.connect(str(file)) as duck:
        found = duck.execute("select key, data, sqlstate, reason from trucker.dead_letters").fetchall()
        assert [(row[0], json.loads(row[1]), row[2]) for row in found] == [
            ('{"id": "1"}', {"id": "1", "qty": "500"}, "23514")
        ]
        assert "500" not in found[0][3]
        duck.execute("create table public.mended as from public.loose; drop table public.loose")
        duck.execute("alter table public.mended rename to loose")
    assert [done.applied for done in loaded.redrive("duck")] == [True]
    with duckdb.connect(str(file)) as duck:
        rows = duck.execute("select id, qty from public.loose order by id").fetchall()
        assert rows == database.query("select id, qty from loose order by id")
    assert {t.name: t.dead_letters for t in loaded.status().trucks}["duck"] == 0
