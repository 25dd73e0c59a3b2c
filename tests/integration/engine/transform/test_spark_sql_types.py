"""PostgreSQL's text to Spark and back, with PostgreSQL as the judge."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fixtures.pg import Database
from fixtures.spark_trucks import SparkTruckCase, rows
from fixtures.type_oracle import TEXT_FORM
from trucker.change import Column
from trucker.engine.transform.spark_sql import spark_truck as truck_module
from trucker.engine.transform.spark_sql.typed_cells import texts, typed
from trucker.engine.transform.spark_sql.types import form_of
from trucker.errors import EngineError
from trucker.rows import OLD

Connection = psycopg.Connection[Any]

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
_BITS32, _BITS64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_MOMENT = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "real": st.one_of(st.floats(width=32), _BITS32.map(lambda bits: struct.unpack("f", struct.pack("I", bits))[0])),
    "double precision": st.one_of(
        st.floats(),
        _BITS64.map(lambda bits: struct.unpack("d", struct.pack("Q", bits))[0]),
        st.integers(-(10**17), 10**17),
    ),
    "numeric(12,3)": st.decimals(-999999999, 999999999, places=3),
    "numeric(38,20)": st.decimals(-(10**17), 10**17, places=20),
    "numeric": st.decimals(-(10**19), 10**19, places=5).map(lambda value: value.normalize()),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp without time zone": _MOMENT,
    "timestamp with time zone": _MOMENT.map(lambda moment: moment.replace(tzinfo=datetime.UTC)),
    "bytea": st.binary(max_size=20),
    "text": _TEXT,
    "character varying(12)": _TEXT,
}


@pytest.fixture(scope="module")
def judge(server: Any) -> Iterator[Connection]:
    with server.connect("postgres", options=TEXT_FORM) as connection:
        yield connection


def _as_written(judge: Connection, kind: str, lists: Sequence[Sequence[Any]]) -> list[list[str | None]]:
    """Each value as the server itself writes it, and each list as an array."""
    values = [_plain(value) for each in lists for value in each]
    groups = [number for number, each in enumerate(lists) for _ in each]
    query = f"""
        with v as (select g, v::{kind} as v, n from unnest(%s::text[], %s::int[]) with ordinality as u(v, g, n))
        select g, array_agg(case num_nulls(v) when 0 then format('%%s', v) end order by n),
               format('%%s', array_agg(v order by n)) from v group by g"""
    found = {group: [*texts, whole] for group, texts, whole in judge.execute(query.encode(), [values, groups])}
    return [found.get(number, ["{}"]) for number in range(len(lists))]


def _plain(value: Any) -> str | None:
    if value is None:
        return None
    return (
        "\\x" + value.hex()
        if isinstance(value, bytes)
        else format(value, "f")
        if isinstance(value, decimal.Decimal)
        else str(value)
    )


@pytest.mark.parametrize("kind", VALUES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_text_comes_back_as_the_server_writes_it(judge: Connection, kind: str, data: st.DataObject) -> None:
    lists = data.draw(st.lists(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=20), min_size=1, max_size=8))
    written = _as_written(judge, kind, lists)
    cells = [None, *(text for each in written for text in each[:-1])]
    arrays = [None, *(each[-1] for each in written)]
    for given_texts, name in ((cells, kind), (arrays, f"{kind}[]")):
        column = Column("c", 0, type_name=name)
        form = form_of(column)
        spark = typed(pa.array(given_texts, pa.string()), column, form)
        assert spark.type == form.list_or_value
        back = texts(spark, form, "c").to_pylist()
        if form.loose:
            assert form.array or [text and decimal.Decimal(text) for text in back] == [
                text and decimal.Decimal(text) for text in given_texts
            ]
        else:
            assert back == given_texts


UNHELD = [
    ("date", "infinity"),
    ("date", "0044-03-15 BC"),
    ("date", "12345-01-01"),
    ("timestamp without time zone", "-infinity"),
    ("timestamp with time zone", "294276-12-31 23:59:59.999999+00"),
    ("timestamp with time zone", "0001-12-31 23:59:59+00 BC"),
    ("numeric", "NaN"),
    ("numeric", "Infinity"),
    ("numeric", "123456789012345678901.5"),
    ("numeric", "0.0000000000000000001"),
    ("numeric(12,2)", "NaN"),
    ("integer[]", "{{1,2},{3,4}}"),
    ("text[]", '{{"{",a},{b,c}}'),
    ("text[]", "[0:1]={a,b}"),
    ("date[]", "{infinity}"),
]


@pytest.mark.parametrize(("kind", "text"), UNHELD)
def test_what_spark_cannot_hold_is_an_error_that_names_the_column(kind: str, text: str) -> None:
    """Never NULL (I8), never the value (I10)."""
    column = Column("birth", 0, type_name=kind)
    with pytest.raises(EngineError) as caught:
        typed(pa.array([None, text]), column, form_of(column))
    assert caught.value.code == "TRK540"
    assert f'column "birth" ({kind})' in caught.value.message
    assert "cast" in caught.value.remedy
    assert not any(c.isdigit() for c in text) or text not in str(caught.value)


TABLE = """
create table zoo (id int primary key, a smallint, b bigint, c real, d double precision, e numeric, f numeric(20,10),
    g boolean, h date, i timestamp, j timestamptz, k bytea, l text, m uuid, n jsonb, o interval, p int[], q text[],
    r numeric[], s timestamptz[], t bytea[], u inet, v character(5), w varchar(9)[], x boolean[], y double precision[]);
insert into zoo select i, random() * 30000, (random() - 0.5) * 1e18, ((random() - 0.5) * 10 ^ (i % 70 - 35))::real,
    (random() - 0.5) * 10 ^ (i % 600 - 300), ((random() - 0.5) * 10 ^ (i % 12))::numeric,
    ((random() - 0.5) * 1e9)::numeric(20,10), i % 2 = 0, '2000-01-01'::date + i * 17,
    '1950-01-01'::timestamp + i * interval '3 days 1.234567 seconds', now() - i * interval '1.5 hours',
    decode(md5(i::text), 'hex'), repeat(chr(32 + i % 90), i % 7), gen_random_uuid(), jsonb_build_object('a', i),
    i * interval '1 second', array[i, null, -i], array['', 'NULL', null, '{"', E'a\\\\b"', ' x', i::text],
    array[(i / 3.0)::numeric(12,4), i::numeric(9,3)], array[now()], array['\\x00'::bytea, decode(md5(i::text), 'hex')],
    '10.0.0.1'::inet + i, 'ab', array['q', null], array[true, false, null], array[i / 7.0, 1e300, 'NaN', '-Infinity']
    from generate_series(1, 400) i;
insert into zoo (id) values (0);
"""


@pytest.mark.parametrize("few", [5_000, 0], ids=["few", "many"])
def test_a_table_goes_through_spark_unchanged(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Passed on as it is, and with every value made anew by Spark."""
    database.execute(TABLE)
    with database.connect(options=TEXT_FORM) as connection:
        types = connection.execute(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = 'public.zoo'::regclass and attnum > 0 order by attnum"
        ).fetchall()
        cells = ", ".join(f"case num_nulls({name}) when 0 then format('%s', {name}) end" for name, _ in types)
        found = connection.execute(f"select {cells} from public.zoo order by id".encode()).fetchall()
    own = tuple(Column(name, 0, type_name=kind) for name, kind in types)
    assert not any(column.name.startswith(OLD) for column in own)
    monkeypatch.setattr(truck_module, "FEW_ROWS", few)
    names = [column.name for column in own]
    given_rows = rows(own, *(("insert", dict(zip(names, row, strict=True))) for row in found))
    as_it_is = SparkTruckCase(spark, tmp_path, {"transform.sql": "select * from {{ rows }}"})
    assert [c.type_name for c in as_it_is.compile(own).columns] == [c.type_name for c in own]
    wanted = {row[0]: {n: cell for n, cell in zip(names, row, strict=True) if cell is not None} for row in found}
    assert {row["id"]: row for _, row in as_it_is.give(given_rows)} == wanted
    anew = ", ".join(f"if(rand() >= 0, {name}, null) as {name}" for name in names)
    computed = SparkTruckCase(spark, tmp_path, {"transform.sql": f"select {anew} from {{{{ rows }}}}"})
    result = {row["id"]: row for _, row in computed.give(given_rows)}
    loose = {column.name for column in own if form_of(column).loose}
    for key, row in wanted.items():
        assert {n: t for n, t in result[key].items() if n not in loose} == {
            n: t for n, t in row.items() if n not in loose
        }
    assert {decimal.Decimal(row["e"] or 0) for row in result.values() if "e" in row} == {
        decimal.Decimal(row["e"]) for row in wanted.values() if "e" in row
    }
