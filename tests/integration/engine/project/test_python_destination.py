"""A batcher is a destination like tables are: copied in chunks, refreshed, its rows whole; and its dead letters."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder
from fixtures.waiting import wait_until
from trucker.project import Project

pytestmark = pytest.mark.spark

HANDLER = """
import sqlite3

from trucker import Batcher, RowRefused


class Shelf(Batcher):
    def __init__(self, path: str) -> None:
        self.path = path

    def open(self):
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.execute("create table if not exists items (id integer primary key, name text, body text)")
        self.database.execute("create table if not exists tolerant (yes)")

    def close(self):
        self.database.close()

    def upsert(self, table, rows):
        tolerant = self.database.execute("select 1 from tolerant").fetchone()
        if any(row["name"] == "refused" for row in rows) and not tolerant:
            raise RowRefused("its name")
        entries = [(row["id"], row["name"], row["body"]) for row in rows]
        self.database.executemany("insert or replace into items values (?, ?, ?)", entries)

    def delete(self, table, keys):
        self.database.executemany("delete from items where id = ?", [(key["id"],) for key in keys])

    def truncate(self, table):
        self.database.execute("delete from items")
"""


def test_a_batcher_is_copied_in_chunks_refreshed_and_redriven(
    project: ProjectFolder, database: Database, spark: Any, tmp_path: Path
) -> None:
    database.execute(
        "create table items (id int primary key, name text, body text)",
        "alter table items alter body set storage external",
        "insert into items select n, 'name ' || n, repeat(md5(n::text), 300) from generate_series(1, 3000) n",
    )
    shelf = tmp_path / "shelf.db"
    project.config["copy"] = {"chunk_bytes": 1 << 20}
    project.connect({"name": "shelf", "adapter": "python", "batch": {"rows": 100}})
    project.truck("items", ["public.items"], {"connection": "shelf"}, copy="incremental")
    project.sql("items", {}, handler={"path": str(shelf)}, on_error="dead_letter")
    (project.folder / "trucks" / "items" / "handler.py").write_text(HANDLER)

    def equal() -> bool:
        return _rows(shelf) == database.query("select id, name, body from items order by id")

    with InThread(project, spark) as running:
        running.wait_streaming()
        wait_until(equal, 60, 0.1)
        database.execute(
            "update items set name = 'x' where id % 3 = 0", "update items set id = id + 10000 where id < 4"
        )
        wait_until(equal, 60, 0.1)
        with sqlite3.connect(shelf) as other:
            other.execute("delete from items where id < 100")
        other.close()
        loaded = Project.load(project.folder)
        list(loaded.await_refreshes(loaded.refresh("items")))
        wait_until(equal, 60, 0.1)
        database.execute("insert into items values (5000, 'refused', null), (5001, 'fine', null)")
        wait_until(lambda: (truck := running.truck()) is not None and truck.dead_letters == 1, 60, 0.1)
        (outcome,) = loaded.redrive(dry_run=True)
        assert not outcome.applied
        with sqlite3.connect(shelf) as other:
            other.execute("insert into tolerant values (1)")
        other.close()
        (outcome,) = loaded.redrive()
        assert outcome.applied
        wait_until(equal, 60, 0.1)
        database.execute("truncate items")
        wait_until(equal, 60, 0.1)


def _rows(path: Path) -> list[tuple[Any, ...]]:
    if not path.exists():
        return []
    database = sqlite3.connect(path)
    try:
        return database.execute("select id, name, body from items order by id").fetchall()
    except sqlite3.OperationalError:  # it is not there yet
        return []
    finally:
        database.close()
