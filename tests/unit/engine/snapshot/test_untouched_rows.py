"""Rows of chunks that the stream brings are left out, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import pgoutput_stream as pgoutput
from fixtures import wal
from trucker.change import Changes, Column, TableId, TableSchema
from trucker.engine.snapshot import chunk_task
from trucker.engine.snapshot.untouched_rows import untouched
from trucker.errors import SourceUnavailable
from trucker.lsn import Lsn
from trucker.pgoutput import Relation

TABLE, OID = TableId("public", "item"), 7
COLUMNS = (Column("a", 25), Column("n", 25), Column("b", 25))
SCHEMA = TableSchema(TABLE, COLUMNS, ("a", "b"))
START = 100

Pair = tuple[str, str]
pairs = st.tuples(st.sampled_from(["", "1", "11", ":1"]), st.sampled_from(["", "1", "11", "1:1"]))
changes = st.one_of(
    st.tuples(st.just("insert"), pairs, pairs),
    st.tuples(st.just("update"), pairs, pairs),
    st.tuples(st.just("move"), pairs, pairs),
    st.tuples(st.just("delete"), pairs, pairs),
)


def _message(kind: str, key: Pair, to: Pair) -> bytes:
    (a, b), (c, d) = key, to
    match kind:
        case "insert":
            return pgoutput.insert(OID, (a, "n", b))
        case "update":
            return pgoutput.update(OID, (a, "n", b))
        case "move":
            return pgoutput.update(OID, (c, "n", d), (a, None, b), b"K")
    return pgoutput.delete(OID, (a, None, b), b"K")


def _log(transactions: Sequence[Sequence[tuple[str, Pair, Pair]]], relation: Relation) -> Any:
    """Each transaction is a block; the first one was applied before."""
    blocks = []
    for number, body in enumerate(transactions):
        commit = START - 5 + 10 * number
        messages = [wal.begin(commit, number + 1), pgoutput.describe(relation), *(_message(*each) for each in body)]
        blocks.append(pgoutput.frames([*messages, wal.commit(commit, commit + 4)]))
    return SimpleNamespace(blocks=lambda start, end: range(len(blocks)), read=lambda number: blocks[number])


def _chunk(keys: Sequence[Pair]) -> Changes:
    cells = [[a for a, _ in keys], ["old" for _ in keys], [b for _, b in keys]]
    rows = pa.RecordBatch.from_arrays([pa.array(each, pa.string()) for each in cells], names=list(SCHEMA.names))
    return Changes.inserts(SCHEMA, rows, Lsn(START))


def _keys(chunk: Changes) -> list[Pair]:
    return list(zip(chunk.new.column("a").to_pylist(), chunk.new.column("b").to_pylist(), strict=True))


def _kept(chunks: Sequence[Changes], log: Any) -> list[list[Pair]]:
    assignment: Any = SimpleNamespace(reads=SCHEMA, renames=())
    return [_keys(chunk) for chunk in untouched(chunks, assignment, log, Lsn(START), Lsn(900))]


@given(
    st.lists(st.lists(changes, max_size=4), min_size=1, max_size=4), st.lists(st.lists(pairs, unique=True), max_size=3)
)
def test_a_row_is_left_out_if_a_later_change_has_its_key(
    transactions: Sequence[Sequence[tuple[str, Pair, Pair]]], chunks: Sequence[Sequence[Pair]]
) -> None:
    log = _log(transactions, Relation(OID, TABLE, "d", COLUMNS, ("a", "b")))
    later = [change for body in transactions[1:] for change in body]
    touched = {key for _, key, _ in later} | {to for kind, _, to in later if kind == "move"}
    expected = [[key for key in chunk if key not in touched] for chunk in chunks]
    assert _kept([_chunk(chunk) for chunk in chunks], log) == expected


def test_a_table_whose_key_was_renamed_meanwhile_is_read_again() -> None:
    columns = (Column("other", 25), *COLUMNS[1:])
    log = _log([[], [("insert", ("1", "1"), ("", ""))]], Relation(OID, TABLE, "d", columns, ("other", "b")))
    with pytest.raises(SourceUnavailable, match="altered"):
        _kept([_chunk([("1", "1")])], log)


def test_a_log_that_does_not_go_on_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_task, "LOGGED_SECONDS", 0.0)
    log: Any = SimpleNamespace(durable=lambda: SimpleNamespace(seen_lsn=Lsn(1)))
    with pytest.raises(SourceUnavailable) as caught:
        chunk_task._await_logged(log, Lsn(2))
    assert caught.value.code == "TRK266"
    chunk_task._await_logged(log, Lsn(1))
