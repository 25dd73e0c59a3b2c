"""A destination without transactions, tables without key and partial rows: the framework does what it cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder
from fixtures.waiting import wait_until
from trucker.config.registry import GROUP, installed
from trucker.errors import TruckerError
from trucker.project import Project
from trucker.sinks.base import Workspace
from trucker.table import TableId
from trucker.testing.versioned_sink import VersionedConnection, VersionedSink

pytestmark = pytest.mark.spark

# Long enough, and too random to be compressed: PostgreSQL does not send it again when it does not change.
_LONG = "(select string_agg(md5(i::text || random()::text), '') from generate_series(1, 300) i)"


@pytest.fixture
def versioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The adapter as an installed package brings it."""
    info = tmp_path / "site" / "trucker_versioned-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trucker-versioned\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nversioned = trucker.testing.versioned_sink:VERSIONED\n")
    monkeypatch.syspath_prepend(info.parent)
    installed.cache_clear()
    yield
    sys.path.remove(str(info.parent)) if str(info.parent) in sys.path else None
    installed.cache_clear()


@pytest.fixture
def shop(project: ProjectFolder, database: Database, versioned: None) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, name text, long text)",
        "alter table item alter column long set storage external",
        "create table note (id int primary key, long text)",
        "alter table note alter column long set storage external",
        f"insert into item select i, 'first', {_LONG} from generate_series(1, 50) i",
        f"insert into note select i, {_LONG} from generate_series(1, 5) i",
    )
    project.connect({"name": "store", "adapter": "versioned", "path": "store"})
    project.truck("plain", ["public.item"], {"connection": "store"})
    project.truck("ruled", ["public.note"], {"connection": "store"})
    return project.sql("ruled", {}, rules=[{"rename": {"long": "text"}}])


def stored(shop: ProjectFolder, table: str) -> list[dict[str, str | None]]:
    connection = VersionedConnection(name="store", adapter="versioned", path=shop.folder / "store")
    return VersionedSink(connection, Workspace("reader", shop.folder)).rows(TableId("public", table))


def test_unsent_values_are_read_at_the_source(shop: ProjectFolder, database: Database, spark: Any) -> None:
    """I7: rows are whole at the destination, whatever of them was sent; with rules and without."""

    def same() -> bool:
        with suppress(FileNotFoundError):  # a file that was replaced while it was read
            return equal()
        return False

    def equal() -> bool:
        items = database.query("select id::text, name, long from item order by id")
        notes = database.query("select id::text, long from note order by id")
        return sorted((r["id"], r["name"], r["long"]) for r in stored(shop, "item")) == sorted(items) and sorted(
            (r["id"], r["text"]) for r in stored(shop, "note")
        ) == sorted(notes)

    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute(
            "update item set name = 'changed' where id <= 20",
            "update item set id = id + 1000 where id > 40",
            "delete from item where id = 30",
            "update note set id = id + 10",
        )
        wait_until(lambda: run.check() or same())
        database.execute("truncate item", "insert into item values (1, 'again', 'short')")
        wait_until(lambda: run.check() or same())


def test_a_table_without_key_is_refused_before_the_start(shop: ProjectFolder, database: Database) -> None:
    database.execute("create table bag (a int)", "alter table bag replica identity full")
    shop.truck("keyless", ["public.bag"], {"connection": "store"})
    findings = Project.load(shop.folder).check()
    (refused,) = [finding for finding in findings if finding.code == "TRK487"]
    assert "public.bag has no key" in refused.message
    assert "ADD PRIMARY KEY" in refused.remedy
    with pytest.raises(TruckerError, match="TRK487"):
        Project.load(shop.folder).run(once=True)
