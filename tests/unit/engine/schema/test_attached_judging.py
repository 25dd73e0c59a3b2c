"""What an attached partition means for a truck that keeps the rows of partitions that went, and where it cannot be
merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trucker.change import Column, Lsn, Partitions, TableId
from trucker.changelog.document import FileDocument
from trucker.config.sql.sql_files import SqlFile
from trucker.engine.schema.schema_changes import CatalogDescription, SchemaReading, Schemas
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema
from trucker.engine.stream.batch_plan import _check_merge
from trucker.engine.truck.truck import InputTable
from trucker.errors import SourceError
from trucker.sinks.target import Target
from trucker.source.look import Look, SeenColumn, Sighting

P, OLD, NEW = TableId("public", "p"), TableId("public", "p_1"), TableId("public", "p_2")
TABLE = InputTable(P, P, ("id",), partitions=Partitions.KEEP, key_numbers=(1,))
COLUMN = SeenColumn(1, Column("id", 23), False, 1)


def look(**leaves: str) -> Look:
    """The table with these leaves, by name, and what says when each was attached."""
    names = {100 + int(name[-1]): TableId("public", name) for name in leaves}
    attached = {100 + int(name[-1]): since for name, since in leaves.items() if since}
    return Look(P, 7, Lsn(1), ("id",), 1, (COLUMN,), dict.fromkeys(names, 1), attached, leaves=names)


def examined(folder: Path, before: Look, now: Look, *, rows: bool = True) -> tuple[Schemas, SchemaReading | None]:
    known = SchemaStore(FileDocument(folder / "shapes.json"))
    known.put({("truck", P): WrittenSchema(before, frozenset({1}))})
    schemas = Schemas(lambda *_: CatalogDescription(now, {}), known, lambda *_: int(rows))
    return schemas, schemas.examine("truck", TABLE, sighting(now))


def sighting(now: Look) -> Sighting:
    return Sighting(P, now, frozenset({"id"}), Lsn(2))


def test_an_attached_partition_is_to_be_merged_until_that_is_recorded(tmp_path: Path) -> None:
    schemas, reading = examined(tmp_path, look(p_1=""), look(p_2=".9"))
    assert reading is not None
    assert (reading.again, reading.merge, reading.target.awaits_rows) == ("", (NEW,), True)
    assert reading.stays == "partition public.p_1 was detached or dropped"
    assert SchemaStore(FileDocument(tmp_path / "shapes.json")).get("truck", P) == WrittenSchema(
        look(p_1=""), frozenset({1})
    )
    schemas.follow(reading)
    assert schemas.examine("truck", TABLE, sighting(look(p_2=".9"))) is None


@pytest.mark.parametrize(("since", "rows"), [("", True), (".9", False)], ids=["created", "empty"])
def test_a_partition_that_was_created_or_has_no_rows_is_not_merged(tmp_path: Path, since: str, rows: bool) -> None:
    _, reading = examined(tmp_path, look(p_1=""), look(p_1="", p_2=since), rows=rows)
    assert reading is not None
    assert (reading.merge, reading.target.awaits_rows, reading.stays) == ((), False, "")


def test_a_partition_that_was_detached_and_attached_is_merged(tmp_path: Path) -> None:
    _, reading = examined(tmp_path, look(p_1=".8"), look(p_1=".9"))
    assert reading is not None
    assert (reading.merge, reading.stays) == ((OLD,), "")


@pytest.mark.parametrize("why", ["output.sql", "several tables", "no key"])
def test_what_cannot_be_merged_stops_the_table_and_says_why(tmp_path: Path, why: str) -> None:
    _, reading = examined(tmp_path, look(p_1=""), look(p_1="", p_2=".9"))
    assert reading is not None
    _check_merge(reading, reading.target)
    targets: dict[str, Target] = {
        "output.sql": replace(reading.target, statement=SqlFile("output.sql", "output.sql", "select 1")),
        "several tables": replace(reading.target, shared=True),
        "no key": replace(reading.target, source=replace(reading.target.source, key=())),
    }
    with pytest.raises(SourceError, match=rf"public\.p_2 was attached to public\.p .*{why}") as refused:
        _check_merge(reading, targets[why])
    assert refused.value.code == "TRK255"
    _check_merge(replace(reading, merge=()), targets[why])
