"""The catalogue, from a session whose search path is the role's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trucker.pg.connection import PgConnection
from trucker.postgres.connect import translated


@contextmanager
def catalogue(connection: PgConnection) -> Iterator[None]:
    """A transaction in which names are found in pg_catalog only, for queries of the catalogue."""
    with translated("reading the catalogue"), connection.transaction(force_rollback=True):
        connection.execute("set local search_path = pg_catalog")
        yield
