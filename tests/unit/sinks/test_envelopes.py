"""Trucker's own envelope and the flat one, their schemas, and marks of transactions in all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.change import Changes, Lsn, TableId
from trucker.config.events import EventConnection, EventFormat
from trucker.errors import SinkError
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.envelope import staged_events as staging
from trucker.sinks.envelope.envelope import EnvelopeSettings
from trucker.sinks.event import NO_TABLE, Event
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, truncate, update
from trucker.testing.memory_events import MemoryEventSink

SCHEMAS = Path(__file__).parents[3] / "docs/reference/events"
TYPES = {"id": "integer", "name": "text", "doc": "jsonb"}
TABLES = [schema_of(TableId("public", name), TYPES, ["id"]) for name in ("b", "a")]
MADE: list[Change] = [
    insert({"id": "1", "name": 'a "b"', "doc": "null"}),
    update({"id": "1", "name": "b"}, unchanged=["doc"]),
    update({"id": "2", "name": "b"}, old={"id": "1"}, unchanged=["doc"]),
    delete({"id": "2"}),
    truncate(),
]


def placed(changes: Changes, lsns: Sequence[int], ordinals: Sequence[int]) -> Changes:
    """The changes with these places; the transaction's xid and time go by its LSN."""
    lsn = np.array(lsns, np.uint64)
    time = (lsn * np.uint64(1_000_000)).astype(np.int64)
    return replace(
        changes, commit_lsn=lsn, ordinal=np.array(ordinals, np.int64), xid=lsn.astype(np.uint32), commit_time=time
    )


def encoded(
    folder: Path,
    values: Sequence[Changes],
    form: EventFormat,
    *,
    transactions: bool = False,
    lines: bool = False,
    snapshot: str = "",
) -> list[Event]:
    spool = Spool(folder)
    settings = EnvelopeSettings(form, transactions, lines, "shop", "shop", "__unsent")
    by_table = {each.schema.table: Target("main", each.schema, each.schema.table) for each in values}
    batch = Batch(Lsn(1), Lsn(99), {"main": Lsn(99)}, targets=tuple(by_table.values()), snapshot=snapshot)
    receipts: list[Receipt] = []
    for table, target in by_table.items():
        mine = iter([each for each in values if each.schema.table == table])
        receipts.append(staging.stage_events(spool, settings, Work(batch, target, 0), mine))
    pieces = staging.staged_events(spool, settings, batch, receipts, {table: table for table in by_table})
    return [event for piece in pieces for event in piece.rows()]


def parsed(events: Sequence[Event]) -> list[Any]:
    return [json.loads(event.value or b"null") for event in events]


def test_flat_events_are_the_rows_columns_and_a_few_more(tmp_path: Path) -> None:
    changes = placed(changes_of(TABLES[0], MADE), [0x16B] * 5, range(5))
    found = encoded(tmp_path, [changes], EventFormat.FLAT)
    more = {"_schema": "public", "_table": "b", "_lsn": "0/16B", "_commit_time": "1970-01-01T00:06:03.000000Z"}
    more |= {"_xid": 0x16B, "_snapshot": False}
    assert parsed(found) == [
        {"id": 1, "name": 'a "b"', "doc": None, "_operation": "insert", "_ordinal": 0, **more},
        {"id": 1, "name": "b", "_operation": "update", "_ordinal": 1, "_unsent": ["doc"], **more},
        {"id": 1, "_operation": "delete", "_ordinal": 2, **more},
        {"id": 2, "name": "b", "_operation": "insert", "_ordinal": 2, "_unsent": ["doc"], **more},
        {"id": 2, "_operation": "delete", "_ordinal": 3, **more},
        {"_operation": "truncate", "_ordinal": 4, **more},
    ]
    assert [(e.key, e.id) for e in found] == [
        (b'{"id":1}', "0/16B/0"),
        (b'{"id":1}', "0/16B/1"),
        (b'{"id":1}', "0/16B/2/delete"),
        (b'{"id":2}', "0/16B/2"),
        (b'{"id":2}', "0/16B/3"),
        (None, "0/16B/4/public.b"),
    ]


def test_a_delete_in_debeziums_envelope_is_followed_by_a_tombstone_of_the_same_key(tmp_path: Path) -> None:
    changes = placed(changes_of(TABLES[0], MADE), [7] * 5, range(5))
    found = encoded(tmp_path, [changes], EventFormat.DEBEZIUM)
    assert [(e.operation, e.key, e.value is None, e.id) for e in found] == [
        ("insert", b'{"id":1}', False, "0/7/0"),
        ("update", b'{"id":1}', False, "0/7/1"),
        ("delete", b'{"id":1}', False, "0/7/2/delete"),
        ("tombstone", b'{"id":1}', True, "0/7/2/tombstone"),
        ("insert", b'{"id":2}', False, "0/7/2"),
        ("delete", b'{"id":2}', False, "0/7/3"),
        ("tombstone", b'{"id":2}', True, "0/7/3/tombstone"),
        ("truncate", None, False, "0/7/4/public.b"),
    ]
    assert [value["after"] and value["after"]["doc"] for value in parsed(found) if value] == [
        "null",
        "__unsent",
        None,
        "__unsent",
        None,
        None,
    ]


def test_lines_have_no_tombstones_and_end_in_a_line_feed(tmp_path: Path) -> None:
    changes = placed(changes_of(TABLES[0], MADE), [7] * 5, range(5))
    for form in EventFormat:
        found = encoded(tmp_path / form, [changes], form, transactions=True, lines=True)
        assert all(e.value is not None and e.value.endswith(b"}\n") and e.value.count(b"\n") == 1 for e in found)
        assert {(e.key, e.id) for e in found} == {(None, None)}


@pytest.mark.parametrize("form", [EventFormat.TRUCKER, EventFormat.FLAT])
def test_events_are_as_their_schema_says(tmp_path: Path, form: EventFormat) -> None:
    schema = json.loads((SCHEMAS / f"{form}-1.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    changes = [placed(changes_of(table, MADE), [7, 7, 8, 8, 9], [0, 1, 0, 1, 0]) for table in TABLES]
    found = encoded(tmp_path / "stream", changes, form, transactions=True)
    found += encoded(tmp_path / "copy", [changes_of(TABLES[0], MADE[:1])], form, snapshot="first-1")
    assert {e.operation for e in found} == {"insert", "update", "delete", "truncate", "begin", "end"}
    for value in parsed(found):
        validator.validate(value)
    operation = "operation" if form is EventFormat.TRUCKER else "_operation"
    for wrong in ({}, {operation: "upsert"}, {**parsed(found)[1], operation: 1}):
        assert not validator.is_valid(wrong)


class Tally:
    """What the marks of a format say."""

    def __init__(self, form: EventFormat, value: dict[str, Any]) -> None:
        self.begins = "BEGIN" if form is EventFormat.DEBEZIUM else "begin"
        if form is EventFormat.DEBEZIUM:
            self.word, self.events = value["status"], value["event_count"]
            self.tables = {e["data_collection"]: e["event_count"] for e in value["data_collections"] or ()}
        elif form is EventFormat.FLAT:
            self.word, self.events, self.tables = value["_operation"], value.get("_events"), None
        else:
            self.word, self.events = value["operation"], value.get("events")
            self.tables = {f"{e['schema']}.{e['table']}": e["events"] for e in value.get("tables", ())}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1), st.sampled_from(range(4))), min_size=1, max_size=25),
    st.integers(1, 4),
    st.sampled_from(list(EventFormat)),
)
def test_each_transaction_is_between_its_marks_however_pieces_are_cut(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int, int]], piece: int, form: EventFormat
) -> None:
    drawn.sort(key=lambda each: each[0])
    ordinals = [n for _, some in groupby(drawn, key=lambda each: each[0]) for n, _ in enumerate(some)]
    values = []
    for table, schema in enumerate(TABLES):
        mine = [n for n, (_, of, _) in enumerate(drawn) if of == table]
        if mine:
            made = changes_of(schema, [MADE[drawn[n][2]] for n in mine])
            values.append(placed(made, [drawn[n][0] for n in mine], [ordinals[n] for n in mine]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "_PIECE_ROWS", piece)
        found = encoded(tmp_path_factory.mktemp("events"), values, form, transactions=True)
    assert len({e.id for e in found}) == len(found)
    assert [(e.commit_lsn, e.ordinal) for e in found] == sorted((e.commit_lsn, e.ordinal) for e in found)
    for lsn, group in groupby(found, key=lambda e: e.commit_lsn):
        first, *events, last = group
        assert (first.operation, last.operation) == ("begin", "end")
        assert first.table == last.table == NO_TABLE
        assert {e.operation for e in events}.isdisjoint({"begin", "end"})
        counted = [e for e in events if e.value is not None]
        begin, end = (Tally(form, json.loads(e.value or b"")) for e in (first, last))
        assert begin.word == begin.begins
        assert (begin.events, end.events) == (None, len(counted))
        tables = {str(table): len([e for e in counted if e.table == table]) for table in {e.table for e in counted}}
        assert end.tables in (tables, None)
        if form is EventFormat.DEBEZIUM:
            blocks = [json.loads(e.value or b"")["transaction"] for e in counted]
            assert [block["total_order"] for block in blocks] == list(range(1, len(counted) + 1))
            assert {block["id"] for block in blocks} == {f"{lsn}:{lsn}"}
            seen: dict[TableId, int] = {}
            for e, block in zip(counted, blocks, strict=True):
                seen[e.table] = seen.get(e.table, 0) + 1
                assert block["data_collection_order"] == seen[e.table]


def test_a_table_with_a_column_of_the_flat_envelopes_names_is_refused(tmp_path: Path) -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "_lsn": "text"}, ["id"])
    target = Target("main", schema, schema.table)
    connection = EventConnection(name="e", adapter="memory", format=EventFormat.FLAT)
    sink = MemoryEventSink(str(tmp_path), Workspace("p", tmp_path), connection)
    with pytest.raises(SinkError, match=r"TRK700.*column _lsn"):
        sink.prepare(target)
    assert [error.code for _, error in sink.examine([target], ())] == ["TRK700"]
    other = MemoryEventSink(str(tmp_path), Workspace("p", tmp_path))
    assert list(other.examine([target], ())) == []


def test_a_text_that_is_not_of_its_type_is_refused_without_being_quoted(tmp_path: Path) -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "at": "date"}, ["id"])
    changes = placed(changes_of(schema, [insert({"id": "1", "at": "9999-99-99"})]), [7], [0])
    with pytest.raises(SinkError, match=r"TRK701.*'at' of table public.t") as refused:
        encoded(tmp_path, [changes], EventFormat.DEBEZIUM)
    assert "9999" not in str(refused.value)
    assert refused.value.__cause__ is None
