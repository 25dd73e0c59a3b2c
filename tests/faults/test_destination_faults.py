"""What a PostgreSQL destination can do to a truck. The other truck goes on, and all is equal in the end (I4, I8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.bookings import SCHEMA, TABLES, Bookings
from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase
from trucker.testing.server import Server

pytestmark = pytest.mark.spark

FULL = """create function full_disk() returns trigger language plpgsql as
    $$begin raise sqlstate '53100' using message = 'could not extend file: No space left on device'; end$$"""


@pytest.fixture
def near(server: Server) -> Iterator[Database]:
    """A destination that nothing happens to."""
    yield from new_database(server, "near")


@pytest.fixture
def role(destination: Database) -> Iterator[str]:
    """The one that writes to the destination, and owns it."""
    name = f"writer_{destination.name}"
    destination.execute(
        f"create role {name} login password 'first'",
        f"alter database {destination.name} owner to {name}",
        f"grant create on schema public to {name}",
    )
    yield name
    destination.execute(f"drop owned by {name} cascade", f"alter database {destination.name} owner to postgres")
    destination.execute(f"drop role {name}")


def _away(destination: Database, role: str) -> None:
    """End the role's connections, so that it needs new ones."""
    destination.execute(f"select pg_terminate_backend(pid, 20000) from pg_stat_activity where usename = '{role}'")


def _is(run: InThread, name: str, phase: TruckPhase, words: str = "") -> bool:
    truck = run.truck(name)
    return truck is not None and truck.phase is phase and words in (truck.error or "")


def _booked(destination: Database, number: int) -> bool:
    return destination.query(f"select max(n) >= {number} from ledger where note = 'entry'") == [(True,)]


def test_a_destination_in_trouble(
    tmp_path: Path, database: Database, destination: Database, near: Database, role: str, spark: Any
) -> None:
    """Disk full, read-only, no connection to be had, another password: the truck says so and waits until it is over."""
    database.execute(*SCHEMA)
    project = ProjectFolder(tmp_path / "project", database.name)
    project.config |= {"batch": {"max_bytes": 20_000, "patience": 1}, "retry": {"first": 0.1, "longest": 0.5}}
    password = tmp_path / "password"
    password.write_text("first\n")
    far = {**postgres("far", destination), "user": role, "pass_path": str(password), "timeouts": {"lock": 1}}
    del far["pass"]
    project.connect(postgres("source", database), far, postgres("near", near))
    project.truck("far", ["public.*"], {"connection": "far"}).truck("near", ["public.*"], {"connection": "near"})

    def meets(words: str, *fault: str, healed_by: str) -> None:
        destination.execute(*fault)
        _away(destination, role)
        wait_until(lambda: _is(run, "far", TruckPhase.RETRYING, words), 60)
        goal = bookings.number
        wait_until(lambda: _booked(near, goal), 60)
        assert _is(run, "near", TruckPhase.STREAMING)
        destination.execute(healed_by)
        _away(destination, role)
        wait_until(lambda: _is(run, "far", TruckPhase.STREAMING), 60)

    with Bookings(database, 0.02) as bookings, InThread(project, spark) as run:
        run.wait_streaming(90)
        meets(
            "53100",
            FULL,
            "create trigger t before insert on ledger execute function full_disk()",
            healed_by="drop trigger t on ledger",
        )
        meets(
            "25006",
            f"alter role {role} set default_transaction_read_only = on",
            healed_by=f"alter role {role} reset default_transaction_read_only",
        )
        meets(
            "too many connections",
            f"alter role {role} connection limit 0",
            healed_by=f"alter role {role} connection limit -1",
        )
        destination.execute(f"alter role {role} password 'second'")
        _away(destination, role)
        wait_until(lambda: _is(run, "far", TruckPhase.RETRYING, "[TRK403]"), 60)
        assert _is(run, "far", TruckPhase.RETRYING, "check `pass` of connection far")
        bookings.__exit__()
        wait_until(lambda: same(database, near, *TABLES), 60, 0.1)
        password.write_text("second\n")  # as a secret that is rotated: no restart is needed
        wait_until(lambda: same(database, destination, *TABLES), 60, 0.1)


CUT = """create function cut() returns trigger language plpgsql as
    $$begin perform pg_terminate_backend(pg_backend_pid()); return null; end$$"""


@pytest.mark.parametrize("timing", ["immediate", "deferred"])
def test_a_connection_that_is_cut_in_the_middle_of_a_commit(
    tmp_path: Path, database: Database, destination: Database, spark: Any, timing: str
) -> None:
    """By a trigger while rows are written, and by one that COMMIT itself runs; once each, then it is gone."""
    database.execute(*SCHEMA)
    project = ProjectFolder(tmp_path / "project", database.name)
    project.config["retry"] = {"first": 0.1, "longest": 0.5}
    project.connect(postgres("source", database), postgres("far", destination))
    project.truck("far", ["public.*"], {"connection": "far"})
    with InThread(project, spark) as run:
        run.wait_streaming(90)
        destination.execute(
            CUT,
            "create constraint trigger t after insert on ledger"
            f" {'deferrable initially deferred' if timing == 'deferred' else 'not deferrable'}"
            " for each row execute function cut()",
        )
        database.execute("insert into ledger values (1000, 'cut'), (1000, 'cut')")
        wait_until(lambda: _is(run, "far", TruckPhase.RETRYING, "57P01"), 60)
        destination.execute("drop trigger t on ledger")
        wait_until(lambda: same(database, destination, *TABLES), 60, 0.1)
