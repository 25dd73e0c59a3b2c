"""However a table is written to, and however its changes are cut into batches: with rules the destination holds what
the rules make of the source's rows (I4, I6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.change import DELETE, INSERT, OLD_FULL, TRUNCATE, UPDATE, Changes, Column, TableId, TableSchema
from trucker.config.rules import RuleConfig
from trucker.engine.transform.compact import compact
from trucker.engine.transform.rules import RuleSet, compile_rules
from trucker.testing.handmade import Change, changes_of, delete, insert, truncate, update

Row = dict[str, str | None]
State = dict[str | None, Row]

SCHEMA = TableSchema(
    TableId("public", "t"),
    (Column("id", 23, type_name="integer"), Column("n", 23, type_name="integer"), Column("word", 25, type_name="text")),
    ("id",),
)
KEYS = [str(number) for number in range(1, 7)]
NUMBERS = [None, "1", "2", "3", "10"]
WORDS = [None, "", "ab", "abc", "xyz"]


def _number(text: str | None) -> int:
    return int(text or 0)


FILTERS: list[tuple[dict[str, Any], Any]] = [
    ({"column": "n", "gte": "2"}, lambda row: row["n"] is not None and _number(row["n"]) >= 2),
    ({"column": "n", "ne": "3"}, lambda row: row["n"] is not None and row["n"] != "3"),
    ({"column": "n", "is_null": "true"}, lambda row: row["n"] is None),
    ({"column": "word", "contains": "b"}, lambda row: "b" in (row["word"] or "")),
    ({"column": "id", "lt": "4"}, lambda row: _number(row["id"]) < 4),
    ({"column": "word", "in": ["ab", "xyz"]}, lambda row: row["word"] in ("ab", "xyz")),
]


@dataclass
class Source:
    """A table that is written to at random. Old tuples are whole rows, or keys."""

    draw: st.DrawFn
    full: bool
    rows: State = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def row(self, key: str | None) -> Row:
        return {"id": key, "n": self.draw(st.sampled_from(NUMBERS)), "word": self.draw(st.sampled_from(WORDS))}

    def insert(self) -> None:
        free = [key for key in KEYS if key not in self.rows]
        if free:
            key = self.draw(st.sampled_from(free))
            self.rows[key] = self.row(key)
            self.changes.append(insert(self.rows[key]))

    def delete(self) -> None:
        if self.rows:
            old = self.rows.pop(self.draw(st.sampled_from(sorted(self.rows, key=str))))
            self.changes.append(delete(self._old(old)))

    def update(self) -> None:
        if self.rows:
            key = self.draw(st.sampled_from(sorted(self.rows, key=str)))
            self._update(key, key)

    def move(self) -> None:
        free = [key for key in KEYS if key not in self.rows]
        if self.rows and free:
            self._update(self.draw(st.sampled_from(sorted(self.rows, key=str))), self.draw(st.sampled_from(free)))

    def truncate(self) -> None:
        self.rows.clear()
        self.changes.append(truncate())

    def _update(self, key: str | None, to: str | None) -> None:
        old, new = self.rows.pop(key), self.row(to)
        # With the whole old row a value that was not sent is known, and where the key changes it is filled in.
        kept = [name for name in ("n", "word") if self.full and key == to and self.draw(st.booleans())]
        self.rows[to] = {**new, **{name: old[name] for name in kept}}
        before = self._old(old) if self.full or key != to else None
        self.changes.append(update({k: v for k, v in new.items() if k not in kept}, before, kept))

    def _old(self, row: Row) -> Row:
        return dict(row) if self.full else {"id": row["id"]}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Source, State, list[tuple[dict[str, Any], Any]]]:
    source = Source(draw, draw(st.booleans()))
    for key in KEYS:
        if draw(st.booleans()):
            source.rows[key] = source.row(key)
    start = {key: dict(row) for key, row in source.rows.items()}
    events = ["insert", "insert", "update", "update", "update", "move", "delete"]
    rare = draw(st.lists(st.just("truncate"), max_size=1))
    for event in draw(st.lists(st.sampled_from([*events, *rare]), max_size=16)):
        getattr(source, event)()
    return source, start, draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2))


def ruled(filters: list[tuple[dict[str, Any], Any]]) -> RuleSet:
    """Filters with other rules around them; the key is renamed and gets another type."""
    rules: list[dict[str, Any]] = [
        {"filter": filters[0][0]},
        {"constant": {"from": "t"}},
        *({"filter": said} for said, _ in filters[1:]),
        {"mask": {"column": "word", "keep_first": 1}},
        {"rename": {"id": "key"}},
        {"cast": {"key": "text"}},
    ]
    return compile_rules([RuleConfig.model_validate(rule) for rule in rules], SCHEMA)


def expected(rows: State, filters: list[tuple[dict[str, Any], Any]]) -> State:
    """The same in Python, row by row."""
    found: State = {}
    for key, row in rows.items():
        if all(passes(row) for _, passes in filters):
            word = row["word"]
            masked = word and (word[0] + "*" * (len(word) - 1) if len(word) > 1 else "*" * len(word))
            found[key] = {"key": key, "n": row["n"], "word": masked, "from": "t"}
    return found


@given(histories(), st.integers(1, 16))
@settings(max_examples=150, deadline=None)
def test_the_destination_holds_what_passes(
    found: tuple[Source, State, list[tuple[dict[str, Any], Any]]], size: int
) -> None:
    source, start, filters = found
    rules = ruled(filters)
    state = expected(start, filters)
    for at in range(0, len(source.changes), size):
        for net in compact([changes_of(SCHEMA, source.changes[at : at + size])]):
            apply_net(state, rules.apply(net))
    assert state == expected(source.rows, filters)


@given(histories())
@settings(max_examples=100, deadline=None)
def test_each_change_alone_is_judged_alike(found: tuple[Source, State, list[tuple[dict[str, Any], Any]]]) -> None:
    """`compact: none`: the changes in their order, as a history has them."""
    source, start, filters = found
    state = expected(start, filters)
    if source.changes:
        apply_each(state, ruled(filters).apply(changes_of(SCHEMA, source.changes)))
    assert state == expected(source.rows, filters)


def apply_net(state: State, changes: Changes) -> None:
    """As a sink does: truncate, deletes, then upserts."""
    ops = changes.op.tolist()
    assert TRUNCATE not in ops[1:]
    if ops[:1] == [TRUNCATE]:
        state.clear()
    keys = [row["key"] for row in changes.new.to_pylist() if row["key"] is not None]
    assert len(set(keys)) == len(keys)
    for number in (DELETE, UPDATE, INSERT):
        _apply(state, changes, [row for row, op in enumerate(ops) if op == number])


def apply_each(state: State, changes: Changes) -> None:
    _apply(state, changes, range(len(changes)))


def _apply(state: State, changes: Changes, rows: Any) -> None:
    new, old = changes.new.to_pylist(), changes.old.to_pylist()
    for row in rows:
        op = changes.op[row]
        if op == TRUNCATE:
            state.clear()
        elif op == DELETE:
            if changes.old_kind[row] == OLD_FULL:
                assert state.get(old[row]["key"]) == old[row]  # known, so it must be there, and so
            state.pop(old[row]["key"], None)
        elif op == INSERT:
            assert not any(mask[row] for mask in changes.unchanged.values())
            state[new[row]["key"]] = new[row]
        else:
            before = state.pop(old[row]["key"] if changes.old_kind[row] else new[row]["key"])  # it is there
            unsent = {name for name, mask in changes.unchanged.items() if mask[row]}
            state[new[row]["key"]] = {name: before[name] if name in unsent else new[row][name] for name in new[row]}
