"""Trucker's own tables at a destination, in schema `trucker`; users may read them.

positions     how far each truck is; one row per truck, locked by a commit for it
tables        the phase of each source table of a truck, and where its rows go
chunks        the parts of unfinished snapshots that have been copied
dead_letters  changes that could not be applied, see `sinks.letters`
late_keys     primary keys that are made when a first copy is complete, see `deferred_key`
identities    which table and which columns each truck has filled, see `identity`
format        the version of these tables
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import psycopg

from trucker.errors import SinkError, SinkUnavailable
from trucker.sinks.ledger import Ledger, Plan
from trucker.sinks.postgres import identity
from trucker.sinks.postgres.ddl import deferred_key
from trucker.sinks.postgres.dialect import SCHEMA
from trucker.sinks.postgres.session import Session
from trucker.sinks.sql.ledger_tables import ENTRY_COLUMNS, ledger_of
from trucker.sinks.target import TruckTable
from trucker.table import TableId, quote_identifier

FORMAT: Final = 1
OLDEST: Final = 14

_TABLES: Final = (
    """create table trucker.format (version int not null)""",
    f"""insert into trucker.format values ({FORMAT})""",
    """create table trucker.positions (
        project text, truck text, lsn pg_lsn, updated_at timestamptz not null default now(),
        primary key (project, truck))""",
    """create table trucker.tables (
        project text, truck text, source_schema text, source_table text, target_schema text, target_table text,
        phase text not null, lsn pg_lsn not null, snapshot text not null, updated_at timestamptz not null default now(),
        primary key (project, truck, source_schema, source_table))""",
    """create table trucker.chunks (
        project text, truck text, source_schema text, source_table text, snapshot text, part int,
        rows bigint not null, primary key (project, truck, source_schema, source_table, snapshot, part))""",
)
# Made where it is missing: what an older trucker made has no such table yet, and need not know of it.
_LETTERS: Final = (
    """create table trucker.dead_letters (
        id bigint generated always as identity primary key,
        project text not null, truck text not null, source_schema text not null, source_table text not null,
        target_schema text not null, target_table text not null, operation text not null,
        lsn pg_lsn not null, ordinal bigint not null, key json not null, data json not null,
        sqlstate text not null, reason text not null, constraint_name text, column_name text,
        tries int not null default 1,
        created_at timestamptz not null default now(), updated_at timestamptz not null default now())""",
    "create index on trucker.dead_letters (project, truck)",
)
# Code that creates an object which may exist takes this lock first: "if not exists" does not prevent a race.
LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('trucker ' || $1, 0))"


def refuse_unusable(session: Session, name: str) -> None:
    """Raise for a server that is too old or a standby."""
    major = session.connection.info.server_version // 10_000
    if major < OLDEST:
        raise SinkError(
            f"connection {name}: PostgreSQL {major} is too old",
            remedy=f"use PostgreSQL {OLDEST} or newer",
            code="TRK407",
        )
    if session.run("select pg_is_in_recovery()").fetchone() == (True,):
        raise SinkUnavailable(f"connection {name}: the server is a standby", remedy="set `host` to the primary")


def create(session: Session) -> None:
    """Make schema and tables where they are missing."""
    missing = session.run(
        """select num_nulls(to_regclass('trucker.format'), to_regclass('trucker.dead_letters'),
            to_regclass('trucker.late_keys'), to_regclass('trucker.identities'))"""
    ).fetchone()
    if missing != (0,):
        _create(session)
    _refuse_format(session)


def _refuse_format(session: Session) -> None:
    version = session.run("select max(version) from trucker.format").fetchone()
    if version is None or version[0] != FORMAT:
        raise SinkError(
            f"schema {SCHEMA} at the destination has format {version and version[0]}, this trucker reads {FORMAT}",
            remedy="use the version of trucker that created it",
            code="TRK413",
        )


def _create(session: Session) -> None:
    info = session.connection.info
    try:
        with session.connection.transaction():
            session.run(LOCK, SCHEMA)
            # Not by to_regclass(): that may remember from before the lock that there was none.
            existing = {name for (name,) in session.run("select tablename from pg_tables where schemaname = 'trucker'")}
            if session.run("select exists (select from pg_namespace where nspname = 'trucker')").fetchone() == (False,):
                session.run("create schema trucker")
            for statement in () if "format" in existing else _TABLES:
                session.run(statement)
            for statement in () if "dead_letters" in existing else _LETTERS:
                session.run(statement)
            if "late_keys" not in existing:
                session.run(deferred_key.TABLE)
            if "identities" not in existing:
                session.run(identity.TABLE)
    except psycopg.errors.InsufficientPrivilege:
        raise SinkError(
            f"user {info.user} may not create trucker's own tables in database {info.dbname}",
            remedy="run at the destination: "
            f"GRANT CREATE ON DATABASE {quote_identifier(info.dbname)} TO {quote_identifier(info.user)}",
            code="TRK404",
        ) from None


def add_trucks(session: Session, project: str, trucks: Collection[str]) -> None:
    """Insert a row for each truck where it is missing, so that the row can be locked."""
    session.run(
        "insert into trucker.positions (project, truck) select $1, unnest($2::text[]) on conflict do nothing",
        project,
        sorted(trucks),
    )


_POSITIONS: Final = "select truck, lsn::text from trucker.positions where project = $1"
_ENTRIES: Final = f"select {ENTRY_COLUMNS.replace('lsn', 'lsn::text')} from trucker.tables where project = $1"
LETTER_COUNT: Final = """select truck, count(*) from trucker.dead_letters
    where project = $1 and truck = any($2::text[]) group by truck"""
_OF_TRUCKS: Final = " and truck = any($2::text[]) order by truck"
_OF_SLOTS: Final = """ and (truck, source_schema, source_table) in
    (select * from unnest($2::text[], $3::text[], $4::text[])) order by truck, source_schema, source_table"""


def read(session: Session, project: str) -> Ledger:
    """All that is stored of a project now, where trucker's tables exist. Waits for nothing and locks nothing."""
    if session.run("select to_regclass('trucker.format') is null").fetchone() == (True,):
        return Ledger()
    _refuse_format(session)
    return ledger_of(session.run(_POSITIONS, project), session.run(_ENTRIES, project))


def load(session: Session, project: str) -> Ledger:
    """All that is stored of a project.

    Waits for commits under way: one whose connection was lost may still be at it in the server, and a position read
    before it ends would have its changes applied twice.
    """
    with session.connection.transaction():
        positions = session.run(f"{_POSITIONS} order by truck for share", project)
        return ledger_of(positions, session.run(_ENTRIES, project))


def lock(
    session: Session,
    project: str,
    trucks: Collection[str],
    truck_tables: Collection[TruckTable] = (),
    *,
    lettered: Collection[str] = (),
) -> tuple[Ledger, dict[str, int]]:
    """The trucks' positions and the entries of their tables, and how many letters each of the `lettered` trucks has,
    if any.

    Begins a transaction. No other session commits for these trucks, or redrives their letters, until it ends.
    """
    entries: Iterable[tuple[Any, ...]] = ()
    letters: Iterable[tuple[Any, ...]] = ()
    with session.connection.pipeline():
        session.run("begin")
        positions = session.run(f"{_POSITIONS}{_OF_TRUCKS} for update", project, sorted(trucks))
        if truck_tables:
            entries = session.run(
                f"{_ENTRIES}{_OF_SLOTS} for update",
                project,
                [truck for truck, _ in truck_tables],
                [table.schema for _, table in truck_tables],
                [table.name for _, table in truck_tables],
            )
        if lettered:
            # A statement of its own, which sees what a redrive has done that the lock has waited for.
            letters = session.run(LETTER_COUNT, project, sorted(lettered))
    return ledger_of(positions, entries), dict(letters)


def store(session: Session, project: str, plan: Plan) -> None:
    """What the plan changes, inside the caller's transaction."""
    if plan.forgotten:
        session.run(
            """update trucker.positions set lsn = null, updated_at = now()
            where project = $1 and truck = any($2::text[])""",
            project,
            sorted(plan.forgotten),
        )
    if plan.positions:
        trucks = sorted(plan.positions)
        session.run(
            """update trucker.positions p set lsn = n.lsn, updated_at = now()
            from unnest($2::text[], $3::pg_lsn[]) n(truck, lsn) where p.project = $1 and p.truck = n.truck""",
            project,
            trucks,
            [str(plan.positions[truck]) for truck in trucks],
        )
    if plan.entries:
        rows = [
            (
                t,
                s.schema,
                s.name,
                e.target and e.target.schema,
                e.target and e.target.name,
                e.phase,
                str(e.lsn),
                e.snapshot,
            )
            for (t, s), e in sorted(plan.entries.items(), key=lambda item: item[0])
        ]
        session.run(
            """insert into trucker.tables as t (project, truck, source_schema, source_table, target_schema,
                target_table, phase, lsn, snapshot)
            select $1, * from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::pg_lsn[], $9::text[])
            on conflict (project, truck, source_schema, source_table) do update set
                target_schema = excluded.target_schema, target_table = excluded.target_table,
                phase = excluded.phase, lsn = excluded.lsn, snapshot = excluded.snapshot, updated_at = now()""",
            project,
            *(list(column) for column in zip(*rows, strict=True)),
        )


# -- copied parts -----------------------------------------------------------------------------------------------------


def enter_part(session: Session, project: str, truck_table: TruckTable, snapshot: str, part: int) -> int | None:
    """Inside a transaction: claim a part of a copy, or say how many rows it has if it was copied before.

    The lock on the table's row keeps another attempt from beginning, and this one from being completed, while this part
    is being written. Raises if that has happened already: a task that Spark has given up on may still be at it.

    COMMIT does not wait for the disk then: the commit that makes the copy count does, for all that came before it, and
    finds out if a part was lost with its record in a crash.
    """
    truck, table = truck_table
    current = session.run(
        """select set_config('synchronous_commit', 'off', true) from trucker.tables where project = $1 and truck = $2
            and source_schema = $3 and source_table = $4 and snapshot = $5 and phase = 'copying' for share""",
        project,
        truck,
        table.schema,
        table.name,
        snapshot,
    ).fetchone()
    if current is None:
        raise SinkError(f"the copy {snapshot} of table {table} is complete, or was replaced by another attempt")
    key = (project, truck, table.schema, table.name, snapshot, part)
    claimed = session.run(
        "insert into trucker.chunks values ($1, $2, $3, $4, $5, $6, 0) on conflict do nothing", *key
    ).rowcount
    if claimed:
        return None
    copied = session.run(
        """select rows from trucker.chunks where project = $1 and truck = $2 and source_schema = $3
            and source_table = $4 and snapshot = $5 and part = $6""",
        *key,
    ).fetchone()
    return int(copied[0]) if copied else 0


def finish_part(session: Session, project: str, truck_table: TruckTable, snapshot: str, part: int, rows: int) -> bool:
    """Store how many rows a part has; returns whether its table's key is still due (`deferred_key`)."""
    truck, table = truck_table
    key_due = session.run(
        """update trucker.chunks c set rows = $7 where project = $1 and truck = $2 and source_schema = $3
            and source_table = $4 and snapshot = $5 and part = $6
        returning exists (select from trucker.late_keys k where (k.project, k.truck, k.source_schema, k.source_table)
            = (c.project, c.truck, c.source_schema, c.source_table))""",
        project,
        truck,
        table.schema,
        table.name,
        snapshot,
        part,
        rows,
    ).fetchone()
    return key_due == (True,)


def parts(session: Session, project: str, truck_table: TruckTable) -> tuple[str, frozenset[int]]:
    """The copy of a table that is in progress, and its parts that are there."""
    truck, table = truck_table
    rows = session.run(
        """select t.snapshot, c.part from trucker.tables t
            left join trucker.chunks c using (project, truck, source_schema, source_table, snapshot)
        where project = $1 and truck = $2 and source_schema = $3 and source_table = $4 and phase = 'copying'""",
        project,
        truck,
        table.schema,
        table.name,
    ).fetchall()
    return (rows[0][0], frozenset(part for _, part in rows if part is not None)) if rows else ("", frozenset())


def take_parts(
    session: Session, project: str, truck_tables: Iterable[TruckTable]
) -> dict[tuple[str, TableId, str, int], int]:
    """Delete the records of these tables' copied parts; returns the rows by truck, table, snapshot and part."""
    wanted = sorted(truck_tables)
    if not wanted:
        return {}
    removed = session.run(
        """delete from trucker.chunks c using unnest($2::text[], $3::text[], $4::text[]) w(truck, s, t)
        where c.project = $1 and c.truck = w.truck and c.source_schema = w.s and c.source_table = w.t
        returning c.truck, c.source_schema, c.source_table, c.snapshot, c.part, c.rows""",
        project,
        [truck for truck, _ in wanted],
        [table.schema for _, table in wanted],
        [table.name for _, table in wanted],
    )
    return {(truck, TableId(s, t), snapshot, part): rows for truck, s, t, snapshot, part, rows in removed}
