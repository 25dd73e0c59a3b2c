"""What is stored of tables' shapes, and how often it is written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from trucker.change import Column, Lsn, TableId
from trucker.changelog.document import FileDocument
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema
from trucker.source.look import Look, SeenColumn


def known(number: int, lsn: int = 1) -> WrittenSchema:
    table = TableId("public", f"t{number}")
    seen = SeenColumn(1, Column("id", 23), False, 1)
    return WrittenSchema(Look(table, number, Lsn(lsn), ("id",), 1, (seen,), {number: 1}), frozenset({1}))


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every fsync."""
    made: list[int] = []
    monkeypatch.setattr(os, "fsync", made.append)
    return made


def test_many_tables_are_written_at_once(tmp_path: Path, writes: list[int]) -> None:
    """A hundred tables that all have news in one batch must not hold up the stream a hundred times."""
    tables = SchemaStore(FileDocument(tmp_path / "shapes.json"))
    all_of_them = {("truck", TableId("public", f"t{n}")): known(n) for n in range(100)}
    tables.put(all_of_them)
    assert len(writes) == 1
    again = SchemaStore(FileDocument(tmp_path / "shapes.json"))
    assert all(again.get(*slot) == each for slot, each in all_of_them.items())


def test_a_look_that_is_only_newer_is_not_written(tmp_path: Path, writes: list[int]) -> None:
    tables, slot = SchemaStore(FileDocument(tmp_path / "shapes.json")), ("truck", TableId("public", "t1"))
    tables.put({slot: known(1)})
    tables.put({slot: known(1, lsn=99)})
    tables.put({})
    assert len(writes) == 1
    other = known(1, lsn=100)
    tables.put({slot: replace(other, look=replace(other.look, files={1: 2}))})
    assert len(writes) == 2
