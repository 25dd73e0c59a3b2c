"""A truck without SQL: everything that happens to a table happens at the destination."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def replica(project: ProjectFolder, destination: Database) -> ProjectFolder:
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def test_every_kind_of_change_is_followed(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table t (id int primary key, name text, doc text)",
        "alter table t alter doc set storage external",
        "create table emptied (id int primary key)",
        "insert into t select i, 'row ' || i, repeat(md5(i::text), 300) from generate_series(1, 500) i",
        "insert into emptied select generate_series(1, 10)",
    )
    with InThread(replica, spark) as run:
        run.wait_streaming()
        assert same(database, destination, "t", "emptied")
        database.execute(
            "insert into t values (501, 'new', 'x')",
            "update t set name = upper(name) where id % 3 = 0",  # the long text is not sent: TOAST
            "delete from t where id % 5 = 0",
            "update t set id = id + 10000 where id % 7 = 0",  # keys move, long texts with them
            "truncate emptied",
            "insert into emptied values (99)",
            "begin; update t set id = -1 where id = 1; update t set id = 1 where id = 2;"
            " update t set id = 2 where id = -1; commit",
        )
        wait_until(lambda: same(database, destination, "t", "emptied"))
        database.execute(
            "alter table t add column extra int default 7",
            "insert into t (id, name) values (20000, 'wider')",
            "alter table t drop column name",
            "insert into t (id, extra) values (20001, 8)",
        )
        wait_until(lambda: same(database, destination, "t"))


def test_many_rows_are_spread_over_tasks(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table wide (id int primary key, a text, b numeric, c timestamptz default now())",
        "create table keyless (n int, word text)",
        "alter table keyless replica identity full",
    )
    with InThread(replica, spark) as run:
        run.wait_streaming()
        database.execute(
            "insert into wide select i, repeat('x', 80), i * 1.5 from generate_series(1, 200000) i",
            "insert into keyless select i % 100, 'word' from generate_series(1, 60000) i",
            "update wide set b = b + 1 where id % 2 = 0",
            "delete from keyless where n < 20",
            "delete from wide where id % 10 = 0",
        )
        wait_until(lambda: same(database, destination, "wide", "keyless"), 60, 0.2)


def test_a_table_written_to_during_its_copy(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table busy (id int primary key, n int)",
        "insert into busy select i, 0 from generate_series(1, 100000) i",
        "create table never_analysed (id int primary key) with (autovacuum_enabled = off)",
        "insert into never_analysed select generate_series(1, 30000)",
        "create table nothing (id int primary key)",
        "create table parts (id int, at date, primary key (id, at)) partition by range (at)",
        "create table parts_1 partition of parts for values from ('2020-01-01') to ('2021-01-01')",
        "create table parts_2 partition of parts for values from ('2021-01-01') to ('2022-01-01')",
        "insert into parts select i, date '2020-06-01' + i % 500 from generate_series(1, 5000) i",
    )
    done = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            number = 0
            while not done.is_set():
                number += 1
                connection.execute("update busy set n = n + 1 where id %% 1000 = %s", [number % 1000])
                connection.execute("insert into busy values (%s, 1)", [100000 + number])
                connection.execute("delete from busy where id = %s", [number])
                connection.execute("update parts set at = at + 200 where id = %s and at < '2021-06-01'", [number])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with InThread(replica, spark) as run:
            run.wait_streaming()
            done.set()
            writer.join()
            names = ("busy", "never_analysed", "nothing", "parts")
            wait_until(lambda: same(database, destination, *names), 60, 0.2)
            assert database.query("select count(*) from busy")[0][0] > 0
    finally:
        done.set()
        writer.join()


def test_a_table_added_later_is_copied_while_the_others_stream(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any, tmp_path: Path
) -> None:
    database.execute("create table one (id int primary key, v text)", "insert into one values (1, 'a')")
    with InThread(replica, spark) as run:
        run.wait_streaming()
    database.execute(
        "create table two (id int primary key, v text)",
        "insert into two select i, 'early' from generate_series(1, 1000) i",
        "insert into one values (2, 'while stopped')",
    )
    replica.truck("later", ["public.two"], {"connection": "replica", "schema": "second"})
    with InThread(replica, spark) as run:
        run.wait_streaming()
        database.execute(
            "insert into two values (1001, 'late')", "update one set v = 'b'", "delete from two where id = 5"
        )
        wait_until(lambda: same(database, destination, "one", "two"))
        wait_until(lambda: same(database, destination, "two", schema="second"))


def test_once_takes_what_is_there_and_ends(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute("create table t (id int primary key, v text)", "insert into t values (1, 'a')")
    InThread(replica, spark, once=True).join()
    assert same(database, destination, "t")
    database.execute("insert into t values (2, 'b')", "update t set v = 'c' where id = 1")
    InThread(replica, spark, once=True).join()
    assert same(database, destination, "t")
    InThread(replica, spark, once=True).join()
    assert same(database, destination, "t")


def test_columns_and_rows_are_chosen_at_the_source(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table person (id int primary key, name text, secret text, grown boolean not null)",
        "alter table person replica identity full",
        "insert into person select i, 'n' || i, 's' || i, i % 2 = 0 from generate_series(1, 10) i",
    )
    project.connect(postgres("replica", destination))
    project.truck("grown", ["public.person"], {"connection": "replica", "table": "people.grown"}, where="grown")
    truck = project.folder / "trucks" / "grown" / "truck.yml"
    truck.write_text(truck.read_text().replace("tables:", "except_columns: [secret]\n  tables:"))
    text = truck.read_text().replace("tables:\n  - public.person", "table: public.person")
    truck.write_text(text)
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute(
            "insert into person values (11, 'n11', 's11', false), (12, 'n12', 's12', true)",
            "update person set grown = true where id = 1",
            "update person set grown = false where id = 2",
        )
        expected = database.query("select id, name, grown from person where grown order by id")
        wait_until(lambda: destination.query("select id, name, grown from people.grown order by id") == expected)
    columns = destination.query(
        "select string_agg(column_name, ' ' order by column_name) from information_schema.columns"
        " where table_schema = 'people'"
    )
    assert columns == [("grown id name",)]


def test_a_table_that_fell_out_of_the_publication_is_copied_again(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """DROP TABLE takes it out without a word; what is written to its successor is in no stream."""
    database.execute("create table t (id int primary key, v text)", "insert into t values (1, 'old'), (2, 'old')")
    InThread(replica, spark, once=True).join()
    database.execute("drop table t", "create table t (id int primary key, v text)", "insert into t values (2, 'new')")
    InThread(replica, spark, once=True).join()
    assert destination.query("select id, v from t") == [(2, "new")]


def test_another_condition_has_the_table_copied_again(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute("create table t (id int primary key)", "insert into t select generate_series(1, 10)")
    project.connect(postgres("replica", destination))
    for condition, expected in (("id > 5", 5), ("id > 5", 5), ("id > 2", 8)):
        project.truck("t", ["public.t"], {"connection": "replica"}, where=condition)
        InThread(project, spark, once=True).join()
        assert destination.query("select count(*) from t") == [(expected,)]


def test_a_truck_that_is_behind_anothers_copy_catches_up(
    replica: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """The other's position is its copy's LSN, where no commit ends."""
    database.execute("create table one (id int primary key)", "create table two (id int primary key)")
    replica.truck("copy", ["public.one"], {"connection": "replica"})
    InThread(replica, spark, once=True).join()
    replica.truck("later", ["public.two"], {"connection": "replica"})
    InThread(replica, spark, once=True).join()
    for number in range(3):
        database.execute(f"insert into one values ({number})", f"insert into two values ({number})")
        InThread(replica, spark, once=True).join()
        assert same(database, destination, "one", "two")
