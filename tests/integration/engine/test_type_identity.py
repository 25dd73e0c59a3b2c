"""Every type, every edge value and random ones, in tables of random shapes, through copy and stream (I4, I6, I8).

PostgreSQL is the oracle: what its output functions write of the source must be what they write of the destination, or
of what the destination holds once PostgreSQL has read it. TRUCKER_SEED repeats a run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.type_oracle import (
    TEXT_FORM,
    Rows,
    differing,
    duckdb_texts,
    duckdb_unfit,
    json_differences,
    json_rows,
    texts,
    typed_again,
)
from fixtures.type_values import (
    NAMES,
    TypedColumn,
    TypeValues,
    all_kinds,
    columns_of,
    create,
    create_user_types,
    fill,
    overwrite,
)
from trucker.testing.server import Server

pytestmark = pytest.mark.spark

# What an application may have set for its database; trucker's sessions must not be touched by it.
ODD_SETTINGS = {
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Africa/Monrovia",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "search_path": "public",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
}
Tables = dict[str, list[TypedColumn]]


def shapes(kinds: Sequence[TypeValues], chance: random.Random) -> Tables:
    """Every type in some table, of any width, in any order; no two columns with the same name."""
    left = list(kinds)
    chance.shuffle(left)
    tables: Tables = {}
    while left:
        width = chance.randrange(3, 30)
        name = f"t{len(tables)}"
        tables[name] = columns_of(left[:width], f"{name}_c")
        left = left[width:]
    return tables


def unsettle(database: Database) -> None:
    settings = (f"alter database {database.name} set {name} = '{value}'" for name, value in ODD_SETTINGS.items())
    database.execute(*settings)


class Source:
    """The source's tables and what happens to them."""

    def __init__(self, database: Database, seed: int, rows: int) -> None:
        self.database = database
        self._chance = random.Random(seed)
        self._rows = rows
        with self._connect() as connection:
            create_user_types(connection)
            self.tables = shapes([*all_kinds(connection), *NAMES], self._chance)
            for name, columns in self.tables.items():
                connection.execute(create(f"public.{name}", columns).encode())
                connection.execute(fill(f"public.{name}", columns, rows=rows).encode())
                if self._chance.random() < 0.5:
                    connection.execute(f"alter table public.{name} replica identity full".encode())
        unsettle(database)

    def _connect(self) -> Any:
        connection = self.database.connect(options=TEXT_FORM)
        connection.execute(f"select setseed({self._chance.random()})".encode())
        return connection

    def change(self) -> None:
        """New rows, other values in old ones, rows whose key moves, rows that go."""
        with self._connect() as connection:
            for name, columns in self.tables.items():
                table = f"public.{name}"
                with connection.transaction():
                    connection.execute(fill(table, columns, rows=self._rows, first=1001).encode())
                    connection.execute(overwrite(table, columns, where="id % 3 = 1", shift=5).encode())
                    connection.execute(f"update {table} set id = id + 5000 where id % 10 = 0".encode())
                    connection.execute(f"delete from {table} where id % 7 = 0".encode())

    def texts(self, name: str, database: Database | None = None) -> Rows:
        return texts(database or self.database, name, [column.name for column in self.tables[name]])

    def in_lake(self, name: str, lake: Path) -> Rows:
        """What DuckDB holds, as PostgreSQL reads it."""
        columns = self.tables[name]
        rows = duckdb_texts(lake, name, [column.name for column in columns])
        return typed_again(self.database, columns, rows)

    def unfit(self) -> list[str]:
        """The columns in which there are values that DuckDB cannot hold."""
        return [column.name for columns in self.tables.values() for column in columns if duckdb_unfit(column.kind.type)]


@pytest.fixture
def bare(server: Server) -> Iterator[Database]:
    """A destination that has none of the users' types."""
    yield from new_database(server, "bare")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "lines"


@pytest.fixture
def source(
    database: Database, destination: Database, bare: Database, lake: Path, lines: Path, project: ProjectFolder
) -> Source:
    """Every type there is, and trucks that take it everywhere."""
    made = Source(database, chosen_seed(), 50)
    with destination.connect() as connection:
        create_user_types(connection)
    unsettle(destination)
    unsettle(bare)
    project.connect(
        postgres("replica", destination),
        postgres("bare", bare),
        {"name": "lake", "adapter": "duckdb", "path": str(lake)},
        {"name": "lines", "adapter": "jsonl", "path": str(lines)},
    )
    as_text = {name: {"unfit": "text"} for name in made.unfit()}
    project.truck("replica", ["public.*"], {"connection": "replica"})
    project.truck("bare", ["public.*"], {"connection": "bare"})
    project.truck("lake", ["public.*"], {"connection": "lake", "columns": as_text})
    project.truck("lines", ["public.*"], {"connection": "lines"})
    return made


def run_once(project: ProjectFolder, spark: Any) -> None:
    """Take all there is; no truck may fail."""
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


def test_every_type_is_the_same_everywhere(
    source: Source,
    destination: Database,
    bare: Database,
    lake: Path,
    lines: Path,
    project: ProjectFolder,
    spark: Any,
) -> None:
    """Copied, then streamed: the source's text in PostgreSQL, with and without its types, in DuckDB and in JSON."""
    run_once(project, spark)
    assert compared(source, destination, bare, lake, lines) == ""
    source.change()
    run_once(project, spark)
    assert compared(source, destination, bare, lake, lines) == ""
    same_types(source, destination)


def compared(source: Source, destination: Database, bare: Database, lake: Path, lines: Path) -> str:
    """What differs, in a few lines."""
    wrong = []
    written = json_rows(lines / "lines")
    for name, columns in source.tables.items():
        wanted = source.texts(name)
        wrong += [f"replica: {each}" for each in differing(wanted, source.texts(name, destination), columns)]
        wrong += [f"bare: {each}" for each in differing(wanted, source.texts(name, bare), columns)]
        wrong += [f"lake: {each}" for each in differing(wanted, source.in_lake(name, lake), columns)]
        wrong += [f"lines: {each}" for each in json_differences(wanted, written.get(name, {}), columns)]
    return "\n".join(wrong[:50])


def same_types(source: Source, destination: Database) -> None:
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
