"""A primary key that is exchanged for another at the source."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import differences
from fixtures.waiting import wait_until

pytestmark = pytest.mark.spark

PLAIN = ("plain", "doubled", "referred", "live")


def _error(project: ProjectFolder, name: str) -> str:
    status = project.status()
    assert status is not None
    return next(truck.error or "" for truck in status.trucks if truck.name == name)


def _exchange(table: str) -> str:
    return f"alter table {table} drop constraint {table}_pkey, add primary key (code)"


def test_the_table_is_copied_again_and_the_remedy_works_as_printed(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    for name in PLAIN:
        database.execute(
            f"create table {name} (id int primary key, code text, n int)",
            f"insert into {name} select i, 'c' || i, i from generate_series(1, 10) i",
        )
    # Rows that the new key refuses: at the destination they are still there when the key is to be made.
    database.execute("insert into doubled values (11, 'c1', 11), (12, null, 12)")
    file = str(project.folder / "store.duckdb")
    project.connect(postgres("place", destination), {"name": "store", "adapter": "duckdb", "path": file})
    for name in PLAIN:
        project.truck(name, [f"public.{name}"], {"connection": "place"})
        project.truck(f"{name}_too", [f"public.{name}"], {"connection": "store"})
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute(_exchange("live"), "update live set n = -1 where code = 'c3'")
        wait_until(lambda: "[TRK251]" in _error(project, "live"))
        wait_until(lambda: "[TRK251]" in _error(project, "live_too"))
    destination.execute("create table child (id int references referred)", "insert into child values (5)")
    database.execute(
        "delete from doubled where id > 10",
        *(_exchange(name) for name in PLAIN if name != "live"),
        *(f"update {name} set n = n * 2 where code = 'c2'" for name in PLAIN),
        *(f"update {name} set code = 'moved' where code = 'c4'" for name in PLAIN),
        *(f"delete from {name} where code = 'c7'" for name in PLAIN),
    )
    with InThread(project, spark):
        for name in PLAIN:
            wait_until(lambda name=name: "[TRK409]" in _error(project, name))
        for name in PLAIN:
            found = re.search("run at the destination: (.*); then trucker run", _error(project, name))
            assert found is not None
            destination.execute(found[1])
    InThread(project, spark, once=True).join()
    assert not differences(database, destination, PLAIN)
    assert destination.query("select count(*) from child") == [(1,)]
    database.execute(*(f"delete from {name} where code = 'moved'" for name in PLAIN))
    database.execute(*(f"update {name} set n = 0 where code = 'c1'" for name in PLAIN))
    InThread(project, spark, once=True).join()
    assert not differences(database, destination, PLAIN)
    with duckdb.connect(file) as connection:
        for name in PLAIN:
            query = f"select id, code, n from public.{name} order by code"
            assert connection.execute(query).fetchall() == database.query(query)
