"""Rows that a PostgreSQL destination refuses: set aside with the position, folded, redriven (I3, I4, I7, I8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fixtures.pg import Database, new_database
from fixtures.postgres_sink import read_rows
from fixtures.strict import BATCHES, Action, StrictDestination, run_model
from trucker.change import TableId
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.letters import Letter
from trucker.sinks.postgres import PostgresSink, letter_table
from trucker.sinks.postgres.session import close_idle, session
from trucker.testing.server import Server

TIGHT = (
    "drop schema if exists trucker cascade",
    "drop table if exists orders, parents, heap",
    "create table parents (id int primary key, name text)",
    """create table orders (id int primary key, name text constraint named check (name is not null),
        qty smallint check (qty >= 0), note varchar(4), code text unique, parent int)""",
    "create table heap (a smallint check (a >= 0), b varchar(4))",
)
LOOSE = (
    """alter table orders drop constraint named, drop constraint orders_qty_check, alter qty type int,
        alter note type text, drop constraint orders_code_key, drop constraint orders_parent_fkey""",
    "alter table heap drop constraint heap_a_check, alter a type int, alter b type text",
)


class StrictPostgres(StrictDestination):
    def __init__(self, database: Database) -> None:
        self.database = database

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, Path("unused")))

    def tighten(self) -> None:
        close_idle(self.database.connection)
        self.database.execute(*TIGHT)

    def tighten_more(self) -> None:
        """Between tables that are copied there can be no foreign key; what does not keep it now is not looked at."""
        self.database.execute(
            "alter table orders add constraint orders_parent_fkey foreign key (parent) references parents not valid"
        )

    def mend(self) -> None:
        self.database.execute(*LOOSE)

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        return read_rows(self.database, table)

    def letters(self) -> list[Letter]:
        with session(self.database.connection) as lent:
            return letter_table.load(lent, "suite", ["main"])


@pytest.fixture(scope="module")
def strict(server: Server) -> Iterator[StrictPostgres]:
    for database in new_database(server, "destination"):
        found = StrictPostgres(database)
        yield found
        close_idle(database.connection)


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
@given(batches=BATCHES)
def test_what_is_refused_is_set_aside_and_nothing_else(
    strict: StrictPostgres, batches: list[list[list[Action]]]
) -> None:
    """The destination is the source less the letters, at every batch; mended and redriven, it is the source."""
    run_model(strict, batches)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(max_examples=300, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=SLOW)
@given(batches=BATCHES)
def test_what_is_refused_is_set_aside_for_long(strict: StrictPostgres, batches: list[list[list[Action]]]) -> None:
    run_model(strict, batches)
