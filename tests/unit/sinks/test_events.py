"""Events as sinks are given them: places, keys, ids and headers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.change import Changes, Lsn, TableId
from trucker.sinks.batch import Batch, Work
from trucker.sinks.envelope.envelope import EnvelopeSettings
from trucker.sinks.envelope.staged_events import stage_events, staged_events
from trucker.sinks.event import Event, Events, event_headers
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.testing.handmade import (
    Change,
    changes_of,
    copied_rows_of,
    delete,
    insert,
    rows_of,
    schema_of,
    truncate,
    update,
)

T = schema_of(TableId("public", "t"), {"id": "integer", "name": "text"}, ["id"])
BAG = schema_of(TableId("public", "bag"), {"a": "integer"})
TARGET = Target("main", T, TableId("shop", "things"))


def numbered(changes: Changes, first: int = 0) -> Changes:
    count = len(changes)
    return replace(changes, xid=np.full(count, 7, np.uint32), ordinal=np.arange(first, first + count, dtype=np.int64))


def pieces(
    folder: Path, values: Sequence[Changes], target: Target = TARGET, *, part: int = 0, snapshot: str = ""
) -> list[Events]:
    spool, batch = Spool(folder), Batch(Lsn(1), Lsn(9), targets=(target,), snapshot=snapshot)
    receipt = stage_events(spool, EnvelopeSettings(), Work(batch, target, part), iter(values))
    return list(staged_events(spool, EnvelopeSettings(), batch, [receipt], {target.source.table: target.table}))


def events(
    folder: Path, values: Sequence[Changes], target: Target = TARGET, *, part: int = 0, snapshot: str = ""
) -> list[Event]:
    return [e for piece in pieces(folder, values, target, part=part, snapshot=snapshot) for e in piece.rows()]


MADE: list[Change] = [
    insert({"id": "1", "name": "a"}),
    update({"id": "2", "name": "b"}, old={"id": "1"}),
    delete({"id": "2"}),
    truncate(),
]


def test_an_event_has_its_place_its_key_and_an_id_without_the_rows_values(tmp_path: Path) -> None:
    changes = numbered(changes_of(T, MADE, lsn=Lsn(0x16_B374_D848)))
    found = events(tmp_path, [changes])
    assert [(e.operation, e.key, e.id, e.ordinal) for e in found] == [
        ("insert", b'{"id":1}', "16/B374D848/0", 0),
        ("update", b'{"id":2}', "16/B374D848/1", 1),
        ("delete", b'{"id":2}', "16/B374D848/2", 2),
        ("truncate", None, "16/B374D848/3/public.t", 3),
    ]
    assert {(e.table, e.commit_lsn, e.snapshot) for e in found} == {(TARGET.table, 0x16_B374_D848, False)}
    assert all(e.value and not e.value.endswith(b"\n") for e in found)
    assert event_headers(found[1]) == [
        ("trucker-table", "shop.things"),
        ("trucker-operation", "update"),
        ("trucker-lsn", "16/B374D848"),
        ("trucker-ordinal", "1"),
        ("trucker-id", "16/B374D848/1"),
    ]


def test_a_table_without_a_key_has_events_without_one(tmp_path: Path) -> None:
    (event,) = events(tmp_path, [numbered(changes_of(BAG, [insert({"a": "1"})]))], Target("main", BAG, BAG.table))
    assert event.key is None


def test_rows_of_a_copy_are_named_by_the_copy_the_table_the_part_and_the_row(tmp_path: Path) -> None:
    rows = [copied_rows_of(T, [{"id": str(n), "name": None}]).to_changes() for n in range(3)]
    found = events(tmp_path, rows, part=4, snapshot="first-ab")
    assert [e.id for e in found] == [f"first-ab/public.t/4/{n}" for n in range(3)]
    assert all(e.snapshot and e.operation == "insert" for e in found)


def test_rows_of_sql_at_the_same_place_have_ids_by_their_content(tmp_path: Path) -> None:
    """Where a part ends decides on their place: after a restart another row may be there, and must not pass for it."""

    def made(*names: str) -> Changes:
        rows = rows_of(T, [{"id": "1", "name": name} for name in names])
        return replace(Changes.inserts(T, rows, Lsn(5)), ordinal=np.arange(len(names), dtype=np.int64))

    (first, second), (again,) = events(tmp_path / "1", [made("a", "b")]), events(tmp_path / "2", [made("b")])
    assert first.ordinal == again.ordinal
    assert len({first.id, second.id, again.id}) == 3
    assert events(tmp_path / "3", [made("a", "b")])[0].id == first.id


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(range(4)), min_size=1, max_size=30), st.data())
def test_ids_are_the_same_however_parts_are_cut(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[int], data: st.DataObject
) -> None:
    changes = numbered(changes_of(T, [MADE[number] for number in chosen]))
    cut = data.draw(st.integers(0, len(chosen)))
    values = [changes.take(np.arange(cut)), changes.take(np.arange(cut, len(chosen)))]
    folder = tmp_path_factory.mktemp("spool")
    whole, parts = events(folder, [changes]), events(folder, [each for each in values if len(each)])
    assert whole == parts
    assert len({e.id for e in whole}) == len(whole)


def test_slices_and_choices_of_events_are_events(tmp_path: Path) -> None:
    (piece,) = pieces(tmp_path, [numbered(changes_of(T, MADE))])
    rows = list(piece.rows())
    assert list(piece.slice(1, 3).rows()) == rows[1:3]
    assert list(piece.take(np.array([3, 0])).rows()) == [rows[3], rows[0]]
    assert len(piece) == 4
    assert 0 < piece.slice(0, 1).nbytes < piece.nbytes
    assert list(pickle.loads(pickle.dumps(piece)).rows()) == rows
