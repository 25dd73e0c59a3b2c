"""Tables as the catalogue has them."""

from __future__ import annotations

import psycopg
import pytest

from fixtures.pg import Database
from trucker.change import TableId
from trucker.errors import SourceError
from trucker.postgres.catalog import identity_problem, list_tables, load_table, source_types
from trucker.postgres.connect import connect
from trucker.source.source_table import SourceTable, SourceType


def public(name: str) -> TableId:
    return TableId("public", name)


def load(database: Database, name: str, publication: str | None = None) -> SourceTable:
    with connect(database.connection, application="test") as connection:
        return load_table(connection, public(name), publication=publication)


def test_listed_are_the_tables_that_can_be_followed(any_database: Database) -> None:
    any_database.execute(
        "create table plain (id int)",
        'create schema "Odd Schema"',
        'create table "Odd Schema"."Odd.Table" (id int)',
        "create unlogged table unlogged (id int)",
        "create view a_view as select 1 as one",
        "create materialized view kept as select 1 as one",
        "create table parted (id int) partition by range (id)",
        "create table parted_1 partition of parted for values from (0) to (9)",
        "create foreign data wrapper nothing",
        "create server elsewhere foreign data wrapper nothing",
        "create foreign table far (id int) server elsewhere",
    )
    with connect(any_database.connection, application="test") as connection:
        connection.execute("create temporary table passing (id int)")
        assert list_tables(connection) == [
            TableId("Odd Schema", "Odd.Table"),
            TableId("public", "parted"),
            TableId("public", "plain"),
        ]


REFUSED = {
    "absent": ("select 1", "does not exist"),
    "view": ("create view t as select 1 as one", "is a view"),
    "materialized": ("create materialized view t as select 1 as one", "is a materialized view"),
    "unlogged": ("create unlogged table t (id int)", "is an unlogged table"),
    "sequence": ("create sequence t", "is a sequence"),
    "partition": (
        "create table root (id int) partition by range (id);"
        "create table t partition of root for values from (0) to (9)",
        "is a partition",
    ),
    "foreign": (
        "create foreign data wrapper w;create server s foreign data wrapper w;create foreign table t (id int) server s",
        "is a foreign table",
    ),
    "no column": ("create table t ()", "no column"),
    "foreign partition": (
        "create foreign data wrapper w;create server s foreign data wrapper w;"
        "create table t (id int) partition by range (id);"
        "create foreign table far partition of t for values from (0) to (9) server s",
        "public.far is a foreign table",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(" ", "-"))
def test_what_cannot_be_followed_is_refused_with_its_reason(database: Database, case: str) -> None:
    definition, reason = REFUSED[case]
    database.execute(*definition.split(";"))
    with pytest.raises(SourceError, match=reason) as caught:
        load(database, "t")
    assert caught.value.remedy
    assert caught.value.code in {"TRK210", "TRK211"}


def test_columns_with_types_and_missing_values(any_database: Database) -> None:
    any_database.execute(
        "create type mood as enum ('good')",
        "create domain short as varchar(10)",
        "create domain shorter as short not null",
        "create table t (id int primary key, gone int, name shorter, names short[], amount numeric(10,2),"
        ' feeling mood, at timestamptz(3), "Odd ""Name" text not null,'
        " doubled int generated always as (id * 2) stored)",
        "insert into t (id, name, \"Odd \"\"Name\") values (1, 'x', '')",
        "alter table t drop column gone",
        "alter table t add column list int[] not null default '{1,2}', add column since date default '2024-02-29'",
        "alter table t add column quoted text default 'a,\"b\"\\'",
    )
    table = load(any_database, "t")
    described = {c.name: (c.type_name, c.not_null, c.missing_value) for c in table.schema.columns}
    assert described == {
        "id": ("integer", True, None),
        "name": ("character varying(10)", False, None),
        "names": ("character varying(10)[]", False, None),
        "amount": ("numeric(10,2)", False, None),
        "feeling": ("public.mood", False, None),
        "at": ("timestamp(3) with time zone", False, None),
        'Odd "Name': ("text", True, None),
        "list": ("integer[]", True, "{1,2}"),
        "since": ("date", False, "2024-02-29"),
        "quoted": ("text", False, 'a,"b"\\'),
    }
    assert table.generated == ("doubled",)
    assert table.schema.key == ("id",)
    assert table.bytes >= 8192


IDENTITIES = {
    "default": ("create table t (a int, b int, c int, primary key (b, a))", ("b", "a"), ("b", "a")),
    "full with key": (
        "create table t (a int primary key, b int, c int);alter table t replica identity full",
        ("a",),
        ("a", "b", "c"),
    ),
    "full without": ("create table t (a int, b int, c int);alter table t replica identity full", (), ("a", "b", "c")),
    "index": (
        "create table t (a int primary key, b int not null, c int);create unique index i on t (b) include (c);"
        "alter table t replica identity using index i",
        ("b",),
        ("b",),
    ),
    "nothing": ("create table t (a int primary key, b int, c int);alter table t replica identity nothing", ("a",), ()),
    "none": ("create table t (a int, b int, c int)", (), ()),
    "deferrable": ("create table t (a int primary key deferrable, b int, c int)", (), ()),
}


@pytest.mark.parametrize("case", IDENTITIES, ids=lambda case: case.replace(" ", "-"))
def test_key_and_identity(any_database: Database, case: str) -> None:
    definition, key, identity = IDENTITIES[case]
    any_database.execute(*definition.split(";"))
    table = load(any_database, "t")
    assert table.schema.key == key
    assert table.identity_columns == identity
    assert (identity_problem(table) is None) == bool(identity)


def test_partitions_carry_what_all_of_them_carry(any_database: Database) -> None:
    any_database.execute(
        "create table t (id int, r text, v int, primary key (id, r)) partition by list (r)",
        "create table t_a partition of t for values in ('a')",
        "create table t_b partition of t for values in ('b') partition by range (id)",
        "create table t_b_1 partition of t_b for values from (0) to (9)",
        "alter table t_a replica identity full",
        "insert into t values (1, 'a', 1), (1, 'b', 1)",
    )
    table = load(any_database, "t")
    assert table.partitioned
    assert {leaf.table.name for leaf in table.leaves} == {"t_a", "t_b_1"}
    assert table.identity_columns == table.schema.key == ("id", "r")
    assert not table.full
    assert table.bytes >= 16384
    assert identity_problem(table) is None


def test_generated_columns_are_there_where_a_publication_sends_them(any_database: Database) -> None:
    any_database.execute(
        "create table t (id int primary key, v int, twice int generated always as (v * 2) stored)",
        "create publication p for table t",
    )
    table = load(any_database, "t", "p")
    assert (table.schema.names, table.generated) == (("id", "v"), ("twice",))
    if any_database.server.version < 18:
        return
    any_database.execute("alter publication p set (publish_generated_columns = stored)")
    table = load(any_database, "t", "p")
    assert (table.schema.names, table.generated) == (("id", "v", "twice"), ())
    assert load(any_database, "t").generated == ("twice",)


GENERATED = {
    "stored": "create table t (a int, g int generated always as (a + 1) stored); alter table t replica identity full",
    "virtual": "create table t (a int primary key, g int generated always as (a + 1));"
    "alter table t replica identity full",
    "in the key": "create table t (a int, g int generated always as (a + 1) stored not null unique);"
    "alter table t replica identity using index t_g_key",
}


@pytest.mark.parametrize("case", GENERATED, ids=lambda case: case.replace(" ", "-"))
def test_generated_columns_that_would_break_the_application(database: Database, case: str) -> None:
    """I11: PostgreSQL 18 refuses to update a published table whose identity has a generated column that is not sent."""
    database.execute(*GENERATED[case].split(";"), "insert into t values (1)", "create publication p for table t")
    with pytest.raises(psycopg.errors.InvalidColumnReference, match="generated columns"):
        database.execute("update t set a = 2")
    problem = identity_problem(load(database, "t"))
    assert problem is not None
    assert problem.code == "TRK212"
    assert "ALTER TABLE" in problem.remedy
    if case == "stored":
        database.execute("alter publication p set (publish_generated_columns = stored)", "update t set a = 2")
        assert identity_problem(load(database, "t", "p")) is None


def test_a_not_null_that_is_not_validated_is_none(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, v int)",
        "insert into t values (1, null)",
        "alter table t add constraint v_set not null v not valid",
    )
    assert not load(database, "t").schema.column("v").not_null


def test_types_that_are_gone_have_no_name(database: Database) -> None:
    with connect(database.connection, application="test") as connection:
        assert source_types(connection, [(23, -1), (999_999, -1), (1043, 14)]) == {
            (23, -1): SourceType("integer"),
            (1043, 14): SourceType("character varying(10)"),
        }
        assert source_types(connection, []) == {}


def test_what_older_rows_hold_is_whole_whatever_the_type(any_database: Database) -> None:
    """A default's text is taken as its type writes it: boxes are parted by semicolons, arrays hold quotes and NULLs."""
    defaults = {
        "box": "(1,1),(0,0)",
        "box[]": "{(1,1),(0,0);(2,2),(1,1)}",
        "text": 'a "b", {c} \\ d',
        "text[]": '{"a \\"b\\"",NULL,"","{x}"}',
        "int[]": "[0:1]={1,2}",
        "json": '{"a" : [1, "x"]}',
    }
    any_database.execute("create table t (id int primary key)", "insert into t values (1)")
    columns = (f"c{n} {kind} default '{value}'" for n, (kind, value) in enumerate(defaults.items()))
    any_database.execute(*(f"alter table t add column {column}" for column in columns))
    found = [column.missing_value for column in load(any_database, "t").schema.columns[1:]]
    assert found == list(defaults.values())


def test_users_types_and_what_they_are_made_of(any_database: Database) -> None:
    any_database.execute(
        "create schema other",
        "create type other.mood as enum ('ok', 'it''s')",
        'create type other.pair as ("A" int, m other.mood)',
        "create domain pairs as other.pair[]",
        "create domain one as other.pair",
        "create type span as range (subtype = numeric)",
        "create table t (a one, b pairs, c pairs[], d span[], e other.mood[], f int4range)",
    )
    mood = "create type other.mood as enum ('ok', 'it''s')"
    pair = 'create type other.pair as ("A" integer, m other.mood)'
    made = {
        "a": ("other.pair", f"{mood};\n{pair}"),
        "b": ("other.pair[]", f"{mood};\n{pair}"),
        # There is no other type that reads the text of an array of arrays as such.
        "c": ("public.pairs[]", f"{mood};\n{pair};\ncreate domain public.pairs as other.pair[]"),
        "d": (
            "public.span[]",
            "create type public.span as range (subtype = numeric, multirange_type_name = public.span_multirange)",
        ),
        "e": ("other.mood[]", mood),
        "f": ("int4range", ""),
    }
    columns = load(any_database, "t").schema.columns
    assert {column.name: (column.type_name, column.definition) for column in columns} == made


def test_the_numbers_of_a_key(any_database: Database) -> None:
    """By the index that identifies a row, in its order, whatever the columns are called."""
    any_database.execute(
        "create table t (x int, a int, b int not null, c int not null, primary key (c, a))",
        "alter table t drop column x",
        "create unique index t_b on t (b)",
    )
    assert (load(any_database, "t").schema.key, load(any_database, "t").key_numbers) == (("c", "a"), (4, 2))
    any_database.execute("alter table t replica identity using index t_b", "alter table t rename column b to d")
    assert (load(any_database, "t").schema.key, load(any_database, "t").key_numbers) == (("d",), (3,))
    any_database.execute("create table u (x int)")
    assert load(any_database, "u").key_numbers == ()
