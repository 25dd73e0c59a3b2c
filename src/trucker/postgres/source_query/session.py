"""The catalogue, from a session whose search path is the role's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from trucker.postgres.connect import translated

Connection = psycopg.Connection[Any]


@contextmanager
def catalogue(connection: Connection) -> Iterator[None]:
    """Names from pg_catalog only in here, as everywhere where the catalogue is read."""
    with translated("reading the catalogue"), connection.transaction(force_rollback=True):
        connection.execute("set local search_path = pg_catalog")
        yield
