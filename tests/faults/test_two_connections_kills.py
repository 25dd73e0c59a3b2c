"""`kill -9` to a project that reads one database through two connections: nothing is lost, nothing is doubled (I4)."""

from __future__ import annotations

from typing import Any

import psycopg

from fixtures.campaign import kill, processes
from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres
from fixtures.waiting import wait_until


def _copied(destination: Database, count: int) -> bool:
    try:
        return destination.query("select count(*) from trucker.tables where phase <> 'copying'") == [(count,)]
    except psycopg.errors.UndefinedTable:
        return False


def test_the_whole_tree_and_then_one_capture(
    project: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """In the midst of the copies, and of a transaction over tables of both; then one source's process alone."""
    database.execute(
        "create table a (id int primary key, n int)",
        "create table b (n int)",
        "alter table b replica identity full",
        "insert into a select i, 0 from generate_series(1, 50000) i",
        "insert into b select i % 100 from generate_series(1, 50000) i",
    )
    project.connect(postgres("second", database), postgres("replica", destination))
    project.truck("a", ["public.a"], {"connection": "replica"})
    project.truck("b", ["public.b"], {"connection": "replica"}, connection="second")
    trucker = start()
    wait_until(lambda: destination.query("select to_regclass('b') is not null") == [(True,)], 120, 0.01)
    database.execute("update a set n = n + 1", "insert into b select 7 from generate_series(1, 1000)")
    trucker.kill_tree()
    trucker = start()
    wait_until(lambda: _copied(destination, 2), 120, 0.05)
    for number in range(100):
        database.execute(f"update a set n = n + 1 where id % 100 = {number}; delete from b where n = {number}")
        database.execute(f"insert into b select {number} from generate_series(1, 20)")
        if number == 50:
            captures = wait_until(lambda: processes(trucker, "trucker.capture.process")[1:], 60)
            kill(captures)
    wait_until(lambda: same(database, destination, "a", "b"), 120, 0.1)
    assert trucker.stop() == 0, trucker.output()
