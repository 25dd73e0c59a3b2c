"""PostgreSQL as the oracle of what the DuckDB sink makes of its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database, new_database
from trucker.adapters.duckdb import DuckDBConnection
from trucker.change import Column, CopiedRows, Lsn, TableId, TableSchema
from trucker.errors import SinkError, TruckFailed
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.duckdb import DuckDBSink
from trucker.sinks.target import Target
from trucker.testing.server import Server
from trucker.types import Unfit

AT = Lsn(0x100)


@pytest.fixture(scope="module", name="source")
def _source(server: Server) -> Iterator[Database]:
    """One database for all: making one takes longer than a test."""
    yield from new_database(server, "types")


@pytest.fixture(name="database")
def _database(source: Database) -> Database:
    source.execute("DROP TABLE IF EXISTS t")
    return source


@dataclass(frozen=True)
class Case:
    """A type, values of it (literals, and SQL over `i` for many), and the same question put to both databases."""

    type: str
    literals: Sequence[str]
    many: str = "NULL"
    postgres: str = "CASE WHEN v IS NOT NULL THEN format('%s', v) END"
    duck: str = "v::VARCHAR"
    duck_type: str = "VARCHAR"
    zone: str = "UTC"


MICROSECONDS = "CASE WHEN isfinite(v) THEN (extract(epoch FROM v) * 1000000)::bigint::text ELSE v::text END"
DUCK_MICROSECONDS = "CASE WHEN isinf(v) THEN v::VARCHAR ELSE epoch_us(v)::VARCHAR END"
MOMENTS = (
    "infinity",
    "-infinity",
    "1970-01-01 00:00:00",
    "1969-12-31 23:59:59.999999",
    "2000-02-29 12:00:00.1",
    "0001-01-01 00:00:00",
    "0044-03-15 12:34:56.789 BC",
    "4713-01-01 00:00:00 BC",
    "9999-12-31 23:59:59.999999",
    "12345-06-07 08:09:10",
    "294246-12-31 23:59:59.999999",
)
RANDOM_MOMENT = "to_timestamp((random() - 0.5) * 1e11)"

CASES = (
    Case("smallint", ("-32768", "32767", "0"), "(random() * 65535 - 32768)::int", duck_type="SMALLINT"),
    Case("integer", ("-2147483648", "2147483647"), "(random() * 1e9)::int", duck_type="INTEGER"),
    Case("bigint", ("-9223372036854775808", "9223372036854775807"), "(random() * 1e18)::bigint", duck_type="BIGINT"),
    Case(
        "real",
        ("NaN", "Infinity", "-Infinity", "0", "-0", "1e-45", "3.4028235e38", "0.1", "16777217"),
        "((random() - 0.5) * 10 ^ (i % 60 - 30))::real",
        "v::float8",
        "v",
        "FLOAT",
    ),
    Case(
        "double precision",
        ("NaN", "Infinity", "-Infinity", "0", "-0", "5e-324", "1.7976931348623157e308", "0.1", "1e23"),
        "(random() - 0.5) * 10 ^ (i % 600 - 300)",
        "v",
        "v",
        "DOUBLE",
    ),
    Case("numeric(12,2)", ("0", "-0.01", "9999999999.99", "1"), "(random() - 0.5) * 1e9", duck_type="DECIMAL(12,2)"),
    Case("numeric(5,0)", ("99999", "-3"), "(random() * 1e4)::numeric", duck_type="DECIMAL(5,0)"),
    Case(
        "numeric(38,10)",
        ("9999999999999999999999999999.9999999999", "-0.0000000001"),
        "(random() * 1e15)::numeric * 123456789.123456789",
        duck_type="DECIMAL(38,10)",
    ),
    Case("numeric(39,2)", ("1.10",), "random() * 1e9"),
    Case("numeric(3,-2)", ("12300", "-45600")),
    Case("numeric", ("NaN", "Infinity", "1.10", "1e-30", "123456789012345678901234567890.1234567890"), "random()"),
    Case("boolean", ("t", "f"), "i % 2 = 0", "v::text", duck_type="BOOLEAN"),
    Case("text", ("", " ", "t", "\\x00", "NULL", "a\nb\tc\\", "žluťoučký 🐎"), "md5(i::text)"),
    Case("character(5)", ("", "ab", "abcde"), "(i % 99999)::text"),
    Case("character varying(9)", ("", "null"), "(i % 99999)::text"),
    Case("bytea", ("\\x", "\\x00", "\\xdeadBEEF00ff", "abc"), "decode(md5(i::text), 'hex')", "encode(v, 'hex')",
         "lower(hex(v))", "BLOB"),
    Case(
        "date",
        ("infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "1970-01-01", "2000-02-29"),
        "date '2000-01-01' + ((random() - 0.5) * 1e6)::int",
        "CASE WHEN isfinite(v) THEN (v - date '1970-01-01')::text ELSE v::text END",
        "CASE WHEN isinf(v) THEN v::VARCHAR ELSE (v - DATE '1970-01-01')::VARCHAR END",
        "DATE",
    ),
    Case(
        "time without time zone",
        ("00:00:00", "24:00:00", "23:59:59.999999", "12:34:56.1"),
        "time '00:00' + random() * interval '1 day'",
        "(extract(epoch FROM v) * 1000000)::bigint::text",
        "(hour(v) * 3600000000 + minute(v) * 60000000 + microsecond(v))::VARCHAR",
        "TIME",
    ),
    Case("time(0) without time zone", ("01:02:03",), duck_type="TIME"),
    Case(
        "timestamp without time zone", MOMENTS, RANDOM_MOMENT, MICROSECONDS, DUCK_MICROSECONDS, "TIMESTAMP"
    ),
    Case("timestamp(3) without time zone", ("2026-01-02 03:04:05.678",), duck_type="TIMESTAMP",
         postgres=MICROSECONDS, duck=DUCK_MICROSECONDS),
    *(
        Case(
            "timestamp with time zone",
            MOMENTS,
            RANDOM_MOMENT,
            MICROSECONDS,
            DUCK_MICROSECONDS,
            "TIMESTAMP WITH TIME ZONE",
            zone,
        )
        for zone in ("UTC", "Asia/Kolkata", "America/St_Johns", "Africa/Monrovia")
    ),
    Case("uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
         "gen_random_uuid()", duck_type="UUID"),
    Case(
        "json",
        ("null", "1e400", '"\\u0000"', '{"a": 1.10, "a" :\n 2}', "[]", '"žluť \\ud83d\\ude00"'),
        "json_build_object('i', i, 'd', random())",
        duck_type="JSON",
    ),
    Case("jsonb", ("null", "1.10", '{"b": [1, 2, {"c": null}], "a": "x"}'), "jsonb_build_array(i)", duck_type="JSON"),
    Case("integer[]", ("{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}")),
    Case("interval", ("1 year -2 mons +3 days 04:05:06.789", "0", "-1 day")),
    Case("int4range", ("empty", "[1,5)", "(,)")),
    Case("inet", ("192.168.0.1/24", "::1")),
    Case("point", ("(1,-2.5)",)),
    Case("money", ("12.34",)),
    Case("time with time zone", ("12:34:56+05:30",)),
    Case("bit varying(8)", ("", "101")),
    Case("tsvector", ("'a':1 'b':2",)),
    Case('"char"', ("x",)),
    Case("name", ("n",)),
)  # fmt: skip


def copied(database: Database, type_name: str, zone: str) -> tuple[Target, CopiedRows]:
    """The table `t` of the source as the snapshot takes it."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET TimeZone = '{zone}'".encode())
        with cursor.copy(b"COPY (SELECT id, v FROM t) TO STDOUT (FORMAT csv, FORCE_QUOTE *)") as copy:
            data = b"".join(bytes(block) for block in copy)
        ((oid, name, rows),) = cursor.execute(
            b"SELECT atttypid, format_type(atttypid, atttypmod), (SELECT count(*) FROM t) "
            b"FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'v'"
        ).fetchall()
    assert name == type_name
    columns = (Column("id", 23, type_name="integer"), Column("v", int(oid), type_name=name))
    schema = TableSchema(TableId("public", "t"), columns, ("id",))
    return Target("main", schema, schema.table), CopiedRows(schema, data, rows, AT)


def replicate(path: Path, target: Target, rows: CopiedRows) -> None:
    connection = DuckDBConnection(name="d", adapter="duckdb", path=path)
    sink = Committer(DuckDBSink(connection, Workspace("p", path.parent)))
    slot = (target.truck, target.source.table)
    try:
        sink.open()
        sink.prepare(target)
        begin = Batch(AT, AT, tables={slot: TableState(Phase.COPYING, AT)}, targets=(target,), snapshot="s")
        sink.commit(begin, [])
        done = Batch(AT, AT, {"main": AT}, {slot: TableState(Phase.STREAMING, AT)}, (target,), "s")
        sink.commit(done, [sink.write(Work(done, target, 0), iter([rows]))])
    finally:
        sink.close()


def prepare(path: Path, target: Target) -> None:
    sink = DuckDBSink(DuckDBConnection(name="d", adapter="duckdb", path=path), Workspace("p", path.parent))
    try:
        sink.open()
        sink.prepare(target)
    finally:
        sink.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.type} {case.zone}".replace("UTC", "").strip())
def test_values_are_postgresqls(database: Database, tmp_path: Path, case: Case) -> None:
    database.execute(
        f"CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v {case.type})",
        f"INSERT INTO t (v) SELECT {case.many} FROM generate_series(1, 500) i",
    )
    with database.connect() as connection:
        connection.cursor().executemany(b"INSERT INTO t (v) VALUES (%s)", [(text,) for text in case.literals])
    target, rows = copied(database, case.type, case.zone)
    replicate(tmp_path / "d.duckdb", target, rows)
    with duckdb.connect(str(tmp_path / "d.duckdb"), read_only=True) as connection_:
        kinds = connection_.execute("SELECT data_type FROM duckdb_columns() WHERE column_name = 'v'").fetchall()
        connection_.execute("SET TimeZone = 'UTC'")
        made: list[tuple[Any, ...]] = connection_.execute(
            f"SELECT id, {case.duck} FROM public.t ORDER BY id"
        ).fetchall()
    assert kinds == [(case.duck_type,)]
    # By their repr, in which NaN equals itself and -0 differs from 0.
    assert repr(made) == repr(database.query(f"SELECT id, {case.postgres} FROM t ORDER BY id"))


@pytest.mark.parametrize(
    ("type_name", "literal", "kind"),
    [
        ("numeric(10,2)", "NaN", "NaN"),
        ("timestamp without time zone", "294270-01-01 00:00:00", "a time outside DuckDB's range"),
        ("timestamp with time zone", "294270-01-01 00:00:00+00", "a time outside DuckDB's range"),
        ("json", '"secret \\ud800"', "JSON that DuckDB cannot read"),
    ],
)
def test_a_value_duckdb_cannot_hold(
    database: Database, tmp_path: Path, type_name: str, literal: str, kind: str
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {type_name})", f"INSERT INTO t VALUES (1, '{literal}')")
    target, rows = copied(database, type_name, "UTC")
    with pytest.raises(TruckFailed) as failed:
        replicate(tmp_path / "d.duckdb", target, rows)
    assert kind in failed.value.message
    assert "'v'" in failed.value.message
    assert "public.t" in failed.value.message
    assert literal not in str(failed.value) or literal == "NaN"
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        assert connection.execute("FROM public.t").fetchall() == []


def test_the_remedy_holds_every_value(database: Database, tmp_path: Path) -> None:
    """A column made VARCHAR beforehand takes PostgreSQL's text as it is."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric(10,2))", "INSERT INTO t VALUES (1, 'NaN'), (2, 1)")
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute("CREATE SCHEMA public")
        connection.execute("CREATE TABLE public.t (id BIGINT, v VARCHAR)")
    target, rows = copied(database, "numeric(10,2)", "UTC")
    replicate(tmp_path / "d.duckdb", target, rows)
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        assert connection.execute("FROM public.t ORDER BY id").fetchall() == [(1, "NaN"), (2, "1.00")]


UNFIT = (
    ("numeric(10,2)", ("NaN", "1.50", "-0.01")),
    ("timestamp without time zone", ("294270-01-01 00:00:00", "2026-01-02 03:04:05.6", "0044-03-15 01:00:00 BC")),
    ("timestamp with time zone", ("294270-01-01 00:00:00+00", "0044-03-15 01:00:00+00 BC", "-infinity")),
    ("json", ('"\\ud800"', '{"a" :  1}')),
)


@pytest.mark.parametrize(("type_name", "literals"), UNFIT, ids=[name for name, _ in UNFIT])
def test_unfit_null_and_text(database: Database, tmp_path: Path, type_name: str, literals: Sequence[str]) -> None:
    """The first value does not fit. It becomes NULL, or the column is text and has them all."""
    values = ", ".join(f"({number}, '{text}')" for number, text in enumerate(literals))
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {type_name})", f"INSERT INTO t VALUES {values}")
    target, rows = copied(database, type_name, "UTC")
    replicate(tmp_path / "null.duckdb", replace(target, unfit=(("v", Unfit.NULL),)), rows)
    replicate(tmp_path / "text.duckdb", replace(target, unfit=(("v", Unfit.TEXT),)), rows)
    with duckdb.connect(str(tmp_path / "null.duckdb")) as connection:
        found = connection.execute("SELECT v IS NULL FROM public.t ORDER BY id").fetchall()
    assert found == [(number == 0,) for number in range(len(literals))]
    with duckdb.connect(str(tmp_path / "text.duckdb")) as connection:
        assert connection.execute("FROM public.t ORDER BY id").fetchall() == list(enumerate(literals))


CONVERTED = tuple(case for case in CASES if case.duck_type not in ("VARCHAR", "FLOAT", "DOUBLE"))


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: f"{case.type} {case.zone}".replace("UTC", "").strip())
def test_a_column_made_text_later_has_postgresqls_text(database: Database, tmp_path: Path, case: Case) -> None:
    """The way out of a truck that stopped: what is there already gets the text that the copy would have brought."""
    database.execute(
        f"CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v {case.type})",
        f"INSERT INTO t (v) SELECT {case.many} FROM generate_series(1, 100) i",
    )
    with database.connect() as connection:
        connection.cursor().executemany(b"INSERT INTO t (v) VALUES (%s)", [(text,) for text in case.literals])
    target, rows = copied(database, case.type, "UTC")
    replicate(tmp_path / "d.duckdb", target, rows)
    prepare(tmp_path / "d.duckdb", replace(target, unfit=(("v", Unfit.TEXT),)))
    with duckdb.connect(str(tmp_path / "d.duckdb"), read_only=True) as connection_:
        made = connection_.execute("SELECT id, v FROM public.t ORDER BY id").fetchall()
    wanted = rows.to_changes().new
    texts = dict(
        zip((int(key) for key in wanted.column("id").to_pylist()), wanted.column("v").to_pylist(), strict=True)
    )
    assert made == sorted(texts.items())


def test_floats_are_not_made_text_later(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v real)", "INSERT INTO t VALUES (1, 1e15)")
    target, rows = copied(database, "real", "UTC")
    replicate(tmp_path / "d.duckdb", target, rows)
    with pytest.raises(SinkError, match="TRK438"):
        prepare(tmp_path / "d.duckdb", replace(target, unfit=(("v", Unfit.TEXT),)))
