"""The publication: as wanted, in one step, and never to the application's harm (I11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fixtures.pg import Database
from trucker.adapters.postgres import PostgresConnection
from trucker.change import TableId
from trucker.errors import SourceError
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.connect import connect
from trucker.postgres.publication import drop_publication, ensure_publication
from trucker.source.publication import PublishedTable

NAME = "trucker_test"


def table(name: str, columns: tuple[str, ...] | None = None, where: str | None = None) -> PublishedTable:
    return PublishedTable(TableId("public", name), columns, where)


def members(database: Database) -> dict[str, tuple[list[str], str | None]]:
    rows = database.query(
        f"select tablename, attnames::text[], rowfilter from pg_publication_tables where pubname = '{NAME}'"
    )
    return {name: (columns, condition) for name, columns, condition in rows}


def ensure(database: Database, *tables: PublishedTable, managed: bool = True) -> set[str]:
    with connect(database.connection, application="test") as connection:
        return {added.name for added in ensure_publication(connection, NAME, tables, managed=managed)}


def test_tables_come_and_go(any_database: Database) -> None:
    any_database.execute(
        "create table a (id int primary key, v int)",
        "create table b (id int primary key, v int)",
        "create table p (id int primary key) partition by range (id)",
        "create table p_1 partition of p for values from (0) to (10)",
    )
    assert ensure(any_database, table("a"), table("p")) == {"a", "p"}
    assert set(members(any_database)) == {"a", "p"}
    assert ensure(any_database, table("b", ("v",)), table("p")) == {"b"}
    assert members(any_database) == {"b": (["id", "v"], None), "p": (["id"], None)}
    ensure(any_database, table("b"), table("a", ("id",)))
    assert members(any_database) == {"b": (["id", "v"], None), "a": (["id"], None)}
    ensure(any_database)
    assert members(any_database) == {}
    [options] = any_database.query(
        f"select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication where pubname = '{NAME}'"
    )
    assert options == (True, True, True, True, True)
    with any_database.connect() as connection:
        assert drop_publication(connection, NAME)
        assert not drop_publication(connection, NAME)


def test_nothing_is_touched_when_all_is_as_wanted(database: Database) -> None:
    database.execute("create table a (id int primary key, v int)")
    ensure(database, table("a", ("id",)))
    [before] = database.query("select xmin::text from pg_publication_rel")
    ensure(database, table("a", ("id",)))
    assert database.query("select xmin::text from pg_publication_rel") == [before]


def test_a_table_that_fell_out_of_the_publication_is_reported(database: Database) -> None:
    database.execute("create table a (id int primary key, v int)", "create table b (id int primary key, v int, w int)")
    ensure(database, table("a"), table("b", ("id", "v")))
    database.execute("drop table a", "create table a (id int primary key, v int)", "alter table b drop v cascade")
    assert members(database) == {}
    assert ensure(database, table("a"), table("b", ("id",))) == {"a", "b"}
    assert ensure(database, table("a"), table("b", ("id",))) == set()


def test_a_row_filter_on_the_key_is_published_and_can_change(any_database: Database) -> None:
    any_database.execute("create table a (id int primary key, v int)")
    ensure(any_database, table("a", None, "id > 5"))
    assert members(any_database)["a"][1] == "(id > 5)"
    any_database.execute("insert into a values (1, 1), (9, 9)", "update a set v = 2", "delete from a")
    ensure(any_database, table("a", None, "id > 7 -- more"))
    assert members(any_database)["a"][1] == "(id > 7)"
    ensure(any_database, table("a"))
    assert members(any_database)["a"][1] is None


def test_a_row_filter_outside_the_identity_is_refused_and_changes_nothing(any_database: Database) -> None:
    any_database.execute("create table a (id int primary key, v int)", "create table b (id int primary key)")
    ensure(any_database, table("b"))
    with pytest.raises(SourceError, match="`where` uses v") as caught:
        ensure(any_database, table("a", ("id", "v"), "v > 5 and id > 1"))
    assert 'ALTER TABLE "public"."a" REPLICA IDENTITY FULL' in caught.value.remedy
    assert set(members(any_database)) == {"b"}
    any_database.execute("alter table a replica identity full")
    ensure(any_database, table("a", ("id", "v"), "v > 5"))
    any_database.execute("insert into a values (1, 9)", "update a set v = 2", "delete from a")


def test_a_row_filter_that_postgres_does_not_allow_is_explained(database: Database) -> None:
    database.execute("create table a (id int primary key, v int)")
    with pytest.raises(SourceError, match="invalid publication WHERE"):
        ensure(database, table("a", None, "id > random()"))
    with pytest.raises(SourceError, match='column "nonsense" does not exist'):
        ensure(database, table("a", None, "nonsense = 1"))
    assert database.query("select 1 from pg_publication") == []


IDENTITIES = {
    "no key": ("create table t (id int)", "no primary key"),
    "deferrable": ("create table t (id int primary key deferrable initially deferred)", "deferrable"),
    "nothing": ("create table t (id int primary key); alter table t replica identity nothing", "NOTHING"),
    "index gone": (
        "create table t (id int not null); create unique index t_i on t (id);"
        " alter table t replica identity using index t_i; drop index t_i",
        "its index does not exist",
    ),
    "partition without": (
        "create table t (id int) partition by range (id); create table t_1 partition of t for values from (0) to (9);"
        " alter table t replica identity full",
        "t_1 does not have REPLICA IDENTITY FULL",
    ),
    "partition's own key": (
        "create table t (id int) partition by range (id); create table t_1 partition of t (primary key (id))"
        " for values from (0) to (9)",
        "has no replica identity; the changes of its partitions",
    ),
}


@pytest.mark.parametrize("case", IDENTITIES, ids=lambda case: case.replace(" ", "-"))
def test_a_table_whose_rows_cannot_be_identified_is_refused(database: Database, case: str) -> None:
    definition, reason = IDENTITIES[case]
    database.execute(*definition.split("; "))
    with pytest.raises(SourceError, match=reason) as caught:
        ensure(database, table("t"))
    assert "ALTER TABLE" in caught.value.remedy
    assert database.query("select 1 from pg_publication") == []


WRITABLE = {
    "key": "create table t (id int primary key, a int, b int)",
    "full": "create table t (id int, a int, b int); alter table t replica identity full",
    "full with key": "create table t (id int primary key, a int, b int); alter table t replica identity full",
    "index": "create table t (id int primary key, a int not null, b int); create unique index t_i on t (a);"
    " alter table t replica identity using index t_i",
    "partitioned": "create table t (id int primary key, a int, b int) partition by hash (id);"
    " create table t_0 partition of t for values with (modulus 2, remainder 0);"
    " create table t_1 partition of t for values with (modulus 2, remainder 1)",
    "partitioned, mixed": "create table t (id int primary key, a int, b int) partition by hash (id);"
    " create table t_0 partition of t for values with (modulus 2, remainder 0);"
    " create table t_1 partition of t for values with (modulus 2, remainder 1); alter table t_1 replica identity full",
    "generated": "create table t (id int primary key, a int, b int, c int generated always as (a * 2) stored)",
}


@pytest.mark.parametrize("case", WRITABLE, ids=lambda case: case.replace(" ", "-"))
def test_what_is_published_can_still_be_written(any_database: Database, case: str) -> None:
    any_database.execute(*WRITABLE[case].split("; "))
    for columns in (None, ("b",), ("id", "a", "b")):
        ensure(any_database, table("t", columns))
        assert set(columns or ("id", "a", "b")) <= set(members(any_database)["t"][0])
        any_database.execute(
            "insert into t (id, a, b) select i, i, i from generate_series(1, 20) i",
            "update t set b = b + 1",
            "update t set a = a + 100, id = id + 100",
            "delete from t where id < 110",
            "truncate t",
        )


def test_an_inheritance_parent_is_published_alone(database: Database) -> None:
    database.execute("create table a (id int primary key)", "create table a_child () inherits (a)")
    ensure(database, table("a"))
    assert set(members(database)) == {"a"}


def test_an_unknown_or_generated_column_is_refused(database: Database) -> None:
    database.execute("create table a (id int primary key, g int generated always as (id + 1) stored)")
    with pytest.raises(SourceError, match="'g' to publish: it is generated"):
        ensure(database, table("a", ("id", "g")))
    with pytest.raises(SourceError, match="no column 'x'"):
        ensure(database, table("a", ("id", "x")))


def test_before_15_conditions_are_refused_and_columns_left_to_the_projection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table a (id int primary key, v int)")
    monkeypatch.setattr(ServerFeatures, "of", classmethod(lambda cls, _: cls(140012)))
    with pytest.raises(SourceError, match=r"PostgreSQL 14\.12 lacks row filters .* came with 15"):
        ensure(database, table("a", None, "id > 1"))
    ensure(database, table("a", ("id",)))
    assert members(database)["a"][0] == ["id", "v"]


# -- made beforehand --------------------------------------------------------------------------------------------------


def test_one_made_beforehand_is_left_as_it_is(any_database: Database) -> None:
    any_database.execute(
        "create table a (id int primary key, v int)",
        "create table b (id int primary key)",
        f"create publication {NAME} for table a (id), b with (publish_via_partition_root = true)",
    )
    before = members(any_database)
    ensure(any_database, table("a", ("id",)), managed=False)
    assert members(any_database) == before


PREPARED = {
    "absent": ([], "does not exist", "CREATE PUBLICATION"),
    "without the table": ([f"create publication {NAME} for table b"], "does not contain table public.a", "ADD TABLE"),
    "without an operation": (
        [f"create publication {NAME} for table a with (publish = 'insert, update')"],
        "does not publish delete, truncate",
        "SET (publish = 'insert, update, delete, truncate')",
    ),
    "without a column": ([f"create publication {NAME} for table a (id)"], "does not send v", "only_columns"),
    "with a filter": (
        [f"create publication {NAME} for table a where (id > 3)"],
        "another row filter",
        "give the truck exactly this `where`: (id > 3)",
    ),
}


@pytest.mark.parametrize("case", PREPARED, ids=lambda case: case.replace(" ", "-"))
def test_one_made_beforehand_that_falls_short_is_explained(database: Database, case: str) -> None:
    statements, reason, remedy = PREPARED[case]
    database.execute("create table a (id int primary key, v int)", "create table b (id int primary key)", *statements)
    before = members(database)
    with pytest.raises(SourceError, match=reason) as caught:
        ensure(database, table("a"), managed=False)
    assert remedy in caught.value.remedy
    assert members(database) == before


def test_one_made_beforehand_by_partition_is_refused(database: Database) -> None:
    database.execute(
        "create table p (id int primary key) partition by range (id)",
        "create table p_1 partition of p for values from (0) to (10)",
        f"create publication {NAME} for table p",
    )
    with pytest.raises(SourceError, match="under the partitions' names") as caught:
        ensure(database, table("p"), managed=False)
    assert "publish_via_partition_root = true" in caught.value.remedy


def test_one_for_all_tables_serves_beforehand_but_is_not_taken_over(database: Database) -> None:
    database.execute("create table a (id int primary key, v int)", f"create publication {NAME} for all tables")
    ensure(database, table("a"), managed=False)
    with pytest.raises(SourceError, match="FOR ALL TABLES"):
        ensure(database, table("a"))


# -- least privilege --------------------------------------------------------------------------------------------------


@pytest.fixture
def shipper(any_database: Database) -> Iterator[PostgresConnection]:
    """A role with REPLICATION and nothing else; its connection."""
    role = f"shipper_{any_database.name}"
    any_database.execute(f"create role {role} login replication password 'secret-word'")
    yield any_database.as_user(role, "secret-word")
    any_database.execute(f"drop owned by {role}", f"drop role {role}")


def run_as(config: PostgresConnection, *tables: PublishedTable) -> None:
    with connect(config, application="test") as connection:
        ensure_publication(connection, NAME, tables, managed=True)


def give(database: Database, remedy: str) -> None:
    """Do what a remedy says, up to its first alternative."""
    database.execute(remedy.removeprefix("run: ").partition("  ")[0])


def test_every_missing_privilege_is_named_by_the_statement_that_gives_it(
    any_database: Database, shipper: PostgresConnection
) -> None:
    any_database.execute("create table a (id int primary key, v int)")
    with pytest.raises(SourceError, match="may not create publication") as caught:
        run_as(shipper, table("a"))
    give(any_database, caught.value.remedy)
    with pytest.raises(SourceError, match=r"not the owner of table public\.a") as caught:
        run_as(shipper, table("a"))
    give(any_database, caught.value.remedy)
    run_as(shipper, table("a"))
    assert set(members(any_database)) == {"a"}


def test_a_publication_of_another_owner_is_not_changed(any_database: Database, shipper: PostgresConnection) -> None:
    any_database.execute("create table a (id int primary key)", f"create publication {NAME}")
    any_database.execute(f"alter table a owner to {shipper.user}")
    with pytest.raises(SourceError, match="belongs to postgres") as caught:
        run_as(shipper, table("a"))
    any_database.execute(f"grant create on database {any_database.name} to {shipper.user}")
    give(any_database, caught.value.remedy)
    run_as(shipper, table("a"))


def test_a_locked_table_is_waited_for_only_so_long(database: Database) -> None:
    database.execute("create table a (id int primary key)")
    blocker: psycopg.Connection[Any]
    with database.connect(autocommit=False) as blocker:
        blocker.execute("lock table a in access exclusive mode")
        with pytest.raises(SourceError, match="locked by another session") as caught:
            ensure(database.impatient(0.05), table("a"))
        assert caught.value.transient
