"""A task's share of a copy, from a real source into a real destination, without Spark: rows pass unread (I6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.postgres_sink import read_rows
from fixtures.source_rows import schema_of
from fixtures.type_values import all_kinds, columns_of, create, create_user_types, fill
from fixtures.waiting import wait_until
from trucker.change import Lsn, TableId
from trucker.engine.destination import task_sinks
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.snapshot.snapshot_task import copy_share, finish_copy
from trucker.engine.task.payload import CopyBatch, CopyPart, Outcome
from trucker.engine.transform.assignment import Assignment
from trucker.errors import DataError, TruckFailed
from trucker.postgres.catalog import load_table
from trucker.postgres.connect import connect
from trucker.postgres.slot import create_slot
from trucker.postgres.snapshot import RawChunk, enter_snapshot, plan_chunks
from trucker.postgres.source import PostgresSource
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.sinks.committer import Committer
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.copy import raw_copy
from trucker.sinks.postgres.session import close_idle
from trucker.sinks.target import Target

ROWS = TableId("public", "rows")
SMALL, LARGE = 1_000, 20 << 20


class Copying:
    """One attempt at copying a table, as the driver and one task go about it."""

    def __init__(self, source: Database, destination: Database, table: TableId, snapshot: str, name: str) -> None:
        self.sink = PostgresSink(destination.connection, Workspace("project", Path("unused")))
        self.committer = Committer(self.sink)
        self.committer.open()
        self._source = source.connection
        self._destination = destination.connection
        self._table = table
        self._snapshot = snapshot
        self._name = name
        self.target = Target("truck", schema_of(source.connection, table), table)

    def begin(self, size: int = SMALL, letters: Mapping[str, int] | None = None) -> None:
        self.sink.prepare(self.target)
        self._letters = letters or {}
        slot = (self.target.truck, self._table)
        self.sink.expect_copies({slot: size})
        self.committer.commit(self._batch(Phase.COPYING), [])

    def copy(self, chunk_bytes: int = 50_000) -> Outcome:
        with connect(self._source, application="test") as connection:
            enter_snapshot(connection, self._snapshot)
            chunks = plan_chunks(connection, load_table(connection, self._table), chunk_bytes)
        parts = [CopyPart(index, chunk, [self._assignment]) for index, chunk in enumerate(chunks)]
        return copy_share(self._shared, tuple(parts))

    def finish(self) -> Outcome:
        return finish_copy(self._shared, self._assignment)

    def end(self, outcome: Outcome) -> None:
        self.committer.commit(self._batch(Phase.STREAMING), outcome.receipts["destination"])

    @property
    def _assignment(self) -> Assignment:
        return Assignment("destination", self.target, Lsn(7))

    @property
    def _shared(self) -> CopyBatch:
        spec = SinkSpec(self._destination, Workspace("project", Path("unused")))
        batches = {"destination": self._batch(Phase.STREAMING)}
        return CopyBatch(
            PostgresSource(self._source, "project"), self._snapshot, Lsn(7), batches, {"destination": spec}
        )

    def unfinished(self, outcome: Outcome) -> set[bool]:
        """What the sink says of the receipts."""
        return {self.sink.unfinished(receipt) for receipt in outcome.receipts["destination"]}

    def _batch(self, phase: Phase) -> Batch:
        tables = {(self.target.truck, self._table): TableState(phase, Lsn(7))}
        positions = {self.target.truck: Lsn(7)} if phase is Phase.STREAMING else {}
        return Batch(
            Lsn(7),
            Lsn(7),
            positions,
            tables,
            (self.target,),
            self._name,
            dead_letters=self._letters,
        )


@contextmanager
def copying(source: Database, destination: Database, table: TableId = ROWS, name: str = "one") -> Iterator[Copying]:
    # A name for each: the one before may take a moment to go.
    with create_slot(source.connection, f"trucker_{source.name}_{name}", temporary=True) as exported:
        yield Copying(source, destination, table, exported.snapshot, name)


@pytest.fixture(autouse=True)
def _no_sinks_left(destination: Database) -> Iterator[None]:
    yield
    for _, sink in task_sinks._sinks.by_name.values():
        sink.close()
    task_sinks._sinks.by_name.clear()
    close_idle(destination.connection)


def test_rows_of_all_sizes_pass(database: Database, destination: Database) -> None:
    """Several chunks over one connection, and a row larger than a block."""
    database.execute(
        "create table rows (id int primary key, note text)",
        "insert into rows select i, repeat(md5(i::text), i % 40) from generate_series(1, 5000) i",
        "insert into rows values (0, null), (-1, repeat('x', 3000000)), (-2, ''), (-3, E'd\\n\\\\.\\n')",
    )
    with copying(database, destination) as attempt:
        attempt.begin()
        attempt.end(attempt.copy())
    assert by_id(destination, ROWS) == by_id(database, ROWS)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_connection_that_is_cut_in_the_middle(
    database: Database, destination: Database, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """I2, I4: what was on its way does not count, and the next attempt is whole."""
    cut: list[int] = []
    victim = database if side == "source" else destination
    like = "trucker copy" if side == "source" else "trucker"
    take = RawChunk.__next__

    def cutting(chunk: RawChunk) -> bytes:
        if chunk in started and not cut:
            cut.extend(
                pid
                for (pid,) in victim.query(
                    f"select pid from pg_stat_activity where application_name = '{like}' and datname ="
                    " current_database() and query like 'copy%' and pg_terminate_backend(pid, 5000)"
                )
            )
        started.append(chunk)
        return take(chunk)

    started: list[RawChunk] = []
    database.execute(
        "create table rows (id int primary key, note text)",
        "insert into rows select i, repeat('x', 900) from generate_series(1, 30000) i",
    )
    with monkeypatch.context() as patched, copying(database, destination) as attempt:
        patched.setattr(RawChunk, "__next__", cutting)
        attempt.begin()
        outcome = attempt.copy(1 << 30)
    assert len(cut) == 1
    assert [failure.error.transient for failure in outcome.failures] == [True]
    with copying(database, destination, name="two") as attempt:
        attempt.begin()
        attempt.end(attempt.copy())
    assert by_id(destination, ROWS) == by_id(database, ROWS)


def test_a_table_that_is_not_there_any_more(database: Database, destination: Database) -> None:
    """COPY has begun at the source when the destination refuses it: nothing of it is left open."""
    database.execute("create table rows (id int primary key)", "insert into rows select generate_series(1, 5000)")
    with copying(database, destination) as attempt:
        attempt.begin()
        destination.execute("drop table rows")
        outcome = attempt.copy()
        assert outcome.failures
        assert not outcome.receipts.get("destination")
    wait_until(
        lambda: (
            database.query(
                "select count(*) from pg_stat_activity where application_name = 'trucker copy'"
                " and datname = current_database()"
            )
            == [(0,)]
        )
    )


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each part passed was in binary."""
    found: list[bool] = []
    take = raw_copy.Passage.take

    def noted(self: raw_copy.Passage, *arguments: Any) -> int:
        found.append(bool(self.types))
        return take(self, *arguments)

    monkeypatch.setattr(raw_copy.Passage, "take", noted)
    return found


def key_of(destination: Database) -> list[Any]:
    found = destination.query(
        "select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid = 'rows'::regclass"
        " and contype = 'p'"
    )
    late = destination.query("select count(*) from trucker.late_keys")
    return [*found, *late]


WITH_KEY: list[Any] = [("rows_pkey", "PRIMARY KEY (id)"), (0,)]
WITHOUT: list[Any] = [(1,)]


def by_id(database: Database, table: TableId) -> list[dict[str, str | None]]:
    return sorted(read_rows(database, table), key=lambda row: int(row["id"] or 0))


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_every_type_arrives_as_it_was(
    any_database: Database, destination: Database, formats: list[bool], binary: bool
) -> None:
    """In binary those that may be, from either version; with any other type beside them all of them as text."""
    with any_database.connect() as connection:
        create_user_types(connection)
        columns = columns_of(all_kinds(connection))
        connection.execute("select setseed(0.3)")
        connection.execute(create("public.every", columns).encode())
        connection.execute(fill("public.every", columns, rows=120).encode())
    with destination.connect() as connection:
        create_user_types(connection)
    every = TableId("public", "every")
    if binary:
        others = [
            c.name for c in schema_of(any_database.connection, every).columns if c.type_oid not in raw_copy.BINARY
        ]
        any_database.execute(*(f'alter table every drop column "{name}"' for name in others))
        kinds = {column.type_oid for column in schema_of(any_database.connection, every).columns}
        assert kinds == raw_copy.BINARY
    with copying(any_database, destination, every) as run:
        run.begin()
        outcome = run.copy()
        assert not outcome.failures
        run.end(outcome)
    assert set(formats) == {binary}
    assert len(formats) > 3
    assert by_id(destination, every) == by_id(any_database, every)


def test_columns_of_another_type_there_are_read_as_text(
    database: Database, destination: Database, formats: list[bool]
) -> None:
    """A wider type, a domain, a computed column, one with a default that the source has not."""
    database.execute(
        "create table rows (id int primary key, n int, computed int, t text)",
        "insert into rows select i, i, i, 'x' || i from generate_series(1, 10) i",
    )
    destination.execute(
        "create domain short as text check (length(value) < 9)",
        "create table rows (more text default 'own', t short, id bigint primary key, n int,"
        " computed bigint generated always as (n * 2) stored)",
    )
    with copying(database, destination) as run:
        run.begin()
        run.end(run.copy())
    assert formats == [False]
    found = destination.query("select id, n, computed, t, more from rows order by id")
    assert found == [(i, i, 2 * i, f"x{i}", "own") for i in range(1, 11)]


def test_rows_that_are_refused_are_found_and_the_rest_is_copied(
    database: Database, destination: Database, formats: list[bool]
) -> None:
    """The part is read a second time, in pieces; the next one goes over the same session again (I8)."""
    database.execute(
        "create table rows (id int primary key, n int, filling text)",
        "insert into rows select i, i, repeat('x', 500) from generate_series(1, 400) i",
    )
    destination.execute("create table rows (id int primary key, n int check (n <> 17), filling text)")
    with copying(database, destination) as run:
        run.begin(letters={"truck": 10})
        outcome = run.copy()
        assert not outcome.failures
        run.end(outcome)
    assert len(formats) > 3
    assert destination.query("select count(*) from rows") == [(399,)]
    assert destination.query("select data ->> 'n' from trucker.dead_letters") == [("17",)]
    assert sum(receipt.rows for receipt in outcome.receipts["destination"]) == 400


def test_a_refused_row_without_letters_is_named(database: Database, destination: Database) -> None:
    database.execute("create table rows (id int primary key, n int)", "insert into rows values (1, 1), (2, 17)")
    destination.execute("create table rows (id int primary key, n int check (n <> 17))")
    with copying(database, destination) as run:
        run.begin()
        (failure,) = run.copy().failures
    assert isinstance(failure.error, DataError)
    assert "id = 2" in str(failure.error)
    assert destination.query("select count(*) from rows") == [(0,)]


def test_a_part_is_copied_once(database: Database, destination: Database) -> None:
    """A task that Spark repeats finds what the first one did (I4)."""
    database.execute("create table rows (id int)", "insert into rows select generate_series(1, 1000)")
    with copying(database, destination) as run:
        run.begin()
        first, second = run.copy(), run.copy()
        assert first.receipts == second.receipts
        run.end(second)
    assert destination.query("select count(*) from rows") == [(1000,)]


def test_a_part_that_a_crash_took_has_the_table_copied_again(database: Database, destination: Database) -> None:
    """Parts do not wait for the disk: a server that crashes may lose the last of them, each with its record (I6)."""
    database.execute("create table rows (id int)", "insert into rows select generate_series(1, 9000)")
    with copying(database, destination) as run:
        run.begin()
        outcome = run.copy()
        destination.execute("delete from trucker.chunks where part = 1")
        with pytest.raises(TruckFailed) as lost:
            run.end(outcome)
    assert lost.value.reason.transient
    assert destination.query("select phase from trucker.tables") == [("copying",)]


def test_text_is_converted_between_encodings(server: Any, destination: Database, formats: list[bool]) -> None:
    """Binary text is in the connection's encoding, as COPY's text is."""
    name = f"{destination.name}_latin"
    with server.connect("postgres") as connection:
        connection.execute(f"create database {name} encoding 'LATIN1' template template0 locale 'C'".encode())
    try:
        latin = Database(server, name, server.connection("source", name))
        latin.execute("create table rows (id int primary key, t text)", "insert into rows values (1, 'größe')")
        with copying(latin, destination) as run:
            run.begin()
            run.end(run.copy())
    finally:
        server.drop_database(name)
    assert formats == [True]
    assert destination.query("select t from rows") == [("größe",)]


# -- the key of a large table ------------------------------------------------------------------------------------------


@pytest.fixture
def rows(database: Database) -> Database:
    database.execute(
        "create table rows (id int primary key, t text)",
        "insert into rows select i, 'x' || i from generate_series(1, 5000) i",
    )
    return database


@pytest.mark.parametrize("finished", [True, False], ids=["by a task", "by the commit"])
def test_a_large_table_gets_its_key_at_the_end(rows: Database, destination: Database, finished: bool) -> None:
    with copying(rows, destination) as run:
        run.begin(LARGE)
        assert key_of(destination) == WITHOUT
        outcome = run.copy()
        assert run.unfinished(outcome) == {True}
        if finished:
            assert not run.finish().failures
            assert not run.finish().failures, "a task may be repeated"
            assert key_of(destination) == WITH_KEY
        run.end(outcome)
    assert key_of(destination) == WITH_KEY
    assert by_id(destination, ROWS) == by_id(rows, ROWS)


def test_a_copy_that_broke_off_begins_from_an_empty_table(rows: Database, destination: Database) -> None:
    """By another process, which knows of the key from the destination alone (I4)."""
    with copying(rows, destination) as run:
        run.begin(LARGE)
        run.copy()
    rows.execute("delete from rows where id > 10")
    with copying(rows, destination, name="two") as run:
        run.begin(LARGE)
        assert key_of(destination) == WITHOUT
        assert destination.query("select count(*) from rows") == [(0,)]
        outcome = run.copy()
        run.finish()
        run.end(outcome)
    assert key_of(destination) == WITH_KEY
    assert by_id(destination, ROWS) == by_id(rows, ROWS)


def test_the_key_comes_back_where_it_is_not_to_wait_any_more(rows: Database, destination: Database) -> None:
    """The first attempt was of a large table, the second is not."""
    with copying(rows, destination) as run:
        run.begin(LARGE)
        run.copy()
    with copying(rows, destination, name="two") as run:
        run.begin(SMALL)
        assert key_of(destination) == WITH_KEY
        outcome = run.copy()
        assert run.unfinished(outcome) == {False}
        run.end(outcome)


def test_a_truck_that_is_reset_in_the_middle(rows: Database, destination: Database) -> None:
    """What is there is half a copy, and not an earlier one that readers would keep (I6)."""
    with copying(rows, destination) as run:
        run.begin(LARGE)
        run.copy()
        run.committer.commit(Batch(Lsn(0), Lsn(0), forget=("truck",)), [])
    with copying(rows, destination, name="two") as run:
        run.begin(LARGE)
        assert destination.query("select count(*) from rows") == [(0,)]
        run.end(run.copy())
    assert key_of(destination) == WITH_KEY
    assert by_id(destination, ROWS) == by_id(rows, ROWS)


def test_a_truck_that_goes_elsewhere_in_the_middle(rows: Database, destination: Database) -> None:
    """The table that was begun gets its key back; the one it goes to now is the user's and keeps its own."""
    with copying(rows, destination) as run:
        run.begin(LARGE)
        run.copy()
    destination.execute("create table other (id int primary key, t text)")
    with copying(rows, destination, name="two") as run:
        run.target = replace(run.target, table=TableId("public", "other"))
        run.begin(LARGE)
        assert key_of(destination) == WITH_KEY
        assert run.unfinished(run.copy()) == {False}


@pytest.mark.parametrize("why", ["small", "somebody else's", "letters"])
def test_the_key_stays_where_it_is_needed(rows: Database, destination: Database, why: str) -> None:
    """In a table of the user's own nothing is touched; a row that is set aside is known by the key it meets."""
    if why == "somebody else's":
        destination.execute("create table rows (id int primary key, t text)")
    with copying(rows, destination) as run:
        run.begin(SMALL if why == "small" else LARGE, {"truck": 10} if why == "letters" else {})
        assert key_of(destination) == WITH_KEY


def test_a_key_that_is_not_unique_is_named(database: Database, destination: Database) -> None:
    """A truck may be told which columns are the key, and be told wrong."""
    database.execute("create table rows (id int, t text)", "insert into rows values (1, 'a'), (4711, 'b'), (4711, 'c')")
    with copying(database, destination) as run:
        run.target = replace(run.target, source=replace(run.target.source, key=("id",)))
        run.begin(LARGE)
        run.copy()
        (failure,) = run.finish().failures
    assert isinstance(failure.error, DataError)
    assert "id = 4711" in str(failure.error)
    assert failure.error.code == "TRK406"
