"""Changes of shape without a change of any row after them: seen in the catalogue, and followed (I8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark

CHANGES = {
    "add": "add column x text",
    "filled": "add column x int default 7 not null",
    "twice": "add column x int default 7; alter table {t} add column y text default 'why'",
    "volatile": "add column x int default (random() * 1000)::int",
    "longer": "alter column word type varchar(60)",
    "widened": "alter column n type bigint",
    "computed": "alter column n type int using n * 3",
    "dropped": "drop column word",
    "released": "alter column n drop not null",
    "again": "drop column word, add column word varchar(20) default 'again'",
    "parts": "add column x int default 7 not null",
    "parts_late": "add column x text default 'late'",
}
"""By table the change that is made of it. Those of `parts` are partitioned."""


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.catalog_watch.LOOK_SECONDS", 0.3)


def _create(database: Database) -> None:
    columns = "(id int primary key, n int not null default 0, word varchar(20))"
    for table in CHANGES:
        if table.startswith("parts"):
            database.execute(
                f"create table {table} {columns} partition by range (id)",
                f"create table {table}_1 partition of {table} for values from (0) to (11)",
                f"create table {table}_2 partition of {table} for values from (11) to (100)",
            )
        else:
            database.execute(f"create table {table} {columns}")
        database.execute(f"insert into {table} select i, i, 'word ' || i from generate_series(1, 20) i")


def _change(database: Database) -> None:
    for table, change in CHANGES.items():
        database.execute(f"alter table {table} {change.format(t=table)}")
    database.execute("create table parts_late_3 partition of parts_late for values from (100) to (200)")


def _names(database: Database, table: str) -> list[str]:
    found = database.query(
        f"select attname from pg_attribute where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
    )
    return [name for (name,) in found]


def _differing(database: Database, read: Callable[[str], list[Any]]) -> list[str]:
    """The tables whose rows at a destination are not the source's, in all columns that the source has."""
    wrong = []
    for table in CHANGES:
        query = f"select {', '.join(f'{name}::text' for name in _names(database, table))} from {table}"
        try:
            same = Counter(database.query(query)) == Counter(read(query))
        except Exception:  # a column is not there yet
            same = False
        if not same:
            wrong.append(table)
    return wrong


def _lake(path: Path) -> Callable[[str], list[Any]]:
    def read(query: str) -> list[Any]:
        with duckdb.connect(str(path), read_only=True) as store:
            return store.execute(query.replace("::text", "::varchar").replace(" from ", " from public.")).fetchall()

    return read


def test_a_running_truck_follows_shapes_of_tables_without_further_changes(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    _create(database)
    project.connect(postgres("place", destination))
    project.truck("all", ["public.*"], {"connection": "place"})
    with InThread(project, spark) as run:
        run.wait_streaming()
        _change(database)
        wait_until(lambda: run.check() or not _differing(database, destination.query), 60)
        # What the stream tells afterwards is the same shape.
        for table in CHANGES:
            database.execute(f"update {table} set n = 100 where id = 1", f"insert into {table} (id, n) values (21, 3)")
        database.execute("insert into released values (22, null)")
        wait_until(lambda: run.check() or not _differing(database, destination.query), 60)
    not_null = (
        "select count(*) from pg_attribute where attrelid = 'released'::regclass and attname = 'n' and attnotnull"
    )
    assert destination.query(not_null) == [(0,)]
    assert destination.query("select count(*) from dropped where word is not null") == [(20,)]


def test_a_start_follows_shapes_that_changed_while_trucker_was_down(
    project: ProjectFolder, any_database: Database, spark: Any, tmp_path: Path
) -> None:
    database = any_database
    project.config["connections"] = []
    project.connect(postgres("source", database), {"name": "lake", "adapter": "duckdb", "path": str(tmp_path / "l.db")})
    _create(database)
    project.truck("all", ["public.*"], {"connection": "lake"})
    InThread(project, spark, once=True).join()
    _change(database)
    InThread(project, spark, once=True).join()
    assert _differing(database, _lake(tmp_path / "l.db")) == []
    # A second start finds nothing to do, nor does what the stream tells then.
    for table in CHANGES:
        database.execute(f"insert into {table} (id, n) values (21, 3)")
    InThread(project, spark, once=True).join()
    assert _differing(database, _lake(tmp_path / "l.db")) == []


def test_a_policy_holds_for_what_only_the_catalogue_tells(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """`stop` stops with the statement to run, `ignore` leaves the column out and says so."""
    project.connect(postgres("place", destination))
    for policy in ("stop", "ignore"):
        database.execute(f"create table {policy}_t (id int primary key)", f"insert into {policy}_t values (1), (2)")
        project.truck(policy, [f"public.{policy}_t"], {"connection": "place"})
        file = project.folder / "trucks" / policy / "truck.yml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "schema_changes": policy}))
    with InThread(project, spark) as run:
        run.wait_streaming()
        for policy in ("stop", "ignore"):
            database.execute(f"alter table {policy}_t add column x int default 7")

        def told() -> bool:
            run.check()
            stop, ignore = run.truck("stop"), run.truck("ignore")
            assert stop
            assert ignore
            return stop.phase is TruckPhase.FAILED and ignore.left_out == ("public.ignore_t.x",)

        wait_until(told, 60)
        stopped = run.truck("stop")
        assert stopped
        assert stopped.error
        assert "TRK425" in stopped.error
        assert 'ADD COLUMN "x"' in stopped.error
    destination.execute("alter table stop_t add column x integer default 7")
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute("insert into stop_t values (3, 3)")
        wait_until(lambda: destination.query("select x from stop_t order by id") == [(7,), (7,), (3,)])
