"""Random DDL among random changes: under `apply` the copies equal the source at every quiet point.

What stops a truck is what must stop it; the statements it says are run, and it goes on. Set TRUCKER_SEED to repeat a
run. What is random: the changes of shape (also in transactions, also several at once), the rows, and when trucker is
stopped and started again.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed, differences
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark

TABLES = ("s0", "s1", "s2")
KINDS = {"int": "{}", "bigint": "{}", "text": "'v{}'", "varchar(30)": "'w{}'"}
WIDER = {"int": "bigint", "varchar(30)": "text"}


class Shapes:
    """Tables of (id, …), the last without a key, and what may happen to them."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.dice = database, random.Random(seed)
        self._names = 0
        self.columns: dict[str, dict[str, str]] = {}
        for table in TABLES:
            key = "" if table == TABLES[-1] else " primary key"
            self.columns[table] = {"c0": "int", "c1": "text", "c2": "varchar(30)"}
            database.execute(f"create table {table} (id int{key}, c0 int, c1 text, c2 varchar(30))")
        database.execute(f"alter table {TABLES[-1]} replica identity full")

    def step(self) -> None:
        table = self.dice.choice(TABLES)
        chance = self.dice.random()
        if chance < 0.85:
            self.database.execute(self._row(table))
        elif chance < 0.93:
            self.database.execute(*self._ddl(table))
        else:
            pieces = [self._row(table), *self._ddl(table), self._row(table), *self._ddl(table), self._row(table)]
            self.database.execute(f"begin; {'; '.join(pieces)}; commit")

    def touch(self) -> None:
        """A change of every table: the stream tells a shape with the first row in it."""
        for table in TABLES:
            self.database.execute(f"insert into {table} (id) values ({self._number()})")

    def _number(self) -> int:
        self._names += 1
        return 1000 + self._names

    def _row(self, table: str) -> str:
        columns, number = self.columns[table], self._number()
        values = {name: KINDS[kind].format(self.dice.randrange(100)) for name, kind in columns.items()}
        one = self.dice.choice(list(columns)) if columns else "id"
        names, cells = ("".join(f", {each}" for each in part) for part in (values, values.values()))
        some = f"id % 7 = {self.dice.randrange(7)}"
        return self.dice.choice(
            (
                f"insert into {table} (id{names}) values ({number}{cells})",
                f"insert into {table} (id) select i from generate_series({number * 1000}, {number * 1000 + 5}) i",
                f"update {table} set {one} = {values.get(one, number)} where {some}" if columns else "select 1",
                f"delete from {table} where {some} and id % 3 = 0",
            )
        )

    def _ddl(self, table: str) -> list[str]:
        columns = self.columns[table]
        kinds = ["add", "add_default", "add_volatile", "rename", "drop", "again", "widen", "using", "vacuum"]
        kind = self.dice.choice(kinds[:3] if len(columns) < 2 else kinds)
        alter = f"alter table {table}"
        if kind.startswith("add"):
            self._names += 1
            name, made = f"n{self._names}", self.dice.choice(list(KINDS))
            columns[name] = made
            constant, varied = KINDS[made].format(7), f"(({KINDS[made].format(5)})::text || '0')::{made}"
            if made in ("int", "bigint"):
                varied = f"(random() * 1000)::{made}"
            default = {"add": "", "add_default": f" default {constant}", "add_volatile": f" default {varied}"}[kind]
            return [f"{alter} add column {name} {made}{default}"]
        name = self.dice.choice(list(columns))
        if kind == "rename":
            self._names += 1
            columns[f"r{self._names}"] = columns.pop(name)
            return [f"{alter} rename column {name} to r{self._names}"]
        if kind == "drop":
            del columns[name]
            return [f"{alter} drop column {name}"]
        if kind == "again":
            made = columns.pop(name)
            columns[name] = made
            return [f"{alter} drop column {name}", f"{alter} add column {name} {made}"]
        if kind == "widen" and columns[name] in WIDER:
            columns[name] = WIDER[columns[name]]
            return [f"{alter} alter column {name} type {columns[name]}"]
        if kind == "using" and columns[name] in ("int", "bigint"):
            return [f"{alter} alter column {name} type {columns[name]} using {name} + 1"]
        return [f"comment on table {table} is 'nothing'"]


def _answer(project: ProjectFolder, destination: Database, lake: Path) -> bool:
    """Run what a stopped truck says; whether one had stopped."""
    status = project.status()
    assert status is not None
    stopped = [truck for truck in status.trucks if truck.phase is TruckPhase.FAILED]
    for truck in stopped:
        error = truck.error or ""
        found = re.search(r"next: run (at the destination|in the DuckDB file): (.+); then trucker run", error)
        assert found, error
        for statement in found[2].split("; "):
            if found[1] == "at the destination":
                destination.execute(statement)
            else:
                with duckdb.connect(str(lake)) as store:
                    store.execute(statement)
    return bool(stopped)


def _lake_differences(source: Database, lake: Path) -> list[str]:
    found = []
    for table in TABLES:
        ((names,),) = source.query(
            "select string_agg(attname || '::text', ', ' order by attnum) from pg_attribute"
            f" where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
        )
        with duckdb.connect(str(lake), read_only=True) as store:
            copied = Counter(store.execute(f"select {names} from public.{table}").fetchall())
        expected = Counter(source.query(f"select {names} from {table}"))
        if expected != copied:
            lost, more = expected - copied, copied - expected
            found.append(f"lake {table}: lacks {lost.most_common(3)}, has {more.most_common(3)} too many")
    return found


def _all_equal(shapes: Shapes, project: ProjectFolder, destination: Database, lake: Path, spark: Any) -> None:
    shapes.touch()
    for _ in range(12):  # a stop for each of the changes that stop
        InThread(project, spark, once=True).join()
        if not _answer(project, destination, lake):
            break
    assert differences(shapes.database, destination, TABLES) == ""
    assert _lake_differences(shapes.database, lake) == []


def _lives(shapes: Shapes, project: ProjectFolder, destination: Database, lake: Path, spark: Any, steps: int) -> None:
    for _ in range(shapes.dice.randrange(steps)):
        shapes.step()
    with InThread(project, spark) as run:
        for _ in range(shapes.dice.randrange(steps)):
            shapes.step()
        run.check()
    _answer(project, destination, lake)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def copies(project: ProjectFolder, destination: Database, lake: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectFolder:
    monkeypatch.setattr("trucker.engine.shape_watch.LOOK_SECONDS", 0.3)
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    for name in ("replica", "lake"):
        project.truck(name, ["public.*"], {"connection": name})
    return project


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_shapes_change_at_random(
    copies: ProjectFolder, database: Database, destination: Database, lake: Path, spark: Any
) -> None:
    shapes = Shapes(database, chosen_seed())
    _all_equal(shapes, copies, destination, lake, spark)
    for _ in range(2):
        _lives(shapes, copies, destination, lake, spark, 60)
    _all_equal(shapes, copies, destination, lake, spark)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_shapes_change_at_random_for_long(
    copies: ProjectFolder, database: Database, destination: Database, lake: Path, spark: Any
) -> None:
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    shapes = Shapes(database, chosen_seed())
    _all_equal(shapes, copies, destination, lake, spark)
    while time.monotonic() < deadline:
        for _ in range(3):
            _lives(shapes, copies, destination, lake, spark, 120)
        _all_equal(shapes, copies, destination, lake, spark)
