"""A truck's Spark files: what they get, what they give, and in which operation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.spark_trucks import SparkTruckCase, columns, rows
from trucker.engine.transform.spark_sql import spark_truck as truck_module
from trucker.engine.transform.spark_sql.lineage import needed
from trucker.errors import ConfigError, EngineError, TruckerError

ORDERS = columns(id="integer", amount="numeric", state="text")
INSERT = ("insert", {"id": "1", "amount": "1.50", "state": "new"})
UPDATE = ("update", {"id": "2", "amount": "7", "state": "paid", "old__id": "2", "old__amount": "5.0"})
DELETE = ("delete", {"old__id": "3", "old__amount": "9"})

Make = Callable[..., SparkTruckCase]


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Make:
    def made(files: dict[str, str], **more: Any) -> SparkTruckCase:
        return SparkTruckCase(spark, tmp_path, files, **more)

    return made


@pytest.fixture(params=["few", "many"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways that rows take: through the driver, and through files."""
    if request.param == "many":
        monkeypatch.setattr(truck_module, "FEW_ROWS", 0)
    return str(request.param)


def test_a_transform_runs_for_each_operation_and_gives_its_rows(make: Make, way: str) -> None:
    case = make({"transform.sql": "select coalesce(r.id, r.old__id) as id, r.amount, upper(r.state) s from {{ rows }}"})
    assert sorted(case.give(rows(ORDERS, INSERT, UPDATE, DELETE)), key=str) == [
        ("delete", {"id": "3"}),
        ("insert", {"id": "1", "amount": "1.50", "s": "NEW"}),
        ("update", {"id": "2", "amount": "7", "s": "PAID"}),
    ]


def test_whichever_thread_puts_rows_through_spark(make: Make, spark: SparkSession, way: str) -> None:
    """Spark looks for a format in the session that is a thread's own, and parts are in threads of their own."""
    case = make({"transform.sql": "select id, amount from {{ rows }}"})
    plan, waiting = case.spooled(rows(ORDERS, INSERT))
    spark.createDataFrame([(1,)], "a int")  # another session is this thread's own by now
    with ThreadPoolExecutor(1) as another:
        (piece,) = another.submit(case.truck.give, plan, waiting).result()
    assert piece.cells.to_pylist() == [{"id": "1", "amount": "1.50"}]


def test_a_result_may_say_itself_what_its_rows_are(make: Make, way: str) -> None:
    case = make(
        {
            "transform.sql": "select coalesce(id, old__id) id,"
            " case when state = 'paid' then 'delete' else operation end as operation,"
            " count(*) over () as n from {{ rows }}"
        }
    )
    assert sorted(case.give(rows(ORDERS, INSERT, UPDATE, DELETE)), key=str) == [
        ("delete", {"id": "2", "n": "3"}),
        ("delete", {"id": "3", "n": "3"}),
        ("insert", {"id": "1", "n": "3"}),
    ]


def test_files_of_operations_get_the_rows_and_what_was_made_of_them(make: Make, way: str) -> None:
    case = make(
        {
            "transform.sql": "select id, amount * 2 as double, '{{ operation }}' as was from {{ rows }}",
            "update.sql": "select t.id, t.double, concat(t.was, ' ', {{ old.amount }}) as was"
            " from {{ rows }} join {{ transformed }} on t.id = r.id",
            "delete.sql": "select {{ old.id }} as id from {{ rows }} where false",
        }
    )
    assert sorted(case.give(rows(ORDERS, INSERT, UPDATE, DELETE)), key=str) == [
        ("insert", {"id": "1", "double": "3.0000000000000000", "was": "insert"}),
        ("update", {"id": "2", "double": "14.0000000000000000", "was": "update 5.000000000000000000"}),
    ]


def test_an_operation_without_a_file_passes_through(make: Make, way: str) -> None:
    case = make({"delete.sql": "select old__id as id, 'gone' as state from {{ rows }}"})
    assert sorted(case.give(rows(ORDERS, INSERT, UPDATE, DELETE)), key=str) == [
        ("delete", {"id": "3", "state": "gone"}),
        INSERT,
        UPDATE,
    ]


def test_runs_stay_apart_and_in_order(make: Make, way: str) -> None:
    case = make({"transform.sql": "select count(*) as n, sum(ID) as ids from {{ rows }}"}, rows_max=2)
    given = rows(ORDERS, *(("insert", {"id": str(n)}) for n in range(1, 10)), runs=[n // 3 for n in range(9)])
    assert case.numbered(given) == [(run, "insert", {"n": "3", "ids": str(9 * run + 6)}) for run in range(3)]


def test_a_result_with_no_rows_is_fine(make: Make, way: str) -> None:
    assert make({"transform.sql": "select id from {{ rows }} where id > 5"}).give(rows(ORDERS, INSERT)) == []


def test_more_rows_than_a_truck_may_have_stop_it(make: Make, way: str) -> None:
    case = make({"transform.sql": "select r.id, s.n from {{ rows }} cross join range(50) s(n)"}, rows_max=49)
    with pytest.raises(EngineError, match="more than 49 rows") as caught:
        case.give(rows(ORDERS, INSERT))
    assert caught.value.code == "TRK545"
    assert not caught.value.transient


def test_a_large_result_of_few_rows_goes_through_files(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truck_module, "FEW_ROWS", 10)
    case = make({"transform.sql": "select r.id, s.n, r.amount from {{ rows }} cross join range(50) s(n)"})
    given = case.give(rows(ORDERS, INSERT))
    assert sorted(int(row["n"] or 0) for _, row in given) == list(range(50))
    assert {row["amount"] for _, row in given} == {"1.50"}
    assert list(case.spool.iterdir()) == []


def test_what_is_passed_on_keeps_its_type_and_text(make: Make) -> None:
    own = columns(id="uuid", kind="mood", at="timestamp with time zone", n="numeric", ns="numeric[]")
    case = make({"transform.sql": "with c as (select * from {{ rows }}) select c.id as key, KIND, at, n, ns from c"})
    plan = case.compile(own)
    assert [(c.name, c.type_name) for c in plan.columns] == [
        ("key", "uuid"),
        ("kind", "mood"),
        ("at", "timestamp with time zone"),
        ("n", "numeric"),
        ("ns", "numeric[]"),
    ]
    assert plan.needed == {"id", "kind", "at", "n", "ns"}
    row = {"id": "x", "kind": "ok", "at": "2020-01-01 00:00:00.5+00", "n": "1.500", "ns": "{1.50,NULL,2}"}
    assert case.give(rows(own, ("insert", row))) == [
        ("insert", {"key": "x", "kind": "ok", "at": "2020-01-01 00:00:00.5+00", "n": "1.500", "ns": "{1.50,NULL,2}"})
    ]


def test_a_union_of_two_columns_is_none_of_them(make: Make) -> None:
    own = columns(id="uuid", other="mood")
    union = "select id as a, id as b from {{ rows }} union all select other, id from {{ rows }}"
    plan = make({"transform.sql": union}).compile(own)
    assert [(c.name, c.type_name) for c in plan.columns] == [("a", "text"), ("b", "text")]


def test_branches_of_a_union_are_looked_at_whole(spark: SparkSession) -> None:
    """What is first in a union gives its columns their numbers in Spark's plan; the rows come second here."""
    own = spark.createDataFrame([], "id int, state string")
    other = spark.createDataFrame([], "a int, b string")
    assert needed(other.union(own).select("a"), ["id", "state"]) >= {"id"}
    assert needed(other.union(own), ["id", "state"]) == {"id", "state"}
    assert needed(other.join(own, other.a == own.id).select("b"), ["id", "state"]) == {"id"}


def test_only_what_the_files_look_at_goes_along(make: Make) -> None:
    case = make({"transform.sql": "select id from {{ rows }} where state <> 'x'"})
    plan, waiting = case.spooled(rows(ORDERS, ("insert", {"id": "1", "amount": "NaN", "state": "y"})))
    assert plan.needed == {"id", "state"}
    assert [batch.schema.names for batch in waiting.read(waiting.runs[0])] == [["id", "state", "operation"]]


COMPUTED: list[tuple[str, str, str | None]] = [
    ("cast(1 as tinyint)", "smallint", "1"),
    ("2147483648", "bigint", "2147483648"),
    ("cast(1.5 as float)", "real", "1.5"),
    ("1e20D", "double precision", "1e+20"),
    ("cast(0.0000001 as decimal(20,10))", "numeric(20,10)", "0.0000001000"),
    ("true", "boolean", "t"),
    ("date'2024-02-29'", "date", "2024-02-29"),
    ("timestamp'2024-02-29 10:00:00.5'", "timestamp with time zone", "2024-02-29 10:00:00.5+00"),
    ("timestamp_ntz'2024-02-29 10:00:00'", "timestamp without time zone", "2024-02-29 10:00:00"),
    ("X'00ff'", "bytea", "\\x00ff"),
    ("'a\"b'", "text", 'a"b'),
    ("null", "text", None),
    ("array('a,b', null, 'NULL', '')", "text[]", '{"a,b",NULL,"NULL",""}'),
    ("array(1.5BD, null)", "numeric(2,1)[]", "{1.5,NULL}"),
    ("array(date'2024-01-01')", "date[]", "{2024-01-01}"),
    ("named_struct('a', 1, 'b', null)", "jsonb", '{"a":1,"b":null}'),
    ("map('k', array(1, 2))", "jsonb", '{"k":[1,2]}'),
    ("array(array(1), array(2, 3))", "jsonb", "[[1],[2,3]]"),
    ("array(named_struct('a', 1))", "jsonb", '[{"a":1}]'),
    ("parse_json('{\"a\": 1}')", "jsonb", '{"a":1}'),
    ("collate('x', 'UNICODE_CI')", "text", "x"),
]


def test_what_spark_computes_has_a_type_of_postgres(make: Make) -> None:
    listed = ", ".join(f"{sql} as v{n}" for n, (sql, _, _) in enumerate(COMPUTED))
    case = make({"transform.sql": f"select {listed} from {{{{ rows }}}}"})
    assert [column.type_name for column in case.compile(ORDERS).columns] == [type_name for _, type_name, _ in COMPUTED]
    wanted = {f"v{n}": text for n, (_, _, text) in enumerate(COMPUTED) if text is not None}
    assert case.give(rows(ORDERS, INSERT)) == [("insert", wanted)]


def test_files_of_operations_agree_on_a_type(make: Make) -> None:
    case = make(
        {
            "insert.sql": "select id, 1 as n from {{ rows }}",
            "update.sql": "select id, 2147483648 as n from {{ rows }}",
            "delete.sql": "select old__id as id, null as n from {{ rows }}",
        }
    )
    assert [(c.name, c.type_name) for c in case.compile(ORDERS).columns] == [("id", "integer"), ("n", "bigint")]
    given = case.give(rows(ORDERS, INSERT, UPDATE, DELETE))
    assert given == [
        ("delete", {"id": "3"}),
        ("update", {"id": "2", "n": "2147483648"}),
        ("insert", {"id": "1", "n": "1"}),
    ]


WRONG = [
    ({"transform.sql": "select id,\n  amuont from {{ rows }}"}, "TRK150", "transform.sql:2:3", "amount"),
    ({"transform.sql": "select id\nfrom {{ rows }}\nwhere (id > 1"}, "TRK150", "transform.sql:3", ""),
    ({"transform.sql": "select nosuch(id) from {{ rows }}"}, "TRK150", "transform.sql:1:8", ""),
    ({"transform.sql": "select id from nowhere"}, "TRK150", "transform.sql:1:16", ""),
    ({"transform.sql": "select {{ new.amuont }} from {{ rows }}"}, "TRK130", "transform.sql:1", "amount"),
    ({"transform.sql": "select id from {{ rows }}; select 1"}, "TRK151", "transform.sql:1:28", ""),
    ({"transform.sql": "-- nothing\n"}, "TRK151", "transform.sql", ""),
    ({"transform.sql": "create table t (a int)"}, "TRK151", "transform.sql:1:1", "output.sql"),
    ({"transform.sql": "with a as (select 1) insert into t select * from a"}, "TRK151", "transform.sql", ""),
    ({"transform.sql": "set spark.sql.ansi.enabled = false"}, "TRK151", "transform.sql", ""),
    ({"transform.sql": "select id, amount as id from {{ rows }}"}, "TRK152", "transform.sql", "other_id"),
    ({"transform.sql": "select interval '1' day as d from {{ rows }}"}, "TRK153", "transform.sql", "cast"),
    (
        {"insert.sql": "select id, 1 as n from {{ rows }}", "update.sql": "select id from {{ rows }}"},
        "TRK152",
        "insert.sql returns id, n; trucks/orders/update.sql returns id",
        "",
    ),
    (
        {"insert.sql": "select id, 1 as n from {{ rows }}", "update.sql": "select id, array(1) as n from {{ rows }}"},
        "TRK152",
        "n",
        "cast",
    ),
]


@pytest.mark.parametrize(("files", "code", "place", "remedy"), WRONG)
def test_what_is_wrong_with_a_file_is_found_before_a_row_is_read(
    make: Make, files: dict[str, str], code: str, place: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(files).compile(ORDERS)
    assert (caught.value.code, place in caught.value.message, remedy in caught.value.remedy) == (code, True, True)


SECRET = "4111-secret"
FAILING = [
    ("select cast(state as int) as n from {{ rows }}", "CAST_INVALID_INPUT at cast(state as int)", "transform.sql:1:8"),
    ("select id,\n 1 / (id - 1) as n from {{ rows }}", "DIVIDE_BY_ZERO at 1 / (id - 1)", "transform.sql:2:2"),
    ("select raise_error(state) as n from {{ rows }}", "USER_RAISED_EXCEPTION", "transform.sql"),
    ("select element_at(array(1), id + 4) as n from {{ rows }}", "INVALID_ARRAY_INDEX", "transform.sql:1"),
    ("select upside(state) as n from {{ rows }}", "upside raised ValueError", "functions.py:2"),
    ("select id, state as operation from {{ rows }}", "operation of the result has a value other than", ""),
    ("select date_add(date'9999-12-31', id) as d from {{ rows }}", "year outside 1 to 9999", ""),
]
UPSIDE = "def upside(text: str) -> str:\n    raise ValueError(text)\n"


@pytest.mark.parametrize(("sql", "reason", "place"), FAILING)
@pytest.mark.parametrize("way", ["few"], indirect=True)
def test_a_failure_on_rows_is_reported_with_its_place_and_without_values(
    make: Make, way: str, sql: str, reason: str, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """I8 and I10: the truck stops with file, line and Spark's condition."""
    case = make({"transform.sql": sql}, functions=UPSIDE)
    with pytest.raises(TruckerError) as caught:
        case.give(rows(ORDERS, ("insert", {"id": "1", "state": SECRET})))
    assert reason in caught.value.message
    assert place in caught.value.message
    assert not caught.value.transient
    assert SECRET not in f"{caught.value}{capfd.readouterr()}"


@pytest.mark.parametrize(("sql", "reason", "place"), [FAILING[0], *FAILING[4:6]])
@pytest.mark.parametrize("way", ["many"], indirect=True)
def test_a_failure_in_executors_has_the_same_message_and_leaves_no_file(
    make: Make, way: str, sql: str, reason: str, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    test_a_failure_on_rows_is_reported_with_its_place_and_without_values(make, way, sql, reason, place, capfd)
    assert list(make({}).spool.iterdir()) == []
