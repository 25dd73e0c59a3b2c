"""output.sql in a DuckDB file: the suite, and what is its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.output_model import STEPS, Step, play
from trucker.adapters.duckdb import DuckDBConnection
from trucker.change import INSERT, TableId
from trucker.errors import TruckFailed
from trucker.failpoint import POINTS, VARIABLE, InjectedError, arm
from trucker.sinks.base import Workspace
from trucker.sinks.committer import Committer
from trucker.sinks.duckdb import DuckDBSink
from trucker.sinks.target import Target
from trucker.testing.handmade import TextRow, copied_rows_of, schema_of
from trucker.testing.suites.output_suite import ORDERS, SUMS, OutputSqlSuite, output_target, row
from trucker.testing.suites.sink_suite import START
from trucker.types import Unfit


class TestDuckDBOutputSql(OutputSqlSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> DuckDBSink:
        connection = DuckDBConnection(name="duck", adapter="duckdb", path=self.folder / "data.duckdb")
        return DuckDBSink(connection, Workspace(project, self.folder / project))

    def execute(self, *statements: str) -> None:
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            found = connection.execute(statement).fetchall()
        return [tuple(None if cell is None else str(cell) for cell in row) for row in found]

    def leftovers(self) -> int:
        return len(list((self.folder / "suite").glob("*")))


class Place(TestDuckDBOutputSql):
    """The suite's means on one file."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder


@pytest.fixture
def own(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_outlives_the_transaction_is_refused(own: Place) -> None:
    own.execute("create table totals (id integer, n integer)")
    statements = (
        *("begin transaction", "attach 'x.duckdb' as x", "use x", "set threads = 2", "pragma version", "vacuum"),
        *("copy totals to 'x.csv'", "export database 'x'", "load json", "prepare p as select 1", "execute p"),
    )
    found = {statement: own.refused(f"{SUMS};{statement}").code for statement in statements}
    assert found == dict.fromkeys(statements, "TRK481")


def test_the_guess_at_a_missing_table_names_no_table_of_truckers(own: Place) -> None:
    refused = own.refused("insert into output_chek select r.id, r.qty from {{ rows }}")
    assert refused.code == "TRK480"
    assert "output_check" not in str(refused)
    assert refused.remedy == "correct the statement, then run `trucker check`"


def test_statements_that_duckdb_does_not_explain(own: Place) -> None:
    target = output_target("truncate totals; insert into totals select r.id, r.qty from {{ rows }}")
    sink = own.made(target)
    own.send(sink, target, (INSERT, row(9, 3), 0))
    assert own.query("select * from totals") == [("9", "3")]


def test_merge(own: Place) -> None:
    target = output_target(
        "merge into totals using {{ rows }} on totals.id = r.id when matched then update set n = totals.n + r.qty"
        " when not matched then insert values (r.id, r.qty)"
    )
    sink = own.made(target)
    own.send(sink, target, (INSERT, row(1, 3), 0), (INSERT, row(4, 4), 0))
    assert own.query("select * from totals order by id") == [("1", "3"), ("2", "0"), ("3", "0"), ("4", "4")]


def test_a_statement_that_takes_too_long_stops_its_truck(own: Place) -> None:
    target = output_target("select 1;\nselect count(*) from range(1000000000) a, range(1000000) b, {{ rows }}")
    connection = DuckDBConnection.model_validate(
        {"name": "duck", "adapter": "duckdb", "path": own.folder / "data.duckdb", "timeouts": {"statement": 0.2}}
    )
    sink = Committer(DuckDBSink(connection, Workspace("suite", own.folder / "suite")))
    sink.open()
    own.copy(sink, {target: []})
    with pytest.raises(TruckFailed) as caught:
        own.send(sink, target, (INSERT, row(1), 0))
    assert caught.value.code == "TRK485"
    assert "output.sql:2:1: the statement took longer than 0.2 s" in caught.value.message
    assert sink.open()["main"].lsn == START
    sink.close()


def test_slow_statements_are_logged_without_data(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    target = replace(output_target(SUMS), slow_ms=0)
    sink = own.made(target)
    own.send(sink, target, (INSERT, row(1, 12345), 0), (INSERT, row(2, 12345), 0))
    (told,) = [record for record in caplog.records if record.name == "trucker.slow"]
    assert (told.truck, told.file, told.rows) == ("main", "trucks/main/output.sql", 2)  # type: ignore[attr-defined]
    assert "12345" not in caplog.text


def test_a_value_without_a_place_names_its_column(own: Place) -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "v": "integer"}, ["id"])
    plain = output_target("insert into got select r.v from {{ rows }}", schema)
    own.execute("create table got (v integer)")
    sink = own.started(plain)
    given: list[tuple[int, TextRow, int]] = [(INSERT, {"id": "1", "v": "no number"}, 0)]
    batch = own.batch([plain])
    with pytest.raises(TruckFailed) as caught:
        sink.commit(batch, own.write(batch, {plain: [[own.rows_for(schema, *given)]]}))
    assert caught.value.code == "TRK442"
    assert "'v'" in caught.value.message
    assert "no number" not in str(caught.value)
    own.send(sink, replace(plain, unfit=(("v", Unfit.NULL),)), *given)
    assert own.query("select * from got") == [(None,)]


def test_a_constraint_is_named_and_no_value(own: Place) -> None:
    own.execute("create table keyed (id integer primary key)", "insert into keyed values (54321)")
    target = output_target("insert into keyed select r.id from {{ rows }}")
    sink = own.started(target)
    with pytest.raises(TruckFailed) as caught:
        own.send(sink, target, (INSERT, row(54321), 0))
    assert "a unique key" in caught.value.message
    assert "54321" not in str(caught.value)


def test_columns_that_differ_in_capitals(own: Place) -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "Operation": "text"}, ["id"])
    assert own.refused("select 1 from {{ rows }}", schema).code == "TRK437"


def test_the_place_of_an_error_counts_letters(own: Place) -> None:
    error = own.refused("select 'žluťoučký',\n  'kůň', r.qtty from {{ rows }}")
    assert "output.sql:2:10: " in error.message


def test_a_strict_table_may_have_values_of_its_own(own: Place) -> None:
    sink = own.committer()
    sink.open()
    sink.close()
    own.execute(
        "create schema public",
        "create table public.orders (id integer, qty integer, note varchar, made varchar default 'here')",
    )
    target = Target("main", ORDERS, ORDERS.table, strict=True)
    own.copy(sink, {target: [[copied_rows_of(ORDERS, [row(1, 4)])]]})
    sink.close()
    assert own.query("select id, made from public.orders") == [("1", "here")]


@pytest.mark.parametrize("point", [p for p in POINTS if p.startswith("sink.")])
def test_an_error_at_any_point_of_a_commit(own: Place, point: str) -> None:
    """I4: whether it comes before or after the file's own COMMIT, the batch counts once."""
    target = output_target(SUMS)
    sink = own.made(target)
    batch = own.batch([target])
    load = {target: [[own.rows_for(ORDERS, (INSERT, row(1, 2), 0))]]}
    arm({VARIABLE: f"{point}=error"})
    try:
        with pytest.raises(InjectedError):
            sink.commit(batch, own.write(batch, load))
    finally:
        arm({})
    again = own.committer()
    again.open()
    again.commit(batch, own.write(batch, load))
    assert own.totals() == [("2",), ("0",), ("0",)]


@settings(max_examples=8, deadline=None)
@given(steps=STEPS, by_operation=st.booleans())
def test_random_batches_against_a_model(steps: list[Step], by_operation: bool) -> None:
    with TemporaryDirectory() as folder:
        own = Place(Path(folder))
        own.execute("create table history (note varchar, operation varchar, before integer)")
        play(own, steps, by_operation=by_operation)
