"""A table that cannot go on is set aside, with reason and remedy, while the other tables of its truck go on; it is
taken up again by itself once the cause is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import duckdb_differences
from fixtures.waiting import wait_until
from trucker.observe.status import FailedTable, TruckPhase

pytestmark = pytest.mark.spark

GOOD, BAD = "good", "bad"


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    """Two tables that the application writes in one transaction, and a third; all in one truck of `public.*`."""
    database.execute(
        *(f"create table {table} (id int primary key, v text)" for table in (GOOD, BAD, "other")),
        *(f"insert into {table} select i, 'first' from generate_series(1, 20) i" for table in (GOOD, BAD, "other")),
    )
    project.config["retry"] = {"first": 0.1, "longest": 0.5, "failed_first": 0.3, "failed_longest": 1}
    project.connect(postgres("replica", destination))
    return project.truck("replica", ["public.*"], {"connection": "replica"})


def both(database: Database, number: int) -> None:
    """One transaction over both tables."""
    with database.connect() as connection, connection.transaction():
        for table in (GOOD, BAD):
            connection.execute(f"insert into {table} values ({number}, 'both')")  # type: ignore[call-overload]


def failed(run: InThread, table: str = BAD) -> FailedTable | None:
    truck = run.truck("replica")
    return next((each for each in truck.failed if each.table == f"public.{table}"), None) if truck else None


def follows(run: InThread) -> bool:
    truck = run.truck("replica")
    return truck is not None and truck.phase is TruckPhase.STREAMING and not truck.failed


def test_a_refused_row_sets_its_table_aside_and_the_others_go_on(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("alter table bad add constraint small check (id < 100)")
        both(database, 100)
        table = wait_until(lambda: failed(run))
        assert "[TRK406]" in table.error
        assert "next: drop the destination's constraint" in table.error
        assert not table.held
        wait_until(lambda: same(database, destination, GOOD, "other"))
        both(database, 101)  # whole transactions, of those that go on
        wait_until(lambda: same(database, destination, GOOD, "other"))
        assert not same(database, destination, BAD)
        truck = run.truck("replica")
        assert truck is not None
        assert truck.phase is TruckPhase.STREAMING
        assert truck.error is None
        destination.execute("alter table bad drop constraint small")
        wait_until(lambda: follows(run))
        both(database, 102)
        wait_until(lambda: same(database, destination, GOOD, BAD, "other"))


def test_a_table_set_aside_is_taken_up_by_the_next_start(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    shop.config["retry"] |= {"failed_first": 3000, "failed_longest": 3000}
    shop.save()
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("alter table bad add constraint small check (id < 100)")
        both(database, 100)
        wait_until(lambda: failed(run))
    destination.execute("alter table bad drop constraint small")
    database.execute("delete from bad where id < 5")
    InThread(shop, spark, once=True).join()
    assert same(database, destination, GOOD, BAD, "other")


def test_a_table_that_comes_later_and_is_refused_does_not_keep_the_others_from_starting(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute("alter table bad rename to later")
    shop.truck("replica", ["public.*", "!public.later"], {"connection": "replica"})
    InThread(shop, spark, once=True).join()
    database.execute("alter table later rename to bad")
    destination.execute("create table bad (id int primary key, v text)", "insert into bad values (1, 'not trucker''s')")
    with InThread(shop, spark) as run:
        table = wait_until(lambda: failed(run))
        assert "[TRK410]" in table.error
        database.execute("insert into good values (50, 'meanwhile')")
        wait_until(lambda: same(database, destination, GOOD, "other"))
        destination.execute("truncate bad")
        wait_until(lambda: follows(run))
        wait_until(lambda: same(database, destination, GOOD, BAD, "other"))


def test_a_change_that_does_not_identify_its_row_sets_the_table_aside(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """What is in the change log of it can never be applied: only a copy helps, once the identity is there again."""
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("alter table bad replica identity full", "alter table bad replica identity nothing")
        database.execute("insert into bad values (60, 'fine')", "insert into good values (60, 'fine')")
        wait_until(lambda: same(database, destination, GOOD))
        database.execute("alter table bad replica identity default", "update bad set v = 'again' where id = 60")
        wait_until(lambda: follows(run) and same(database, destination, GOOD, BAD, "other"))


def test_what_needs_a_decision_is_held_where_it_is(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """With `schema_changes: stop` nothing is copied again by itself: the table goes on from its own position when the
    user has altered the destination, also after a restart."""
    shop.sql("replica", {}, schema_changes="stop")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("insert into bad values (-1, 'a copy would remove this')")
        database.execute("alter table bad add column more int")
        both_with_more = "insert into bad values (70, 'both', 7)"
        database.execute(both_with_more, "insert into good values (70, 'alone')")
        table = wait_until(lambda: failed(run))
        assert table.held
        wait_until(lambda: same(database, destination, GOOD, "other"))
    with InThread(shop, spark) as run:
        wait_until(lambda: failed(run))
        database.execute("insert into bad values (71, 'later', 8)", "insert into good values (71, 'later')")
        wait_until(lambda: same(database, destination, GOOD))
        destination.execute("alter table bad add column more int")
        wait_until(lambda: follows(run))
        wait_until(lambda: destination.query("select v from bad where id > 69 order by id") == [("both",), ("later",)])
        destination.execute("delete from bad where id = -1 and v = 'a copy would remove this'")
        wait_until(lambda: same(database, destination, GOOD, BAD, "other"))


def test_a_truck_may_ask_to_stop_as_a_whole(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    shop.sql("replica", {}, on_table_failure="truck")
    run = InThread(shop, spark)
    with run:
        run.wait_streaming()
        destination.execute("alter table bad add constraint small check (id < 100)")
        both(database, 100)
        wait_until(lambda: (truck := run.truck("replica")) is not None and truck.phase is TruckPhase.FAILED)
    assert not same(database, destination, GOOD)


def test_into_duckdb_too(shop: ProjectFolder, database: Database, tmp_path: Path, spark: Any) -> None:
    lake = tmp_path / "lake.duckdb"
    shop.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    shop.truck("replica", ["public.*"], {"connection": "lake"})
    database.execute("alter table bad add column many numeric(10,2) default 1")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("insert into bad values (80, 'x', 'NaN')", "insert into good values (80, 'x')")
        wait_until(lambda: failed(run))
        database.execute("delete from bad where id = 80", "insert into good values (81, 'x')")
        wait_until(lambda: follows(run))
        wait_until(lambda: (truck := run.truck("replica")) is not None and truck.lag_bytes == 0)
    assert duckdb_differences(database, lake, (GOOD, BAD, "other")) == ""


def test_a_failed_truck_is_tried_again_while_others_stream(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Without a restart of the project, from the position that its destination has."""
    shop.truck("replica", ["public.good", "public.other"], {"connection": "replica"})
    shop.truck("alone", ["public.bad"], {"connection": "replica"})
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("alter table bad add constraint small check (id < 100)")
        both(database, 100)
        wait_until(lambda: (truck := run.truck("alone")) is not None and truck.phase is TruckPhase.FAILED)
        both(database, 101)
        wait_until(lambda: same(database, destination, GOOD))
        destination.execute("alter table bad drop constraint small")
        wait_until(lambda: (truck := run.truck("alone")) is not None and truck.phase is TruckPhase.STREAMING)
        both(database, 102)
        wait_until(lambda: same(database, destination, GOOD, BAD, "other"))
