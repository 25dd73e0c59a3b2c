"""Where staged rows wait: in the receipt, in a file, or in a table of their own.

Little is carried in the receipt and copied by the driver: no connection is needed to write it. Much goes into a
file, where driver and executors share a disk, and otherwise is copied by the executor into an unlogged table in schema
`trucker`; both are named from project, batch, target and part, with a token that no other attempt shares. The commit
removes them. What a crash leaves goes at the next open.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from trucker.change import quote_identifier
from trucker.errors import DataError
from trucker.sinks.batch import Batch, Work
from trucker.sinks.postgres.apply.merge_sql import staging_columns
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.dialect import SCHEMA
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.text_stage import copied_columns, copy_in, plain_columns
from trucker.sinks.sql.text_part_writer import TextPartWriter, TextRun
from trucker.sinks.target import Target
from trucker.sinks.text_files import TextFiles

# A session keeps temporary tables for so many shapes; each costs a little at every commit.
_MAX_TABLES: Final = 64

Lend = Callable[[], AbstractContextManager[Session]]
Describe = Callable[[Session, Target], DestinationTable]


class PartWriter(TextPartWriter):
    """Stages values in receipts, files, or tables at the destination. A connection is borrowed only for tables."""

    def __init__(
        self, project: str, work: Work, lend: Lend, describe: Describe, files: TextFiles | None = None
    ) -> None:
        super().__init__(work, files)
        self._project = project
        self._lend = lend
        self._describe = describe

    def store(self, run: TextRun) -> None:
        """What a table's columns cannot take is staged as text, to be found out by the driver; a truck that sets such
        rows aside stages text from the start, as it was written."""
        try:
            self._copy(run)
        except DataError:
            if run.plain:
                raise
            self._make_plain(run)
            self._copy(run)

    def _copy(self, run: TextRun) -> None:
        name = run.table or self.new_name()
        with self._lend() as session, session.connection.transaction():
            if not run.table:
                columns = self._columns(session, run)
                session.run(f"create unlogged table {stage_name(name)} ({columns}) with (autovacuum_enabled = off)")
            into = f"{stage_name(name)} ({copied_columns(run.contents, self.target)})"
            copy_in(session, into, run.text)
        run.table = name

    def _columns(self, session: Session, run: TextRun) -> str:
        if run.plain:
            return plain_columns(run.contents, self.target)
        return staging_columns(run.contents, self.target, self._describe(session, self.target))

    def _make_plain(self, run: TextRun) -> None:
        """What is in the run's table already goes into one of text."""
        run.plain, before = True, run.table
        if not before:
            return
        run.table = self.new_name()
        names = copied_columns(run.contents, self.target)
        with self._lend() as session, session.connection.transaction():
            columns = plain_columns(run.contents, self.target)
            session.run(f"create unlogged table {stage_name(run.table)} ({columns}) with (autovacuum_enabled = off)")
            texts = ", ".join(name if name in ("k", "l", "n") else f"{name}::text" for name in names.split(", "))
            session.run(f"insert into {stage_name(run.table)} ({names}) select {texts} from {stage_name(before)}")
            drop_stages(session, [before])

    def new_name(self) -> str:
        return new_stage(self._project, self.work)


def new_stage(project: str, work: Work) -> str:
    """A name for what is staged of a part, that no other attempt shares."""
    prefix = stage_prefix(project, work.batch)
    return f"{prefix}{digest(str(work.target))}_{work.part}_{secrets.token_hex(6)}"


def stage_prefix(project: str, batch: Batch | None = None) -> str:
    """How the names of all staging tables of a project begin, or of one batch of it."""
    return f"s_{digest(project)}_{digest(batch.name)}_" if batch else f"s_{digest(project)}_"


def stage_name(name: str) -> str:
    return f"{SCHEMA}.{quote_identifier(name)}"


def list_stages(session: Session, prefix: str) -> list[str]:
    """The staging tables whose names begin so."""
    rows = session.run(
        """select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relkind = 'r' and starts_with(c.relname::text, $2)""",
        SCHEMA,
        prefix,
    )
    return [name for (name,) in rows]


def drop_stages(session: Session, names: Iterable[str]) -> None:
    """A few at a time: each takes locks until its transaction ends, of which a server has so many."""
    tables = [stage_name(name) for name in names]
    for first in range(0, len(tables), _MAX_TABLES):
        session.run(f"drop table if exists {', '.join(tables[first : first + _MAX_TABLES])}")


class Temporaries:
    """The temporary tables one commit copies carried chunks into; emptied by the end of the transaction.

    They belong to the session and are made once per shape, so that a batch like the last one makes none. Each takes
    locks until the transaction ends, of which a server has a limited number: a caller that has them `full` runs what
    is to be run with them, and uses them again.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taken: dict[str, int] = {}

    def take(self, columns: str) -> str:
        """An empty table of these columns that no other chunk of this commit uses."""
        number = self._taken.get(columns, 0)
        self._taken[columns] = number + 1
        name = f"pg_temp.t_{digest(columns)}_{number}"
        if name not in self._session.staging:
            if len(self._session.staging) >= _MAX_TABLES:
                self._drop_unused()
            table = name.removeprefix("pg_temp.")
            self._session.run(f"create temporary table if not exists {table} ({columns}) on commit delete rows")
            self._session.staging.add(name)
        return name

    @property
    def full(self) -> bool:
        return sum(self._taken.values()) >= _MAX_TABLES

    def empty(self) -> None:
        """Remove the rows of all tables in use, so that they can be taken again."""
        self._session.run(f"truncate {', '.join(sorted(self._used))}")
        self._taken.clear()

    @property
    def _used(self) -> set[str]:
        return {f"pg_temp.t_{digest(columns)}_{i}" for columns, count in self._taken.items() for i in range(count)}

    def _drop_unused(self) -> None:
        unused = self._session.staging - self._used
        if unused:
            self._session.run(f"drop table if exists {', '.join(sorted(unused))}")
            self._session.staging -= unused


def digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:11]
