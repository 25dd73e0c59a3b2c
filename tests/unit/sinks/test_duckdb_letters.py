"""Rows that a DuckDB destination refuses: set aside with the position, folded, redriven (I3, I4, I7, I8)."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fixtures.strict import BATCHES, MOST, TARGETS, Action, StrictDestination, run_model
from trucker.adapters.duckdb import DuckDBConnection
from trucker.change import Lsn, TableId
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.duckdb import DuckDBSink
from trucker.sinks.duckdb.dialect import DuckDBDialect
from trucker.sinks.letters import Letter
from trucker.sinks.sql.letter_table import LetterTable
from trucker.testing.handmade import changes_of, insert
from trucker.testing.suites.sink_suite import START, TargetLoad

TIGHT = (
    "CREATE SCHEMA public",
    "CREATE TABLE public.parents (id INTEGER, name VARCHAR)",
    "CREATE TABLE public.orders (id INTEGER, name VARCHAR, qty INTEGER CHECK (qty >= 0 AND qty < 30000), "
    "note VARCHAR CHECK (length(note) < 5), code VARCHAR, parent INTEGER)",
    "CREATE TABLE public.heap (a INTEGER CHECK (a >= 0), b VARCHAR CHECK (length(b) < 5))",
)
LOOSE = ("orders", "heap")
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


class StrictDuckDB(StrictDestination):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    @property
    def file(self) -> Path:
        return self.folder / f"{self.number}.duckdb"

    def make_sink(self, project: str = "suite") -> Sink:
        connection = DuckDBConnection(name="duck", adapter="duckdb", path=self.file)
        folder = self.folder / "spool"
        folder.mkdir(exist_ok=True)
        return DuckDBSink(connection, Workspace(project, folder))

    def tighten(self) -> None:
        self.number += 1
        self._execute(*TIGHT)

    def mend(self) -> None:
        """DuckDB drops no constraint: the tables are made anew without."""
        for table in LOOSE:
            self._execute(
                f"CREATE TABLE public.loose AS FROM public.{table}",
                f"DROP TABLE public.{table}",
                f"ALTER TABLE public.loose RENAME TO {table}",
            )

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        with duckdb.connect(str(self.file)) as connection:
            found = connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM {table.quoted}")
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def letters(self) -> list[Letter]:
        with duckdb.connect(str(self.file)) as connection:
            return LetterTable(DuckDBDialect(), "suite").read(connection, "main")

    def _execute(self, *statements: str) -> None:
        with duckdb.connect(str(self.file)) as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.fixture
def strict(tmp_path: Path) -> StrictDuckDB:
    return StrictDuckDB(tmp_path)


@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
@given(batches=BATCHES)
def test_only_refused_rows_are_set_aside(strict: StrictDuckDB, batches: list[list[list[Action]]]) -> None:
    """The destination is the source less the letters, at every batch; mended and redriven, it is the source."""
    run_model(strict, batches)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(max_examples=300, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=SLOW)
@given(batches=BATCHES)
def test_what_is_refused_is_set_aside_for_long(strict: StrictDuckDB, batches: list[list[list[Action]]]) -> None:
    run_model(strict, batches)


def test_values_that_do_not_fit_are_all_that_is_set_aside(strict: StrictDuckDB) -> None:
    """Several are found at once: each by its own number, whatever has been set aside before it."""
    orders = TARGETS[0]
    cells = {"name": "x", "note": None, "code": None, "parent": None}
    rows = [{"id": str(n), "qty": "99999999999" if n in (3, 4, 9, 40) else "1", **cells} for n in range(50)]
    sink = strict.begin()
    load: TargetLoad = {
        orders: [[changes_of(orders.source, [insert(row) for row in rows], lsn=Lsn(START + 0x100 - 8))]]
    }
    batch = strict.with_letters(strict.batch(tuple(load), 1), MOST)
    sink.commit(batch, strict.write(batch, load))
    sink.close()
    assert sorted(letter.data["id"] or "" for letter in strict.letters()) == ["3", "4", "40", "9"]
    assert len(strict.rows(orders.table)) == 46
