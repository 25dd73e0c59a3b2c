"""Schema changes at the source, each under each policy: what is followed, what stops, and that no value is lost (I8).

Every case is a table of its own, and each policy a truck of its own to it, so that one life of the engine serves all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase
from trucker.project import Project

pytestmark = pytest.mark.spark

POLICIES = ("apply", "stop", "ignore")


@dataclass(frozen=True)
class Case:
    """A change of a table that begins as (id, n, word), with rows 1 to 20.

    `stops` are the policies that stop for it. `shown` are the source's columns as `ignore` has them at a destination.
    """

    name: str
    change: str
    after: str = "insert into {t} (id) values (100)"
    stops: Sequence[str] = ("stop",)
    shown: str = "id, n, word"
    create: str = "create table {t} (id int primary key, n int not null default 0, word varchar(20))"
    says: str = ""
    policies: Sequence[str] = POLICIES

    @property
    def table(self) -> str:
        return f"c_{self.name}"


BOTH = ("apply", "stop")

CASES = (
    Case("add", "alter table {t} add column x text", says='ADD COLUMN "x" text'),
    Case("add_default", "alter table {t} add column x int default 7 not null", says="DEFAULT '7'"),
    Case("add_volatile", "alter table {t} add column x int default (random() * 1000)::int", says='ADD COLUMN "x"'),
    Case("drop", "alter table {t} drop column word", shown="id, n", says='DROP COLUMN "word"'),
    Case("rename", "alter table {t} rename column word to term", stops=BOTH, shown="id, n, term", says="RENAME COLUMN"),
    Case("widen", "alter table {t} alter column n type bigint", says='ALTER COLUMN "n" TYPE bigint'),
    Case("longer", "alter table {t} alter column word type varchar(40)", says="TYPE character varying(40)"),
    Case("to_text", "alter table {t} alter column word type text", says='ALTER COLUMN "word" TYPE text'),
    Case("narrow", "alter table {t} alter column n type smallint", says="trucker reset"),
    Case(
        "other_type",
        "alter table {t} alter column word type date using date '2020-01-01' + id",
        stops=BOTH,
        says='ALTER COLUMN "word" TYPE date',
    ),
    Case("using", "alter table {t} alter column n type bigint using n * 3", says="TYPE bigint"),
    Case("using_same", "alter table {t} alter column n type int using n * 3", says="trucker reset"),
    Case(
        "null",
        "alter table {t} alter column n drop not null",
        "insert into {t} values (100, null, 'x')",
        stops=("stop", "ignore"),
        says='ALTER COLUMN "n" DROP NOT NULL',
    ),
    Case("not_null", "alter table {t} alter column n set not null", stops=()),
    Case("again", "alter table {t} drop column word, add column word varchar(20)", says="trucker reset"),
    Case(
        "in_transaction",
        "begin; insert into {t} values (50, 5, 'before'); alter table {t} add column x int default 3;"
        " update {t} set n = 8 where id = 50; insert into {t} values (51, 5, 'after', 8);"
        " alter table {t} add column y text default 'why'; insert into {t} values (52, 5, 'last', 1, 'y'); commit",
        says='ADD COLUMN "y" text',
    ),
    Case(
        "renamed_in_transaction",
        "begin; insert into {t} values (50, 5, 'before'); alter table {t} rename column word to term;"
        " insert into {t} values (51, 5, 'after'); update {t} set term = 'changed' where id in (1, 50); commit",
        stops=BOTH,
        shown="id, n, term",
        says="RENAME COLUMN",
    ),
    Case(
        "swapped",
        "alter table {t} rename column n to m; alter table {t} rename column word to n;"
        " alter table {t} rename column m to word",
        "insert into {t} (id, n) values (100, 'new')",
        create="create table {t} (id int primary key, n text, word text)",
        says="trucker reset",
    ),
    Case(
        "key",
        "alter table {t} rename column id to key",
        "insert into {t} (key) values (100)",
        stops=BOTH,
        shown="key, n, word",
        says='RENAME COLUMN "id" TO "key"',
    ),
    Case(
        "both",
        "alter table {t} rename column id to key; alter table {t} alter column n type int using n * 3",
        "insert into {t} (key) values (100)",
        stops=BOTH,
        shown="key, n, word",
        says='RENAME COLUMN "id" TO "key"',
    ),
    Case("truncate", "truncate {t}", stops=()),
    Case(
        "partition",
        "create table {t}_2 partition of {t} for values from (21) to (1000)",
        stops=(),
        create="create table {t} (id int primary key, n int not null default 0, word text) partition by range (id);"
        "create table {t}_1 partition of {t} for values from (0) to (21)",
    ),
    Case(
        "enum",
        "alter type mood add value 'glad'",
        "insert into {t} values (100, 1, 'glad')",
        stops=(),
        create="create table {t} (id int primary key, n int not null default 0, word mood)",
        policies=("apply",),  # the others would have to have another type of that name
    ),
)
APART = (
    "add_default",
    "drop",
    "rename",
    "widen",
    "other_type",
    "using",
    "null",
    "again",
    "swapped",
    "both",
    "enum",
)
"""Where DuckDB goes ways of its own."""

REWRITTEN = (
    "add_volatile",
    "widen",
    "narrow",
    "other_type",
    "using",
    "using_same",
    "again",
    "swapped",
    "both",
)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.catalog_watch.LOOK_SECONDS", 0.5)


def _create(database: Database, cases: Sequence[Case]) -> None:
    database.execute("create type mood as enum ('sad', 'ok')")
    for case in cases:
        word = "'ok'" if case.name == "enum" else "'word ' || i"
        database.execute(*case.create.format(t=case.table).split(";"))
        database.execute(f"insert into {case.table} select i, i, {word} from generate_series(1, 20) i")


def _change(database: Database, cases: Sequence[Case]) -> None:
    for case in cases:
        database.execute(case.change.format(t=case.table))
        key = "key" if case.name in ("key", "both") else "id"
        database.execute(f"delete from {case.table} where {key} = 5", case.after.format(t=case.table))


def _truck(project: ProjectFolder, name: str, tables: Sequence[str], connection: str, schema: str, policy: str) -> None:
    project.truck(name, tables, {"connection": connection, "schema": schema})
    file = project.folder / "trucks" / name / "truck.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "schema_changes": policy}))


def _failed(project: ProjectFolder) -> dict[str, str]:
    status = project.status()
    assert status is not None
    return {truck.name: truck.error or "" for truck in status.trucks if truck.phase is TruckPhase.FAILED}


def _statements(error: str) -> list[str]:
    found = re.search(r"next: run (?:at the destination|in the DuckDB file): (.+); then trucker run", error)
    return found[1].split("; ") if found else []


class Place:
    """A destination with a truck of its own for every case and policy."""

    def __init__(
        self, project: ProjectFolder, database: Database, spark: Any, name: str, cases: Sequence[Case]
    ) -> None:
        self.project, self.database, self.spark, self.cases = project, database, spark, cases
        self.trucks = {f"{policy}-{case.name}": (policy, case) for case in cases for policy in case.policies}
        for truck, (policy, case) in self.trucks.items():
            _truck(project, truck, [f"public.{case.table}"], name, policy, policy)

    def live(self, failing: set[str], change: Callable[[], None] | None = None) -> dict[str, str]:
        """Run until just these trucks have failed and all other copies are equal; the errors."""
        raise NotImplementedError

    def rows(self, table: str, names: str) -> Counter[Any]:
        """The rows of a copy as text."""
        raise NotImplementedError

    def execute(self, statement: str) -> None:
        raise NotImplementedError

    def differing(self, failing: set[str]) -> list[str]:
        return [truck for truck, found in self.trucks.items() if truck not in failing and not self._same(*found)]

    def _same(self, policy: str, case: Case) -> bool:
        names, there = case.shown, ", ".join(["id", "n", "word"][: len(case.shown.split(", "))])
        if policy != "ignore":
            found = self.database.query(
                "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute"
                f" where attrelid = '{case.table}'::regclass and attnum > 0 and not attisdropped"
            )
            names = there = found[0][0]
        texts = ", ".join(f"{name}::text" for name in names.split(", "))
        return Counter(self.database.query(f"select {texts} from {case.table}")) == self.rows(
            f"{policy}.{case.table}", there
        )

    def told(self, failing: set[str]) -> str:
        failed = _failed(self.project)
        wrong = {name: error for name, error in failed.items() if name not in failing}
        return f"differ {self.differing(failing)}; failed {wrong}; should have {failing - failed.keys()}"


class Postgres(Place):
    """Changed while it streams."""

    def __init__(self, project: ProjectFolder, database: Database, spark: Any, destination: Database) -> None:
        destination.execute("create type mood as enum ('sad', 'ok')")
        project.connect(postgres("place", destination))
        super().__init__(project, database, spark, "place", CASES)
        self.destination = destination

    def live(self, failing: set[str], change: Callable[[], None] | None = None) -> dict[str, str]:
        with InThread(self.project, self.spark) as run:
            if change is not None:
                run.wait_streaming(120)
                change()

            def reached() -> bool:
                run.check()
                return set(_failed(self.project)) == failing and not self.differing(failing)

            try:
                wait_until(reached, 90, 0.3)
            except AssertionError:
                pytest.fail(self.told(failing))
            return _failed(self.project)

    def rows(self, table: str, names: str) -> Counter[Any]:
        texts = ", ".join(f"{name}::text" for name in names.split(", "))
        return Counter(self.destination.query(f"select {texts} from {table}"))

    def execute(self, statement: str) -> None:
        self.destination.execute(statement)


class Lake(Place):
    """Changed while it is down."""

    def __init__(
        self, project: ProjectFolder, database: Database, spark: Any, path: Path, cases: Sequence[Case]
    ) -> None:
        project.connect({"name": "place", "adapter": "duckdb", "path": str(path)})
        super().__init__(project, database, spark, "place", cases)
        self.path = path

    def live(self, failing: set[str], change: Callable[[], None] | None = None) -> dict[str, str]:
        if change is not None:
            InThread(self.project, self.spark, once=True).join()
            change()
        InThread(self.project, self.spark, once=True).join()
        assert set(_failed(self.project)) == failing, self.told(failing)
        assert not self.differing(failing), self.told(failing)
        return _failed(self.project)

    def rows(self, table: str, names: str) -> Counter[Any]:
        texts = ", ".join(f"{name}::varchar" for name in names.split(", "))
        with duckdb.connect(str(self.path)) as lake:
            return Counter(lake.execute(f"select {texts} from {table}").fetchall())

    def execute(self, statement: str) -> None:
        with duckdb.connect(str(self.path)) as lake:
            lake.execute(statement)


def _follow(place: Place, at_ease: set[str]) -> None:
    """Stop for what must stop, run what the stop says, and end equal."""
    stopping = {f"{policy}-{case.name}" for case in place.cases for policy in case.stops} - at_ease
    stale = {f"stop-{case.name}" for case in place.cases if case.name in REWRITTEN}
    errors = place.live(stopping, lambda: _change(place.database, place.cases))
    for truck, error in errors.items():
        policy, case = place.trucks[truck]
        told = case.says in error if isinstance(place, Postgres) else "[TRK425]" in error
        assert told or policy == "ignore" or "[TRK426]" in error, error
        for statement in _statements(error):
            place.execute(statement)
        if policy == "ignore":
            place.execute(f"alter table ignore.{case.table} alter column n drop not null")
    # Rows that the source has written anew are not copied by themselves where the policy is to stop.
    errors = place.live(stale)
    assert all("[TRK426]" in error and "trucker reset" in error for error in errors.values()), errors
    Project.load(place.project.folder).reset(sorted(stale))
    place.live(set())


def test_every_change_under_every_policy_into_postgres(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """What stops says what to run; once that has been run, the truck goes on and nothing is missing (I8)."""
    _create(database, CASES)
    _follow(Postgres(project, database, spark, destination), set())


def _into_duckdb(project: ProjectFolder, database: Database, tmp_path: Path, spark: Any, cases: Sequence[Case]) -> None:
    """DuckDB's VARCHAR holds whatever the words become, and its tables have no NOT NULL."""
    _create(database, cases)
    at_ease = {"stop-longer", "stop-to_text", "stop-null", "ignore-null", "apply-other_type"}
    _follow(Lake(project, database, spark, tmp_path / "lake.duckdb", cases), at_ease)


def test_changes_under_every_policy_into_duckdb(
    project: ProjectFolder, database: Database, tmp_path: Path, spark: Any
) -> None:
    """As into PostgreSQL, for a trucker that was down meanwhile (I8)."""
    _into_duckdb(project, database, tmp_path, spark, [case for case in CASES if case.name in APART])


@pytest.mark.soak
def test_every_change_under_every_policy_into_duckdb(
    project: ProjectFolder, database: Database, tmp_path: Path, spark: Any
) -> None:
    """All of them (I8)."""
    _into_duckdb(project, database, tmp_path, spark, CASES)
