"""A source whose tables are spread over several slots: every table equal in the end, each stream on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import TABLES, RandomDml, chosen_seed, differences, duckdb_differences
from fixtures.waiting import wait_until
from trucker.errors import CheckFailed, SourceUnavailable
from trucker.finding import Level
from trucker.observe.status import TruckPhase
from trucker.project import Project

pytestmark = pytest.mark.spark

SPREAD = [["public.keyed", "public.bag", "public.parts"], ["public.*"]]
"""Half of the random tables in each of two slots."""


@pytest.fixture
def dml(database: Database) -> Iterator[RandomDml]:
    made = RandomDml(database, chosen_seed())
    made.create()
    yield made
    made.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def slots(project: ProjectFolder) -> Callable[[Any], None]:
    """Say over how many slots the source's tables are spread."""

    def set_slots(value: Any) -> None:
        project.config["connections"][0]["slots"] = value
        project.save()

    return set_slots


@pytest.fixture
def pair(project: ProjectFolder, database: Database, destination: Database, slots: Any) -> ProjectFolder:
    """Tables a and b, each in a slot of its own, into PostgreSQL."""
    database.execute(
        "create table a (id int primary key, word text)",
        "create table b (id int primary key, word text)",
        "insert into a select i, 'first' from generate_series(1, 100) i",
        "insert into b select i, 'first' from generate_series(1, 100) i",
    )
    slots([["public.a"], ["public.b"]])
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def _slots(database: Database) -> list[str]:
    rows = database.query("select slot_name from pg_replication_slots where database = current_database() order by 1")
    return [name for (name,) in rows]


def _published(database: Database) -> list[list[str]]:
    rows = database.query(
        "select array_agg(tablename::text order by tablename) from pg_publication_tables group by pubname order by 1"
    )
    return [tables for (tables,) in rows]


def _copies(destination: Database) -> dict[tuple[str, str], str]:
    """Of every table, by part of the truck, which copy it had."""
    rows = destination.query("select truck, source_table, snapshot from trucker.tables where target_table is not null")
    return {(truck, table): snapshot for truck, table, snapshot in rows}


def _parts(destination: Database) -> dict[str, str]:
    """Which part of the truck each table is known to."""
    return {table: truck for truck, table in _copies(destination)}


@pytest.mark.parametrize("spread", [3, pytest.param(SPREAD, marks=pytest.mark.soak)])
def test_random_changes_over_several_slots(
    spread: Any,
    project: ProjectFolder,
    slots: Any,
    dml: RandomDml,
    database: Database,
    destination: Database,
    lake: Path,
    spark: Any,
) -> None:
    """I3, I4 and I6 hold for every stream: copies, changes meanwhile, a stop in the midst, and another start."""
    slots(spread)
    project.config["batch"] = {"max_bytes": 200_000, "part_bytes": 65_536}
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.truck("replica", ["public.*"], {"connection": "replica"})
    project.truck("lake", ["public.*"], {"connection": "lake"})
    for _ in range(20):
        dml.transaction()
    with InThread(project, spark) as run:
        for _ in range(60):
            dml.transaction()
        run.wait_streaming(120)
        for _ in range(80):
            dml.transaction()
    for _ in range(20):
        dml.transaction()
    dml.touch()
    InThread(project, spark, once=True).join()
    assert differences(database, destination) == ""
    assert duckdb_differences(database, lake) == ""
    published = _published(database)
    assert sorted(table for tables in published for table in tables) == sorted(TABLES)
    assert len(published) == len(_slots(database)) > 1
    assert len(set(_parts(destination).values())) == len(published)


def test_streams_go_their_own_ways(pair: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    """Each has a status, a position and a log; a transaction over both arrives in both; order per table is kept."""
    with InThread(pair, spark) as run:
        run.wait_streaming()
        with database.connect(autocommit=False) as connection:
            for number in range(200):  # equal ranges of the log in both streams
                connection.execute(b"update a set word = %s where id %% 7 = %s", [str(number), number % 7])
                connection.execute(b"update b set word = %s where id %% 7 = %s", [str(number), number % 7])
                connection.commit()
        wait_until(lambda: same(database, destination, "a", "b"))
        status = pair.status()
        assert status is not None
        assert [(truck.name, truck.source) for truck in status.trucks] == [("copy", "source"), ("copy~2", "source~2")]
    assert sorted(folder.name for folder in (pair.state / "log").iterdir()) == ["source", "source~2"]
    assert _published(database) == [["a"], ["b"]]
    assert destination.query("select truck from trucker.positions order by 1") == [("copy",), ("copy~2",)]
    lines = [line for line in Project.load(pair.folder).peek() if '"first"' not in line]
    assert len(lines) > 2000
    assert {shown.table for shown in Project.load(pair.folder).try_truck("copy", limit=100_000)} == {
        "public.a",
        "public.b",
    }


def test_check_explains_several_slots(pair: ProjectFolder, slots: Any) -> None:
    findings = Project.load(pair.folder).check()
    assert not [finding for finding in findings if finding.level is not Level.OK]
    assert any("a transaction over tables of different slots" in finding.message for finding in findings)
    assert sum("can be used for all trucks" in finding.message for finding in findings) == 2
    slots([["public.*"], ["public.c"]])
    codes = {finding.code: finding.message for finding in Project.load(pair.folder).check() if finding.code}
    assert codes == {"TRK124": "only 1 of the 2 slots have tables"}


def test_a_table_added_later_joins_its_slot(
    pair: ProjectFolder, slots: Any, database: Database, destination: Database, spark: Any
) -> None:
    InThread(pair, spark, once=True).join()
    before = _copies(destination)
    slots([["public.a"], ["public.b", "public.c"]])
    database.execute(
        "create table c (id int primary key, word text)",
        "insert into c values (1, 'one')",
        "update a set word = 'second' where id < 10",
    )
    with InThread(pair, spark) as run:
        run.wait_streaming()
        database.execute("insert into c values (2, 'two')", "update b set word = 'second' where id < 10")
        wait_until(lambda: same(database, destination, "a", "b", "c"))
    after = _copies(destination)
    assert {slot: after[slot] for slot in before} == before
    assert _parts(destination) == {"a": "copy", "b": "copy~2", "c": "copy~2"}


def test_tables_that_change_their_slot_are_copied_again(
    pair: ProjectFolder, slots: Any, database: Database, destination: Database, spark: Any
) -> None:
    """One slot, three, two with others in them: nothing is lost or doubled, and no slot is left behind."""
    database.execute("create table c (id int primary key, word text)")
    spreads = (1, [["public.a"], ["public.b"], ["public.c"]], [["public.*", "!public.a"], ["public.a"]])
    for number, spread in enumerate(spreads):
        slots(spread)
        database.execute(
            f"insert into a values ({1000 + number}, 'while nobody ran')",
            f"delete from b where id = {number + 1}",
            f"insert into c values ({number}, 'c')",
        )
        with InThread(pair, spark) as run:
            run.wait_streaming()
            database.execute(f"update c set word = 'seen {number}'", f"update a set word = '{number}' where id < 20")
            wait_until(lambda: same(database, destination, "a", "b", "c"))
            status = pair.status()
            assert status is not None
            count = 1 if spread == 1 else len(spread)
            assert len(status.trucks) == len(_slots(database)) == len(_published(database)) == count
    assert _parts(destination) == {"a": "copy~2", "b": "copy", "c": "copy"}
    assert sorted(path.name for path in (pair.state / "shapes").iterdir()) == ["source.json", "source~2.json"]


def test_only_what_moves_is_copied(
    pair: ProjectFolder,
    slots: Any,
    database: Database,
    destination: Database,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when it is cut short between what destinations are told and what is dropped (I4)."""
    InThread(pair, spark, once=True).join()
    before = _copies(destination)
    slots([["public.a"], ["public.c"]])  # b goes to the first
    database.execute("update b set word = 'moved' where id < 50", "delete from b where id > 90")
    with monkeypatch.context() as patch:
        patch.setattr("trucker.engine.project.slot_reassignment.drop_streams", _away)
        with pytest.raises(SourceUnavailable):
            InThread(pair, spark, once=True).join()
    assert _parts(destination) == {"a": "copy", "b": "copy"}
    assert destination.query("select count(*) from b") == [(100,)], "readable until it has been copied"
    assert len(_slots(database)) == 2
    InThread(pair, spark, once=True).join()
    assert same(database, destination, "a", "b")
    after = _copies(destination)
    assert after.keys() == {("copy", "a"), ("copy", "b")}
    assert after["copy", "a"] == before["copy", "a"]
    assert len(_slots(database)) == 1


def _away(*_: Any) -> None:
    raise SourceUnavailable("the server is away")


@pytest.mark.parametrize("policy", ["stop", "resnapshot"])
def test_one_slot_of_two_is_lost(
    policy: str, pair: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """The other stream's tables are not copied again."""
    pair.config["connections"][0]["on_slot_loss"] = policy
    pair.save()
    InThread(pair, spark, once=True).join()
    before = _copies(destination)
    (lost,) = (slot for slot in _slots(database) if "_source_2_" in slot)
    database.execute(f"select pg_drop_replication_slot('{lost}')", "update b set word = 'unseen'")
    if policy == "stop":
        with pytest.raises(CheckFailed, match=f"slot {lost} of source~2 does not exist any more") as caught:
            InThread(pair, spark, once=True).join()
        assert caught.value.code == "TRK230"
        assert Project.load(pair.folder).reset()
    InThread(pair, spark, once=True).join()
    assert same(database, destination, "a", "b")
    again = {slot for slot, snapshot in _copies(destination).items() if before[slot] != snapshot}
    assert again == ({("copy~2", "b")} if policy == "resnapshot" else {("copy", "a"), ("copy~2", "b")})


def test_reset_of_one_part_and_of_everything(
    pair: ProjectFolder, slots: Any, database: Database, destination: Database, spark: Any
) -> None:
    InThread(pair, spark, once=True).join()
    before, project = _copies(destination), Project.load(pair.folder)
    assert project.reset(["copy~2"]) == ["position of truck copy~2 at replica"]
    InThread(pair, spark, once=True).join()
    after = _copies(destination)
    assert [after[slot] == before[slot] for slot in (("copy", "a"), ("copy~2", "b"))] == [True, False]
    assert len([line for line in project.reset_plan() if line.startswith("replication slot")]) == 2
    slots(1)
    Project.load(pair.folder).reset()
    assert _slots(database) == []
    assert _published(database) == []
    assert list((pair.state / "log").iterdir()) == []
    assert destination.query("select 1 from trucker.positions where lsn is not null") == []
    database.execute("delete from b where id < 5")
    InThread(pair, spark, once=True).join()
    assert same(database, destination, "a", "b")
    assert _parts(destination) == {"a": "copy", "b": "copy"}


SUM = """insert into sums select '{{ input_table }}', count(*) from {{ rows }}
on conflict (name) do update set n = sums.n + excluded.n"""


def test_a_truck_with_output_sql_stays_in_one_slot(
    pair: ProjectFolder, slots: Any, database: Database, destination: Database, spark: Any
) -> None:
    """It is not copied again behind anybody's back: its statements would count everything twice."""
    destination.execute("create table sums (name text primary key, n bigint)")
    pair.truck("sums", ["public.a"], {"connection": "replica"}).sql("sums", {"output": SUM})
    InThread(pair, spark, once=True).join()
    slots([["public.b"], ["public.a"]])
    with pytest.raises(CheckFailed, match="has moved to another slot") as caught:
        InThread(pair, spark, once=True).join()
    assert caught.value.code == "TRK125"
    assert _parts(destination)["b"] == "copy~2", "nothing has been touched"
    destination.execute("truncate sums")
    Project.load(pair.folder).reset(["sums"])
    database.execute("insert into a values (500, 'more')")
    InThread(pair, spark, once=True).join()
    assert destination.query("select n from sums") == [(101,)]
    assert same(database, destination, "a", "b")


def test_letters_of_every_part_are_redriven(
    pair: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    pair.sql("copy", {}, on_error="dead_letter")
    InThread(pair, spark, once=True).join()
    destination.execute("alter table a add check (word <> 'bad')", "alter table b add check (word <> 'bad')")
    database.execute("update a set word = 'bad' where id = 1", "update b set word = 'bad' where id = 1")
    InThread(pair, spark, once=True).join()
    status = pair.status()
    assert status is not None
    assert {truck.name: truck.dead_letters for truck in status.trucks} == {"copy": 1, "copy~2": 1}
    destination.execute("alter table a drop constraint a_word_check", "alter table b drop constraint b_word_check")
    assert [done.applied for done in Project.load(pair.folder).redrive("copy")] == [True, True]
    assert same(database, destination, "a", "b")


def test_a_destination_that_is_away_for_one_stream_only(
    pair: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Streams beyond the first commit on a connection of their own: none waits for another."""
    with InThread(pair, spark) as run, destination.connect(autocommit=False) as blocker:
        run.wait_streaming()
        blocker.execute("lock table b in access exclusive mode")
        database.execute("update b set word = 'held up'", "update a set word = 'goes on'")
        wait_until(lambda: same(database, destination, "a"))
        blocker.rollback()
        wait_until(lambda: same(database, destination, "a", "b"))
        wait_until(lambda: all(truck.phase is TruckPhase.STREAMING for truck in pair.status().trucks))  # type: ignore[union-attr]


def test_slots_and_publications_made_beforehand(
    pair: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Each slot has a name and a publication of its own; what is missing is told, and all of it is left as it is."""
    name = f"theirs_{database.name}"
    pair.config["connections"][0] |= {"publication": name, "slot": name}
    pair.save()
    database.execute(
        f"create publication {name} for table a with (publish_via_partition_root)",
        f"select pg_create_logical_replication_slot('{name}', 'pgoutput')",
    )
    errors = [finding for finding in Project.load(pair.folder).check() if finding.level is Level.ERROR]
    assert [finding.code for finding in errors] == ["TRK230", "TRK240"]
    database.execute(errors[1].remedy.removeprefix("run: "), errors[0].remedy.removeprefix("run: "))
    InThread(pair, spark, once=True).join()
    database.execute("update a set word = 'later'", "update b set word = 'later'")
    InThread(pair, spark, once=True).join()
    assert same(database, destination, "a", "b")
    Project.load(pair.folder).reset()
    assert _slots(database) == [name, f"{name}_2"]
    assert _published(database) == [["a"], ["b"]]
    database.execute(*(f"select pg_drop_replication_slot('{slot}')" for slot in _slots(database)))


def test_what_is_known_of_columns_moves_along(
    pair: ProjectFolder, slots: Any, database: Database, destination: Database, spark: Any
) -> None:
    """A column that was renamed at the source only is still known by its number."""
    pair.sql("copy", {}, schema_changes="ignore")
    InThread(pair, spark, once=True).join()
    database.execute("alter table b rename word to name", "update b set name = 'renamed' where id < 50")
    InThread(pair, spark, once=True).join()
    slots(1)
    database.execute("update b set name = 'moved' where id < 10")
    InThread(pair, spark, once=True).join()
    assert _parts(destination) == {"a": "copy", "b": "copy"}
    assert destination.query("select id, word from b order by 1") == database.query("select id, name from b order by 1")
