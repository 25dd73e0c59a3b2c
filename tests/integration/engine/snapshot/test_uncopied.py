"""Tables of `copy: none`: their rows are not read, and no change after the start is lost (I4, I6, I7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.compare import same, wait_same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase
from trucker.project import Project

pytestmark = pytest.mark.spark

LONG = "repeat(md5(i::text), 200)"


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, n int, long text)",
        "alter table item alter column long set storage external",
        f"insert into item select i, 0, {LONG} from generate_series(1, 10) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("follow", ["public.*"], {"connection": "replica"}, copy="none")


def _rows(destination: Database, columns: str = "id, n") -> list[Any]:
    return destination.query(f"select {columns} from item order by id")


def _phases(destination: Database) -> dict[str, str]:
    return dict(destination.query("select source_table, phase from trucker.tables"))


def test_changes_alone_are_applied(shop: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    """Of rows that the destination does not have: an update brings the whole row, unsent values too; a delete and a
    key that changes are no fault."""
    with InThread(shop, spark) as run:
        run.wait_streaming()
        assert _rows(destination) == []
        database.execute(
            "insert into item values (11, 11, 'new')",
            "update item set n = 2 where id = 2",
            "update item set id = 103, n = 3 where id = 3",
            "update item set id = 104, long = 'short' where id = 4",
            "delete from item where id = 5",
        )
        wait_until(lambda: _rows(destination) == [(2, 2), (11, 11), (103, 3), (104, 0)])
        kept = "select id, n, long from item where id in (2, 11, 103, 104) order by id"
        assert destination.query(kept) == database.query(kept)
        database.execute("update item set n = 22 where id = 2", "delete from item where id = 11")
        wait_until(lambda: _rows(destination) == [(2, 22), (103, 3), (104, 0)])
        database.execute("truncate item", "insert into item values (1, 1, 'after')")
        wait_until(lambda: _rows(destination) == [(1, 1)])


def test_rows_that_are_there_stay(shop: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    """A table that was loaded by other means goes on from there, as an update and as a delete of its rows show."""
    destination.execute(
        "create table item (id int primary key, n int, long text)",
        "insert into item values (1, -1, 'x'), (99, 99, 'x')",
    )
    database.execute("alter table item add column extra int default 7")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("update item set n = 1 where id = 1", "insert into item (id, n, long) values (99, 0, 'y')")
        wait_until(lambda: _rows(destination) == [(1, 1), (99, 0)])
        database.execute("delete from item where id = 1")
        wait_until(lambda: _rows(destination) == [(99, 0)])


def test_what_happens_while_nobody_runs_is_applied(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    InThread(shop, spark, once=True).join()
    database.execute("insert into item values (11, 11, 'new')", "update item set n = 2 where id = 2")
    shop.truck("follow", ["public.*"], {"connection": "replica"}, copy="none", except_columns=["long"])
    InThread(shop, spark, once=True).join()
    assert _rows(destination) == [(2, 2), (11, 11)]
    shop.truck("follow", ["public.*"], {"connection": "replica"}, copy="none")
    database.execute("update item set n = 3 where id = 2")
    InThread(shop, spark, once=True).join()
    assert _rows(destination) == [(2, 3), (11, 11)]


def test_modes_by_patterns_and_a_table_that_arrives_later(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table events_a (id int primary key, n int)",
        "create table big (id int primary key, n int)",
        "create table other (id int primary key, n int)",
        *(f"insert into {name} values (1, 1), (2, 2)" for name in ("events_a", "big", "other")),
    )
    modes = {"item": "none", "events_*": "none", "big": "incremental", "*": "exported"}
    shop.truck("follow", ["public.*"], {"connection": "replica"}, copy=modes)
    with InThread(shop, spark) as run:
        run.wait_streaming()
        wait_same(database, destination, "big", "other")
        assert destination.query("select * from events_a") == _rows(destination) == []
        database.execute(
            "create table events_b (id int primary key, n int)",
            "insert into events_b values (1, 1)",
            "create table late (id int primary key, n int)",
            "insert into late values (1, 1)",
            *(f"update {name} set n = 10 where id = 1" for name in ("events_a", "big", "other")),
        )

        def taken_up() -> bool:
            database.execute("insert into events_b select coalesce(max(id), 0) + 1, 0 from events_b")
            return _phases(destination).get("events_b") == "streaming"

        wait_until(taken_up)
        wait_same(database, destination, "big", "other", "late")
        database.execute("update events_b set n = 5 where id = 1")
        wait_until(lambda: (1, 5) in destination.query("select id, n from events_b"))
        assert destination.query("select * from events_a") == [(1, 10)]


def test_a_transaction_that_is_open_when_a_table_is_published(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """What it wrote before is not in the stream, so no part of it is applied (I5)."""
    database.execute("create table late (id int primary key)")
    shop.truck("follow", ["public.item"], {"connection": "replica"}, copy="none")
    InThread(shop, spark, once=True).join()
    shop.truck("follow", ["public.item", "public.late"], {"connection": "replica"}, copy="none")
    waits = (
        "select from pg_stat_activity where query like '%pg_locks%transactionid%'"
        " and datname = current_database() and pid <> pg_backend_pid()"
    )
    with database.connect() as writer:
        writer.autocommit = False
        writer.execute("insert into late values (1)")
        with InThread(shop, spark):
            wait_until(lambda: database.query(waits) or "late" in _phases(destination))
            writer.execute("insert into late values (2)")
            writer.commit()
            wait_until(lambda: "late" in _phases(destination))
            database.execute("insert into late values (3)")
            wait_until(lambda: destination.query("select id from late") == [(3,)])


def test_a_table_that_is_made_again_begins_anew(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("insert into item values (11, 11, 'new')")
        wait_until(lambda: _rows(destination) == [(11, 11)])
        database.execute(
            "drop table item",
            "create table item (id int primary key, n int, long text)",
            "insert into item values (12, 12, 'unseen')",
        )

        def applied() -> bool:
            database.execute("update item set n = n + 1 where id = 12")
            return len(_rows(destination)) == 2

        wait_until(applied)
        run.wait_streaming()
        assert _rows(destination)[0] == (11, 11)


def test_rewritten_rows_stay_as_they_are(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("update item set n = 1 where id = 1")
        wait_until(lambda: _rows(destination) == [(1, 1)])
        database.execute("alter table item alter column n type bigint using n + 100", "insert into item values (11, 5)")
        wait_until(lambda: _rows(destination) == [(1, 1), (11, 5)])
        database.execute("update item set n = 4000000000 where id = 2")
        wait_until(lambda: _rows(destination) == [(1, 1), (2, 4000000000), (11, 5)])


def test_the_key_of_a_table_is_another_one(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """By the new key changes that are in the log do not say which row they mean: its truck stops."""
    InThread(shop, spark, once=True).join()
    database.execute(
        "update item set n = id",
        "alter table item drop constraint item_pkey, add primary key (n)",
    )
    with InThread(shop, spark) as run:
        failed = wait_until(lambda: (truck := run.truck()) and truck.phase is TruckPhase.FAILED and truck)
        assert failed.error is not None
        assert "TRK426" in str(failed.error)


def test_a_table_that_was_reset_begins_anew_and_a_refresh_loads_it(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    InThread(shop, spark, once=True).join()
    database.execute("update item set n = 1 where id = 1")
    InThread(shop, spark, once=True).join()
    loaded = Project.load(shop.folder)
    database.execute("update item set n = 2 where id = 2")
    for table in ("item", None):
        loaded.reset(["follow"], table=table)
        with InThread(shop, spark) as run:
            run.wait_streaming()
            assert _rows(destination)[0] == (1, 1)
            assert 2 not in dict(_rows(destination)), "what was committed before the start"
            database.execute("update item set n = n + 3 where id = 3")
            wait_until(lambda: 3 in dict(_rows(destination)))
    with InThread(shop, spark) as run:
        run.wait_streaming()
        ended = loaded.await_refreshes(loaded.refresh("follow"))
        assert [each.state.value for each in ended] == ["done"]
        wait_same(database, destination, "item")
        database.execute("update item set n = 7 where id = 7", "delete from item where id = 8")
        wait_same(database, destination, "item")


def test_rules_duckdb_and_every_change(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Each kind of destination, and a truck that does more than replicate, has the rows that have changed, whole."""
    lake, lines = shop.folder / "store.duckdb", shop.folder / "lines"
    shop.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    shop.connect({"name": "lines", "adapter": "jsonl", "path": str(lines)})
    for name, connection in (("ruled", "replica"), ("lake", "lake"), ("lines", "lines")):
        shop.truck(name, ["public.item"], {"connection": connection, "schema": name}, copy="none")
    shop.sql("ruled", {}, rules=[{"exclude": ["n"]}])
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute(
            "update item set n = 2 where id = 2",
            "update item set id = 103, n = 3 where id = 3",
            "delete from item where id = 5",
        )
        wait_until(lambda: len(destination.query("select from ruled.item")) == 2)
    InThread(shop, spark, once=True).join()
    kept = "select id, md5(long) from item where id in (2, 103) order by id"
    assert destination.query(kept.replace("item", "ruled.item")) == database.query(kept)
    with duckdb.connect(str(lake), read_only=True) as connection:
        assert connection.execute(kept.replace("item", "lake.item")).fetchall() == database.query(kept)
    written = "".join(path.read_text() for path in sorted(Path(lines).rglob("*.jsonl")))
    assert written.count('"insert"') == 0
    assert written.count('"delete"') == 1


def test_a_table_that_fails_keeps_its_position(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """It cannot be copied again, so its changes are applied when the cause is gone."""
    shop.config["retry"] |= {"failed_first": 0.2, "failed_longest": 0.5}
    shop.save()
    database.execute("create table other (id int primary key)")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("alter table item add constraint small check (n < 100)")
        database.execute("insert into item values (11, 100)", "insert into item values (12, 12)")
        wait_until(lambda: (truck := run.truck()) and truck.failed)
        database.execute("insert into item values (13, 13)", "insert into other values (1)")
        wait_same(database, destination, "other")
        assert _rows(destination) == []
        destination.execute("alter table item drop constraint small")
        wait_until(lambda: _rows(destination) == [(11, 100), (12, 12), (13, 13)])


def test_partitions_are_rows_of_their_table(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Their changes are applied; that a partition comes or goes moves no row."""
    database.execute(
        "create table part (id int primary key, n int) partition by range (id)",
        "create table part_1 partition of part for values from (0) to (10)",
        "create table part_2 (id int primary key, n int)",
        "insert into part values (1, 1), (2, 2)",
        "insert into part_2 values (11, 11), (12, 12)",
    )
    shop.truck("follow", ["public.part"], {"connection": "replica"}, copy="none")

    def rows() -> list[Any]:
        return destination.query("select id, n from part order by id")

    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("update part set n = 10 where id = 1")
        wait_until(lambda: rows() == [(1, 10)])
        database.execute(
            "alter table part attach partition part_2 for values from (10) to (20)",
            "update part set n = 20 where id = 12",
            "alter table part detach partition part_1",
            "insert into part values (13, 13)",
        )
        wait_until(lambda: rows() == [(1, 10), (12, 20), (13, 13)])
        database.execute("update part set n = 14 where id = 13")
        wait_until(lambda: rows() == [(1, 10), (12, 20), (13, 14)])
    InThread(shop, spark, once=True).join()
    assert rows() == [(1, 10), (12, 20), (13, 14)]


def test_a_table_that_is_made_again_while_nobody_runs(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    InThread(shop, spark, once=True).join()
    database.execute("insert into item values (11, 11)")
    InThread(shop, spark, once=True).join()
    database.execute(
        "drop table item", "create table item (id int primary key, n int)", "insert into item values (1, 1), (2, 2)"
    )
    InThread(shop, spark, once=True).join()
    database.execute("update item set n = 10 where id = 1")
    InThread(shop, spark, once=True).join()
    assert _rows(destination) == [(1, 10), (11, 11)]


@pytest.mark.parametrize("mode", ["exported", "none"])
@pytest.mark.parametrize("read_meanwhile", [False, True])
def test_a_table_that_comes_back_to_its_truck(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, mode: str, *, read_meanwhile: bool
) -> None:
    """Its changes were not applied meanwhile, whoever else had them: it is copied again, or goes on from here."""
    database.execute("create table other (id int primary key)")
    shop.truck("follow", ["public.other", "public.item"], {"connection": "replica"}, copy=mode)
    if read_meanwhile:
        shop.truck("reader", ["public.item"], {"connection": "replica", "schema": "reader"})
    InThread(shop, spark, once=True).join()
    database.execute("update item set n = 1 where id = 1")
    InThread(shop, spark, once=True).join()
    shop.truck("follow", ["public.other"], {"connection": "replica"}, copy=mode)
    InThread(shop, spark, once=True).join()
    database.execute("update item set n = 2 where id = 2", "insert into other values (1)")
    InThread(shop, spark, once=True).join()
    shop.truck("follow", ["public.other", "public.item"], {"connection": "replica"}, copy=mode)
    InThread(shop, spark, once=True).join()
    database.execute("update item set n = 3 where id = 3")
    InThread(shop, spark, once=True).join()
    if mode == "none":
        assert _rows(destination) == [(1, 1), (3, 3)]
    else:
        assert same(database, destination, "item")
