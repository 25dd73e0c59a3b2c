"""output.sql at a PostgreSQL destination: the suite, and what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.documents import ROOT, blocks
from fixtures.output_model import STEPS, Step, play
from fixtures.pg import Database
from trucker.adapters.postgres import PostgresConnection
from trucker.change import INSERT, TableId
from trucker.errors import DataError, SinkError, SinkUnavailable, TruckerError, TruckFailed
from trucker.failpoint import VARIABLE, InjectedError, arm
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import CARRIED, Work
from trucker.sinks.committer import Committer
from trucker.sinks.output_sql import pieces, renderings
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.apply.output_sql import refuse_statement
from trucker.sinks.postgres.session import close_idle, session
from trucker.sinks.target import Target
from trucker.testing.handmade import copied_rows_of, schema_of
from trucker.testing.suites.output_suite import HISTORY, ORDERS, REFUNDS, SUMS, OutputSqlSuite, output_target, row
from trucker.types import Unfit


class TestPostgresOutputSql(OutputSqlSuite):
    @pytest.fixture(autouse=True)
    def fresh(self, destination: Database) -> Iterator[None]:
        self.database = destination
        yield
        close_idle(destination.connection)

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, Path("unused")))

    def execute(self, *statements: str) -> None:
        self.database.execute(*statements)

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        found = self.database.query(statement)
        return [tuple(None if cell is None else str(cell) for cell in row) for row in found]

    def leftovers(self) -> int:
        (found,) = self.database.query(
            "select count(*) from pg_tables where schemaname = 'trucker' and tablename ~ '^[sc]_'"
        )
        return int(found[0])


# -- PostgreSQL's own -----------------------------------------------------------------------------------------------


class Place(TestPostgresOutputSql):
    """The suite's means on one database."""

    __test__ = False

    def __init__(self, database: Database) -> None:
        self.database = database

    def sinks(self, connection: PostgresConnection) -> Committer:
        return Committer(PostgresSink(connection, Workspace("suite", Path("unused"))))


@pytest.fixture
def own(destination: Database) -> Iterator[Place]:
    yield Place(destination)
    close_idle(destination.connection)


OUTLIVING = (
    *("commit and chain", "start transaction", "savepoint a", "release a", "rollback to a", "end work"),
    *("prepare transaction 'x'", "commit prepared 'x'", "set transaction read only", "SET search_path = x"),
    *("set session authorization x", "set local role x", "reset all", "discard all", "deallocate all"),
    *("copy totals from stdin", "listen x", "vacuum totals", "load 'x'", "prepare p as select 1"),
)


@pytest.mark.parametrize("statement", OUTLIVING)
def test_what_outlives_the_transaction_is_refused(statement: str) -> None:
    (rendered,) = renderings(output_target(f"{SUMS};{statement}"), "anywhere")
    first, last = pieces(rendered)
    refuse_statement(first)
    with pytest.raises(SinkError) as caught:
        refuse_statement(last)
    assert caught.value.code == "TRK481"


def test_what_is_local_to_the_transaction_is_allowed(own: Place) -> None:
    target = output_target(f"set local enable_seqscan = off; set constraints all deferred; lock totals; {SUMS}")
    sink = own.made(target)
    own.send(sink, target, (INSERT, row(1, 2), 0))
    assert own.totals() == [("2",), ("0",), ("0",)]


def test_a_transaction_that_ends_inside_is_an_error(own: Place) -> None:
    """PostgreSQL lets no block or procedure commit inside a transaction; nothing is written."""
    own.execute("create procedure ends() language plpgsql as $$ begin commit; end $$")
    for sql in (f"{SUMS}; call ends()", f"{SUMS}; do $$ begin commit; end $$"):
        target = output_target(sql)
        own.execute("drop table if exists totals, history")
        own.execute("drop schema if exists trucker cascade")
        close_idle(own.database.connection)
        sink = own.made(target)
        with pytest.raises(TruckFailed) as caught:
            own.send(sink, target, (INSERT, row(1, 2), 0))
        assert caught.value.code == "TRK480"
        assert own.totals() == [("0",), ("0",), ("0",)]


def test_the_roles_search_path_and_trucker_s_settings_again(own: Place) -> None:
    """The file's names are those the role would see; what it sets for the session does not outlive it."""
    own.execute("create schema mine", "create table mine.seen (path text, zone text)")
    name = own.database.name
    own.execute(f'alter database "{name}" set search_path = mine, public')
    sql = (
        "insert into seen select current_setting('search_path'), current_setting('TimeZone') from {{ rows }};"
        "select set_config('search_path', 'nowhere', false), set_config('TimeZone', 'Asia/Tokyo', false)"
    )
    target = output_target(sql)
    sink = own.started(target)
    for step in (1, 2):
        own.send(sink, target, (INSERT, row(step), 0), step=step)
    assert own.query("select * from mine.seen") == [("mine, public", "UTC")] * 2
    with session(own.database.connection) as lent:
        shown = lent.run("select current_setting('search_path'), current_setting('TimeZone')").fetchone()
        assert shown == ("pg_catalog", "UTC")


def test_a_statement_that_takes_too_long_stops_its_truck(own: Place) -> None:
    timeouts = own.database.connection.timeouts.model_copy(update={"statement": 0.2})
    impatient = own.database.connection.model_copy(update={"timeouts": timeouts})
    target = output_target("select 1;\nselect pg_sleep(60) from {{ rows }}")
    sink = own.sinks(impatient)
    sink.open()
    own.copy(sink, {target: []})
    with pytest.raises(TruckFailed) as caught:
        own.send(sink, target, (INSERT, row(1), 0))
    assert caught.value.code == "TRK485"
    assert "output.sql:2:1: the statement took longer than 0.2 s" in caught.value.message
    assert "timeouts.statement" in caught.value.remedy
    sink.close()


def test_slow_statements_are_logged_without_data(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    target = replace(output_target(SUMS), slow_ms=0)
    sink = own.made(target)
    own.send(sink, target, (INSERT, row(1, 12345), 0), (INSERT, row(2, 12345), 0))
    (told,) = [record for record in caplog.records if record.name == "trucker.slow"]
    assert (told.truck, told.file, told.rows) == ("main", "trucks/main/output.sql", 2)  # type: ignore[attr-defined]
    assert "12345" not in caplog.text


def test_a_lost_connection_passes(own: Place) -> None:
    """The statement's own session is ended: the same batch is committed later, once."""
    target = output_target(
        "do $$ begin if not exists (select from allowed) then"
        f" perform pg_terminate_backend(pg_backend_pid()); end if; end $$; {SUMS}"
    )
    own.execute("create table allowed ()")
    sink = own.made(target)
    batch = own.batch([target])
    receipts = own.write(batch, {target: [[own.rows_for(ORDERS, (INSERT, row(1, 2), 0))]]})
    with pytest.raises(SinkUnavailable):
        sink.commit(batch, receipts)
    own.execute("insert into allowed default values")
    sink.commit(batch, receipts)
    assert own.totals() == [("2",), ("0",), ("0",)]


@pytest.mark.parametrize("snapshot", [False, True])
def test_staged_rows_that_a_crash_of_the_server_emptied_are_staged_again(own: Place, snapshot: bool) -> None:
    target = output_target(SUMS)
    sink = own.made(*(() if snapshot else (target,)))
    if snapshot:
        own.begin_copy(sink, [target])
    batch = own.copied([target]) if snapshot else own.batch([target])
    values = [own.rows_for(ORDERS, (INSERT, row(1, 2), 0))]
    receipt = own.write_part(Work(batch, target, 0, 0), values)
    staged = own.query("select tablename from pg_tables where schemaname = 'trucker' and tablename ~ '^[sc]_'")
    own.execute(*(f'truncate trucker."{name}"' for (name,) in staged))
    with pytest.raises(SinkUnavailable):
        sink.commit(batch, [receipt])
    assert own.totals() == [("0",), ("0",), ("0",)]


def test_types_are_the_sources_where_they_are_known_here(own: Place) -> None:
    """Any other is text; a value that its type does not take stops the truck, unless it is to become NULL or text."""
    own.execute("create type mood as enum ('sad', 'happy')", "create table kinds (name text, kinds text[])")
    columns = {"id": "integer", "m": "public.mood", "u": "public.unknown", "a": "numeric(8,2)[]", "v": "integer"}
    schema = schema_of(TableId("public", "t"), columns, ["id"])
    sql = (
        "insert into kinds select max(r.m::text), array[pg_typeof(max(r.m))::text, pg_typeof(max(r.u))::text,"
        " pg_typeof(max(r.a))::text, max(r.v)::text] from {{ rows }}"
    )
    plain = output_target(sql, schema)
    target = replace(plain, unfit=(("v", Unfit.NULL),))
    sink = own.started(target)
    given = {"id": "1", "m": "happy", "u": "whatever", "a": "{1.5,NULL}", "v": "no number"}
    own.send(sink, target, (INSERT, given, 0))
    assert own.database.query("select * from kinds") == [
        ("happy", ["mood", "text", "numeric[]", None]),
    ]
    for room in (CARRIED, 0):
        batch = own.batch([plain], 2)
        with pytest.raises(TruckerError) as caught:
            sink.commit(
                batch, [own.write_part(Work(batch, plain, 0, room), [own.rows_for(schema, (INSERT, given, 0))])]
            )
        assert "column v" in caught.value.message
        assert "no number" not in str(caught.value)


def test_a_constraint_is_named_and_no_value(own: Place) -> None:
    target = output_target("insert into totals select r.id, r.qty from {{ rows }}")
    sink = own.made(target)
    own.execute("alter table totals add constraint one_each unique (id)")
    with pytest.raises(TruckFailed) as caught:
        own.send(sink, target, (INSERT, row(3, 54321), 0))
    assert "one_each" in caught.value.message
    assert "(3)" not in str(caught.value)
    assert not isinstance(caught.value.reason, DataError)


def test_the_message_of_a_trigger_is_not_shown(own: Place) -> None:
    target = output_target("insert into totals select r.id, r.qty from {{ rows }}")
    sink = own.made(target)
    own.execute(
        "create function says() returns trigger language plpgsql as"
        " $$ begin raise exception 'it was %', new.n using errcode = '42000'; end $$",
        "create trigger says before insert on totals for each row execute function says()",
    )
    with pytest.raises(TruckFailed) as caught:
        own.send(sink, target, (INSERT, row(4, 54321), 0))
    assert "54321" not in str(caught.value)
    assert "42000" in caught.value.message


def test_a_deferred_constraint_blames_its_truck(own: Place) -> None:
    bad = output_target("insert into totals select r.id, r.qty from {{ rows }}")
    good = output_target(HISTORY, REFUNDS, "other")
    sink = own.made(bad, good)
    own.execute("alter table totals add constraint one_each unique (id) deferrable initially deferred")
    batch = own.batch([bad, good])
    load = {target: [[own.rows_for(target.source, (INSERT, row(3, note="x"), 0))]] for target in (bad, good)}
    with pytest.raises(TruckFailed) as caught:
        sink.commit(batch, own.write(batch, load))
    assert caught.value.truck == "main"
    assert own.history() == []


def test_a_strict_table_may_have_values_of_its_own(own: Place) -> None:
    own.execute(
        "create table public.orders (id integer primary key, qty integer, note text, at timestamptz default now(),"
        " number int generated always as identity, twice int generated always as (qty * 2) stored)"
    )
    sink = own.committer()
    sink.open()
    target = Target("main", ORDERS, ORDERS.table, strict=True)
    own.copy(sink, {target: [[copied_rows_of(ORDERS, [row(1, 4)])]]})
    assert own.query("select id, twice, number from orders") == [("1", "8", "1")]


@pytest.mark.parametrize(
    "point", ["sink.position.before", "sink.position.after", "sink.commit.before", "sink.commit.after"]
)
def test_an_error_at_any_point_of_a_commit(own: Place, point: str) -> None:
    """I4: whether it comes before or after the destination's own COMMIT, the batch counts once."""
    target = output_target(SUMS)
    sink = own.made(target)
    batch = own.batch([target])
    receipts = own.write(batch, {target: [[own.rows_for(ORDERS, (INSERT, row(1, 2), 0))]]})
    arm({VARIABLE: f"{point}=error"})
    try:
        with pytest.raises(InjectedError):
            sink.commit(batch, receipts)
    finally:
        arm({})
    again = own.committer()
    again.open()
    again.commit(batch, own.write(batch, {target: [[own.rows_for(ORDERS, (INSERT, row(1, 2), 0))]]}))
    assert own.totals() == [("2",), ("0",), ("0",)]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, by_operation=st.booleans())
def test_random_batches_against_a_model(own: Place, steps: list[Step], by_operation: bool) -> None:
    own.execute(
        "drop schema if exists trucker cascade",
        "drop table if exists history",
        'create table history (note text collate "C", operation text, before integer)',
    )
    close_idle(own.database.connection)
    play(own, steps, by_operation=by_operation)
    assert own.leftovers() == 0


def test_the_guides_examples_fit_their_tables(own: Place) -> None:
    columns = {"id": "integer", "customer": "integer", "amount": "numeric", "status": "text"}
    both = {**columns, **{f"old__{name}": kind for name, kind in columns.items()}}
    schema = schema_of(TableId("public", "orders"), both, ["id"])
    blocks_of = [block.text for block in blocks(ROOT / "docs" / "howto" / "output_sql.md") if block.language == "sql"]
    tables, *files = blocks_of
    own.execute(*filter(str.strip, tables.split(";")))
    sink = own.committer()
    sink.open()
    for number, text in enumerate(files):
        sink.prepare(output_target(text, schema, f"truck{number}"))
    assert len(files) == 3
