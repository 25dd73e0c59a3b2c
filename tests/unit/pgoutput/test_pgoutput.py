"""What the decoder promises, case by case; the wire format's own oracle is in test_pgoutput_model."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures import pgoutput_stream as stream
from fixtures.pgoutput_stream import UNSENT
from trucker.change import Changes, Column, Frames, Lsn, OpenTransaction, TableId
from trucker.errors import SourceError
from trucker.pgoutput import Relation, decode, parse_relation

TABLE = TableId("public", "t")
RELATION = Relation(16_400, TABLE, "d", (Column("id", 23), Column("a", 25, 7)), ("id",))
FULL = Relation(16_400, TABLE, "f", RELATION.columns, ("id", "a"))
KEYS: dict[TableId, tuple[str, ...]] = {TABLE: ("id",)}


def run(*messages: bytes, relation: Relation | None = RELATION, open_: OpenTransaction | None = None) -> Frames:
    return stream.frames(messages, {relation.oid: stream.describe(relation)} if relation else {}, open_)


def one(*messages: bytes, relation: Relation = RELATION) -> Changes:
    [changes] = decode(run(stream.begin(100), *messages, relation=relation), KEYS)
    return changes


def test_parse_relation() -> None:
    assert parse_relation(stream.describe(RELATION)) == RELATION
    nameless = Relation(1, TableId("", "pg_thing"), "n", (), ())
    assert parse_relation(stream.describe(nameless)).table == TableId("pg_catalog", "pg_thing")


@pytest.mark.parametrize("length", range(len(stream.describe(RELATION))))
def test_a_relation_cut_off_is_a_typed_error(length: int) -> None:
    with pytest.raises(SourceError, match=r"\[TRK250\] pgoutput: Relation message"):
        parse_relation(stream.describe(RELATION)[:length])


def test_nothing_comes_of_nothing() -> None:
    assert decode(Frames(np.empty(0, np.uint8), np.zeros(1, np.int64)), KEYS) == []
    assert decode(Frames(np.empty(0, np.uint8), np.empty(0, np.int64)), KEYS) == []
    assert decode(run(stream.begin(1), stream.commit(1)), KEYS) == []


def test_positions_times_and_ordinals() -> None:
    frames = run(
        stream.insert(16_400, ["1", "a"]),
        stream.commit(90),
        stream.begin(2**63, time=1, xid=2**32 - 1),
        stream.insert(16_400, ["2", "b"]),
        stream.insert(16_400, ["3", None]),
        open_=OpenTransaction(7, Lsn(90), 5, 41),
    )
    [changes] = decode(frames, KEYS)
    assert changes.commit_lsn.tolist() == [90, 2**63, 2**63]
    assert changes.commit_time.tolist() == [5, 946_684_800_000_001, 946_684_800_000_001]
    assert changes.xid.tolist() == [7, 2**32 - 1, 2**32 - 1]
    assert changes.ordinal.tolist() == [41, 0, 1]
    assert changes.schema.key == ("id",)
    [later] = decode(frames, KEYS, after={TABLE: Lsn(91)})
    assert later.new.column("id").to_pylist() == ["2", "3"]
    [same] = decode(frames, KEYS, after={TABLE: Lsn(90)})
    assert len(same) == 3
    assert decode(frames, KEYS, after={TABLE: Lsn(2**63 + 1)}) == []


def test_changes_of_other_tables_are_skipped_but_counted() -> None:
    other = Relation(9, TableId("public", "other"), "d", (Column("x", 25),), ("x",))
    frames = run(stream.begin(1), stream.describe(other), stream.insert(9, ["1"]), stream.insert(16_400, ["1", "a"]))
    [changes] = decode(frames, KEYS)
    assert changes.ordinal.tolist() == [1]
    assert decode(frames, {}) == []


def test_a_truncate_of_many_tables_is_one_message() -> None:
    other = Relation(9, TableId("public", "other"), "d", (Column("x", 25),), ("x",))
    frames = run(
        stream.begin(1), stream.describe(other), stream.truncate([9, 16_400], 3), stream.insert(16_400, ["1", "a"])
    )
    first, second = decode(frames, {**KEYS, other.table: ("x",)})
    assert (first.schema.table, second.schema.table) == (other.table, TABLE)
    assert (first.ordinal.tolist(), second.ordinal.tolist()) == ([0], [0, 1])


def test_an_unchanged_key_that_lives_out_of_line_is_its_old_value() -> None:
    changes = one(stream.update(16_400, [UNSENT, UNSENT], ["1", None], b"K"))
    assert changes.new.column("id").to_pylist() == ["1"]
    assert list(changes.unchanged) == ["a"]


def test_a_shape_that_is_sent_again_is_the_same_shape() -> None:
    again = stream.describe(RELATION)
    assert len(one(stream.insert(16_400, ["1", "a"]), again, stream.insert(16_400, ["2", "b"]))) == 2


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([stream.insert(16_400, ["1", "secret"])], r"message 0 \(Insert\): the message is outside any transaction"),
        ([stream.begin(1), stream.begin(2)], r"message 1 \(Begin\): Begin and Commit do not alternate"),
        ([stream.commit(1)], r"message 0 \(Commit\)"),
        ([stream.begin(1)[:-1]], r"message 0 \(Begin\): the message is not 21 bytes"),
        (
            [stream.begin(1), stream.insert(5, ["1", "secret"])],
            r"message 1 \(Insert\): no Relation message describes its relation",
        ),
        (
            [stream.begin(1), stream.insert(16_400, ["secret"])],
            r"message 1 \(Insert\): the tuple does not have the 2 columns",
        ),
        (
            [stream.begin(1), stream.insert(16_400, ["1", "secret"])[:-1]],
            r"message 1 \(Insert\): a column exceeds the message",
        ),
        (
            [stream.begin(1), stream.insert(16_400, ["1", "secret"]) + b"n"],
            r"message 1 \(Insert\): the message does not end",
        ),
        ([stream.begin(1), stream.insert(16_400, ["1", UNSENT])], r"message 1 \(Insert\): a column was not sent"),
        ([stream.begin(1), stream.insert(16_400, ["1", "é"]).replace(b"\xc3", b"\xff")], r"\(Insert\): .* not UTF-8"),
        ([stream.begin(1), stream.insert(16_400, ["1", "x"])[:-6] + b"b\0\0\0\1x"], "neither text nor NULL"),
        ([stream.begin(1), stream.delete(16_400, ["1", UNSENT], b"K")], r"message 1 \(Delete\): the old tuple lacks"),
        ([stream.begin(1), stream.truncate([16_400])[:-1]], r"message 1 \(Truncate\)"),
        (
            [stream.begin(1), b"S\0\0\0\0\0"],
            r"message 1 \(of an unknown kind\): the message is not of protocol version 1",
        ),
        ([stream.begin(1), b"R\0\0\0\1public"], r"message 1 \(Relation\)"),
    ],
)
def test_malformed_messages_are_named_and_their_data_is_not(messages: list[bytes], what: str) -> None:
    with pytest.raises(SourceError, match=what) as caught:
        decode(run(*messages, stream.logical(b"")), KEYS) or decode(run(*messages, stream.insert(1, [])), KEYS)
    assert caught.value.code == "TRK250"
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("relation", "key", "message"),
    [
        (Relation(16_400, TABLE, "i", RELATION.columns, ("a",)), ("id",), stream.update(16_400, ["1", "b"])),
        (Relation(16_400, TABLE, "i", RELATION.columns, ("a",)), ("id",), stream.delete(16_400, [None, "b"], b"K")),
        (RELATION, (), stream.delete(16_400, ["1", None], b"K")),
        (RELATION, ("gone",), stream.insert(16_400, ["1", "b"])),
        (RELATION, ("id",), stream.update(16_400, [UNSENT, "b"])),
    ],
)
def test_changes_that_do_not_say_which_row_are_refused(
    relation: Relation, key: tuple[str, ...], message: bytes
) -> None:
    with pytest.raises(SourceError) as caught:
        decode(run(stream.begin(1), message, relation=relation), {TABLE: key})
    assert caught.value.code == "TRK251"


def test_large_columns_and_many_rows_pass_chunk_by_chunk() -> None:
    rows = [[str(n), "x" * (n % 300)] for n in range(20_000)]
    changes = one(*(stream.insert(16_400, row) for row in rows))
    assert changes.new.column("a").to_pylist() == [row[1] for row in rows]
    assert changes.ordinal.tolist() == list(range(20_000))


def test_spans_keep_arrow_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.pgoutput.decoding._SPAN_BYTES", 50)
    parts = decode(run(stream.begin(1), *(stream.insert(16_400, [str(n), "x" * 20]) for n in range(9))), KEYS)
    assert len(parts) > 1
    assert [row["id"] for part in parts for row in part.new.to_pylist()] == [str(n) for n in range(9)]


def test_a_table_without_columns() -> None:
    nothing = Relation(16_400, TABLE, "f", (), ())
    [changes] = decode(run(stream.begin(1), stream.insert(16_400, []), relation=nothing), {TABLE: ()})
    assert (len(changes), changes.new.num_columns) == (1, 0)
