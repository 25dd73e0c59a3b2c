"""Partitioned tables: changes are sent by the identity of the table, old rows by the identity of the partition.

What pgoutput sends, on PostgreSQL 16 and 18: `O` or `K` by the table's identity, in both cases with the columns that
the partition's identity holds, and NULL for the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import differences
from fixtures.waiting import wait_until
from trucker.finding import Finding, Level
from trucker.observe.status import TruckPhase
from trucker.project import Project
from trucker.testing.server import Server

pytestmark = pytest.mark.spark

KEYLESS = "create table {0} (id int, n int not null, long text) partition by range (id)"
KEYED = "create table {0} (id int primary key, n int not null, long text) partition by range (id)"
LEAVES = (
    "create table {0}_1 partition of {0} for values from (0) to (100)",
    "create table {0}_2 partition of {0} for values from (100) to (200)",
)
FULL = "alter table {0}{1} replica identity full"

TABLES: dict[str, tuple[str, ...]] = {
    "keyless_leaves_full": (KEYLESS, *LEAVES, FULL.format("{0}", "_1"), FULL.format("{0}", "_2")),
    "keyless_root_full": (KEYLESS, *LEAVES, FULL.format("{0}", ""), FULL.format("{0}", "_1")),
    "keyless_leaf_keyed": (
        KEYLESS,
        *LEAVES,
        FULL.format("{0}", ""),
        FULL.format("{0}", "_1"),
        "alter table {0}_2 add primary key (id)",
    ),
    "keyed_root_full": (KEYED, *LEAVES, FULL.format("{0}", "")),
    "keyed_root_nothing": (KEYED, *LEAVES, "alter table {0} replica identity nothing"),
    "keyed_leaf_other": (
        KEYED,
        *LEAVES,
        "create unique index {0}_n on {0}_2 (n)",
        "alter table {0}_2 replica identity using index {0}_n",
    ),
    "keyed_leaf_wider": (
        KEYED,
        *LEAVES,
        "create unique index {0}_n on {0}_2 (id, n)",
        "alter table {0}_2 replica identity using index {0}_n",
    ),
    "keyed_leaf_full": (KEYED, *LEAVES, FULL.format("{0}", "_2")),
}
FINE = {"keyed_leaf_wider", "keyed_leaf_full"}


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.publication_watch.LOOK_SECONDS", 0.3)


@pytest.fixture
def source(any_server: Server) -> Iterator[Database]:
    yield from new_database(any_server, "source")


@pytest.fixture
def folder(tmp_path: Path, source: Database, destination: Database) -> ProjectFolder:
    folder = ProjectFolder(tmp_path / "project", source.name)
    folder.connect(postgres("source", source), postgres("place", destination))
    return folder.truck("all", ["public.*"], {"connection": "place"})


def _refused(folder: ProjectFolder) -> dict[str, Finding]:
    errors = [each for each in Project.load(folder.folder).check() if each.level is Level.ERROR]
    assert {each.code for each in errors} <= {"TRK212"}, errors
    return {each.subject.removeprefix("source.public."): each for each in errors}


def _statements(remedy: str) -> list[str]:
    """What the remedy says to run, without the alternatives."""
    return re.findall(r"ALTER TABLE [^;()]+?(?=;|$|  \()", remedy)


def test_what_check_refuses_is_mended_by_its_statement(
    folder: ProjectFolder, source: Database, destination: Database, spark: Any
) -> None:
    for name, statements in TABLES.items():
        source.execute(*(statement.format(name) for statement in statements))
        source.execute(f"alter table {name}_1 alter long set storage external")
        source.execute(f"alter table {name}_2 alter long set storage external")
        source.execute(f"insert into {name} select i, i, repeat(i::text, 3000) from generate_series(90, 109) i")
    refused = _refused(folder)
    assert set(refused) == set(TABLES) - FINE
    for finding in refused.values():
        statements = _statements(finding.remedy)
        assert statements, finding.remedy
        source.execute(*statements)
    assert not _refused(folder)
    with InThread(folder, spark) as run:
        run.wait_streaming()
        for name in TABLES:
            source.execute(
                f"update {name} set n = n + 1000",
                f"update {name} set id = id + 20 where id in (95, 105)",
                f"update {name} set id = id + 40 where id = 91",
                f"delete from {name} where id in (92, 102)",
                f"insert into {name} values (9, 7, null)",
            )
        wait_until(lambda: run.check() or not differences(source, destination, tuple(TABLES)), 90)


def test_a_partition_that_is_attached_with_another_identity(
    folder: ProjectFolder, source: Database, destination: Database, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One that PostgreSQL refuses to update is told of; one whose rows come otherwise stops the truck, and not for
    good."""
    caplog.set_level(logging.WARNING, "trucker")
    source.execute(*(text.format("t") for text in (KEYLESS, *LEAVES, *TABLES["keyless_leaves_full"][3:])))
    source.execute("alter table t replica identity full", "insert into t values (1, 1, 'a'), (101, 1, 'a')")

    def told() -> list[Any]:
        return [record for record in caplog.records if record.message == "rows of a partition cannot be updated"]

    with InThread(folder, spark) as run:
        run.wait_streaming()
        source.execute("create table t_3 partition of t for values from (200) to (300)")
        wait_until(told)
        [record] = told()
        source.execute("insert into t values (201, 1, 'a')")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            source.execute("update t set n = 2 where id = 201")
        source.execute(*_statements(record.remedy), "update t set n = 2 where id = 201")
        wait_until(lambda: run.check() or not differences(source, destination, ("t",)), 60)
        source.execute(
            "create table t_4 (id int primary key, n int not null, long text)",
            "alter table t attach partition t_4 for values from (300) to (400)",
        )
        truck = wait_until(lambda: (found := run.truck()) and found.phase is TruckPhase.FAILED and found, 60)
        assert truck.error
        assert "[TRK212]" in truck.error
        source.execute("insert into t values (301, 1, 'a')", "update t set n = 2 where id = 301")
    [finding] = _refused(folder).values()
    assert _statements(finding.remedy) == ['ALTER TABLE "public"."t_4" REPLICA IDENTITY FULL']
    source.execute(*_statements(finding.remedy))
    with InThread(folder, spark) as run:
        wait_until(lambda: run.check() or not differences(source, destination, ("t",)), 60)
        run.wait_streaming()
        source.execute("update t set n = 5")
        wait_until(lambda: run.check() or not differences(source, destination, ("t",)), 60)
