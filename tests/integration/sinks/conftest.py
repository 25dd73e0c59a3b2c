"""What tests of sinks may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.pg import Database
from fixtures.postgres_sink import PostgresDestination


@pytest.fixture
def place(destination: Database) -> Iterator[PostgresDestination]:
    """A destination on PostgreSQL 18 with the suite's means."""
    found = PostgresDestination(destination)
    yield found
    found.close()
