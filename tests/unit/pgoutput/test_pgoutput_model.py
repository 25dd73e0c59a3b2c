"""The columnar decoder agrees with a slow one on any stream, however it is cut; nonsense is a typed error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import pgoutput_stream as stream
from fixtures.pgoutput_stream import UNSENT, SlowDecoder, rows_of
from trucker.change import Column, Frames, Lsn, TableId
from trucker.errors import SourceError
from trucker.pgoutput import Relation, decode

TEXTS = st.one_of(st.sampled_from(["", "1", "2", "a", "ä€💥", "x" * 300, "\n\t\\"]), st.text(max_size=12))
KEY_TEXTS = st.sampled_from(["1", "2", "3", "", "a longer key than eight bytes", "ключ"])


@dataclass
class Stream:
    messages: list[bytes] = field(default_factory=list)
    relations: dict[int, bytes] = field(default_factory=dict)
    keys: dict[TableId, tuple[str, ...]] = field(default_factory=dict)
    after: dict[TableId, Lsn] = field(default_factory=dict)


@st.composite
def relation_strategy(draw: st.DrawFn, oid: int) -> Relation:
    width = draw(st.integers(1, 5))
    columns = tuple(Column(f"c{i}", draw(st.sampled_from([23, 25, 701])), -1) for i in range(width))
    identity = draw(st.sampled_from("df"))
    names = [column.name for column in columns]
    key = draw(st.lists(st.sampled_from(names), min_size=1, unique=True)) if identity == "d" else names
    return Relation(oid, TableId("public", f"t{oid}"), identity, columns, tuple(n for n in names if n in key))


class Writer:
    """Writes a stream that PostgreSQL could have written, one drawn event after the other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.stream = Stream()
        self.relations: dict[int, Relation] = {}
        for oid in range(16_500, 16_500 + draw(st.integers(1, 3))):
            relation = draw(relation_strategy(oid))
            self.relations[oid] = relation
            self.stream.relations[oid] = stream.describe(relation)
            if draw(st.integers(0, 4)):
                self.stream.keys[relation.table] = self._key(relation)
            if not draw(st.integers(0, 3)):
                self.stream.after[relation.table] = Lsn(draw(st.integers(0, 400)))

    def _key(self, relation: Relation) -> tuple[str, ...]:
        if relation.identity == "d":
            return relation.key_columns
        return tuple(self.draw(st.lists(st.sampled_from(relation.key_columns), max_size=2, unique=True)))

    def transaction(self, lsn: int) -> None:
        draw, out = self.draw, self.stream.messages
        out.append(stream.begin(lsn, draw(st.integers(-(10**15), 10**15)), draw(st.integers(0, 2**32 - 1))))
        for event in draw(st.lists(st.sampled_from("IIIUUUUDDTRXMY"), max_size=8)):
            relation = self.relations[draw(st.sampled_from(sorted(self.relations)))]
            getattr(self, f"_{event}")(relation)
        out.append(stream.commit(lsn))

    def _row(self, relation: Relation) -> list[stream.Cell]:
        key = self.stream.keys.get(relation.table, relation.key_columns)
        return [
            self.draw(KEY_TEXTS) if column.name in key else self.draw(st.none() | TEXTS) for column in relation.columns
        ]

    def _old(self, relation: Relation) -> tuple[list[stream.Cell], bytes]:
        row = self._row(relation)
        if relation.identity == "f":
            return row, b"O"
        names = [column.name for column in relation.columns]
        return [cell if name in relation.key_columns else None for name, cell in zip(names, row, strict=True)], b"K"

    def _I(self, relation: Relation) -> None:  # noqa: N802
        self.stream.messages.append(stream.insert(relation.oid, self._row(relation)))

    def _D(self, relation: Relation) -> None:  # noqa: N802
        self.stream.messages.append(stream.delete(relation.oid, *self._old(relation)))

    def _U(self, relation: Relation) -> None:  # noqa: N802
        new = self._row(relation)
        old, kind = self._old(relation) if relation.identity == "f" or self.draw(st.booleans()) else (None, b"")
        for i, column in enumerate(relation.columns):
            # What is not sent anew is in an old row that is sent whole, and is not NULL there.
            whole = relation.identity == "f" and old is not None
            safe = old[i] is not None if whole else column.name not in relation.key_columns or old is not None
            if safe and not self.draw(st.integers(0, 3)):
                new[i] = UNSENT
        self.stream.messages.append(stream.update(relation.oid, new, old, kind))

    def _T(self, _: Relation) -> None:  # noqa: N802
        oids = self.draw(st.lists(st.sampled_from(sorted(self.relations)), min_size=1, unique=True))
        self.stream.messages.append(stream.truncate(oids, self.draw(st.integers(0, 3))))

    def _R(self, relation: Relation) -> None:  # noqa: N802
        self.stream.messages.append(stream.describe(relation))

    def _X(self, relation: Relation) -> None:  # noqa: N802
        """The table changes its shape."""
        added = Column(f"n{len(self.stream.messages)}", 25, -1)
        key = relation.key_columns if relation.identity == "d" else (*relation.key_columns, added.name)
        relation = replace(relation, columns=(*relation.columns, added), key_columns=key)
        self.relations[relation.oid] = relation
        self.stream.messages.append(stream.describe(relation))

    def _M(self, _: Relation) -> None:  # noqa: N802
        self.stream.messages.append(stream.logical(self.draw(st.binary(max_size=9)), self.draw(st.booleans())))

    def _Y(self, _: Relation) -> None:  # noqa: N802
        self.stream.messages.append(self.draw(st.sampled_from([stream.type_(7, "mood"), stream.origin("a")])))


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    writer = Writer(draw)
    for number in range(draw(st.integers(0, 4))):
        writer.transaction(100 * (number + 1))
        if draw(st.booleans()):
            writer.stream.messages.append(stream.logical(b"between", transactional=False))
    return writer.stream


@given(streams(), st.data())
@settings(max_examples=200, deadline=None)
def test_agrees_with_the_slow_decoder_however_cut(found: Stream, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(found.messages)), max_size=4))
    for part in stream.cut(found.messages, found.relations, places):
        fast = [rows_of(changes) for changes in decode(part, found.keys, after=found.after)]
        assert fast == SlowDecoder(part, found.keys, found.after).decode()


@given(streams(), st.data())
@settings(max_examples=250, deadline=None)
def test_damage_is_a_typed_error_or_harmless(found: Stream, data: st.DataObject) -> None:
    whole = stream.frames(found.messages, found.relations)
    payload = whole.payload.copy()
    starts = whole.starts.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()) and len(payload):
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
        elif len(starts) > 1:
            starts[data.draw(st.integers(1, len(starts) - 1))] += data.draw(st.integers(-9, 9))
    relations = dict(whole.relations)
    if data.draw(st.booleans()):
        oid = data.draw(st.sampled_from(sorted(relations)))
        relations[oid] = relations[oid][: data.draw(st.integers(0, len(relations[oid])))]
    damaged = Frames(payload, starts, relations, None)
    with suppress(SourceError):
        for changes in decode(damaged, found.keys):
            changes.new.validate(full=True)
            changes.old.validate(full=True)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_noise_is_a_typed_error_or_harmless(noise: bytes, places: list[int]) -> None:
    starts = np.array(sorted({0, len(noise), *(place for place in places if place <= len(noise))}), np.int64)
    with suppress(SourceError):
        decode(Frames(np.frombuffer(noise, np.uint8), starts), {})


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("trucker.pgoutput.decoding.CHUNK_ROWS", rows)
    relation = Relation(1, TableId("s", "t"), "f", (Column("a", 25), Column("b", 25)), ("a", "b"))
    messages = [
        stream.begin(10),
        stream.insert(1, ["1", None]),
        stream.update(1, ["1", UNSENT], ["1", "x"], b"O"),
        stream.delete(1, ["1", "x"], b"O"),
        stream.truncate([1]),
        stream.update(1, ["2", UNSENT], ["2", "y"], b"O"),
        stream.insert(1, ["3", ""]),
        stream.commit(10),
    ]
    run = stream.frames(messages, {1: stream.describe(relation)})
    keys: dict[TableId, tuple[str, ...]] = {relation.table: ("a",)}
    assert [rows_of(changes) for changes in decode(run, keys)] == SlowDecoder(run, keys, {}).decode()
