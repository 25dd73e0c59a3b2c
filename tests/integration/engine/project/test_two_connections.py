"""One database as two connections: each is a source with its own slot, publication and change log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import RandomDml, chosen_seed, differences
from fixtures.waiting import wait_until
from trucker.project import Project

pytestmark = pytest.mark.spark

FIRST = ["public.keyed", "public.bag", "public.parts"]
SECOND = ["public.pair", "public.coded", "public.toasted"]


@pytest.fixture
def dml(database: Database) -> Iterator[RandomDml]:
    changes = RandomDml(database, chosen_seed())
    changes.create()
    yield changes
    changes.close()


@pytest.fixture(params=["one writer", "two writers"])
def pair(
    request: pytest.FixtureRequest, project: ProjectFolder, database: Database, destination: Database
) -> ProjectFolder:
    """The source's database under two names, and the destination's under one or two; no trucks."""
    project.connect(postgres("second", database), postgres("replica", destination))
    if request.param == "two writers":
        project.connect(postgres("replica_2", destination))
    return project


def _trucks(pair: ProjectFolder, first: list[str], second: list[str]) -> None:
    last = pair.config["connections"][-1]["name"]
    pair.truck("first", first, {"connection": "replica"})
    pair.truck("second", second, {"connection": last}, connection="second")


def test_random_changes(
    pair: ProjectFolder, dml: RandomDml, database: Database, destination: Database, spark: SparkSession
) -> None:
    """I3, I4 and I6 hold for both: copies, changes meanwhile, a stop in the midst, and another start."""
    pair.config["batch"] = {"max_bytes": 200_000, "part_bytes": 65_536}
    pair.save()
    _trucks(pair, FIRST, SECOND)
    for _ in range(20):
        dml.transaction()
    with InThread(pair, spark) as run:
        for _ in range(60):
            dml.transaction()
        run.wait_streaming(120)
        for _ in range(80):
            dml.transaction()
    for _ in range(20):
        dml.transaction()
    dml.touch()
    InThread(pair, spark, once=True).join()
    assert differences(database, destination) == ""


def test_each_has_its_slot_and_its_log(
    pair: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    """Batches of the same range of WAL do not get in each other's way; a reset drops all there is of both."""
    database.execute(
        "create table a (id int primary key, word text)",
        "create table b (id int primary key, word text)",
        "insert into a select i, 'first' from generate_series(1, 100) i",
        "insert into b select i, 'first' from generate_series(1, 100) i",
    )
    _trucks(pair, ["public.a"], ["public.b"])
    with InThread(pair, spark) as run:
        run.wait_streaming()
        with database.connect(autocommit=False) as connection:
            for number in range(200):
                connection.execute(b"update a set word = %s where id %% 7 = %s", [str(number), number % 7])
                connection.execute(b"update b set word = %s where id %% 7 = %s", [str(number), number % 7])
                connection.commit()
        wait_until(lambda: same(database, destination, "a", "b"))
        status = pair.status()
        assert status is not None
        assert [(truck.name, truck.source) for truck in status.trucks] == [("first", "source"), ("second", "second")]
    assert sorted(folder.name for folder in (pair.state / "log").iterdir()) == ["second", "source"]
    assert _published(database) == [["a"], ["b"]]
    assert len(_slots(database)) == 2
    assert destination.query("select truck from trucker.positions order by 1") == [("first",), ("second",)]
    Project.load(pair.folder).reset()
    assert _published(database) == _slots(database) == []


def _slots(database: Database) -> list[str]:
    rows = database.query("select slot_name from pg_replication_slots where database = current_database()")
    return [name for (name,) in rows]


def _published(database: Database) -> list[list[str]]:
    rows = database.query(
        "select array_agg(tablename::text order by tablename) from pg_publication_tables group by pubname order by 1"
    )
    return [tables for (tables,) in rows]
