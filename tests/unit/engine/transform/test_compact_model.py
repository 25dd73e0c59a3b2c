"""Applying the net change leaves what applying every change leaves, from any start and for any history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
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
    TableId,
    TableSchema,
)
from trucker.engine.transform.compact import compact, has_moves
from trucker.testing.handmade import Change, changes_of
from trucker.testing.handmade import delete as deleted
from trucker.testing.handmade import insert as inserted
from trucker.testing.handmade import truncate as truncated
from trucker.testing.handmade import update as updated

Row = dict[str, str | None]
Key = tuple[str | None, ...]
State = dict[Key, Row]

TABLE = TableId("public", "t")
CELLS = st.sampled_from([None, "", "a", "b", "c"])


@dataclass
class Source:
    """A table that is written to at random, and the changes PostgreSQL would have sent."""

    draw: st.DrawFn
    schema: TableSchema
    full: bool
    rows: State = field(default_factory=dict)
    start: State = field(default_factory=dict)
    moved: Key = ()
    current: list[Change] = field(default_factory=list)
    parts: list[Changes] = field(default_factory=list)

    def keys(self) -> list[Key]:
        texts = ["1", "2", "3", "4"]
        return [(t,) for t in texts] if len(self.schema.key) == 1 else [(s, t) for s in "ab" for t in texts[:2]]

    def row(self, key: Key) -> Row:
        cells = {name: self.draw(CELLS) for name in self.schema.names if name not in self.schema.key}
        return {**dict(zip(self.schema.key, key, strict=True)), **cells}

    def fill(self) -> None:
        for key in self.keys():
            if self.draw(st.booleans()):
                self.rows[key] = self.row(key)
        self.start = {key: dict(row) for key, row in self.rows.items()}

    def insert(self) -> None:
        free = [key for key in self.keys() if key not in self.rows]
        if free:
            key = self.draw(st.sampled_from(free))
            self.rows[key] = self.row(key)
            self.current.append(inserted(self.rows[key]))

    def delete(self) -> None:
        if self.rows:
            key = self.draw(st.sampled_from(sorted(self.rows)))
            self.current.append(deleted(self._old(self.rows.pop(key))))

    def update(self) -> None:
        if self.rows:
            key = self.draw(st.sampled_from(sorted(self.rows)))
            self._update(key, key)

    def move(self) -> None:
        free = [key for key in self.keys() if key not in self.rows]
        if self.rows and free:
            again = self.moved if self.moved in self.rows and self.draw(st.booleans()) else None
            key = again or self.draw(st.sampled_from(sorted(self.rows)))
            self.moved = self.draw(st.sampled_from(free))
            self._update(key, self.moved)

    def truncate(self) -> None:
        self.rows.clear()
        self.current.append(truncated())

    def cut(self) -> None:
        """The batch's next block begins."""
        if self.current:
            self.parts.append(changes_of(self.schema, self.current))
            self.current = []

    def add_column(self) -> None:
        self.cut()
        missing = self.draw(CELLS)
        added = Column(f"n{len(self.schema.columns)}{len(self.parts)}", 25, missing_value=missing)
        if added.name not in self.schema.names:
            self.schema = TableSchema(TABLE, (*self.schema.columns, added), self.schema.key)
            for row in (*self.rows.values(), *self.start.values()):
                row[added.name] = missing

    def drop_column(self) -> None:
        self.cut()
        loose = [column for column in self.schema.columns if column.name not in self.schema.key]
        if len(loose) > 1:
            gone = self.draw(st.sampled_from(loose))
            kept = tuple(column for column in self.schema.columns if column != gone)
            self.schema = TableSchema(TABLE, kept, self.schema.key)

    def _update(self, key: Key, to: Key) -> None:
        old = self.rows.pop(key)
        new = self.row(to)
        unsent = [] if self.full else [n for n in new if n not in self.schema.key and self.draw(st.booleans())]
        self.rows[to] = {**new, **{name: old[name] for name in unsent}}
        sent = {name: cell for name, cell in new.items() if name not in unsent}
        before = self._old(old) if self.full or key != to else None
        self.current.append(updated(sent, before, unsent))

    def _old(self, row: Row) -> Row:
        return dict(row) if self.full else {name: row[name] for name in self.schema.key}


EVENTS = ["insert", "insert", "update", "update", "update", "move", "move", "move", "delete", "delete", "cut"]


@st.composite
def histories(draw: st.DrawFn) -> Source:
    wide = draw(st.booleans())
    columns = (Column("k", 25), Column("id", 23)) if wide else (Column("id", 23),)
    key = tuple(column.name for column in columns)
    schema = TableSchema(TABLE, (*columns, Column("a", 25), Column("b", 25)), key)
    source = Source(draw, schema, full=draw(st.booleans()))
    source.fill()
    rare = draw(st.lists(st.sampled_from(["truncate", "add_column", "drop_column"]), max_size=2))
    for event in draw(st.lists(st.sampled_from([*EVENTS, *rare]), max_size=14)):
        getattr(source, event)()
    source.cut()
    return source


@given(histories())
@settings(max_examples=400, deadline=None)
def test_the_net_change_leaves_what_every_change_leaves(source: Source) -> None:
    net = compact(source.parts)
    assert all(changes.schema.names == source.parts[-1].schema.names for changes in net)
    assert bool(net) <= bool(source.parts)
    assert shown(source, apply_all(source.start, net)) == shown(source, source.rows)


@given(histories())
@settings(max_examples=400, deadline=None)
def test_what_happens_later_can_be_folded_with_what_is_left_of_before(source: Source) -> None:
    """Part by part, all in one shape, as those of a batch; a net change with moves is applied before the next part."""
    state, net = {key: dict(row) for key, row in source.start.items()}, list[Changes]()
    parts = [part.reshaped(source.parts[-1].schema) for part in source.parts]
    for part in parts:
        if has_moves(net):
            state, net = apply_all(state, net), []
        net = compact([*net, part])
    assert shown(source, apply_all(state, net)) == shown(source, source.rows)


@given(histories())
@settings(max_examples=200, deadline=None)
def test_old_is_the_row_before_the_batch(source: Source) -> None:
    for changes in compact(source.parts):
        if TRUNCATE in changes.op:
            continue
        old = changes.old.to_pylist()
        for i in range(len(changes)):
            if changes.old_kind[i] == OLD_FULL:
                before = source.start[key_of(changes, old[i])]
                assert old[i] == {name: before.get(name) for name in changes.schema.names if name in before} | {
                    name: old[i][name] for name in changes.schema.names if name not in before
                }
            elif changes.old_kind[i] == OLD_KEY:
                assert all(old[i][name] is None for name in changes.schema.names if name not in changes.schema.key)
            else:
                assert all(cell is None for cell in old[i].values())


def shown(source: Source, state: State) -> State:
    """Of the columns that the batch tells of: a shape no change was made in is not in it."""
    names = set(source.parts[-1].schema.names) & set(source.schema.names) if source.parts else set()
    return {key: {name: row.get(name) for name in names} for key, row in state.items()}


def apply_all(state: State, net: list[Changes]) -> State:
    state = {key: dict(row) for key, row in state.items()}
    for number, changes in enumerate(net):
        state = apply_net(state, changes, leading=number == 0)
    return state


def key_of(changes: Changes, row: Row) -> Key:
    return tuple(row[name] for name in changes.schema.key)


def apply_net(state: State, changes: Changes, *, leading: bool) -> State:
    """The documented order, strict about what must be there and what must not."""
    new, old = changes.new.to_pylist(), changes.old.to_pylist()
    ops = changes.op.tolist()
    unsent = [{name for name, mask in changes.unchanged.items() if mask[i]} for i in range(len(ops))]
    assert TRUNCATE not in ops[1:]
    assert leading or TRUNCATE not in ops
    before = {} if ops[:1] == [TRUNCATE] else state
    moves = [i for i, op in enumerate(ops) if op == UPDATE and changes.old_kind[i] == OLD_KEY]
    state = dict(before)
    for i, op in enumerate(ops):
        if op == DELETE:
            assert changes.old_kind[i] != NO_OLD
            del state[key_of(changes, old[i])]
    for i in moves:
        assert unsent[i]
        assert key_of(changes, old[i]) != key_of(changes, new[i])
        del state[key_of(changes, old[i])]
    for i in moves:
        key = key_of(changes, new[i])
        assert key not in state
        state[key] = merged(before[key_of(changes, old[i])], new[i], unsent[i])
    written = set()
    for i, op in enumerate(ops):
        if op not in (INSERT, UPDATE) or i in moves:
            continue
        key = key_of(changes, new[i])
        assert (key in state) == (op == UPDATE)
        assert key not in written
        written.add(key)
        state[key] = merged(state.get(key, {}), new[i], unsent[i])
        assert op == UPDATE or not unsent[i]
    return state


def merged(before: Row, new: Row, unsent: set[str]) -> Row:
    return {name: before[name] if name in unsent else cell for name, cell in new.items()}


BAG = TableSchema(TABLE, (Column("a", 25), Column("b", 23)))
BAG_ROWS = st.tuples(st.sampled_from([None, "", "x"]), st.sampled_from([None, "1", "2"]))
BagRow = tuple[str | None, str | None]


@st.composite
def bags(draw: st.DrawFn) -> tuple[Counter[BagRow], Counter[BagRow], list[Changes]]:
    start = Counter(draw(st.lists(BAG_ROWS, max_size=6)))
    now, parts, current = Counter(start), [], list[Change]()
    for event in draw(st.lists(st.sampled_from("IIIUUDDDTC"), max_size=14)):
        here = sorted(now.elements(), key=str)
        if event == "C" and current:
            parts.append(changes_of(BAG, current))
            current = []
        elif event == "T":
            now.clear()
            current.append(truncated())
        elif event == "I":
            row = draw(BAG_ROWS)
            now[row] += 1
            current.append(inserted(as_dict(row)))
        elif event in "UD" and here:
            row = draw(st.sampled_from(here))
            now[row] -= 1
            if event == "D":
                current.append(deleted(as_dict(row)))
            else:
                to = draw(BAG_ROWS)
                now[to] += 1
                current.append(updated(as_dict(to), as_dict(row)))
    if current:
        parts.append(changes_of(BAG, current))
    return start, +now, parts


def as_dict(row: BagRow) -> dict[str, str | None]:
    return {"a": row[0], "b": row[1]}


@given(bags(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_without_key_the_net_change_is_the_difference_of_bags(
    found: tuple[Counter[BagRow], Counter[BagRow], list[Changes]], by_part: bool
) -> None:
    start, end, parts = found
    state, inserts, deletes = Counter(start), Counter[BagRow](), Counter[BagRow]()
    net = compact(parts)
    if by_part:
        net = list[Changes]()
        for part in parts:
            assert not has_moves(net)
            net = compact([*net, part])
    for changes in net:
        for i, (new, old) in enumerate(zip(changes.new.to_pylist(), changes.old.to_pylist(), strict=True)):
            if changes.op[i] == TRUNCATE:
                assert i == 0
                state.clear()
            elif changes.op[i] == INSERT:
                inserts[new["a"], new["b"]] += 1
            else:
                assert (changes.op[i], changes.old_kind[i]) == (DELETE, OLD_FULL)
                deletes[old["a"], old["b"]] += 1
    assert not inserts & deletes
    assert deletes <= state
    assert state + inserts - deletes == end


@given(histories())
@settings(max_examples=100, deadline=None)
def test_compacting_twice_changes_nothing(source: Source) -> None:
    once = compact(source.parts)
    if any(np.isin(changes.old_kind, [OLD_KEY]).any() and UPDATE in changes.op for changes in once):
        return  # a set of moves is simultaneous, not a sequence
    twice = compact(once)
    assert sum(len(changes) for changes in twice) == sum(len(changes) for changes in once)
