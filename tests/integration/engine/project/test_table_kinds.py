"""What happens to tables while they are followed, at the source and at the destination; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.errors import TruckerError
from trucker.finding import Level
from trucker.project import Project
from trucker.testing.equality import columns, duckdb_sums, postgres_sum

SOURCE = (
    "create table parted (id int, kind text, v int, primary key (id, kind)) partition by list (kind)",
    "create table parted_a partition of parted for values in ('a')",
    "create table parted_b partition of parted for values in ('b')",
    "insert into parted values (1, 'a', 1), (2, 'b', 2)",
    "create table sums (id int primary key, a int, twice int generated always as (a * 2) stored, seen int"
    " generated always as (a + 1))",
    "insert into sums values (1, 1), (2, 2)",
    "create table sums_full (a int, twice int generated always as (a * 2) stored)",
    "alter table sums_full replica identity full",
    "insert into sums_full values (1), (1), (null)",
    "create table spans (id int4range, during int4range, v int, primary key (id, during without overlaps))",
    "insert into spans values ('[1,2)', '[1,5)', 1), ('[1,2)', '[5,9)', 2)",
    "create table guarded (id int primary key, v int)",
    "alter table guarded enable row level security",
    "insert into guarded values (1, 1)",
    "create table parents (id int primary key, name text unique)",
    "create table children (id int primary key, parent int references parents on delete cascade)",
    "insert into parents values (1, 'one'), (2, 'two')",
    "insert into children values (1, 1), (2, 2)",
    "create table numbered (id int generated always as identity primary key, v int)",
    "insert into numbered (v) values (1), (2)",
    "create publication made for all tables"
    " with (publish_via_partition_root = true, publish_generated_columns = stored)",
)
TABLES = ("parted", "sums", "sums_full", "spans", "guarded", "parents", "children", "numbered")

DESTINATION = (
    "create table numbered (id int generated always as identity primary key, v int)",
    "create table seen (id int)",
    "create function look() returns trigger language plpgsql as"
    " $$ begin insert into public.seen values (new.id); return new; end $$",
    "create trigger look after insert or update on numbered for each row execute function look()",
)

LATER = (
    "alter table children add foreign key (parent) references parents deferrable initially deferred",
    "alter table parents add unique (name)",
)

CHANGES = (
    "create table parted_c (v int, kind text not null, id int not null, primary key (id, kind))",
    "alter table parted attach partition parted_c for values in ('c')",
    "insert into parted values (3, 'c', 3), (4, 'b', 4)",
    "update parted set kind = 'c' where id = 1",
    "update parted set kind = 'a' where id = 3",
    "delete from parted where kind = 'b'",
    "alter table parted detach partition parted_b",
    "insert into parted_b values (5, 'b', 5)",
    "insert into sums values (3, 3)",
    "update sums set a = 7 where id = 1",
    "update sums_full set a = 5 where ctid = (select ctid from sums_full where a = 1 limit 1)",
    "delete from sums_full where a is null",
    "update spans set during = '[2,5)' where v = 1",
    "begin; delete from spans where v = 2;"
    " insert into spans values ('[1,2)', '[5,7)', 3), ('[3,4)', '[5,7)', 4); commit",
    "update guarded set v = 2",
    "begin; insert into children values (3, null); insert into parents values (3, 'three');"
    " update children set parent = 3 where id = 3; commit",
    "begin; delete from parents where id = 1; insert into parents values (4, 'one'); commit",
    "begin; update parents set name = '' where id = 2; update parents set name = 'two' where id = 3;"
    " update parents set name = 'three' where id = 2; commit",
    "insert into numbered (v) values (3)",
    "insert into numbered overriding system value values (100, 4)",
    "update numbered set v = 9 where id = 1",
)


@pytest.mark.spark
def test_what_happens_to_tables_while_they_are_followed(
    project: ProjectFolder, database: Database, destination: Database, spark: Any, tmp_path: Path
) -> None:
    """Partitions come and go, generated columns that are published, temporal keys, triggers and constraints there."""
    database.execute(*SOURCE)
    destination.execute(*DESTINATION)
    lake = tmp_path / "lake.duckdb"
    project.config["connections"][0]["publication"] = "made"
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.truck("replica", [f"public.{name}" for name in TABLES], {"connection": "replica"})
    project.truck("lake", [f"public.{name}" for name in TABLES], {"connection": "lake"})
    names = {"sums": ["id", "a", "twice"]}

    def equal() -> bool:
        run.check()
        with database.connect() as source, destination.connect() as copy:
            for table in TABLES:
                taken = names.get(table) or columns(source, "public", table)
                if postgres_sum(source, "public", table, taken) != postgres_sum(copy, "public", table, taken):
                    return False
        return True

    with InThread(project, spark) as run:
        run.wait_streaming()
        assert equal()
        destination.execute(*LATER)
        database.execute(*CHANGES)
        wait_until(equal)
        seen = destination.query("select id from seen order by 1")
        assert seen == [(1,), (1,), (2,), (3,), (100,)]
    InThread(project, spark, once=True).join()
    with database.connect() as source, destination.connect() as copy:
        assert columns(copy, "public", "sums") == names["sums"]
        plain = [table for table in TABLES if table not in names]
        for table, copied in duckdb_sums(source, lake, "public", plain).items():
            assert copied == postgres_sum(source, "public", table, columns(source, "public", table)), table


REFUSED = {
    "v": ("create view v as select 1 as id", "is a view"),
    "m": ("create materialized view m as select 1 as id", "is a materialized view"),
    "u": ("create unlogged table u (id int primary key)", "SET LOGGED"),
    "f": (
        "create foreign data wrapper w; create server s foreign data wrapper w;"
        " create foreign table f (id int) server s",
        "is a foreign table",
    ),
    "n": (
        "create table n (id int primary key); alter table n replica identity nothing",
        'ALTER TABLE "public"."n" REPLICA IDENTITY DEFAULT',
    ),
    "k": ("create table k (id int)", 'ALTER TABLE "public"."k" REPLICA IDENTITY FULL'),
    "g": (
        "create table g (id int, twice int generated always as (id * 2) stored); alter table g replica identity full",
        'ALTER TABLE "public"."g" ADD PRIMARY KEY',
    ),
}


def test_what_cannot_be_followed_is_refused_before_anything_is_created(
    project: ProjectFolder, database: Database, destination: Database
) -> None:
    """I11: `check` and `run` say the same, with what to do, and neither publishes a table nor makes a slot."""
    project.connect(postgres("replica", destination))
    for table, (made, words) in REFUSED.items():
        database.execute(*made.split("; "))
        project.truck("one", [f"public.{table}"], {"connection": "replica"})
        found = [each for each in Project.load(project.folder).check() if each.level is Level.ERROR]
        assert any(words in f"{each.message} {each.remedy}" for each in found), (table, found)
        with pytest.raises(TruckerError):
            InThread(project, None, once=True).join()
    assert database.query("select count(*) from pg_publication") == [(0,)]
    assert database.query("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
