"""Random DDL among random changes: under `apply` the copies equal the source at every quiet point.

What stops a truck is what must stop it; the statements it says are run, and it goes on. Set TRUCKER_SEED to repeat a
run. What is random: the changes of shape (also in transactions, also several at once), the rows, how far trucker has
come with what was before, and when it is stopped and started again.
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
from fixtures.waiting import wait_until
from trucker.change import Lsn
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark

TABLES = ("s0", "s1", "s2")
KINDS = {"int": "{}", "bigint": "{}", "text": "'v{}'", "varchar(30)": "'w{}'"}
WIDER = {"int": "bigint", "varchar(30)": "text"}
CHANGES = ("add", "add_default", "add_volatile", "rename", "swap", "drop", "again", "widen", "using", "text", "nothing")


class Shapes:
    """Tables of a key and some columns, the last without a key, and what may happen to them."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.dice = database, random.Random(seed)
        self._names = 0
        self.columns: dict[str, dict[str, str]] = {}
        self.keys = dict.fromkeys(TABLES, "id")
        self._used = {table: {"c0", "c1", "c2"} for table in TABLES}
        for table in TABLES:
            key = "" if table == TABLES[-1] else " primary key"
            self.columns[table] = {"c0": "int", "c1": "text", "c2": "varchar(30)"}
            database.execute(f"create table {table} (id int{key}, c0 int, c1 text, c2 varchar(30))")
        database.execute(f"alter table {TABLES[-1]} replica identity full")

    def step(self) -> None:
        table = self.dice.choice(TABLES)
        chance = self.dice.random()
        if chance < 0.8:
            self.database.execute(self._row(table))
        elif chance < 0.9:
            self.database.execute(*self._ddl(table))
        elif chance < 0.92:
            self.database.execute(f"{self.dice.choice(('vacuum full', 'truncate'))} {table}")
        else:
            pieces = [self._row(table), *self._ddl(table), self._row(table), *self._ddl(table), self._row(table)]
            self.database.execute(f"begin; {'; '.join(pieces)}; commit")

    def touch(self) -> Lsn:
        """A change of every table: the stream tells a shape with the first row in it. The last commit is after this."""
        for table in TABLES:
            ((before,),) = self.database.query("select pg_current_wal_insert_lsn()::text")
            self.database.execute(f"insert into {table} ({self.keys[table]}) values ({self._number()})")
        return Lsn.parse(before)

    def _number(self) -> int:
        self._names += 1
        return 1000 + self._names

    def _name(self, table: str, first: str) -> str:
        """A new name, or one that another column had."""
        self._names += 1
        free = sorted(self._used[table] - self.columns[table].keys() - {self.keys[table]})
        name = self.dice.choice(free) if free and self.dice.random() < 0.3 else f"{first}{self._names}"
        self._used[table].add(name)
        return name

    def _row(self, table: str) -> str:
        columns, key, number = self.columns[table], self.keys[table], self._number()
        values = {name: KINDS[kind].format(self.dice.randrange(100)) for name, kind in columns.items()}
        one = self.dice.choice(list(columns))
        names, cells = ("".join(f", {each}" for each in part) for part in (values, values.values()))
        some = f"{key} % 7 = {self.dice.randrange(7)}"
        return self.dice.choice(
            (
                f"insert into {table} ({key}{names}) values ({number}{cells})",
                f"insert into {table} ({key}) select i from generate_series({number * 1000}, {number * 1000 + 5}) i",
                f"update {table} set {one} = {values[one]} where {some}",
                f"delete from {table} where {some} and {key} % 3 = 0",
            )
        )

    def _ddl(self, table: str) -> list[str]:
        columns = self.columns[table]
        kind = self.dice.choice(CHANGES[:3] if len(columns) < 3 else CHANGES)
        alter = f"alter table {table}"
        if kind.startswith("add"):
            name, made = self._name(table, "n"), self.dice.choice(list(KINDS))
            columns[name] = made
            return [f"{alter} add column {name} {made}{self._default(kind, made)}"]
        name, other = self.dice.sample(list(columns), 2)
        if kind == "rename":
            return [f"{alter} rename column {self._renamed(table, name)}"]
        if kind == "swap":
            columns[name], columns[other] = columns[other], columns[name]
            pairs = ((name, "passing"), (other, name), ("passing", other))
            return [f"{alter} rename column {old} to {new}" for old, new in pairs]
        if kind in ("drop", "again"):
            made = columns.pop(name)
            if kind == "drop":
                return [f"{alter} drop column {name}"]
            columns[name] = made
            return [f"{alter} drop column {name}", f"{alter} add column {name} {made}"]
        return self._retyped(alter, kind, columns, name)

    def _default(self, kind: str, made: str) -> str:
        varied = f"(random() * 1000)::{made}"
        constant = KINDS[made].format(7)
        return {"add": "", "add_default": f" default {constant}", "add_volatile": f" default {varied}"}[kind]

    def _renamed(self, table: str, name: str) -> str:
        """One of the columns, now and then the key."""
        called = self._name(table, "r")
        if self.dice.random() < 0.2:
            name, self.keys[table] = self.keys[table], called
        else:
            self.columns[table][called] = self.columns[table].pop(name)
        return f"{name} to {called}"

    def _retyped(self, alter: str, kind: str, columns: dict[str, str], name: str) -> list[str]:
        was = columns[name]
        if kind == "widen" and was in WIDER:
            columns[name] = WIDER[was]
            return [f"{alter} alter column {name} type {columns[name]}"]
        if kind == "using" and was in ("int", "bigint"):
            return [f"{alter} alter column {name} type {was} using {name} + 1"]
        if kind == "text" and was in ("int", "bigint"):
            columns[name] = "text"
            return [f"{alter} alter column {name} drop default", f"{alter} alter column {name} type text"]
        return [f"{alter} alter column {name} set statistics 10"]


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
    """Also where no row was changed after the last change of shape."""
    for _ in range(100):  # a stop for each of the changes that stop
        InThread(project, spark, once=True).join()
        if not _answer(project, destination, lake):
            break
    else:
        pytest.fail("it stops again and again")
    assert differences(shapes.database, destination, TABLES) == ""
    assert _lake_differences(shapes.database, lake) == []


def _lives(shapes: Shapes, project: ProjectFolder, destination: Database, lake: Path, spark: Any, steps: int) -> None:
    for _ in range(shapes.dice.randrange(steps)):
        shapes.step()
    with InThread(project, spark) as run:
        for _ in range(shapes.dice.randrange(steps)):
            shapes.step()
            if shapes.dice.random() < 0.1:
                _follows(run, shapes.touch())
        run.check()
    _answer(project, destination, lake)


def _follows(run: InThread, lsn: Lsn) -> None:
    """Wait until every truck is past `lsn`, or has stopped."""

    def passed() -> bool:
        trucks = [run.truck(name) for name in ("replica", "lake")]
        return all(t and (t.phase is TruckPhase.FAILED or Lsn.parse(t.position or "0/0") > lsn) for t in trucks)

    wait_until(passed, 60)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def copies(project: ProjectFolder, destination: Database, lake: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectFolder:
    monkeypatch.setattr("trucker.engine.project.catalog_watch.LOOK_SECONDS", 0.3)
    monkeypatch.setattr("trucker.engine.project.project_run.STATUS_SECONDS", 0.1)
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    for name in ("replica", "lake"):
        project.truck(name, ["public.*"], {"connection": name})
        project.sql(name, {}, on_table_failure="truck")  # what stops is answered, and all goes on in order
    return project


def test_shapes_change_at_random(
    copies: ProjectFolder, database: Database, destination: Database, lake: Path, spark: Any
) -> None:
    shapes = Shapes(database, chosen_seed())
    _all_equal(shapes, copies, destination, lake, spark)
    for _ in range(2):
        _lives(shapes, copies, destination, lake, spark, 50)
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
