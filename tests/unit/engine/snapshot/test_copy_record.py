"""What an attempt at a copy was going to read: recorded, and compared with what its truck wants by now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import SqlFile
from trucker.engine.schema.written_schema import WrittenSchema
from trucker.engine.snapshot.copy_cursor import CopiedPages
from trucker.engine.snapshot.copy_record import CopyPlan, CopyRecord, PlannedChunk, PlannedCopy
from trucker.engine.snapshot.row_steps import steps_digest
from trucker.engine.truck.truck import InputTable
from trucker.lsn import Lsn
from trucker.source.look import Look, SeenColumn
from trucker.table import Column, TableId

ITEM = TableId("public", "item")
CHUNKS = tuple(PlannedChunk(part, 7, 8, 10 * part, None if part == 3 else 10 * part + 10) for part in range(4))
COPY = PlannedCopy(TableId("out", "item"), "n > 0", 4096, CHUNKS)
TABLE = InputTable(ITEM, TableId("out", "item"), ("id",), where="n > 0", key_numbers=(1,))
COLUMNS = tuple(SeenColumn(at, Column(name, 23), False, 0) for at, name in enumerate(("id", "n", "note"), 1))
WRITTEN = WrittenSchema(Look(ITEM, 7, Lsn(1), ("id",), 3, COLUMNS, {7: 8}), frozenset({1, 2, 3}), key=(1,))


def test_a_record_has_what_was_put(tmp_path: Path) -> None:
    record = CopyRecord(tmp_path / "copies" / "source")
    plan = CopyPlan(Lsn(4711), {("all", ITEM): COPY, ("other", ITEM): replace(COPY, where=None)})
    assert record.get("first-1") is None
    record.put("first-1", plan)
    record.put("first-2", CopyPlan(Lsn(1), {}))
    assert CopyRecord(tmp_path / "copies" / "source").get("first-1") == plan
    record.remove(["first-1", "never"])
    assert (record.get("first-1"), record.get("first-2")) == (None, CopyPlan(Lsn(1), {}))
    record.clear()
    assert record.get("first-2") is None


def test_the_record_of_another_version_says_nothing(tmp_path: Path) -> None:
    record = CopyRecord(tmp_path)
    record.put("first-1", CopyPlan(Lsn(1), {}))
    (tmp_path / "first-1.json").write_text('{"format": 99}')
    assert record.get("first-1") is None


def test_a_cursor_has_the_parts_that_are_there() -> None:
    assert COPY.cursor({0, 1, 3}).copied == (CopiedPages(7, 8, 0, 20), CopiedPages(7, 8, 30, None))
    assert COPY.cursor(()).copied == ()


@pytest.mark.parametrize(
    "table",
    [
        replace(TABLE, output=TableId("out", "other")),
        replace(TABLE, where=None),
        replace(TABLE, only=frozenset({"n"})),
        replace(TABLE, excepted=frozenset({"note"})),
    ],
)
def test_a_truck_that_wants_something_else_is_not_served(table: InputTable) -> None:
    assert COPY.serves(TABLE, WRITTEN, "")
    assert not COPY.serves(table, WRITTEN, "")
    fewer = replace(WRITTEN, taken=frozenset({1, 2}))
    assert COPY.serves(replace(TABLE, only=frozenset({"n"})), fewer, "")


def test_rows_that_are_made_in_another_way_are_not_served(tmp_path: Path) -> None:
    """Rules, their secret keys, SQL files and functions count; where the tables are read from does not."""

    def config(text: str = "select 1", *, key: str = "k", copy: str = "exported") -> TruckConfig:
        settings = {
            "name": "all",
            "folder": tmp_path,
            "input": {"connection": "source", "tables": ["public.item"], "copy": copy},
            "output": {"connection": "there"},
            "rules": [{"hash": {"column": "note", "key": key}}],
            "files": (SqlFile("transform.sql", "transform.sql", text),),
        }
        return TruckConfig.model_validate(settings)

    steps = steps_digest(config())
    copy = replace(COPY, steps=steps)
    assert steps_digest(None) == ""
    assert copy.serves(TABLE, WRITTEN, steps_digest(config(copy="auto")))
    assert not copy.serves(TABLE, WRITTEN, steps_digest(config("select 2")))
    assert not copy.serves(TABLE, WRITTEN, steps_digest(config(key="other")))
    assert not copy.serves(TABLE, WRITTEN, "")
    (tmp_path / "functions.py").write_text("def one() -> int: return 1")
    assert not copy.serves(TABLE, WRITTEN, steps_digest(config()))
