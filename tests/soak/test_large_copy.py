"""A table of five million rows is copied incrementally under load and killed five times: equal, and read once.

`TRUCKER_SOAK_ROWS` says how many rows.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from typing import Any

import pytest

from fixtures.compare import wait_same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.waiting import wait_until

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

ROWS = int(os.environ.get("TRUCKER_SOAK_ROWS", "5000000"))
KILLS = 5
PARALLEL = 2
CHUNK_BYTES = 8 << 20
OLDEST_SECONDS = 5.0

# The snapshot of a query is that of its transaction's age; the walsender holds none while it sends.
_SESSIONS = """
    from pg_stat_activity
    where datname = current_database() and application_name like 'trucker%' and backend_type = 'client backend'"""
_OLDEST = f"select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float {_SESSIONS}"
_COPYING = "select count(*) from trucker.tables where snapshot like '%#%'"


class Updates:
    """pgbench's simple update, one row a transaction, and a look at the oldest transaction of trucker now and then."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dice = random.Random(chosen_seed())
        self._stop = threading.Event()
        self.updates = 0
        self.oldest = 0.0
        self._threads = [threading.Thread(target=work) for work in (self._write, self._look)]

    def __enter__(self) -> Updates:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        with self._database.connect() as connection:
            while not self._stop.is_set():
                key = self._dice.randrange(ROWS)
                connection.execute(b"update accounts set balance = balance + 1 where id = %s", [key])
                connection.execute(b"insert into history (account) values (%s)", [key])
                self.updates += 1

    def _look(self) -> None:
        with self._database.connect() as connection:
            while not self._stop.wait(0.1):
                row = connection.execute(_OLDEST.encode()).fetchone()
                self.oldest = max(self.oldest, row[0] if row else 0.0)


def _page(destination: Database) -> int:
    """Up to which page the copy of the large table has got."""
    if not destination.query("select from pg_tables where schemaname = 'trucker' and tablename = 'tables'"):
        return 0
    cursors = destination.query(
        "select split_part(snapshot, '#', 2) from trucker.tables where source_table like '%accounts%'"
    )
    return int(cursors[0][0].split(".")[2]) if cursors and cursors[0][0].count(".") == 3 else 0


def _read(database: Database) -> int:
    """How many rows of the large table were read by other than its key; a server process tells when it ends."""
    wait_until(lambda: database.query(f"select count(*) {_SESSIONS}") == [(0,)], 60)
    return int(database.query("select seq_tup_read from pg_stat_user_tables where relname = 'accounts'")[0][0])


def test_a_large_table_is_read_once_over_five_kills(
    project: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    database.execute(
        "create table history (id bigint generated always as identity primary key, account int)",
        "create table accounts (id int primary key, branch int, balance int, filler char(84))",
        f"insert into accounts select i, i % 100, 0, '' from generate_series(1, {ROWS}) i",
        "vacuum analyze accounts",
        "select pg_stat_reset()",
    )
    pages = database.query("select relpages from pg_class where oid = 'accounts'::regclass")[0][0]
    project.config["copy"] = {"chunk_bytes": CHUNK_BYTES, "parallel": PARALLEL}
    project.connect(postgres("replica", destination))
    project.truck("copy", ["public.*"], {"connection": "replica"}, copy="incremental")
    with Updates(database) as load:
        for number in range(KILLS):
            trucker = start()
            wait_until(lambda least=pages * (number + 1) // (KILLS + 2): _page(destination) > least, 600, 0.05)
            trucker.kill_tree()
        trucker = start()
        wait_until(lambda: destination.query(_COPYING) == [(0,)], 900)
        assert trucker.stop() == 0, trucker.output()
    chunk_rows = CHUNK_BYTES // 8192 * (ROWS // pages + 1)
    again = _read(database) - ROWS
    log.info("%s pages, %s updates, %s rows read again, %.1f s", pages, load.updates, again, load.oldest)
    assert 0 <= again <= load.updates + KILLS * PARALLEL * chunk_rows
    assert load.oldest < OLDEST_SECONDS
    trucker = start()
    wait_same(database, destination, "accounts", "history", timeout=300)
    assert trucker.stop() == 0, trucker.output()
