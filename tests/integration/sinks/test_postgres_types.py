"""Users' types and values that do not fit, at a PostgreSQL destination (I8, I11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.postgres_sink import PostgresDestination
from trucker.change import Column, TableId, TableSchema
from trucker.errors import SinkError
from trucker.sinks.committer import Committer
from trucker.sinks.target import Target
from trucker.testing.handmade import copied_rows_of, delete, insert, schema_of, update
from trucker.testing.suites.sink_suite import target_of
from trucker.types import Unfit

PLACE = TableId("public", "typed")
PAIR = "create type public.pair as (a integer, b text)"
NARROW = "create table typed (id int primary key, v numeric(4,2), w varchar(3), d date)"
TYPES = {"id": "integer not null", "v": "numeric", "w": "text", "d": "date"}


def using(definition: str, type_name: str = "public.pair") -> Target:
    columns = (
        Column("id", 23, type_name="integer", not_null=True),
        Column("p", 99_999, type_name=type_name, definition=definition),
    )
    return target_of(TableSchema(PLACE, columns, ("id",)))


def opened(place: PostgresDestination) -> Committer:
    sink = place.committer()
    sink.open()
    return sink


def type_of(place: PostgresDestination, column: str) -> str:
    ((found,),) = place.database.query(
        "select format_type(atttypid, atttypmod) from pg_attribute"
        f" where attrelid = 'typed'::regclass and attname = '{column}'"
    )
    return str(found)


def test_a_type_of_the_same_shape_is_used(place: PostgresDestination) -> None:
    place.database.execute(PAIR)
    opened(place).prepare(using(PAIR))
    assert type_of(place, "p") == "pair"
    opened(place).prepare(using(PAIR))


def test_a_type_that_is_not_there_is_text(place: PostgresDestination) -> None:
    opened(place).prepare(using(PAIR))
    assert type_of(place, "p") == "text"
    place.database.execute(PAIR.replace("integer", "bigint"))  # made later, in whatever shape: the column stays text
    opened(place).prepare(using(PAIR))
    assert type_of(place, "p") == "text"


@pytest.mark.parametrize("array", ["", "[]"])
@pytest.mark.parametrize(
    "here",
    [
        "create type public.pair as (b text, a integer)",
        "create type public.pair as (a numeric(5,1), b text)",
        "create type public.pair as enum ('a')",
    ],
)
def test_a_type_of_another_shape_is_refused_with_the_statement(
    place: PostgresDestination, here: str, array: str
) -> None:
    """Fields in another order would be read without complaint, and be wrong."""
    place.database.execute(here)
    target = using(PAIR, f"public.pair{array}")
    with pytest.raises(SinkError) as refused:
        opened(place).prepare(target)
    assert refused.value.code == "TRK409"
    assert PAIR in refused.value.remedy
    opened(place).prepare(replace(target, unfit=(("p", Unfit.TEXT),)))
    assert type_of(place, "p") == "text"


def test_an_enum_may_have_more_labels_here(place: PostgresDestination) -> None:
    place.database.execute("create type public.mood as enum ('ok', 'fine', 'sad')")
    target = using("create type public.mood as enum ('sad', 'ok')", "public.mood")
    sink = opened(place)
    place.copy(sink, {target: [[copied_rows_of(target.source, [{"id": "1", "p": "sad"}])]]})
    assert type_of(place, "p") == "mood"
    place.holds(target, {"id": "1", "p": "sad"})


def test_names_of_the_sources_objects_are_text(place: PostgresDestination) -> None:
    schema = schema_of(PLACE, {"id": "integer not null", "c": "regclass", "r": "regrole[]"}, ["id"])
    target = target_of(schema)
    row = {"id": "1", "c": "shop.only_there", "r": "{nobody}"}
    place.copy(opened(place), {target: [[copied_rows_of(schema, [row])]]})
    place.holds(target, row)


def test_a_copy_that_does_not_fit_tells_the_column(place: PostgresDestination) -> None:
    """The column and the kind of failure, not the value (I10); and what may be done."""
    place.database.execute(NARROW.replace("w varchar", '"w: x" varchar'))
    schema = schema_of(PLACE, {"id": "integer not null", "w": "text", "w: x": "text"}, ["id"])
    place.database.execute("alter table typed drop v, drop d, add w text")
    target = target_of(schema)
    sink = opened(place)
    with pytest.raises(SinkError) as failed:
        place.copy(sink, {target: [[copied_rows_of(schema, [{"id": "1", "w": "fits", "w: x": "secret: w"}])]]})
    assert failed.value.code == "TRK405"
    assert failed.value.message.endswith("column w: x")
    assert "unfit" in failed.value.remedy
    assert "secret" not in str(failed.value)


def test_unfit_null(place: PostgresDestination) -> None:
    """What the destination's types do not take becomes NULL, in copy and stream; all else stays."""
    place.database.execute(NARROW)
    schema = schema_of(PLACE, TYPES, ["id"])
    target = replace(target_of(schema), unfit=(("d", Unfit.NULL), ("v", Unfit.NULL), ("w", Unfit.NULL)))
    sink = opened(place)
    rows = [
        {"id": "1", "v": "100.00", "w": "long", "d": "2026-01-02"},
        {"id": "2", "v": "9.99", "w": "fit", "d": None},
    ]
    place.copy(sink, {target: [[copied_rows_of(schema, rows)]]})
    place.change(sink, target, insert({"id": "3", "v": "NaN", "w": "é🐎x", "d": "infinity"}))
    place.change(sink, target, update({"id": "2", "v": "1e9", "w": "fit", "d": "5874898-01-01"}), step=2)
    place.holds(
        target,
        {"id": "1", "v": None, "w": None, "d": "2026-01-02"},
        {"id": "2", "v": None, "w": "fit", "d": None},
        {"id": "3", "v": "NaN", "w": "é🐎x", "d": "infinity"},
    )


def test_unfit_null_in_a_table_without_key(place: PostgresDestination) -> None:
    """A row that came with NULL is found with NULL when it goes."""
    place.database.execute("create table typed (id int, w varchar(3))")
    schema = schema_of(PLACE, {"id": "integer", "w": "text"})
    target = replace(target_of(schema), unfit=(("w", Unfit.NULL),))
    sink = opened(place)
    long = {"id": "1", "w": "much longer"}
    place.copy(sink, {target: [[copied_rows_of(schema, [long, {"id": "2", "w": "fit"}])]]})
    place.change(sink, target, delete(long))
    place.holds(target, {"id": "2", "w": "fit"})


def test_unfit_text_alters_what_is_there(place: PostgresDestination) -> None:
    """The text of what is there is kept as the type writes it, a character's blanks included."""
    place.database.execute("create table typed (id int primary key, v numeric(4,2), w character(3), d date)")
    schema = schema_of(PLACE, {**TYPES, "w": "character(3)"}, ["id"])
    target = target_of(schema)
    sink = opened(place)
    place.copy(sink, {target: [[copied_rows_of(schema, [{"id": "1", "v": "1.50", "w": "x  ", "d": "infinity"}])]]})
    later = replace(target, unfit=tuple((name, Unfit.TEXT) for name in ("d", "v", "w")))
    sink.prepare(later)
    place.change(sink, later, insert({"id": "2", "v": "100000", "w": "y  ", "d": None}))
    assert place.database.query("select v, w, d from typed order by id") == [
        ("1.50", "x  ", "infinity"),
        ("100000", "y  ", None),
    ]
