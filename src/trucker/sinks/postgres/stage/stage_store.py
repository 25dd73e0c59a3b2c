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
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from trucker.change import INSERT, Changes, quote_identifier
from trucker.errors import DataError
from trucker.sinks.batch import Batch, Work
from trucker.sinks.postgres.apply.merge_sql import staging_columns
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.dialect import SCHEMA
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.staged_rows import Chunk, Contents, sort_out
from trucker.sinks.postgres.stage.text_file import TextFiles
from trucker.sinks.postgres.stage.text_stage import copied_columns, copy_in, plain_columns
from trucker.sinks.target import Target

# A session keeps temporary tables for so many shapes; each costs a little at every commit.
_MAX_TABLES: Final = 64

Lend = Callable[[], AbstractContextManager[Session]]
Describe = Callable[[Session, Target], DestinationTable]


@dataclass(slots=True)
class _Run:
    """Values that are staged as one: a single one, or inserts in a row, which cannot meet the same key twice."""

    contents: Contents
    inserts: bool
    text: list[pa.Buffer]
    table: str = ""
    plain: bool = False
    file: str = ""

    @property
    def size(self) -> int:
        return sum([piece.size for piece in self.text])

    def takes(self, contents: Contents, inserts: bool) -> bool:
        return self.inserts and inserts and self.contents.columns == contents.columns

    def grow(self, contents: Contents, text: Iterable[pa.Buffer]) -> None:
        both = self.contents
        rows, upserts = both.rows + contents.rows, both.upserts + contents.upserts
        self.contents = replace(both, rows=rows, upserts=upserts)
        self.text.extend(text)


class PartWriter:
    """Stages the values of one part in order. A connection is borrowed only if they are many."""

    def __init__(
        self, project: str, work: Work, lend: Lend, describe: Describe, files: TextFiles | None = None
    ) -> None:
        self._files = files
        self._project = project
        self._work = work
        self._target = work.target
        self._letters = work.target.truck in work.batch.dead_letters
        self._lend = lend
        self._describe = describe
        self._chunks: list[Chunk] = []
        self._run: _Run | None = None
        self._room = work.room
        self.rows = 0

    def add(self, value: Changes) -> None:
        self.rows += len(value)
        contents, text = sort_out(value, self._target, placed=self._letters)
        if not contents.rows:
            return
        inserts = contents.rows == int((value.op == INSERT).sum())
        if self._run and self._run.takes(contents, inserts):
            self._run.grow(contents, text)
        else:
            self._finish()
            self._run = _Run(contents, inserts, list(text), plain=self._letters)
        if self._run.table or self._run.file or self._run.size > self._room:
            self._spill(self._run)

    def chunks(self) -> tuple[Chunk, ...]:
        """What the receipt carries."""
        self._finish()
        return tuple(self._chunks)

    def _finish(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        self._room -= run.size
        carried = b"".join(map(memoryview, run.text))
        self._chunks.append(Chunk(run.contents, carried, run.table, bool(run.table) and run.plain, run.file))

    def _spill(self, run: _Run) -> None:
        """Too much to carry: into a file or a table. What a table's columns cannot take is staged as text, to be found
        out by the driver; a truck that sets such rows aside stages text from the start, as it was written."""
        if self._files is not None:
            run.file = run.file or self._new_name()
            self._files.append(run.file, self._target.table, run.text)
            run.text.clear()
            return
        try:
            self._copy(run)
        except DataError:
            if run.plain:
                raise
            self._make_plain(run)
            self._copy(run)
        run.text.clear()

    def _copy(self, run: _Run) -> None:
        name = run.table or self._new_name()
        with self._lend() as session, session.connection.transaction():
            if not run.table:
                columns = self._columns(session, run)
                session.run(f"create unlogged table {stage_name(name)} ({columns}) with (autovacuum_enabled = off)")
            into = f"{stage_name(name)} ({copied_columns(run.contents, self._target)})"
            copy_in(session, into, run.text)
        run.table = name

    def _columns(self, session: Session, run: _Run) -> str:
        if run.plain:
            return plain_columns(run.contents, self._target)
        return staging_columns(run.contents, self._target, self._describe(session, self._target))

    def _make_plain(self, run: _Run) -> None:
        """What is in the run's table already goes into one of text."""
        run.plain, before = True, run.table
        if not before:
            return
        run.table = self._new_name()
        names = copied_columns(run.contents, self._target)
        with self._lend() as session, session.connection.transaction():
            columns = plain_columns(run.contents, self._target)
            session.run(f"create unlogged table {stage_name(run.table)} ({columns}) with (autovacuum_enabled = off)")
            texts = ", ".join(name if name in ("k", "l", "n") else f"{name}::text" for name in names.split(", "))
            session.run(f"insert into {stage_name(run.table)} ({names}) select {texts} from {stage_name(before)}")
            drop_stages(session, [before])

    def _new_name(self) -> str:
        return new_stage(self._project, self._work)


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
