"""CopyData messages to a destination as they came from the source, past libpq: they are the same in both directions."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import closing

import psycopg
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from trucker.pg.listening import Listening


def is_clear(connection: Listening) -> bool:
    """Whether the socket carries the protocol itself, with neither TLS nor GSSAPI around it; the connection must be at
    rest.

    libpq reports TLS, but not GSSAPI: the start of the answer to a query shows whether it is encrypted.
    """
    pgconn = connection.pgconn
    if pgconn.ssl_in_use:
        return False
    pgconn.send_query(b"select 1")
    connection.wait(_sent(pgconn))
    connection.wait(_ready(Wait.R))
    with closing(_past(pgconn)) as past:
        clear = past.recv(1, socket.MSG_PEEK) == b"T"
    while True:
        while pgconn.is_busy():
            connection.wait(_ready(Wait.R))
            pgconn.consume_input()
        if pgconn.get_result() is None:
            return clear


def send_frames(connection: Listening, frames: Iterable[bytes | memoryview]) -> None:
    """Send whole CopyData messages over a connection in the clear that is in a COPY."""
    pgconn = connection.pgconn
    connection.wait(_sent(pgconn))
    with closing(_past(pgconn)) as past:
        for some in frames:
            view = memoryview(some)
            while len(view):
                try:
                    view = view[past.send(view) :]
                except BlockingIOError:
                    connection.wait(_ready(Wait.W))
                except OSError as error:
                    raise psycopg.OperationalError(f"the connection is lost: {error.strerror or error}") from None


def _past(pgconn: PGconn) -> socket.socket:
    """The connection's socket; it is, and stays, one that does not block."""
    return socket.socket(fileno=os.dup(pgconn.socket))


def _sent(pgconn: PGconn) -> PQGen[None]:
    while pgconn.flush():
        yield Wait.W


def _ready(what: Wait) -> PQGen[None]:
    while (yield what) == Ready.NONE:
        pass
