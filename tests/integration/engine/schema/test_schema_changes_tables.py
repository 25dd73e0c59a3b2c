"""Tables that are renamed, dropped and made again under a running truck; columns that wait for a place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, TruckerProcess, postgres
from fixtures.random_dml import differences
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.catalog_watch.LOOK_SECONDS", 0.3)


def _truck(project: ProjectFolder, name: str, tables: list[str], schema: str = "public", **more: Any) -> None:
    project.truck(name, tables, {"connection": "place", "schema": schema})
    file = project.folder / "trucks" / name / "truck.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **more}))


def _error(project: ProjectFolder, name: str) -> str | None:
    status = project.status()
    assert status is not None
    truck = next(truck for truck in status.trucks if truck.name == name)
    return truck.error if truck.phase is TruckPhase.FAILED else None


def test_tables_that_are_not_what_they_were(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """I8: rows under another name, or of another table, are never taken for the table's; each says what to do."""
    names = ("renamed", "dropped", "again", "swapped", "other", "p_dropped", "p_stays", "still")
    for name in names:
        database.execute(f"create table {name} (id int primary key, n int)", f"insert into {name} values (1, 1)")
    project.connect(postgres("place", destination))
    for name in ("renamed", "dropped", "again", "swapped", "other", "still"):
        _truck(project, name, [f"public.{name}"])
    _truck(project, "pattern", ["public.p_*"])
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute(
            "begin; insert into renamed values (2, 2); alter table renamed rename to called; insert into called values"
            " (3, 3); commit",
            "insert into dropped values (2, 2)",
            "drop table dropped",
            "drop table again",
            "create table again (id int primary key, n int)",
            "insert into again values (9, 9)",
            "alter table swapped rename to swapped_old",
            "alter table other rename to swapped",
            "insert into swapped values (2, 2)",
            "insert into p_dropped values (2, 2)",
            "drop table p_dropped",
            "insert into p_stays values (2, 2)",
            "insert into still values (2, 2)",
        )
        wait_until(lambda: all(_error(project, n) for n in ("renamed", "dropped", "other")))
        wait_until(lambda: not differences(database, destination, ("p_stays", "still", "again", "swapped")))
        errors = {name: _error(project, name) or "" for name in ("renamed", "dropped", "other")}
        assert not any(_error(project, name) for name in ("pattern", "again", "swapped"))
        database.execute("insert into again values (10, 10)", "update swapped set n = 20 where id = 2")
        wait_until(lambda: not differences(database, destination, ("again", "swapped")))
    assert "[TRK252]" in errors["renamed"]
    assert "public.called" in errors["renamed"]
    assert "[TRK254]" in errors["dropped"]
    assert "[TRK252]" in errors["other"]
    # What came before is there, what came after is not.
    assert destination.query("select count(*) from renamed") == [(1,)]
    assert destination.query("select count(*) from dropped") == [(2,)]
    assert destination.query("select count(*) from p_dropped") == [(2,)]
    for name in ("renamed", "dropped", "other"):
        shutil.rmtree(project.folder / "trucks" / name)
    with InThread(project, spark):
        wait_until(lambda: not differences(database, destination, ("again", "swapped", "p_stays", "still")))


def _make_again(database: Database) -> None:
    """`plain` as it was, `other` with other columns and types, in the transaction that drops it."""
    database.execute(
        "insert into plain values (3, 'last')",
        "drop table plain",
        "create table plain (id int primary key, word text)",
        "insert into plain values (1, 'new'), (7, 'seven')",
        "begin; insert into other values (3, 3); drop table other;"
        " create table other (extra text default 'x', id bigint primary key); insert into other (id) values (5), (6);"
        " commit",
        "insert into still values (1, 1) on conflict (id) do update set n = still.n + 1",
    )


@pytest.mark.parametrize("publication", [None, "made"])
def test_a_table_that_is_made_again_is_taken_up(
    project: ProjectFolder,
    any_database: Database,
    destination: Database,
    spark: Any,
    tmp_path: Path,
    publication: str | None,
) -> None:
    """By a running truck and by a start, with a publication of trucker's own and one FOR ALL TABLES (I6, I8)."""
    database, lake = any_database, tmp_path / "lake.duckdb"
    database.execute(
        "create table plain (id int primary key, word text)",
        "insert into plain values (1, 'old'), (2, 'old')",
        "create table other (id int primary key, n int)",
        "insert into other values (1, 1), (2, 2)",
        "create table still (id int primary key, n int)",
    )
    more = {"publication": publication} if publication else {}
    if publication:
        database.execute(f"create publication {publication} for all tables with (publish_via_partition_root = true)")
    project.config["connections"] = []
    project.connect(postgres("source", database, **more), postgres("place", destination))
    project.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    for place in ("place", "lake"):
        project.truck(place, ["public.*"], {"connection": place})
    tables = ("plain", "other", "still")
    with InThread(project, spark) as run:
        run.wait_streaming()
        _make_again(database)
        wait_until(lambda: run.check() or not differences(database, destination, tables), 60)
        database.execute("update plain set word = 'changed' where id = 7", "insert into other values ('y', 8)")
        wait_until(lambda: run.check() or not differences(database, destination, tables), 60)
    assert [truck.error for truck in project.status().trucks] == [None, None]  # type: ignore[union-attr]
    _make_again(database)
    database.execute("delete from plain where id = 1", "insert into other values ('z', 9)")
    InThread(project, spark, once=True).join()
    assert differences(database, destination, tables) == ""
    with duckdb.connect(str(lake), read_only=True) as store:
        for query in (
            "select id, word from public.plain order by id",
            "select id, extra from public.other order by id",
            "select id, n from public.still order by id",
        ):
            assert store.execute(query).fetchall() == database.query(query)


def test_a_column_that_is_left_out_is_not_lost(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Under `ignore` its values wait at the source; with a place for it, by hand or by the policy, all of them come."""
    for name in ("by_hand", "by_policy"):
        database.execute(
            f"create table {name} (id int primary key, n int)",
            f"insert into {name} select i, i from generate_series(1, 10) i",
        )
    project.connect(postgres("place", destination))
    for name in ("by_hand", "by_policy"):
        _truck(project, name, [f"public.{name}"], schema_changes="ignore")
    with InThread(project, spark) as run:
        run.wait_streaming()
        for name in ("by_hand", "by_policy"):
            database.execute(
                f"alter table {name} add column x text default 'old'",
                f"update {name} set x = 'new' where id < 4",
                f"insert into {name} values (20, 20, 'late')",
            )
        rows = "select count(*) from {} where n = 20"
        wait_until(lambda: all(destination.query(rows.format(n)) == [(1,)] for n in ("by_hand", "by_policy")))
        wait_until(lambda: (run.truck("by_hand") or run.truck()).left_out == ("public.by_hand.x",))  # type: ignore[union-attr]
    destination.execute("alter table by_hand add column x text")
    _truck(project, "by_policy", ["public.by_policy"], schema_changes="apply")
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute("update by_hand set n = 0 where id = 1", "update by_policy set n = 0 where id = 1")
        wait_until(lambda: not differences(database, destination, ("by_hand", "by_policy")))


def test_a_column_that_is_named_in_truck_yml_is_renamed(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """I10: what `except_columns` leaves out does not slip in under another name."""
    database.execute("create table t (id int primary key, secret text, n int)", "insert into t values (1, 'hidden', 1)")
    database.execute("alter table t replica identity full")  # so that the publication has no list of columns
    project.connect(postgres("place", destination))
    project.truck("t", ["public.t"], {"connection": "place"}, except_columns=["secret"])
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute("alter table t rename column secret to open", "insert into t values (2, 'hidden', 2)")
        wait_until(lambda: _error(project, "t"))
        assert "[TRK253]" in (_error(project, "t") or "")
    project.truck("t", ["public.t"], {"connection": "place"}, except_columns=["open"])
    with InThread(project, spark):
        wait_until(lambda: destination.query("select id, n from t order by 1") == [(1, 1), (2, 2)])
    assert "open" not in str(destination.query("select column_name from information_schema.columns"))


def test_killed_between_the_change_and_its_rows(
    project: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """I4: SIGKILL while shapes change; what was altered before is found so, and nothing is missing or twice."""
    database.execute("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    project.connect(postgres("place", destination))
    project.truck("t", ["public.t"], {"connection": "place"})
    running: TruckerProcess = start()
    running.wait_streaming()
    for number in range(2):
        database.execute(
            f"alter table t add column a{number} int default {number}",
            f"insert into t (id) values ({100 + number})",
            f"alter table t add column v{number} int default (random() * 1000)::int",
            f"update t set n = {number} where id = 1",
        )
        if number:  # by chance before the shape was seen, or while the table is copied again
            running.kill_tree()
            running = start()
    wait_until(lambda: not differences(database, destination, ("t",)), 90)
