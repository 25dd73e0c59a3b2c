"""When a look at the catalogue counts: what was seen waits until trucks have caught up with it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.fake_source import FakeCatalog, FakeSource
from trucker.engine.project.catalog_watch import CatalogWatch
from trucker.lsn import Lsn
from trucker.source.look import Sighting
from trucker.table import TableId

A, B = TableId("public", "a"), TableId("public", "b")


class Watched:
    """A watch of two tables, with a stream that has applied all before `applied`."""

    def __init__(self) -> None:
        self.catalog = FakeCatalog(versions={A: "1", B: "1"}, lsn=Lsn(10), transactions=5)
        self.applied = Lsn(0)
        self.examined: list[Sighting] = []
        self.changes: Counter[TableId] = Counter()
        runs: Any = [SimpleNamespace(truck=SimpleNamespace(tables={A: None, B: None}))]
        known: Any = SimpleNamespace(changes=lambda table: self.changes[table])
        self.watch = CatalogWatch(FakeSource(catalog=self.catalog), runs, self, known)  # type: ignore[arg-type]

    def examine(self, sighting: Sighting, _: object) -> bool:
        if self.applied < sighting.lsn:
            return False
        self.examined.append(sighting)
        return True

    def settled(self) -> None:
        """What was seen first has been judged."""
        self.watch.look()
        self.applied = self.catalog.lsn
        assert self.watch.judge()
        self.examined.clear()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_look_waits_for_the_stream(watched: Watched) -> None:
    assert watched.watch.look() == Lsn(10), "where trucks must be for it to count"
    assert not watched.watch.judge()
    watched.applied = Lsn(10)
    assert watched.watch.judge()
    assert [seen.table for seen in watched.examined] == [A, B]


def test_only_tables_that_changed_are_looked_at_again(watched: Watched) -> None:
    watched.settled()
    watched.catalog.versions[B] = "2"
    watched.catalog.lsn = watched.applied = Lsn(20)
    watched.watch.look()
    assert watched.watch.judge()
    assert [(seen.table, seen.lsn) for seen in watched.examined] == [(B, Lsn(20))]


def test_a_table_that_is_gone_has_changed(watched: Watched) -> None:
    watched.settled()
    del watched.catalog.versions[A]
    watched.watch.look()
    assert watched.watch.judge()
    assert [seen.table for seen in watched.examined] == [A]


def test_a_look_is_void_when_the_stream_has_told_of_the_table_meanwhile(watched: Watched) -> None:
    watched.watch.look()
    watched.changes[A] += 1
    watched.applied = Lsn(10)
    assert not watched.watch.judge(), "it has to be looked at once more"
    assert [seen.table for seen in watched.examined] == [B]
    watched.watch.look()
    assert watched.watch.judge()
    assert [seen.table for seen in watched.examined] == [B, A]


def test_a_look_says_since_when_the_table_was_as_before(watched: Watched) -> None:
    watched.settled()
    watched.catalog.transactions = 8
    watched.watch.look()
    watched.catalog.transactions = 9
    watched.catalog.versions[A] = "2"
    watched.watch.look()
    assert watched.watch.judge()
    assert [seen.since for seen in watched.examined] == [8]
