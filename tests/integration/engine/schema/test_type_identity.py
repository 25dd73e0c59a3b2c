"""Every type, every edge value and random ones, in tables of random shapes, through copy and stream (I4, I6, I8).

PostgreSQL is the oracle: what its output functions write of the source must be what they write of the destination, or
of what the destination holds once PostgreSQL has read it. TRUCKER_SEED repeats a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.type_oracle import json_rows
from fixtures.type_source import Source, unsettle
from fixtures.type_values import create_user_types
from trucker.errors import TruckerError
from trucker.testing.server import Server

pytestmark = pytest.mark.spark
MIB = 1 << 20


@pytest.fixture
def bare(server: Server) -> Iterator[Database]:
    """A destination that has none of the users' types."""
    yield from new_database(server, "bare")


@dataclass(frozen=True)
class Everywhere:
    """A project that takes every table of its source to every kind of destination."""

    project: ProjectFolder
    replica: Database
    bare: Database
    lake: Path
    lines: Path

    def take(self, source: Source) -> None:
        with self.replica.connect() as connection:
            create_user_types(connection)
        unsettle(self.replica)
        unsettle(self.bare)
        self.project.connect(
            postgres("replica", self.replica),
            postgres("bare", self.bare),
            {"name": "lake", "adapter": "duckdb", "path": str(self.lake)},
            {"name": "lines", "adapter": "jsonl", "path": str(self.lines)},
        )
        as_text = {name: {"unfit": "text"} for name in source.unfit()}
        self.project.truck("replica", ["public.*"], {"connection": "replica"})
        self.project.truck("bare", ["public.*"], {"connection": "bare"})
        self.project.truck("lake", ["public.*"], {"connection": "lake", "columns": as_text})
        self.project.truck("lines", ["public.*"], {"connection": "lines"})

    def differences(self, source: Source) -> str:
        return source.compared(postgres=[self.replica, self.bare], lake=self.lake, lines=self.lines / "lines")

    def run_once(self, spark: Any) -> None:
        """Take all there is; no truck may fail."""
        InThread(self.project, spark, once=True).join(timeout=600)
        status = self.project.status()
        assert status is not None
        assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


@pytest.fixture
def everywhere(project: ProjectFolder, destination: Database, bare: Database, tmp_path: Path) -> Everywhere:
    return Everywhere(project, destination, bare, tmp_path / "lake.duckdb", tmp_path / "lines")


def _copied_and_streamed(source: Source, everywhere: Everywhere, spark: Any) -> None:
    everywhere.take(source)
    everywhere.run_once(spark)
    assert everywhere.differences(source) == ""
    source.change()
    everywhere.run_once(spark)
    assert everywhere.differences(source) == ""


def test_every_type_is_the_same_everywhere(database: Database, everywhere: Everywhere, spark: Any) -> None:
    """Copied, then streamed: the source's text in PostgreSQL, with and without its types, in DuckDB and in JSON."""
    source = Source(database, chosen_seed(), rows=50, large=2 * MIB)
    _copied_and_streamed(source, everywhere, spark)
    _same_types(source, everywhere.replica)


def test_a_value_that_does_not_fit_and_the_ways_on(
    database: Database, project: ProjectFolder, spark: Any, tmp_path: Path
) -> None:
    """The truck stops and says why, the other goes on; with a policy it goes on, and nothing is lost (I8)."""
    lake = tmp_path / "lake.duckdb"
    database.execute(
        "create table prices (id int primary key, price numeric(10,2), seen timestamptz)",
        "insert into prices values (1, 1.50, '2026-01-02 03:04:05+00')",
    )
    project.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.connect({"name": "lines", "adapter": "jsonl", "path": str(tmp_path / "lines")})
    project.truck("lake", ["public.prices"], {"connection": "lake"})
    project.truck("lines", ["public.prices"], {"connection": "lines", "columns": {"price": {"unfit": None}}})
    InThread(project, spark, once=True).join()
    database.execute("insert into prices values (2, 'NaN', 'infinity'), (3, 2, '294276-01-01')")
    stopped = _errors(project, spark)
    assert list(stopped) == ["lake"]
    assert "TRK442" in stopped["lake"]
    assert "'price' of table public.prices is DECIMAL(10,2), which cannot hold NaN" in stopped["lake"]
    policies = {"price": {"unfit": "text"}, "seen": {"unfit": None}}
    project.truck("lake", ["public.prices"], {"connection": "lake", "columns": policies})
    assert _errors(project, spark) == {}
    with duckdb.connect(str(lake), read_only=True) as connection:
        found = connection.execute(
            "SELECT id, price, left(seen::VARCHAR, 19) FROM public.prices ORDER BY id"
        ).fetchall()
    assert found == [(1, "1.50", "2026-01-02 03:04:05"), (2, "NaN", "infinity"), (3, "2.00", None)]
    rows = json_rows(tmp_path / "lines" / "lines")["prices"]
    assert [str(rows[key]["price"]) for key in sorted(rows)] == ["1.50", "None", "2.00"]


def _errors(project: ProjectFolder, spark: Any) -> dict[str, str]:
    """What trucks stopped at."""
    with suppress(TruckerError):
        InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    return {truck.name: truck.error for truck in status.trucks if truck.error}


@pytest.mark.soak
def test_every_type_of_postgresql_16(database16: Database, everywhere: Everywhere, spark: Any) -> None:
    """An older source."""
    everywhere.project.config["connections"] = []
    everywhere.project.connect(postgres("source", database16))
    _copied_and_streamed(Source(database16, chosen_seed(), rows=100, large=MIB), everywhere, spark)


@pytest.mark.soak
@pytest.mark.parametrize("_time", range(10))
def test_every_type_again_and_again(database: Database, everywhere: Everywhere, spark: Any, _time: int) -> None:
    """Other shapes, other values, many rows."""
    _copied_and_streamed(Source(database, chosen_seed(), rows=500, large=MIB), everywhere, spark)


@pytest.mark.soak
def test_values_of_a_hundred_megabytes(database: Database, everywhere: Everywhere, spark: Any) -> None:
    """JSON, text and bytea of 100 MB each, more than a batch should be, in one row."""
    _copied_and_streamed(Source(database, chosen_seed(), rows=3, large=100 * MIB), everywhere, spark)


def _same_types(source: Source, destination: Database) -> None:
    """The tables that trucker made have the source's types, but for domains and names of the source's objects."""
    query = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute a join pg_class c on c.oid = attrelid"
        " join pg_type t on t.oid = atttypid left join pg_type e on e.oid = t.typelem"
        " where relname ~ '^t[0-9]+$' and attnum > 0 and t.typtype <> 'd' and e.typtype is distinct from 'd'"
        " and t.typname !~ '^(reg|aclitem)' order by 1"
    )
    wanted = source.database.query(query)
    assert len(wanted) > 150
    assert dict(wanted).items() <= dict(destination.query(query)).items()
