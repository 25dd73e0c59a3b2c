"""Snapshot rows: COPY's bytes from the source straight into the destination's table, or into its `shadow_table`.

A part and the record of it are one transaction, so a task that is repeated finds the record and does nothing. Where
nothing has to be done to the rows they pass through unread (`raw_copy`). Of a part that is refused in this way nothing
stays, and it is read once more, in pieces: the rows that are to blame are found by halves, and set aside in the same
transaction where the truck says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa

from trucker.change import Changes, CopiedRows, Lsn, UnreadRows, quote_identifier
from trucker.errors import DataError
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.copy_text import copy_text
from trucker.sinks.letters import Letter, Reason, name_row, too_many
from trucker.sinks.postgres import state_tables
from trucker.sinks.postgres.copy import shadow_table
from trucker.sinks.postgres.copy.raw_copy import Passage, check_taken, passage_of
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.failure import explain, of_data
from trucker.sinks.postgres.letters import letter_table
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target

UNFINISHED: Final = "unfinished"
"""What a receipt carries of a copy whose table is still without its key (`deferred_key`)."""


def copy_part(
    session: Session, project: str, work: Work, table: DestinationTable, rows: Iterator[Changes | CopiedRows]
) -> Receipt:
    """Copy one part, unless it has been."""
    part = _Part(session, project, work, table)
    passage = _passage(work, rows, table) if isinstance(rows, UnreadRows) else None
    done = part.passed(passage) if passage else None
    if done is None:
        done = part.piecewise(rows)
    return work.receipt(done, UNFINISHED if part.unfinished else None)


def _passage(work: Work, rows: UnreadRows, table: DestinationTable) -> Passage | None:
    return passage_of(rows, work.target, table, at_once=work.target.truck in work.batch.dead_letters)


class _Part:
    """One part of a copy and its record, in one transaction; how many rows it has.

    `unfinished` says that the table is still without its key (`deferred_key`).
    """

    def __init__(self, session: Session, project: str, work: Work, table: DestinationTable) -> None:
        self.unfinished = False
        self._session = session
        self._project = project
        self._target = work.target
        self._table = table
        self._slot = (work.target.truck, work.target.source.table)
        self._place = (work.batch.snapshot, work.part)
        self._most = work.batch.dead_letters.get(work.target.truck)

    def passed(self, passage: Passage) -> int | None:
        """Hand the rows on unread; None where the table refuses some of them."""
        try:
            with self._session.connection.transaction():
                copied = state_tables.enter_part(self._session, self._project, self._slot, *self._place)
                return self._finish(passage.take(self._session, self._into)) if copied is None else copied
        except psycopg.Error as error:
            if not of_data(error):
                raise
            return None

    def piecewise(self, pieces: Iterator[Changes | CopiedRows]) -> int:
        with self._session.connection.transaction():
            copied = state_tables.enter_part(self._session, self._project, self._slot, *self._place)
            if copied is not None:
                return copied
            copy = _Copy(self._session, self._target, self._table, self._into, self._most)
            rows = sum(copy.take(piece) for piece in pieces)
            letter_table.add(self._session, self._project, copy.letters, self._most or 0)
            return self._finish(rows)

    @property
    def _into(self) -> str:
        return shadow_table.find(self._session, self._project, self._slot) or self._target.table.quoted

    def _finish(self, rows: int) -> int:
        self.unfinished = state_tables.finish_part(self._session, self._project, self._slot, *self._place, rows)
        return rows


class _Copy:
    """Copies pieces inside the caller's transaction `into` a table. `letters` are the rows that were refused."""

    def __init__(self, session: Session, target: Target, table: DestinationTable, into: str, most: int | None) -> None:
        self.letters: list[Letter] = []
        self._session = session
        self._target = target
        self._table = table
        self._into = into
        self._most = most

    def take(self, piece: Changes | CopiedRows) -> int:
        """Copy a piece; how many rows it has."""
        names = [
            name for name in piece.schema.names if name in self._target.source.names and self._table.writable(name)
        ]
        if isinstance(piece, CopiedRows):
            straight = tuple(names) == piece.schema.names
            if straight and self._try(names, " (format csv)", [piece.csv], piece.rows) is None:
                return piece.rows
            piece = piece.to_changes()
        self._rows(piece, names)
        return len(piece)

    def _rows(self, changes: Changes, names: list[str]) -> None:
        rows = changes.new
        error = self._try(names, "", copy_text([rows.column(name) for name in names], len(changes)), len(changes))
        if error is None:
            return
        if len(changes) == 1:
            self._refused(changes, error)
            return
        half = len(changes) // 2
        for first, last in ((0, half), (half, len(changes))):
            self._rows(_slice(changes, first, last), names)

    def _try(
        self, names: list[str], options: str, data: Iterable[bytes | pa.Buffer], rows: int
    ) -> psycopg.Error | None:
        """Copy these rows, or leave everything as it was and say why they are refused."""
        if not rows:
            return None
        try:
            with self._session.connection.transaction():
                self._send(names, options, data, rows)
                if self._most is not None:
                    # A deferred constraint would report at the end that a row is refused, but not which.
                    self._session.run("set constraints all immediate")
        except psycopg.Error as error:
            if not of_data(error):
                raise
            return error
        return None

    def _send(self, names: list[str], options: str, data: Iterable[bytes | pa.Buffer], rows: int) -> None:
        table = self._target.table
        columns = ", ".join(map(quote_identifier, names))
        with self._session.connection.cursor() as cursor:
            with cursor.copy(f"copy {self._into} ({columns}) from stdin{options}".encode()) as copy:
                for piece in data:
                    copy.write(memoryview(piece) if isinstance(piece, pa.Buffer) else piece)
            check_taken(table, cursor.rowcount, rows)

    def _refused(self, changes: Changes, error: psycopg.Error) -> None:
        """A single row that the table does not take."""
        target = self._target
        reason = explain(error, f"table {target.table}", table=target.table, copied=target.source.names)
        assert isinstance(reason, DataError)
        (data,) = changes.new.select(list(target.source.names)).to_pylist()
        key = target.source.key
        named = name_row(reason, target, {name: data[name] for name in key})
        if self._most is None:
            raise named
        letter = Letter(
            target.truck,
            target.source.table,
            target.table,
            key,
            "insert",
            data,
            Lsn(int(changes.commit_lsn[0])),
            0,
            Reason.of(reason),
        )
        self.letters.append(letter)
        if len(self.letters) > self._most:
            raise too_many(target.truck, self._most, letter.reason)


def _slice(changes: Changes, first: int, last: int) -> Changes:
    return changes.take(np.arange(first, last, dtype=np.int64))
