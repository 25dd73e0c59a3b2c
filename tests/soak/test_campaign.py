"""The long campaign: a shop under load while everything that can fail does, again and again; equal at every stop.

`TRUCKER_SOAK_MINUTES` says how long (ten), `TRUCKER_SEED` which misfortunes, in which order.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fixtures.pg import start_server
from fixtures.project import LOST
from fixtures.random_dml import chosen_seed
from fixtures.tally import Tally
from fixtures.waiting import wait_until
from trucker.lsn import Lsn
from trucker.testing.equality import columns, duckdb_sums, postgres_sum
from trucker.testing.process import TruckerProcess
from trucker.testing.project_folder import postgres_entry, write_project
from trucker.testing.server import Server
from trucker.testing.shop import TABLES, Customers, open_shop

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from start_server(tmp_path_factory, 18)


@pytest.fixture
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from start_server(tmp_path_factory, 16)


class Campaign:
    """One project, its servers, and what may befall them."""

    def __init__(self, folder: Path, source: Server, warehouse: Server, dice: random.Random) -> None:
        self.folder, self.source, self.warehouse, self.dice = folder, source, warehouse, dice
        connections = [
            postgres_entry(source.connection("shop")),
            postgres_entry(warehouse.connection("warehouse")),
            {"name": "lake", "adapter": "duckdb", "path": "shop.duckdb"},
        ]
        settings = {"unique_id": "soak", "connections": connections, "retry": {"first": 0.2, "longest": 2.0}}
        everything = {"connection": "shop", "tables": ["public.*"]}
        trucks = {name: {"input": everything, "output": {"connection": name}} for name in ("warehouse", "lake")}
        write_project(folder, settings, trucks)
        self.trucker = TruckerProcess(folder)
        self.misfortunes: list[Callable[[], None]] = [
            self.kill_all,
            self.kill_one,
            self.stop_politely,
            self.crash_destination,
            self.cut_connections,
        ]

    def kill_all(self) -> None:
        self.trucker.kill_tree()
        self.trucker = TruckerProcess(self.folder)

    def kill_one(self) -> None:
        """Any process; it comes back, or all end and are started again."""
        victims = self.trucker.tree()
        if victims:
            with suppress(psutil.NoSuchProcess):
                self.dice.choice(victims).kill()

    def stop_politely(self) -> None:
        """One that lost a process it cannot do without may have ended by itself, or be about to."""
        code, words = self.trucker.stop(), self.trucker.last_words()
        assert code in (0, -9, -15, 3) or any(told in words for told in LOST), f"{code}: {words}"
        self.trucker = TruckerProcess(self.folder)

    def alive(self) -> None:
        """What has ended is started again, as systemd would."""
        if self.trucker.process.poll() is not None:
            self.trucker = TruckerProcess(self.folder)

    def crash_destination(self) -> None:
        self.warehouse.kill()
        time.sleep(self.dice.uniform(0, 10))
        self.warehouse.start()

    def cut_connections(self) -> None:
        for server in (self.source, self.warehouse):
            with server.connect() as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name like 'trucker%' and pid <> pg_backend_pid()"
                )

    def await_caught_up(self) -> None:
        with self.source.connect() as connection:
            row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        goal = Lsn.parse(row[0])

        def reached() -> bool:
            self.alive()
            return self.trucker.caught_up(goal)

        wait_until(reached, 300, 0.5)

    def assert_equal(self) -> None:
        """Stop trucker, which holds the DuckDB file, and compare every table."""
        self.await_caught_up()
        assert self.trucker.stop() == 0, self.trucker.last_words()
        with self.source.connect() as ours, self.warehouse.connect() as theirs:
            lake = duckdb_sums(ours, self.folder / "shop.duckdb", "public", TABLES)
            for table in TABLES:
                names = columns(ours, "public", table)
                expected = postgres_sum(ours, "public", table, names)
                assert postgres_sum(theirs, "public", table, names) == expected, table
                assert lake[table] == expected, table


def test_nothing_is_lost_and_nothing_is_doubled(
    tmp_path: Path, source: Server, warehouse: Server, tally: Tally
) -> None:
    tally.seed = chosen_seed()
    dice = random.Random(tally.seed)
    with source.connect() as connection:
        open_shop(connection)
    campaign = Campaign(tmp_path / "project", source, warehouse, dice)
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    try:
        while time.monotonic() < deadline:
            customers = Customers(source.connect, seed=dice.randrange(1 << 31))
            customers.start()
            try:
                for _ in range(dice.randint(1, 5)):
                    time.sleep(dice.uniform(0, 20))
                    misfortune = dice.choice(campaign.misfortunes)
                    tally[misfortune.__name__] += 1
                    misfortune()
                    campaign.alive()
                    customers.check()
            finally:
                customers.stop()
            campaign.assert_equal()
            tally["quiet points"] += 1
            campaign.trucker = TruckerProcess(campaign.folder)
    finally:
        campaign.trucker.kill_tree()
