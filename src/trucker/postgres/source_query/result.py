"""Runs a statement with parameters and returns its result by column, every value as PostgreSQL's text.

Rows arrive in pieces while the statement runs, so that one with too many rows can be cancelled.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import errors, generators, pq
from psycopg.abc import Transformer as Loading
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.types.string import TextLoader

from trucker.pg.connection import PgConnection

PIECE_ROWS: Final = 4096
_ROWS: Final = (pq.ExecStatus.TUPLES_CHUNK, pq.ExecStatus.TUPLES_OK)

# The map has no loaders for types, so that psycopg uses this one, registered for unknown types, for all of them.
_TEXTS: Final = AdaptersMap()
_TEXTS.register_loader(0, TextLoader)


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a result, as the server describes it."""

    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class _Context:
    connection: PgConnection
    adapters: AdaptersMap = _TEXTS


def describe(connection: PgConnection, statement: str) -> list[Field]:
    """The columns of a statement's result; it is parsed and not run. psycopg's errors are not translated."""
    link = connection.pgconn
    link.send_prepare(b"", statement.encode())
    _only(connection)
    link.send_describe_prepared(b"")
    described = _only(connection)
    return [
        Field((described.fname(i) or b"").decode(), described.ftype(i), described.fmod(i))
        for i in range(described.nfields)
    ]


def stream(connection: PgConnection, statement: str, parameters: Sequence[bytes | None]) -> Generator[pa.RecordBatch]:
    """Run a statement and yield its rows in pieces, with columns named 0, 1, …; psycopg's errors are not translated.

    The connection is busy until the iteration ends; a generator that is not exhausted must be closed, which cancels the
    statement.
    """
    link = connection.pgconn
    link.send_query_params(statement.encode(), parameters)
    link.set_chunked_rows_mode(PIECE_ROWS)
    loading = Transformer(_Context(connection))
    ended = False
    try:
        connection.wait(generators.send(link))
        while (result := connection.wait(generators.fetch(link))) is not None:
            if result.status not in _ROWS:
                raise errors.error_from_result(result)
            if result.ntuples:
                yield _columns(loading, result)
        ended = True
    finally:
        if not ended:
            _give_up(connection)


def _columns(loading: Loading, result: pq.abc.PGresult) -> pa.RecordBatch:
    loading.set_pgresult(result)
    rows = loading.load_rows(0, result.ntuples, tuple)
    cells = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(cells, names=[str(i) for i in range(len(cells))])


def _only(connection: PgConnection) -> pq.abc.PGresult:
    """The result of the one command that was just sent."""
    results: list[pq.abc.PGresult] = connection.wait(generators.execute(connection.pgconn))
    for result in results:
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)
    return results[0]


def _give_up(connection: PgConnection) -> None:
    """Cancel the statement, and discard what the server sent until then: the connection can be used again."""
    if connection.closed:
        return
    with suppress(psycopg.Error):
        connection.cancel_safe()
    with suppress(psycopg.Error):
        while connection.wait(generators.fetch(connection.pgconn)) is not None:
            pass
