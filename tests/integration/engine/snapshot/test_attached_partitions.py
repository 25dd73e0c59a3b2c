"""`partitions: keep`: rows of an attached partition are merged, and rows of partitions that went stay (I6, I8)."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.engine.schema.schema_changes import SchemaReading, Schemas
from trucker.engine.snapshot.partition_merge import Merger
from trucker.errors import SinkUnavailable
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark

Rows = dict[int, tuple[Any, ...]]

ROWS = "select id, n, word, md5(big) from p"


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.catalog_watch.LOOK_SECONDS", 0.3)


class Shop:
    """A partitioned table whose trucks keep rows of partitions that went: at PostgreSQL, and in a DuckDB file, where
    words are masked, or made by Spark SQL.

    `big` is stored apart, so that an update which leaves it as it is does not send it. `kept` has the rows that the
    destinations have beside those of the source.
    """

    def __init__(
        self, project: ProjectFolder, database: Database, destination: Database, lake: Path, *, spark_sql: bool = False
    ) -> None:
        self.database, self.destination, self.lake = database, destination, lake
        self.kept: Rows = {}
        database.execute(
            "create table p (id int primary key, n int, word text, big text) partition by range (id)",
            "alter table p alter column big set storage external",
            *(f"create table p_{leaf} partition of p {bounds(leaf)}" for leaf in range(3)),
            f"insert into p {rows_of(0, 29)}",
        )
        project.config["connections"] = []
        project.connect(postgres("source", database), postgres("place", destination))
        project.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
        for place in ("place", "lake"):
            project.truck(place, ["public.p"], {"connection": place})
        project.sql("place", {}, partitions="keep")
        if spark_sql:
            transform = "select r.id, r.n, upper(r.word) as word, r.big from {{ rows }}"
            project.sql("lake", {"transform": transform}, partitions="keep")
        else:
            project.sql("lake", {}, partitions="keep", rules=[{"mask": {"column": "word"}}])

    def rows(self) -> Rows:
        return {row[0]: row for row in self.database.query(ROWS)}

    def keep(self, leaf: int) -> None:
        """The rows of a partition that is detached now stay."""
        self.kept |= {key: row for key, row in self.rows().items() if key // 10 == leaf}
        self.database.execute(f"alter table p detach partition p_{leaf}")

    def make(self, leaf: int, *, halves: bool = False) -> None:
        """A table with rows that is no partition yet; in `halves` it has two partitions itself."""
        first = leaf * 10
        self.database.execute(
            f"create table p_{leaf} (like p including all)" + (" partition by range (id)" if halves else ""),
            *(
                f"create table p_{leaf}_{at} partition of p_{leaf} for values from ({at}) to ({at + 5})"
                for at in ((first, first + 5) if halves else ())
            ),
            f"insert into p_{leaf} {rows_of(first, first + 5)}",
        )

    def attach(self, leaf: int, *more: str) -> None:
        """Attach it, and change rows of it, in one transaction."""
        attach = f"alter table p attach partition p_{leaf} {bounds(leaf)}"
        self.database.execute("; ".join([attach, *more]))

    def difference(self) -> str:
        wanted = {**self.kept, **self.rows()}
        there = {row[0]: row for row in self.destination.query(ROWS)}
        try:
            with duckdb.connect(str(self.lake), read_only=True) as lake:
                masked = {row[0]: row for row in lake.execute(ROWS.replace("from p", "from public.p")).fetchall()}
        except duckdb.ConnectionException:
            return "the file is being written to"
        found = _difference(wanted, there) + _difference(_unmasked(wanted), _unmasked(masked))
        shown = [word for _, _, word, _ in masked.values() if word and "word" in word]
        return found + (f" {len(shown)} words are as at the source" if shown else "")


def bounds(leaf: int) -> str:
    return f"for values from ({leaf * 10}) to ({leaf * 10 + 10})"


def rows_of(first: int, last: int) -> str:
    return f"select i, i, 'word ' || i, repeat('big' || i, 2000) from generate_series({first}, {last}) i"


def _unmasked(rows: Rows) -> Rows:
    return {key: (n, big) for key, (_, n, _, big) in rows.items()}


def _difference(wanted: Rows, there: Rows) -> str:
    wrong = sorted(key for key in wanted.keys() | there.keys() if wanted.get(key) != there.get(key))
    return f" rows {wrong}" if wrong else ""


def test_rows_of_an_attached_partition_are_merged_while_they_change(
    project: ProjectFolder,
    any_database: Database,
    destination: Database,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Changes before the snapshot, of rows that the destination does not have yet, and after it; a partition that has
    partitions, each merged by a commit of its own; a commit of which nobody hears whether it took effect; a table
    without key, which cannot be merged."""
    shop = Shop(project, any_database, destination, tmp_path / "lake.duckdb")
    database = shop.database
    after = [
        "update p set n = 100 where id = 70",
        "update p set id = 76, n = 3 where id = 79",
        "delete from p where id = 78",
        "insert into p values (77, 1, 'late', 'late')",
    ]
    merge, first = Merger._work, threading.Lock()

    def merge_late(merger: Merger, exported: Any) -> bool:
        with first, suppress(IndexError):
            while True:
                database.execute(after.pop())
        return merge(merger, exported)

    commit, answers = Merger._commit, ["lost"]

    def commit_unheard(merger: Merger, *batch: Any) -> None:
        commit(merger, *batch)
        with suppress(IndexError):
            raise SinkUnavailable(f"the answer is {answers.pop()}")

    monkeypatch.setattr(Merger, "_work", merge_late)
    monkeypatch.setattr(Merger, "_commit", commit_unheard)
    monkeypatch.setattr("trucker.engine.snapshot.partition_merge.COMMIT_BYTES", 1)
    database.execute(
        "create table bag (id int, n int) partition by range (id)", "alter table bag replica identity full"
    )
    project.truck("bag", ["public.bag"], {"connection": "place"})
    project.sql("bag", {}, partitions="keep")
    with InThread(project, spark) as run:
        run.wait_streaming()
        shop.keep(0)
        wait_until(lambda: caplog.messages.count("rows of partitions stay at the destination") == 2, 60)
        shop.make(7, halves=True)
        shop.make(6)
        database.execute(
            "create table bag_1 (id int, n int)",
            "insert into bag_1 values (1, 1)",
            "alter table bag attach partition bag_1 for values from (1) to (10)",
        )
        shop.attach(
            7,
            "update p set n = -1 where id = 70",  # `big` is not sent, and the row is not at the destination
            "update p set id = 79, n = -2 where id = 71",
            "update p set word = 'short', big = '' where id = 72",
            "update p set n = -3 where id = 73",
            "delete from p where id in (73, 74)",
            "insert into p values (78, 78, 'new', 'new')",
        )
        database.execute("update p set n = -4 where id = 75", "update p set n = -5 where id = 75")
        shop.attach(6, "update p set n = -6 where id between 60 and 62", "update p set id = 69 where id = 63")
        wait_until(lambda: run.check() or (not after and not shop.difference()), 90)
        told = [vars(each)["partitions"] for each in caplog.records if "are merged" in each.msg]
        leaves = {"public.p_6", "public.p_7_70", "public.p_7_75"}
        assert {name for names in told for name in names.split(", ")} == leaves

        def refused() -> bool:
            truck = run.truck("bag")
            return truck is not None and truck.phase is TruckPhase.FAILED and "has no key" in (truck.error or "")

        wait_until(refused, 60)
        assert "[TRK255]" in str(getattr(run.truck("bag"), "error", ""))
        # All of it is settled: what comes is followed as ever, and strictly.
        database.execute("update p set n = 7 where id >= 60", "delete from p where id = 70")
        wait_until(lambda: run.check() or not shop.difference(), 60)
        streaming = [run.truck(name) for name in ("place", "lake")]
        assert [truck.phase for truck in streaming if truck] == [TruckPhase.STREAMING] * 2
    assert not answers
    assert [each.msg for each in caplog.records if each.msg == "table is copied again"] == []


def test_a_partition_attached_while_trucker_is_down_and_a_merge_that_is_not_recorded(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merge is repeated, at a new snapshot, after a crash between its commit and its record."""
    shop = Shop(project, database, destination, tmp_path / "lake.duckdb", spark_sql=True)
    InThread(project, spark, once=True).join()
    shop.keep(0)
    shop.keep(1)
    # One that was detached comes back, with rows changed meanwhile; a row that was deleted there stays.
    database.execute("update p_0 set n = -1, big = 'other' where id < 5", "delete from p_0 where id = 9")
    shop.make(5)
    shop.attach(5, "update p set n = -1 where id = 50")
    shop.attach(0, "update p set n = -2 where id = 1", "delete from p where id = 2", "update p set n = 5 where id = 9")
    del shop.kept[2]
    crashed: list[str] = []

    def crash(_: Schemas, reading: SchemaReading) -> None:
        if reading.merge:
            crashed.append(reading.target.truck)
            raise RuntimeError("killed before the merge is recorded")

    with monkeypatch.context() as patched:
        patched.setattr(Schemas, "follow", crash)
        with pytest.raises(RuntimeError, match="killed"):
            InThread(project, spark, once=True).join()
    assert crashed
    database.execute("delete from p where id in (0, 51)", "update p set n = -7 where id in (3, 52)")
    shop.kept.pop(0)
    InThread(project, spark, once=True).join()
    assert shop.difference() == ""
    assert destination.query("select n from p where id in (9, 19) order by 1") == [(9,), (19,)]
