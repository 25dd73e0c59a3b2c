from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.change import (
    DELETE,
    INSERT,
    NO_OLD,
    OLD_FULL,
    OLD_KEY,
    TRUNCATE,
    UPDATE,
    Changes,
    Column,
    Lsn,
    TableId,
    TableSchema,
)
from trucker.errors import SinkError
from trucker.sinks.envelope.json_lines import lines
from trucker.sinks.envelope.json_text import block
from trucker.sinks.target import Target
from trucker.testing.handmade import changes_of, delete, insert, rows_of, schema_of, truncate, update
from trucker.types import Unfit

TYPES = {
    "id": ("bigint", st.integers(-(2**63), 2**63 - 1).map(str)),
    "text": ("text", st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))),
    "num": (
        "numeric",
        st.sampled_from(["NaN", "Infinity", "-Infinity", "1.10", "-0.0000001", "12345678901234567890.5"]),
    ),
    "float": ("double precision", st.sampled_from(["NaN", "1e+20", "-0", "0.1", "-Infinity", "5e-324"])),
    "flag": ("boolean", st.sampled_from(["t", "f"])),
    "doc": ("jsonb", st.sampled_from(["null", '{"a": [1, "x\\n"]}', "1.50", '"é"'])),
    "raw": ("json", st.sampled_from(['{"a":\n 1}', "[1,\r\n2]", '"plain"'])),
    "when": ("timestamp with time zone", st.sampled_from(["2026-01-01 00:00:00+00", "infinity"])),
}
SCHEMA = schema_of(TableId("public", 'odd "name'), {name: kind for name, (kind, _) in TYPES.items()}, ["id"])
NO_KEY = TableSchema(SCHEMA.table, SCHEMA.columns)
OLD_KINDS = {INSERT: (NO_OLD,), UPDATE: (NO_OLD, OLD_KEY, OLD_FULL), DELETE: (OLD_KEY, OLD_FULL), TRUNCATE: (NO_OLD,)}

row = st.fixed_dictionaries({name: st.none() | cells for name, (_, cells) in TYPES.items()})
change = st.sampled_from(sorted(OLD_KINDS)).flatmap(
    lambda op: st.tuples(
        st.just(op), st.sampled_from(OLD_KINDS[op]), row, row, st.sets(st.sampled_from(sorted(set(TYPES) - {"id"})))
    )
)


def reference_cell(column: Column, text: str | None) -> str:
    if text is None:
        return "null"
    if column.type_name == "boolean":
        return {"t": "true", "f": "false"}[text]
    if column.type_name in ("json", "jsonb"):
        return text.replace("\n", " ").replace("\r", " ")
    if column.type_name in ("bigint", "numeric", "double precision") and text.lstrip("-") not in ("NaN", "Infinity"):
        return text
    return json.dumps(text, ensure_ascii=False)


def reference_object(schema: TableSchema, row: dict[str, str | None], names: list[str]) -> str:
    items = (f"{json.dumps(name)}:{reference_cell(schema.column(name), row[name])}" for name in names)
    return "{" + ",".join(items) + "}"


def reference(schema: TableSchema, changes: Changes, i: int) -> str:
    """The same line, made the plain way."""
    op, old_kind = int(changes.op[i]), int(changes.old_kind[i])
    new, old = changes.new.slice(i, 1).to_pylist()[0], changes.old.slice(i, 1).to_pylist()[0]
    unchanged = [name for name in schema.names if name in changes.unchanged and changes.unchanged[name][i]]
    sent = [name for name in schema.names if name not in unchanged]
    has_new, has_old = op in (INSERT, UPDATE), old_kind != NO_OLD
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(changes.commit_time[i]))
    known = list(schema.names if old_kind == OLD_FULL else schema.key)
    key = "null"
    if schema.key and (has_new or has_old):
        key = reference_object(schema, new if has_new else old, list(schema.key))
    items = {
        "operation": {INSERT: '"insert"', UPDATE: '"update"', DELETE: '"delete"', TRUNCATE: '"truncate"'}[op],
        "schema": json.dumps(schema.table.schema),
        "table": json.dumps(schema.table.name),
        "commit_lsn": json.dumps(str(Lsn(int(changes.commit_lsn[i])))),
        "commit_time": json.dumps(time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
        "xid": str(int(changes.xid[i])),
        "ordinal": str(int(changes.ordinal[i])),
        "new": reference_object(schema, new, sent) if has_new else "null",
        "old": reference_object(schema, old, known) if has_old else "null",
        "key": key,
    }
    if has_new and unchanged:
        items["unchanged"] = json.dumps(unchanged, separators=(",", ":"))
    for name, row, columns in (("json_null", new, sent if has_new else []), ("old_json_null", old, known)):
        nulls = [c for c in columns if row[c] == "null" and schema.column(c).type_name in ("json", "jsonb")]
        if nulls:
            items[name] = json.dumps(nulls, separators=(",", ":"))
    return "{" + ",".join(f'"{name}":{text}' for name, text in items.items()) + "}\n"


@settings(deadline=None, max_examples=60)
@given(st.lists(change, max_size=12), st.booleans(), st.data())
def test_lines_are_those_of_a_plain_implementation(
    made: list[tuple[int, int, dict[str, str | None], dict[str, str | None], set[str]]],
    keyed: bool,
    data: st.DataObject,
) -> None:
    schema = SCHEMA if keyed else NO_KEY
    count = len(made)
    numbers = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
    times = data.draw(st.lists(st.integers(0, 4 * 10**15), min_size=count, max_size=count))
    changes = Changes(
        schema,
        np.array([op for op, *_ in made], np.uint8),
        rows_of(schema, [new if op in (INSERT, UPDATE) else None for op, _, new, _, _ in made]),
        rows_of(schema, [old if kind != NO_OLD else None for _, kind, _, old, _ in made]),
        np.array([kind for _, kind, *_ in made], np.uint8),
        {name: np.array([op == UPDATE and name in kept for op, *_, kept in made], np.bool_) for name in TYPES},
        np.array(numbers, np.uint64),
        np.array(times, np.int64),
        np.arange(count, dtype=np.uint32),
        np.arange(count, dtype=np.int64),
    )
    text = lines(changes)
    assert text.to_pylist() == [reference(schema, changes, i) for i in range(count)]
    assert bytes(block(text)).decode() == "".join(text.to_pylist())
    for line in text.to_pylist():
        assert line.count("\n") == 1
        json.loads(line, parse_constant=pytest.fail)


def parsed(changes: Changes, **arguments: Any) -> list[Any]:
    return [json.loads(line) for line in lines(changes, **arguments).to_pylist()]


def test_a_line() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "name": "text"}, ["id"])
    changes = changes_of(
        schema, [insert({"id": "1", "name": 'say "hi"\n'})], lsn=Lsn(0x16_0B37_4D84), xid=741, time=1769860800123456
    )
    assert lines(changes)[0].as_py() == (
        '{"operation":"insert","schema":"public","table":"t","commit_lsn":"16/B374D84",'
        '"commit_time":"2026-01-31T12:00:00.123456Z","xid":741,"ordinal":0,"new":{"id":1,"name":"say \\"hi\\"\\n"},'
        '"old":null,"key":{"id":1}}\n'
    )


def test_a_line_of_a_snapshot() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer"}, ["id"])
    rows = Changes.inserts(schema, rows_of(schema, [{"id": "1"}]), Lsn(0x10))
    assert parsed(rows, snapshot=True) == [
        {
            "operation": "insert",
            "schema": "public",
            "table": "t",
            "commit_lsn": "0/10",
            "commit_time": None,
            "xid": None,
            "snapshot": True,
            "ordinal": None,
            "new": {"id": 1},
            "old": None,
            "key": {"id": 1},
        }
    ]


def test_the_name_to_show() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer"}, ["id"])
    (line,) = parsed(changes_of(schema, [truncate()]), target=Target("t", schema, TableId("x", "y")))
    assert (line["schema"], line["table"], line["new"], line["old"], line["key"]) == ("x", "y", None, None, None)


POLICIES = {"f": "double precision", "n": "numeric", "j": "json", "b": "boolean"}
CELLS = {"f": "NaN", "n": "1.10", "j": '{"a" :\n 1}', "b": "t"}


def _with_policy(policy: Unfit) -> dict[str, Any]:
    schema = schema_of(TableId("public", "t"), {"id": "integer", **POLICIES}, ["id"])
    target = Target("main", schema, schema.table, tuple((name, policy) for name in POLICIES))
    (line,) = parsed(changes_of(schema, [insert({"id": "1", **CELLS})]), target=target)
    new: dict[str, Any] = line["new"]
    return new


def test_a_column_of_policy_text_is_a_string() -> None:
    assert _with_policy(Unfit.TEXT) == {"id": 1, **CELLS}


def test_what_is_no_number_becomes_null_by_policy() -> None:
    assert _with_policy(Unfit.NULL) == {"id": 1, "f": None, "n": 1.1, "j": {"a": 1}, "b": True}


def test_nan_and_infinity_stop_the_truck_by_policy() -> None:
    """The column and the kind of value are told, and what to do; the truck stops, nothing is dropped (I8, I10)."""
    with pytest.raises(SinkError, match=r"TRK459.*'f' of table public.t has NaN or infinity"):
        _with_policy(Unfit.ERROR)


def test_a_large_key_that_stayed_is_taken_from_the_old_row() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "text", "n": "integer"}, ["id"])
    (line,) = parsed(changes_of(schema, [update({"n": "2"}, old={"id": "long"}, unchanged=["id"])]))
    assert line["key"] == {"id": "long"}
    assert line["new"] == {"n": 2}
    assert line["unchanged"] == ["id"]


def test_rows_of_a_slice() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "name": "text"}, ["id"])
    whole = changes_of(schema, [insert({"id": str(n), "name": '"' if n == 0 else "plain"}) for n in range(9)])
    for indices in (np.arange(3, 7), np.array([8, 0])):
        part = whole.take(indices)
        assert [line["new"]["id"] for line in parsed(part)] == indices.tolist()


def test_shapes_keep_the_order() -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "a": "text", "b": "text"}, ["id"])
    made = [
        update({"id": str(n), "a": "x", "b": "y"}, unchanged=[["a"], ["b"], ["a", "b"], []][n % 4])
        if n % 3
        else delete({"id": str(n)})
        for n in range(50)
    ]
    assert [line["key"]["id"] for line in parsed(changes_of(schema, made))] == list(range(50))


def test_no_changes() -> None:
    empty = lines(changes_of(SCHEMA, []))
    assert empty == pa.array([], pa.large_string())
    assert bytes(block(empty)) == b""
