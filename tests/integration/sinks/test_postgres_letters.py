"""Rows that a PostgreSQL destination refuses: set aside with the position, folded, redriven (I3, I4, I7, I8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fixtures.pg import Database, new_database
from fixtures.postgres_sink import read_rows
from fixtures.strict import BATCHES, MOST, TARGETS, Action, StrictDestination, run_model
from trucker.change import Lsn, TableId
from trucker.engine.transform.compact import compact
from trucker.errors import SinkUnavailable, TruckFailed
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.committer import Committer
from trucker.sinks.letters import Letter
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.letters import letter_table
from trucker.sinks.postgres.session import Session, close_idle, session
from trucker.sinks.target import Target
from trucker.sinks.transactional.isolation import Isolation
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, update
from trucker.testing.server import Server
from trucker.testing.suites.sink_suite import START, TargetLoad, target_of

TIGHT = (
    "drop schema if exists trucker cascade",
    "drop table if exists orders, parents, heap",
    "create table parents (id int primary key, name text)",
    """create table orders (id int primary key, name text constraint named check (name is not null),
        qty smallint check (qty >= 0), note varchar(4), code text unique, parent int)""",
    "create table heap (a smallint check (a >= 0), b varchar(4))",
)
LOOSE = (
    """alter table orders drop constraint named, drop constraint orders_qty_check, alter qty type int,
        alter note type text, drop constraint orders_code_key, drop constraint orders_parent_fkey""",
    "alter table heap drop constraint heap_a_check, alter a type int, alter b type text",
)


class StrictPostgres(StrictDestination):
    def __init__(self, database: Database) -> None:
        self.database = database

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, Path("unused")))

    def tighten(self) -> None:
        close_idle(self.database.connection)
        self.database.execute(*TIGHT)

    def tighten_more(self) -> None:
        """Between tables that are copied there can be no foreign key; what does not keep it now is not looked at."""
        self.database.execute(
            "alter table orders add constraint orders_parent_fkey foreign key (parent) references parents not valid"
        )

    def mend(self) -> None:
        self.database.execute(*LOOSE)

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        return read_rows(self.database, table)

    def letters(self) -> list[Letter]:
        with session(self.database.connection) as lent:
            return letter_table.load(lent, "suite", ["main"])


@pytest.fixture(scope="module")
def strict(server: Server) -> Iterator[StrictPostgres]:
    for database in new_database(server, "destination"):
        found = StrictPostgres(database)
        yield found
        close_idle(database.connection)


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
@given(batches=BATCHES)
def test_only_refused_rows_are_set_aside(strict: StrictPostgres, batches: list[list[list[Action]]]) -> None:
    """The destination is the source less the letters, at every batch; mended and redriven, it is the source."""
    run_model(strict, batches)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(max_examples=300, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=SLOW)
@given(batches=BATCHES)
def test_what_is_refused_is_set_aside_for_long(strict: StrictPostgres, batches: list[list[list[Action]]]) -> None:
    run_model(strict, batches)


# -- one thing at a time ----------------------------------------------------------------------------------------------

ORDERS_TO, PARENTS_TO, _ = TARGETS


def order(number: int, **cells: str | None) -> dict[str, str | None]:
    return {"id": str(number), "name": "x", "qty": "1", "note": None, "code": None, "parent": None, **cells}


def apply(
    strict: StrictPostgres, sink: Committer, changes: Mapping[Target, Sequence[Change]], step: int, most: int
) -> None:
    load: TargetLoad = {
        t: [[changes_of(t.source, made, lsn=Lsn(START + 0x100 * step - 8))]] for t, made in changes.items()
    }
    batch = strict.with_letters(strict.batch(tuple(load), step), most)
    sink.commit(batch, strict.write(batch, load))


def keys(strict: StrictPostgres) -> list[str | None]:
    return [letter.data["id"] for letter in strict.letters()]


def test_one_bad_row_among_many_costs_few_statements(strict: StrictPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part so large that it is staged in a table; halves down to the row, not row by row."""
    sink = strict.begin()
    tries = []
    whole = Isolation._try
    monkeypatch.setattr(Isolation, "_try", lambda self, work: (tries.append(1), whole(self, work))[1])
    rows = [insert(order(number, name="n" * 200)) for number in range(20_000)]
    rows[12_345] = insert(order(12_345, qty="-1"))
    rows[17] = insert(order(17, qty="99999"))
    apply(strict, sink, {ORDERS_TO: rows}, 1, MOST)
    assert sorted(keys(strict), key=str) == ["12345", "17"]
    assert {(x.reason.sqlstate, x.reason.constraint, x.reason.column) for x in strict.letters()} == {
        ("23514", "orders_qty_check", None),
        ("22003", None, "qty"),
    }
    assert len(strict.rows(ORDERS_TO.table)) == 19_998
    assert len(tries) < 80
    assert strict.database.query("select count(*) from pg_tables where tablename ~ '^s_'") == [(0,)]
    sink.close()


def test_more_than_it_may_have_stops_the_truck(strict: StrictPostgres) -> None:
    sink = strict.begin()
    bad = [insert(order(number, qty="-1")) for number in range(3)]
    apply(strict, sink, {ORDERS_TO: [bad[0], insert(order(9))]}, 1, 2)
    with pytest.raises(TruckFailed) as failed:
        apply(strict, sink, {ORDERS_TO: [*bad[1:], insert(order(10))]}, 2, 2)
    assert failed.value.code == "TRK470"
    assert keys(strict) == ["0"]
    assert [row["id"] for row in strict.rows(ORDERS_TO.table)] == ["9"]
    apply(strict, sink, {ORDERS_TO: [*bad[1:], insert(order(10))]}, 2, 3)
    assert keys(strict) == ["0", "1", "2"]
    sink.close()


@pytest.mark.parametrize("before", [True, False], ids=["before the commit", "after it"])
def test_a_crash_at_the_commit(strict: StrictPostgres, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """Letters come with the position, or not at all; repeating the batch changes nothing (I3, I4)."""
    sink = strict.begin()
    load: TargetLoad = {
        ORDERS_TO: [[changes_of(ORDERS_TO.source, [insert(order(1)), insert(order(2, qty="-1"))], lsn=Lsn(START + 9))]]
    }
    batch = strict.with_letters(strict.batch([ORDERS_TO]))
    receipts = strict.write(batch, load)
    real = Session.run

    def crash(self: Session, statement: str, *parameters: object) -> Any:
        if statement != "commit":
            return real(self, statement, *parameters)
        if not before:
            real(self, statement)
        self.connection.close()
        raise psycopg.OperationalError("the line is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "run", crash)
        with pytest.raises(SinkUnavailable):
            sink.commit(batch, receipts)
    assert keys(strict) == ([] if before else ["2"])
    again = strict.committer()
    assert again.open()["main"].lsn == (START if before else batch.end)
    again.commit(batch, receipts)
    again.commit(batch, receipts)
    assert keys(strict) == ["2"]
    assert [row["id"] for row in strict.rows(ORDERS_TO.table)] == ["1"]
    again.close()


def test_rows_that_only_came_too_early_are_no_letters(strict: StrictPostgres) -> None:
    """A child before its parent, values that change hands, a circle of deferred constraints; beside a bad row."""
    sink = strict.begin()
    first = [insert(order(1, code="u")), insert(order(2, code="v")), insert(order(3))]
    apply(strict, sink, {ORDERS_TO: first}, 1, MOST)
    strict.database.execute(
        "alter table parents add likes int, add favourite int references orders deferrable initially deferred",
        "alter table parents drop likes",
    )
    swapped = [
        update(order(1, code="v")),
        update(order(2, code="u")),
        update(order(3, qty="-1")),
        insert(order(4, parent="7")),
    ]
    apply(strict, sink, {ORDERS_TO: swapped, PARENTS_TO: [insert({"id": "7", "name": "late"})]}, 2, MOST)
    assert keys(strict) == ["3"]
    assert {row["id"]: row["code"] for row in strict.rows(ORDERS_TO.table)} == {
        "1": "v",
        "2": "u",
        "3": None,
        "4": None,
    }
    gone = [delete({"id": "4"}), update(order(3, qty="5"))]
    apply(strict, sink, {ORDERS_TO: gone, PARENTS_TO: [delete({"id": "7"})]}, 3, MOST)
    assert keys(strict) == []
    assert strict.rows(PARENTS_TO.table) == []
    sink.close()


def test_a_key_of_equal_value_and_another_text(strict: StrictPostgres) -> None:
    """The letter of 1.0 goes with its row; the row of 1.00, which is the same to PostgreSQL, stays."""
    strict.begin().close()
    priced = schema_of(TableId("public", "priced"), {"id": "numeric not null", "n": "integer"}, ["id"])
    target = target_of(priced)
    strict.database.execute(
        "drop table if exists priced", "create table priced (id numeric primary key, n int check (n > 0))"
    )
    sink = strict.committer()
    sink.open()
    strict.copy(sink, {target: []}, name="priced", at=Lsn(START + 0x1000))
    apply(strict, sink, {target: [insert({"id": "1.0", "n": "-1"})]}, 17, MOST)
    assert keys(strict) == ["1.0"]
    moved = update({"id": "1.00", "n": "2"}, {"id": "1.0"})
    batch = strict.with_letters(strict.batch([target], 18))
    net = compact([changes_of(priced, [moved], lsn=Lsn(START + 0x100 * 18 - 8))])
    sink.commit(batch, strict.write(batch, {target: [list(net)]}))
    assert keys(strict) == []
    assert strict.rows(priced.table) == [{"id": "1.00", "n": "2"}]
    sink.close()
