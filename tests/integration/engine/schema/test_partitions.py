"""Partitions that are attached, detached, dropped and truncated: nothing of that is in the stream (I8)."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed, differences
from fixtures.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.catalog_watch.LOOK_SECONDS", 0.3)


class Tree:
    """A partitioned table of which each partition holds ten numbers, and what may happen to it."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.dice = database, random.Random(seed)
        self.leaves: list[int] = []
        self.detached: list[int] = []
        self.seen: set[int] = set()
        self._next = 0
        database.execute("create table p (id int primary key, n int, word text) partition by range (id)")
        for _ in range(3):
            self.create()
        database.execute("insert into p select i, i, 'word' from generate_series(0, 29) i")

    def quiet(self) -> None:
        """Trucker has seen the partitions as they are: these may go. One that comes and goes unseen leaves no trace."""
        self.seen = set(self.leaves)

    def step(self) -> None:
        do = self.dice.choice(
            (self.rows, self.rows, self.rows, self.create, self.attach, self.detach, self.drop, self.truncate, self.all)
        )
        do()

    def rows(self) -> None:
        leaf = self.dice.choice(self.leaves) * 10 if self.leaves else None
        if leaf is None:
            return
        self.database.execute(
            f"insert into p select i, 0, 'new' from generate_series({leaf}, {leaf + 9}) i on conflict do nothing",
            f"update p set n = n + 1 where id % 3 = {self.dice.randrange(3)} and id >= {leaf}",
            f"delete from p where id = {leaf + self.dice.randrange(10)}",
        )

    def create(self) -> None:
        leaf, self._next = self._next, self._next + 1
        self.database.execute(f"create table p_{leaf} partition of p {self._bounds(leaf)}")
        self.leaves.append(leaf)

    def attach(self) -> None:
        if self.detached and self.dice.random() < 0.5:
            leaf = self.detached.pop()
            self.database.execute(f"update p_{leaf} set n = -1", f"insert into p_{leaf} values ({leaf * 10 + 9})"
                                  " on conflict do nothing")  # fmt: skip
        else:
            leaf, self._next = self._next, self._next + 1
            self.database.execute(
                f"create table p_{leaf} (like p including all)",
                f"insert into p_{leaf} select i, i, 'attached' from generate_series({leaf * 10}, {leaf * 10 + 5}) i",
            )
        self.database.execute(f"alter table p attach partition p_{leaf} {self._bounds(leaf)}")
        self.leaves.append(leaf)

    def detach(self) -> None:
        if (leaf := self._goes()) is not None:
            self.database.execute(f"alter table p detach partition p_{leaf}")
            self.detached.append(leaf)

    def drop(self) -> None:
        if (leaf := self._goes()) is not None:
            self.database.execute(f"drop table p_{leaf}")

    def _goes(self) -> int | None:
        """A partition that may go; one always stays."""
        seen = [leaf for leaf in self.leaves if leaf in self.seen]
        if not seen or len(self.leaves) == 1:
            return None
        self.leaves.remove(leaf := self.dice.choice(seen))
        return leaf

    def truncate(self) -> None:
        self.database.execute(f"truncate p_{self.dice.choice(self.leaves)}")

    def all(self) -> None:
        self.database.execute(self.dice.choice(("truncate p", f"vacuum full p_{self.dice.choice(self.leaves)}")))

    def _bounds(self, leaf: int) -> str:
        return f"for values from ({leaf * 10}) to ({leaf * 10 + 10})"


def _has_seen(project: ProjectFolder, tree: Tree) -> bool:
    """Whether both trucks know the partitions that there are."""
    known = json.loads((project.state / "shapes" / "source.json").read_text())["tables"]
    now = {name for (name,) in tree.database.query("select inhrelid::regclass::text from pg_inherits where inhparent ="
                                                   " 'p'::regclass")}  # fmt: skip
    return all({name for _, _, name in each["look"]["leaves"]} == now for each in known)


def _lake_differs(database: Database, path: Path) -> bool:
    query = "select id, n, word from public.p"
    with duckdb.connect(str(path), read_only=True) as lake:
        return Counter(lake.execute(query).fetchall()) != Counter(database.query(query))


def test_partitions_come_and_go_at_random(
    project: ProjectFolder, any_database: Database, destination: Database, spark: Any, tmp_path: Path
) -> None:
    """Under `follow` the copies equal the source, running and after a start; set TRUCKER_SEED to repeat a run."""
    database, lake = any_database, tmp_path / "lake.duckdb"
    project.config["connections"] = []
    project.connect(postgres("source", database), postgres("place", destination))
    project.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    for place in ("place", "lake"):
        project.truck(place, ["public.p"], {"connection": place})
    tree = Tree(database, chosen_seed())
    with InThread(project, spark) as run:
        run.wait_streaming()
        for _ in range(3):
            tree.quiet()
            for _ in range(4):
                tree.step()
            wait_until(lambda: run.check() or not differences(database, destination, ("p",)), 60)
            wait_until(lambda: _has_seen(project, tree), 60)
        tree.quiet()
    for _ in range(8):
        tree.step()
    InThread(project, spark, once=True).join()
    assert differences(database, destination, ("p",)) == ""
    assert not _lake_differs(database, lake)


def test_what_needs_no_copy_costs_none(
    project: ProjectFolder, any_database: Database, destination: Database, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A new partition, also one that has rows by now; VACUUM FULL; TRUNCATE of the table; an empty one."""
    database = any_database
    project.config["connections"] = []
    project.connect(postgres("source", database), postgres("place", destination))
    project.truck("place", ["public.p"], {"connection": "place"})
    tree = Tree(database, 1)
    InThread(project, spark, once=True).join()
    caplog.clear()
    tree.create()
    database.execute(
        "insert into p values (31, 1, 'told')",
        "vacuum full p_1",
        "create table p_4 (like p including all)",
        "alter table p attach partition p_4 for values from (40) to (50)",
    )
    InThread(project, spark, once=True).join()
    database.execute("truncate p", "insert into p values (1, 1, 'after')")
    InThread(project, spark, once=True).join()
    assert differences(database, destination, ("p",)) == ""
    assert [vars(each).get("reason") for each in caplog.records if each.msg == "table is copied again"] == []


def test_keep_leaves_the_rows_of_partitions_that_went(
    project: ProjectFolder, database: Database, destination: Database, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    project.connect(postgres("place", destination))
    project.truck("place", ["public.p"], {"connection": "place"})
    project.sql("place", {}, partitions="keep")
    Tree(database, 1)
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute(
            "alter table p detach partition p_0",
            "drop table p_1",
            "create table p_5 partition of p for values from (50) to (60)",
            "insert into p values (51, 1, 'new')",
            "update p set n = 100 where id = 20",
        )
        wait_until(lambda: "rows of partitions stay at the destination" in caplog.messages, 60)
        wait_until(lambda: destination.query("select n from p where id = 20") == [(100,)])
        assert destination.query("select count(*) from p") == [(31,)]
