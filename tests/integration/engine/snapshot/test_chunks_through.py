"""Chunks that a commit brings with changes, from a real source into a real destination, without Spark: their rows pass
unread through a file (I3, I6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.pg import Database
from fixtures.postgres_sink import read_rows
from fixtures.source_rows import schema_of
from fixtures.type_values import all_kinds, columns_of, create, create_user_types, fill
from trucker.change import Lsn, TableId
from trucker.engine.destination import task_sinks
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.snapshot.snapshot_task import copy_share
from trucker.engine.task.payload import CopyBatch, CopyPart, Outcome
from trucker.engine.transform.assignment import Assignment
from trucker.errors import DataError, TruckFailed
from trucker.postgres.catalog import load_table
from trucker.postgres.connect import connect
from trucker.postgres.snapshot import plan_chunks
from trucker.postgres.source import PostgresSource
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.sinks.committer import Committer
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.copy.raw_copy import BINARY
from trucker.sinks.postgres.session import close_idle
from trucker.sinks.sql.staged_text import Chunk
from trucker.sinks.target import Target

ROWS = TableId("public", "rows")
PAIRS = "create table rows (id int primary key, n int)"
STAGED = "chunks"
BEFORE, BEHIND = "0.0.0.0", "1.1.1.1"


class Chunks:
    """Chunks of a table, as the driver and one task go about them."""

    def __init__(self, source: Database, destination: Database, folder: Path) -> None:
        self.workspace = Workspace("project", folder, near=True)
        self.sink = PostgresSink(destination.connection, self.workspace)
        self.committer = Committer(self.sink)
        self.committer.open()
        self.target = Target("truck", schema_of(source.connection, ROWS), ROWS)
        self._source = source.connection
        self._destination = destination.connection
        self._slot = ("truck", ROWS)

    def begin(self) -> None:
        """The table is there, and none of it is copied."""
        self.sink.prepare(self.target)
        for state in (TableState(Phase.COPYING, Lsn(7)), TableState(Phase.CATCHING_UP, Lsn(7), BEFORE)):
            batch = Batch(Lsn(7), Lsn(7), tables={self._slot: state}, targets=(self.target,), staged_as="copy")
            self.committer.commit(batch, ())

    def stage(self, chunk_bytes: int = 50_000, letters: Mapping[str, int] | None = None) -> Outcome:
        with connect(self._source, application="test") as connection:
            chunks = plan_chunks(connection, load_table(connection, ROWS), chunk_bytes)
        assignment = Assignment("destination", self.target, Lsn(7))
        shared = CopyBatch(
            PostgresSource(self._source, "project"),
            "",
            Lsn(7),
            {"destination": Batch(Lsn(7), Lsn(7), staged_as=STAGED, dead_letters=letters or {})},
            {"destination": SinkSpec(self._destination, self.workspace)},
        )
        return copy_share(shared, tuple(CopyPart(index, chunk, [assignment]) for index, chunk in enumerate(chunks)))

    def commit(self, outcome: Outcome, letters: Mapping[str, int] | None = None) -> None:
        """With the cursor, as a lane does."""
        assert not outcome.failures
        state = TableState(Phase.CATCHING_UP, Lsn(8), BEHIND)
        batch = Batch(
            Lsn(7),
            Lsn(8),
            tables={self._slot: state},
            targets=(self.target,),
            dead_letters=letters or {},
            staged_as=STAGED,
        )
        self.committer.commit(batch, outcome.receipts["destination"])

    @property
    def cursor(self) -> str:
        return self.committer.open()["truck"].tables[ROWS].cursor

    @property
    def files(self) -> list[Path]:
        return list(self.workspace.folder.glob("*"))


def chunks_of(outcome: Outcome) -> list[Chunk]:
    return [chunk for receipt in outcome.receipts["destination"] for chunk in receipt.staged]


@contextmanager
def staging(source: Database, destination: Database, folder: Path) -> Iterator[Chunks]:
    yield Chunks(source, destination, folder)
    for _, sink in task_sinks._sinks.by_name.values():
        sink.close()
    task_sinks._sinks.by_name.clear()
    close_idle(destination.connection)


@pytest.fixture
def chunks(database: Database, destination: Database, tmp_path: Path) -> Iterator[Chunks]:
    database.execute(PAIRS, "insert into rows select i, i % 7 from generate_series(1, 4000) i")
    with staging(database, destination, tmp_path / "spool") as chunks:
        yield chunks


def by_id(database: Database) -> list[dict[str, str | None]]:
    return sorted(read_rows(database, ROWS), key=lambda row: int(row["id"] or 0))


def rows(database: Database) -> list[tuple[object, ...]]:
    return database.query("select id::text, n::text from rows order by id")


def test_rows_pass_in_binary_with_the_cursor(chunks: Chunks, database: Database, destination: Database) -> None:
    chunks.begin()
    outcome = chunks.stage()
    staged = chunks_of(outcome)
    assert len(staged) > 1
    assert {chunk.types for chunk in staged} == {(23, 23)}
    assert chunks.files
    assert rows(destination) == []
    chunks.commit(outcome)
    assert rows(destination) == rows(database)
    assert chunks.cursor == BEHIND
    assert not chunks.files


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_every_type_arrives_as_it_was(database: Database, destination: Database, tmp_path: Path, binary: bool) -> None:
    """In binary those that may be; with any other type beside them all of them as text."""
    with database.connect() as connection:
        create_user_types(connection)
        columns = columns_of(all_kinds(connection))
        connection.execute("select setseed(0.3)")
        connection.execute(create("public.rows", columns).encode())
        connection.execute(fill("public.rows", columns, rows=120).encode())
    with destination.connect() as connection:
        create_user_types(connection)
    if binary:
        others = [c.name for c in schema_of(database.connection, ROWS).columns if c.type_oid not in BINARY]
        database.execute(*(f'alter table rows drop column "{name}"' for name in others))
    with staging(database, destination, tmp_path / "spool") as chunks:
        chunks.begin()
        outcome = chunks.stage()
        assert {bool(chunk.types) for chunk in chunks_of(outcome)} == {binary}
        chunks.commit(outcome)
    assert by_id(destination) == by_id(database)


def test_a_chunk_without_rows_leaves_no_file(chunks: Chunks, database: Database, destination: Database) -> None:
    database.execute("delete from rows")
    chunks.begin()
    outcome = chunks.stage()
    assert [receipt.rows for receipt in outcome.receipts["destination"]] == [0] * len(outcome.receipts["destination"])
    assert not chunks.files
    chunks.commit(outcome)
    assert chunks.cursor == BEHIND


def test_rows_that_are_there_already_are_replaced(chunks: Chunks, database: Database, destination: Database) -> None:
    """From an earlier attempt, or from the stream."""
    chunks.begin()
    destination.execute("insert into rows values (5, 99), (4000, 98)")
    chunks.commit(chunks.stage())
    assert rows(destination) == rows(database)


@pytest.mark.parametrize("type_", ["bigint", "text", "numeric(9, 2)"])
def test_a_column_whose_type_changed_after_its_rows_were_staged(
    chunks: Chunks, database: Database, destination: Database, type_: str
) -> None:
    """Binary values of another type would be taken for other values."""
    chunks.begin()
    outcome = chunks.stage()
    destination.execute(f"alter table rows alter n type {type_}")
    chunks.sink.open()  # which looks at the tables again
    chunks.commit(outcome)
    assert destination.query("select id, n::numeric::int from rows order by id") == database.query(
        "select id, n from rows order by id"
    )


@pytest.mark.parametrize("type_", ["int", "bigint"])
def test_a_row_that_is_refused_is_named(chunks: Chunks, database: Database, destination: Database, type_: str) -> None:
    database.execute("update rows set n = -1 where id = 1234")
    chunks.begin()
    outcome = chunks.stage()
    destination.execute(f"alter table rows alter n type {type_}", "alter table rows add check (n >= 0)")
    chunks.sink.open()
    with pytest.raises(TruckFailed) as caught:
        chunks.commit(outcome)
    assert isinstance(caught.value.reason, DataError)
    assert "id = 1234" in str(caught.value.reason)
    assert rows(destination) == []
    assert chunks.cursor == BEFORE


def test_of_a_truck_that_sets_rows_aside_each_has_its_place(
    chunks: Chunks, database: Database, destination: Database
) -> None:
    """A letter says where its row stood in the stream, which COPY's bytes do not."""
    database.execute("update rows set n = -1 where id = 1234")
    chunks.begin()
    destination.execute("alter table rows add check (n >= 0)")
    outcome = chunks.stage(letters={"truck": 10})
    assert {chunk.types for chunk in chunks_of(outcome)} == {()}
    chunks.commit(outcome, letters={"truck": 10})
    assert destination.query("select count(*) from rows") == [(3999,)]
    assert destination.query("select data ->> 'id' from trucker.dead_letters") == [("1234",)]
