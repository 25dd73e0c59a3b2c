"""Dead letters of a store that brings nothing but a dialect: the example's sink, for SQLite (I3, I4, I7, I8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from trucker_sqlite.adapter import SqliteConnection
from trucker_sqlite.sink import SqliteDialect, SqliteSink

from fixtures.strict import BATCHES, TARGETS, Action, StrictDestination, run_model
from trucker.change import Lsn, TableId
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.letters import Choice, KeepsLetters, Letter
from trucker.sinks.sql.letter_table import LetterTable
from trucker.sinks.transactional.staged_changes import StagedLoad
from trucker.testing.handmade import changes_of, insert
from trucker.testing.suites.sink_suite import START, TargetLoad

LOOSE = {
    "parents": "id INTEGER PRIMARY KEY, name TEXT",
    "orders": "id INTEGER PRIMARY KEY, name TEXT, qty INTEGER, note TEXT, code TEXT, parent INTEGER",
    "heap": "a INTEGER, b TEXT",
}
TIGHT = {
    **LOOSE,
    "orders": "id INTEGER PRIMARY KEY, name TEXT, qty INTEGER CHECK (qty >= 0 AND qty < 30000), "
    "note TEXT CHECK (length(note) < 5), code TEXT UNIQUE, parent INTEGER",
    "heap": "a INTEGER CHECK (a >= 0), b TEXT CHECK (length(b) < 5)",
}


class StrictSqlite(StrictDestination):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    @property
    def file(self) -> Path:
        return self.folder / f"{self.number}.db"

    def make_sink(self, project: str = "suite") -> Sink:
        connection = SqliteConnection(name="pocket", adapter="sqlite", path=self.file)
        return SqliteSink(connection, Workspace(project, self.folder / "spool"))

    def tighten(self) -> None:
        self.number += 1
        with self._database() as database:
            for table, columns in TIGHT.items():
                database.execute(f'CREATE TABLE "public.{table}" ({columns}) STRICT')

    def mend(self) -> None:
        """SQLite drops no constraint: the tables are made anew without."""
        with self._database() as database:
            for table, columns in LOOSE.items():
                database.execute(f"CREATE TABLE loose ({columns}) STRICT")
                database.execute(f'INSERT INTO loose SELECT * FROM "public.{table}"')
                database.execute(f'DROP TABLE "public.{table}"')
                database.execute(f'ALTER TABLE loose RENAME TO "public.{table}"')

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        with self._database() as database:
            cursor = database.execute(f'SELECT * FROM "{table.schema}.{table.name}"')
            names = [column[0] for column in cursor.description]
            return [
                {name: None if cell is None else str(cell) for name, cell in zip(names, row, strict=True)}
                for row in cursor
            ]

    def letters(self) -> list[Letter]:
        with self._database() as database:
            return LetterTable(SqliteDialect(), "suite").read(database, "main")

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.file)) as database, database:
            yield database


@pytest.fixture
def strict(tmp_path: Path) -> StrictSqlite:
    return StrictSqlite(tmp_path)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(batches=BATCHES)
def test_only_refused_rows_are_set_aside(strict: StrictSqlite, batches: list[list[list[Action]]]) -> None:
    """The destination is the source less the letters, at every batch; mended and redriven, it is the source."""
    run_model(strict, batches)


def test_to_count_and_to_redrive_creates_nothing(strict: StrictSqlite) -> None:
    sink = strict.make_sink()
    assert isinstance(sink, KeepsLetters)
    assert sink.count_letters() == {}
    assert sink.redrive(Choice(("main",)), dry_run=False) == []
    assert not strict.file.exists()


def test_one_bad_row_among_many_costs_few_trials(strict: StrictSqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves down to the row, in one transaction; what fits is applied once."""
    sink = strict.begin()
    orders, trials, apply = TARGETS[0], list[int](), SqliteSink.apply

    def applying(self: SqliteSink, transaction: sqlite3.Connection, load: StagedLoad) -> None:
        trials.append(sum(len(batch) for batch in load.batches()))
        apply(self, transaction, load)

    monkeypatch.setattr(SqliteSink, "apply", applying)
    cells = {"name": "x", "note": None, "code": None, "parent": None}
    rows = [insert({"id": str(n), "qty": "-1" if n in (17, 1234) else "1", **cells}) for n in range(2000)]
    load: TargetLoad = {orders: [[changes_of(orders.source, rows, lsn=Lsn(START + 0x100 - 8))]]}
    batch = strict.with_letters(strict.batch(tuple(load), 1))
    sink.commit(batch, strict.write(batch, load))
    assert sorted(str(letter.data["id"]) for letter in strict.letters()) == ["1234", "17"]
    assert len(strict.rows(orders.table)) == 1998
    assert len(trials) < 60
    sink.close()
