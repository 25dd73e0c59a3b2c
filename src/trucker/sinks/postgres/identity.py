"""Which tables and columns trucker has filled, by oid and attnum (`sinks.table_identity`).

`trucker.identities` has a row for each table of a truck; `table_oid` 0 stands for a table that is not there and may be
made. PostgreSQL gives no oid and no attnum of a table a second time, and keeps both through TRUNCATE, ALTER, VACUUM
FULL and pg_upgrade; a restored dump has others.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from trucker.errors import SinkError
from trucker.sinks.batch import Phase
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.table_identity import TableChange, TableIdentity, compare, replaced_while_copied
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId

log = logging.getLogger("trucker.sink")

TABLE: Final = """create table trucker.identities (
    project text, truck text, source_schema text, source_table text, table_oid oid not null, columns json not null,
    updated_at timestamptz not null default now(), primary key (project, truck, source_schema, source_table))"""

_STORED: Final = """select t.truck, t.source_schema, t.source_table, t.phase, t.target_schema, t.target_table,
        i.table_oid::bigint, i.columns
    from trucker.tables t left join trucker.identities i using (project, truck, source_schema, source_table)
    where t.project = $1"""
_OF_SLOT: Final = " and t.truck = $2 and t.source_schema = $3 and t.source_table = $4"
_BEFORE_IDENTITIES: Final = """select t.truck, t.source_schema, t.source_table, t.phase, t.target_schema,
        t.target_table, null, null from trucker.tables t where t.project = $1"""

# Run with every commit: of the ways to ask this is the quickest to plan.
_NOW: Final = """select w.number, w.oid::bigint, array(select a.attnum::text || ' ' || a.attname from pg_attribute a
        where a.attrelid = w.oid and a.attnum > 0 and not a.attisdropped)
    from (select number, to_regclass(name)::oid as oid from unnest($1::text[]) with ordinality u(name, number)) w
    where w.oid is not null"""

_PUT: Final = """insert into trucker.identities as i (project, truck, source_schema, source_table, table_oid, columns)
    values ($1, $2, $3, $4, $5::bigint::oid, $6::json)
    on conflict (project, truck, source_schema, source_table) do update set
        table_oid = excluded.table_oid, columns = excluded.columns, updated_at = now()"""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of a table of a truck."""

    phase: Phase
    target: TableId | None
    identity: TableIdentity | None

    @property
    def filled(self) -> bool:
        """Whether rows are in a table that count, so that another table would lack them."""
        return self.phase is not Phase.COPYING and self.target is not None and self.target.schema != ""


def load(session: Session, project: str, truck_table: TruckTable | None = None) -> dict[TruckTable, Stored]:
    """What is stored of the project's tables, or of one of them."""
    if truck_table is None:
        rows = session.run(_STORED, project)
    else:
        rows = session.run(_STORED + _OF_SLOT, project, truck_table[0], truck_table[1].schema, truck_table[1].name)
    return _stored(rows)


def _stored(rows: Iterable[tuple[Any, ...]]) -> dict[TruckTable, Stored]:
    return {
        (truck, TableId(schema, name)): Stored(
            Phase(phase),
            None if target is None else TableId(target_schema, target),
            None if oid is None else TableIdentity(str(oid or ""), columns),
        )
        for truck, schema, name, phase, target_schema, target, oid, columns in rows
    }


def now(session: Session, tables: Sequence[TableId]) -> dict[TableId, TableIdentity]:
    """These tables as they are, all columns included; none where there is none."""
    rows = ask(session, tables).fetchall()
    return {tables[number - 1]: _identity(oid, columns) for number, oid, columns in rows}


def ask(session: Session, tables: Sequence[TableId]) -> psycopg.Cursor[Any]:
    """The query of `now`, for a pipeline."""
    return session.run(_NOW, [table.quoted for table in tables])


def _identity(oid: int, columns: Sequence[str]) -> TableIdentity:
    pairs = (column.partition(" ") for column in columns)
    return TableIdentity(str(oid), {name: int(number) for number, _, name in pairs})


# -- prepare ----------------------------------------------------------------------------------------------------------


def refuse_changed(session: Session, project: str, target: Target, table: DestinationTable | None) -> Stored | None:
    """Raise for a table that has been filled and is another one now; what is stored of it."""
    truck_table = (target.truck, target.source.table)
    state = load(session, project, truck_table).get(truck_table)
    if state is not None and _judged(state, target):
        change = compare(
            *truck_table,
            target.table,
            state.identity,
            table.identity if table else None,
            target.source.columns,
            shared=target.shared,
        )
        if change is not None:
            raise change.error()
    return state


def put(session: Session, project: str, target: Target, table: DestinationTable, state: Stored | None) -> None:
    """Store what a prepared table is, inside the transaction that prepared it.

    Not while rows of the truck are in another table, or are going to be copied again: the stored identity is
    that of those rows.
    """
    if state is not None and state.filled and not _judged(state, target):
        return
    identity = table.identity.only(target.source.names)
    if state is None or state.identity != identity:
        _put(session, project, (target.truck, target.source.table), identity)


def _judged(state: Stored, target: Target) -> bool:
    return state.filled and state.target == target.table and not target.stale


def _put(session: Session, project: str, truck_table: TruckTable, identity: TableIdentity) -> None:
    truck, table = truck_table
    columns = json.dumps(dict(identity.columns))
    session.run(_PUT, project, truck, table.schema, table.name, int(identity.table or 0), columns)


# -- open, check, accept ----------------------------------------------------------------------------------------------


def adopt(session: Session, project: str) -> None:
    """Store the identity of tables that an older trucker, which stored no identities, has filled."""
    unknown = {
        truck_table: state
        for truck_table, state in load(session, project).items()
        if state.filled and not state.identity
    }
    tables = sorted({state.target for state in unknown.values() if state.target})
    identities = now(session, tables) if tables else {}
    adopted = [truck_table for truck_table, state in unknown.items() if state.target in identities]
    for truck_table in adopted:
        target = unknown[truck_table].target
        assert target is not None
        _put(session, project, truck_table, identities[target])
    if adopted:
        log.info(
            "tables written by an earlier version are accepted without a check",
            extra={"tables": sorted(str(t) for _, t in adopted)},
        )


def changed(session: Session, project: str) -> list[TableChange]:
    """The tables that have been filled and are others now. Changes nothing; trucker's own tables need not be there."""
    present = session.run("select to_regclass('trucker.tables') is null, to_regclass('trucker.identities') is null")
    without_tables, without_identities = present.fetchone() or (True, True)
    if without_tables:
        return []
    stored = _stored(session.run(_BEFORE_IDENTITIES if without_identities else _STORED, project))
    filled = {truck_table: state for truck_table, state in stored.items() if state.filled}
    tables = sorted({state.target for state in filled.values() if state.target})
    identities = now(session, tables) if tables else {}
    sharing = Counter((truck, state.target) for (truck, _), state in filled.items())
    changes = [
        compare(
            truck,
            source,
            state.target,
            state.identity,
            identities.get(state.target),
            shared=sharing[truck, state.target] > 1,
        )
        for (truck, source), state in sorted(filled.items(), key=lambda item: item[0])
        if state.target is not None
    ]
    return [change for change in changes if change is not None]


def accept(session: Session, project: str, truck_tables: Collection[TruckTable]) -> None:
    """Store the identity of what is there now, inside the caller's transaction."""
    chosen = {
        truck_table: state
        for truck_table, state in load(session, project).items()
        if truck_table in truck_tables and state.filled
    }
    tables = sorted({state.target for state in chosen.values() if state.target})
    identities = now(session, tables) if tables else {}
    for truck_table, state in chosen.items():
        current = identities.get(state.target) if state.target else None
        columns = state.identity.columns if state.identity and state.identity.columns else None
        current = current.only(columns) if current and columns else current
        _put(session, project, truck_table, current or TableIdentity(""))


# -- commit -----------------------------------------------------------------------------------------------------------


class WrittenTables:
    """The identities of the tables that a sink writes, kept so that a commit reads only what the tables are now."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._stored: dict[TruckTable, TableIdentity | None] = {}
        self._same: dict[TruckTable, tuple[int, list[str]]] = {}

    def clear(self) -> None:
        self._stored.clear()
        self._same.clear()

    def forget(self, target: Target) -> None:
        """What is stored of the target may be something else now."""
        self._stored.pop((target.truck, target.source.table), None)
        self._same.pop((target.truck, target.source.table), None)

    def learn(self, session: Session, targets: Iterable[Target]) -> None:
        """Load the stored identities of these targets, before they are compared."""
        for target in targets:
            truck_table = (target.truck, target.source.table)
            if truck_table not in self._stored:
                state = load(session, self._project, truck_table).get(truck_table)
                self._stored[truck_table] = state.identity if state else None

    def compare(
        self, targets: Sequence[Target], rows: Sequence[tuple[int, int, list[str]]]
    ) -> dict[TruckTable, TableChange]:
        """Which of the targets' tables are others; `rows` is the answer to `ask` for these tables."""
        by_number = {number: (oid, columns) for number, oid, columns in rows}
        changes: dict[TruckTable, TableChange] = {}
        for number, target in enumerate(targets, 1):
            truck_table, seen = (target.truck, target.source.table), by_number.get(number)
            if seen is not None and self._same.get(truck_table) == seen:
                continue
            current = _identity(*seen) if seen else None
            change = compare(
                *truck_table,
                target.table,
                self._stored[truck_table],
                current,
                target.source.columns,
                shared=target.shared,
            )
            if change is not None:
                changes[truck_table] = change
            elif seen is not None:
                self._same[truck_table] = seen
        return changes


def reason(change: TableChange, *, copied: bool) -> SinkError:
    """Why a commit fails; of a table that was `copied` all rows come again."""
    return replaced_while_copied(change.source, change.table) if copied else change.error()


def explanation(session: Session, project: str, targets: Iterable[Target]) -> TableChange | None:
    """The first change to a table of these targets, which explains a failed commit."""
    for target in targets:
        truck_table = (target.truck, target.source.table)
        state = load(session, project, truck_table).get(truck_table)
        if state is None or not _judged(state, target):
            continue
        identities: Mapping[TableId, TableIdentity] = now(session, [target.table])
        change = compare(
            *truck_table,
            target.table,
            state.identity,
            identities.get(target.table),
            target.source.columns,
            shared=target.shared,
        )
        if change is not None:
            return change
    return None
