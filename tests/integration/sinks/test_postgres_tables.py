"""Tables at a PostgreSQL destination: created, widened, taken as they are, or refused with the remedy (I11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.postgres_sink import PostgresDestination
from trucker.change import Column, TableId, TableSchema
from trucker.errors import SinkError
from trucker.sinks.target import Target
from trucker.testing.handmade import copied_rows_of, delete, insert, schema_of, update
from trucker.testing.suites.sink_suite import ITEMS, target_of
from trucker.testing.suites.table_suite import item

OTHER = TableId("public", "other")


def columns(place: PostgresDestination, table: TableId) -> dict[str, tuple[str, bool]]:
    rows = place.database.query(
        "select attname::text, format_type(atttypid, atttypmod), attnotnull from pg_attribute"
        f" where attrelid = '{table.quoted}'::regclass and attnum > 0"
    )
    return {name: (type_name, required) for name, type_name, required in rows}


def prepared(place: PostgresDestination, schema: TableSchema) -> Target:
    sink = place.committer()
    sink.open()
    target = target_of(schema)
    sink.prepare(target)
    return target


def test_types_are_the_sources_where_they_are_known(place: PostgresDestination) -> None:
    place.database.execute("create schema shop", "create type shop.size as enum ('s', 'm')")
    schema = TableSchema(
        OTHER,
        (
            Column("id", 20, type_name="bigint", not_null=True),
            Column("price", 1700, typmod=655366, type_name="numeric(10,2)"),
            Column("tags", 1009, type_name="text[]"),
            Column("known", 99_999, type_name="shop.size"),
            Column("unknown", 99_998, type_name="shop.colour", not_null=True),
            Column("streamed", 1043, typmod=14),
            Column("foreign", 99_997),
            Column("at", 1184, type_name="timestamp(3) with time zone"),
        ),
        ("id",),
    )
    prepared(place, schema)
    assert columns(place, OTHER) == {
        "id": ("bigint", True),
        "price": ("numeric(10,2)", False),
        "tags": ("text[]", False),
        "known": ("shop.size", False),
        "unknown": ("text", True),
        "streamed": ("character varying(10)", False),
        "foreign": ("text", False),
        "at": ("timestamp(3) with time zone", False),
    }
    prepared(place, schema)


def test_not_null_is_released_with_the_sources(place: PostgresDestination) -> None:
    required = schema_of(OTHER, {"id": "integer not null", "a": "text not null", "b": "text not null"}, ["id"])
    prepared(place, required)
    a = replace(required.column("a"), not_null=False)
    prepared(place, replace(required, columns=(required.columns[0], a)))
    assert columns(place, OTHER) == {"id": ("integer", True), "a": ("text", False), "b": ("text", False)}


def test_a_table_without_the_key_is_refused(place: PostgresDestination) -> None:
    place.database.execute("create table items (id int not null, name text, qty int, note text)")
    with pytest.raises(SinkError) as refused:
        prepared(place, ITEMS)
    statement = refused.value.remedy.removeprefix("run at the destination: ").removesuffix("; then trucker run")
    assert statement == 'ALTER TABLE "public"."items" ADD PRIMARY KEY ("id")'
    place.database.execute(statement)
    prepared(place, ITEMS)


@pytest.mark.parametrize(
    "unfit",
    [
        "create unique index on items (id) where qty > 0",
        "create unique index on items ((id + 0))",
        "create unique index on items (id, qty)",
        "alter table items add unique (id) deferrable",
    ],
)
def test_not_every_unique_index_is_a_key(place: PostgresDestination, unfit: str) -> None:
    place.database.execute("create table items (id int not null, name text, qty int, note text)", unfit)
    with pytest.raises(SinkError, match="no unique key"):
        prepared(place, ITEMS)


def test_types_that_do_not_fit_are_all_listed(place: PostgresDestination) -> None:
    place.database.execute("create table items (id int primary key, name uuid, qty point, note varchar(10))")
    with pytest.raises(SinkError) as refused:
        prepared(place, ITEMS)
    assert "name is uuid, at the source text" in refused.value.message
    assert "qty is point, at the source integer" in refused.value.message
    assert "note" not in refused.value.message


def test_wider_types_and_additional_columns_are_accepted(place: PostgresDestination) -> None:
    place.database.execute(
        "create table items (id bigint primary key, name varchar, qty numeric, note text,"
        " seen timestamptz not null default now(), own int not null)"
    )
    sink = place.filled(target_of(ITEMS), item(1))
    place.change(sink, target_of(ITEMS), insert(item(2)), update(item(1, "x"), unchanged=["note"]))
    assert sorted((row["id"], row["name"], row["own"]) for row in place.rows(ITEMS.table)) == [
        ("1", "x", None),
        ("2", "n", None),
    ]
    assert all(row["seen"] for row in place.rows(ITEMS.table))


@pytest.mark.parametrize("made", ["create view items as select 1 as id", "create table items (name text)"])
def test_what_cannot_be_the_table(place: PostgresDestination, made: str) -> None:
    place.database.execute(made)
    with pytest.raises(SinkError) as refused:
        prepared(place, ITEMS)
    assert refused.value.code == "TRK409"
    assert refused.value.remedy


def test_identity_and_generated_columns(place: PostgresDestination) -> None:
    place.database.execute(
        "create table items (id int generated always as identity primary key, name text,"
        " qty int generated by default as identity, note text generated always as ('made here') stored)"
    )
    items = target_of(ITEMS)
    here = {"note": "made here"}
    sink = place.filled(items, item(1, "a", 1), item(2, "b", 2))
    place.change(
        sink,
        items,
        insert(item(5, "e", 5)),
        update(item(2, "B", 22, "from there")),
        update(item(9, "A", 1), old={"id": "1"}, unchanged=["note"]),
    )
    place.holds(items, {**item(2, "B", 22), **here}, {**item(5, "e", 5), **here}, {**item(9, "A", 1), **here})


def test_an_identity_that_could_not_be_updated_is_refused(place: PostgresDestination) -> None:
    place.database.execute(
        "create table items (id int primary key, name text, qty int generated always as identity, note text)"
    )
    with pytest.raises(SinkError, match=r"column qty of table public\.items is generated") as refused:
        prepared(place, ITEMS)
    place.database.execute(refused.value.remedy)
    prepared(place, ITEMS)


def test_a_partitioned_table(place: PostgresDestination) -> None:
    place.database.execute(
        "create table items (id int primary key, name text, qty int, note text) partition by range (id)",
        "create table items_1 partition of items for values from (0) to (10)",
        "create table items_2 partition of items for values from (10) to (20)",
        "create table bag (a int, b text) partition by list (a)",
        "create table bag_1 partition of bag for values in (1)",
        "create table bag_2 partition of bag default",
    )
    items = target_of(ITEMS)
    sink = place.filled(items, item(1, note="kept"), item(11))
    place.change(sink, items, update(item(12, "moved"), {"id": "1"}, ["note"]), delete({"id": "11"}), insert(item(2)))
    place.holds(items, item(12, "moved", note="kept"), item(2))
    bag = target_of(schema_of(TableId("public", "bag"), {"a": "integer", "b": "text"}), "bag")
    place.copy(sink, {bag: [[copied_rows_of(bag.source, [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}])]]}, name="bag")
    place.change(sink, bag, delete({"a": "2", "b": "x"}))
    place.holds(bag, {"a": "1", "b": "x"})


def test_collations_and_domains(place: PostgresDestination) -> None:
    place.database.execute(
        "create domain code as text not null check (value <> '')",
        'create table pairs (id code collate "C" primary key, name code, at timestamptz)',
    )
    schema = schema_of(
        TableId("public", "pairs"),
        {"id": "text not null", "name": "text not null", "at": "timestamp with time zone"},
        ["id"],
    )
    pairs = target_of(schema)
    row = {"id": "a", "name": "n", "at": "2024-01-02 03:04:05.000006+00"}
    sink = place.filled(pairs, row, {**row, "id": "b"}, {**row, "id": "c"})
    place.change(
        sink,
        pairs,
        delete({"id": "b"}),
        update({**row, "id": "d"}, {"id": "a"}, ["name"]),
        update({"id": "c", "at": None}, unchanged=["name"]),
    )
    assert sorted((r["id"], r["name"], r["at"] is None) for r in place.rows(schema.table)) == [
        ("c", "n", True),
        ("d", "n", False),
    ]


def test_rows_of_types_without_equality(place: PostgresDestination) -> None:
    """Whole rows are found by their text; json keeps its spaces, and the same point may be there twice."""
    schema = schema_of(OTHER, {"j": "json", "p": "point", "b": "box", "f": "double precision", "n": "numeric"})
    odd = target_of(schema)
    spaced = {"j": '{"a":  1}', "p": "(1,2)", "b": "(3,4),(1,2)", "f": "0.1", "n": "1.10"}
    tight = {**spaced, "j": '{"a":1}'}
    nothing = dict.fromkeys(schema.names)
    special = {"j": "null", "p": "(NaN,Infinity)", "b": "(1,1),(0,0)", "f": "1e+300", "n": "NaN"}
    rows = [spaced, spaced, tight, nothing, nothing, special]
    sink = place.filled(odd, *rows)
    place.change(sink, odd, delete(spaced), delete(nothing), delete(special), insert(tight))
    place.holds(odd, spaced, tight, tight, nothing)
    place.change(sink, odd, update(special, old=tight), step=2)
    place.holds(odd, spaced, tight, nothing, special)


def test_every_kind_of_value_survives(place: PostgresDestination) -> None:
    """Values come as the source's text and are the same at the destination, whatever its own settings are."""
    place.database.execute(
        f"alter database {place.database.name} set datestyle = 'German, DMY'",
        f"alter database {place.database.name} set intervalstyle = 'sql_standard'",
        f"alter database {place.database.name} set timezone = 'Asia/Kolkata'",
    )
    cells = {
        "date": "2024-02-03",
        "interval": "-1 days +02:03:04",
        "timestamp with time zone": "2024-02-03 04:05:06+00",
        "bytea": "\\x00ff5c",
        "real": "1e-07",
        "integer[]": "{{1,NULL},{3,4}}",
        "text[]": '{"a,b","\\"\\\\",NULL,"NULL"}',
        "bit varying": "0101",
        "inet": "10.0.0.1/8",
        "int4range": "[1,5)",
        "tsvector": "'a':1 'b':2",
        "boolean": "t",
        '"char"': "a",
        "money": "$1,234.56",
        "character(5)": "ab   ",
    }
    names = {f"c{i}": type_name for i, type_name in enumerate(cells)}
    schema = schema_of(OTHER, {"id": "integer not null", **names}, ["id"])
    odd = target_of(schema)
    row = {"id": "1", **dict(zip(names, cells.values(), strict=True))}
    sink = place.filled(odd, row)
    place.change(sink, odd, insert({**row, "id": "2"}))
    bag = target_of(replace(schema, table=TableId("public", "bag"), key=()), "bag")
    place.copy(sink, {bag: [[copied_rows_of(bag.source, [row, row])]]}, name="bag")
    place.change(sink, bag, delete(row))
    assert [len(place.rows(target.table)) for target in (odd, bag)] == [2, 1]
    one, two = sorted(place.rows(odd.table), key=lambda found: found["id"] or "")
    assert {**two, "id": "1"} == one
    assert place.database.query("select c0::text from other limit 1")[0][0] in ("03.02.2024", "2024-02-03")
    assert place.database.query("select extract(epoch from c1)::int from other limit 1") == [(-86400 + 7384,)]


def test_as_many_columns_as_a_table_can_have_are_too_many_to_stage(place: PostgresDestination) -> None:
    def columns(count: int) -> dict[str, str]:
        return {"id": "integer not null", **{f"c{n}": "integer" for n in range(count - 1)}}

    widest = target_of(schema_of(OTHER, columns(1598), ["id"]))
    row = {"id": "1", **{f"c{n}": str(n) for n in range(1597)}}
    sink = place.filled(widest, row)
    place.change(sink, widest, update({**row, "id": "2", "c7": "-7"}, {"id": "1"}, ["c5"]))
    place.holds(widest, {**row, "id": "2", "c7": "-7"})
    with pytest.raises(SinkError, match="at most 1598 can be staged"):
        prepared(place, schema_of(OTHER, columns(1599), ["id"]))
