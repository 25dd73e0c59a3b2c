"""Random changes, folded by compaction and applied by the sink, leave what applying each in turn leaves (I4, I7)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.pg import new_database
from fixtures.postgres_sink import PostgresDestination
from trucker.change import TableId
from trucker.engine.transform.compact import compact
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, TextRow, changes_of, delete, insert, schema_of, truncate, update
from trucker.testing.memory import MemoryTable
from trucker.testing.server import Server
from trucker.testing.suites.sink_suite import START, Lsn
from trucker.testing.suites.table_suite import ordered

COLUMNS = {"id": "integer not null", "a": "text", "b": "text"}
KEYED = schema_of(TableId("public", "keyed"), COLUMNS, ["id"])
BAG = schema_of(TableId("public", "bag"), COLUMNS)

KEYS = st.integers(1, 5).map(str)
CELLS = st.sampled_from([None, "", "x", "long\tvalue\\"])
ACTIONS = st.tuples(st.sampled_from("iiuuuumd" * 3 + "t"), KEYS, KEYS, CELLS, CELLS, st.booleans())
Action = tuple[str, str, str, str | None, str | None, bool]
counter = itertools.count()


@pytest.fixture(scope="module")
def place(server: Server) -> Iterator[PostgresDestination]:
    for database in new_database(server, "destination"):
        found = PostgresDestination(database)
        yield found
        found.close()


def changes_from(actions: list[Action], rows: dict[str, TextRow]) -> list[Change]:
    """Changes a source with these rows could have made, `rows` being kept up to date; `b` is at times not sent."""
    made = []
    for kind, key, other, a, b, unsent in actions:
        if kind == "t":
            rows.clear()
            made.append(truncate())
        elif kind == "i" and key not in rows:
            rows[key] = {"id": key, "a": a, "b": b}
            made.append(insert(rows[key]))
        elif kind == "d" and key in rows:
            rows.pop(key)
            made.append(delete({"id": key}))
        elif kind in "um" and key in rows:
            to = other if kind == "m" and other not in rows else key
            before = rows.pop(key)
            rows[to] = {"id": to, "a": a, "b": before["b"] if unsent else b}
            sent = {name: cell for name, cell in rows[to].items() if name != "b" or not unsent}
            made.append(update(sent, {"id": key} if to != key else None, ["b"] if unsent else []))
    return made


def full(changes: list[Change], rows: dict[str, TextRow]) -> list[Change]:
    """The same changes as a table with FULL identity sends them: with the whole row as it was."""
    now = dict(rows)
    made = []
    for change in changes:
        key = (change.old or change.new or {}).get("id") or ""
        before = now.pop(key, None)
        if change.new is not None:
            whole = {**(before or {}), **change.new}
            now[whole["id"] or ""] = whole
        if not change.new and change.old is None:
            now.clear()
        made.append(dataclasses.replace(change, old=before) if change.old or before else change)
    return made


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(ACTIONS, max_size=12), min_size=1, max_size=3), st.booleans())
def test_the_sink_follows(place: PostgresDestination, batches: list[list[Action]], keyed: bool) -> None:
    number = next(counter)
    schema = dataclasses.replace(KEYED if keyed else BAG, table=TableId("public", f"t{number}"))
    target = Target(f"truck {number}", schema, schema.table)
    sink = place.started(target)
    model, rows = MemoryTable.like(schema), dict[str, TextRow]()
    for step, actions in enumerate(batches, 1):
        before = dict(rows)
        made = changes_from(actions, rows)
        changes = changes_of(schema, made if keyed else full(made, before), lsn=Lsn(START + 0x100 * step - 8))
        model.apply_each(changes)
        batch = place.batch([target], step)
        receipts = place.write(batch, {target: [compact([changes])]})
        sink.commit(batch, receipts)
        sink.commit(batch, receipts)
        assert ordered(place.rows(schema.table)) == ordered(model.rows) == ordered(rows.values())
