"""The long model test: a random world, every sink, and every misfortune, again and again; equal at every quiet point.

`TRUCKER_SOAK_MINUTES` says how long (ten), `TRUCKER_SEED` which world and which misfortunes in which order.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import psutil
import pytest

from fixtures.pg import Database, new_database, start_server
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.proxy import Proxy
from fixtures.random_dml import chosen_seed
from fixtures.strikes import Strikes
from fixtures.tally import Tally
from fixtures.waiting import wait_until
from fixtures.world import World
from fixtures.world_equality import differences
from trucker.failpoint import POINTS
from trucker.lsn import Lsn
from trucker.observe.status import ProjectStatus, TruckPhase

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]

QUICK = {"connect": 2, "silence": 2, "lock": 1}


@pytest.fixture
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    for server in start_server(tmp_path_factory, 18):
        yield from new_database(server, "source")


@pytest.fixture
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    for server in start_server(tmp_path_factory, 18):
        yield from new_database(server, "destination")


class Misfortunes:
    """One project between two proxies, and what may befall it."""

    def __init__(self, folder: Path, shop: Database, warehouse: Database, world: World, tally: Tally) -> None:
        self.folder, self.shop, self.warehouse, self.world, self.tally = folder, shop, warehouse, world, tally
        self._strikes = Strikes(folder.with_name("strikes"), world.dice)
        self._points: list[str] = []
        self.near, self.far = Proxy(shop.server.port), Proxy(warehouse.server.port)
        self.project = ProjectFolder(folder, shop.name)
        self.project.config |= {
            "batch": {"max_bytes": 200_000, "patience": 0.5},
            "log": {"segment_bytes": 1 << 20},
            "retry": {"first": 0.1, "longest": 1},
        }
        self.project.connect(
            postgres("source", shop, port=self.near.port, timeouts=QUICK),
            postgres("replica", warehouse, port=self.far.port, timeouts=QUICK),
            {"name": "lake", "adapter": "duckdb", "path": str(folder / "lake.duckdb")},
            {"name": "audit", "adapter": "jsonl", "path": str(folder / "audit")},
        )
        for name in ("replica", "lake", "audit"):
            self.project.truck(name, ["public.*"], {"connection": name})
        self.trucker = self._started()
        self.all: list[Callable[[], None]] = [
            self.kill_all,
            self.kill_one,
            self.stop,
            self.crash_source,
            self.crash_destination,
            self.cut,
            self.freeze,
            self.stall,
        ]

    def alive(self) -> None:
        """A process whose loss it cannot survive ends it, with an error; then it is started again, as systemd would."""
        if self.trucker.process.poll() is not None:
            self.trucker.close()
            self.tally.update(f"killed at {point}" for point in self._strikes.forget())
            self.trucker = self._started()

    def arm(self) -> None:
        """From the next start on it dies at any of these points, too."""
        self._points = self.world.dice.sample(POINTS, self.world.dice.choice((0, 3, 8)))

    def disarm(self) -> None:
        self.tally.update(f"killed at {point}" for point in self._strikes.disarm())

    def _started(self) -> TruckerProcess:
        faults = self._strikes.arm(self._points, 6)
        return TruckerProcess(self.project, "--log-format", "json", failpoints=faults)

    def kill_all(self) -> None:
        self.trucker.kill_tree()

    def kill_one(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.world.dice.choice(self.trucker.tree()).kill()

    def stop(self) -> None:
        self.trucker.stop_after_kills(3)  # it may have been started while a server was away

    def crash_source(self) -> None:
        self.shop.server.kill()
        self.shop.server.start()
        self.world.reconnect()

    def crash_destination(self) -> None:
        self.warehouse.server.kill()
        self.steps(200)
        self.warehouse.server.start()

    def cut(self) -> None:
        self._hold(Proxy.cut)

    def freeze(self) -> None:
        self._hold(Proxy.freeze)

    def stall(self) -> None:
        self._hold(Proxy.stall)

    def _hold(self, how: Callable[[Proxy], object]) -> None:
        proxy = self.world.dice.choice((self.near, self.far))
        how(proxy)
        self.steps(self.world.dice.randrange(400))
        proxy.heal()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    def await_caught_up(self) -> None:
        (now,) = self.shop.query("select pg_current_wal_flush_lsn()::text")[0]
        goal = Lsn.parse(now)

        def reached() -> bool:
            self.alive()
            status = self.project.status()
            return (
                status is not None
                and status.pid == self.trucker.process.pid
                and not self._answered(status)
                and all(
                    truck.phase == "streaming"
                    and truck.lag_bytes == 0
                    and truck.source_position is not None
                    and Lsn.parse(truck.source_position) >= goal
                    for truck in status.trucks
                )
            )

        try:
            wait_until(reached, 300, 0.2)
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.project.status()}\n{self.trucker.output()[-4000:]}")

    def _answered(self, status: ProjectStatus) -> bool:
        """Whether trucks had stopped at what only the user may do; it has been done as they say."""
        stopped = [truck.error or "" for truck in status.trucks if truck.phase is TruckPhase.FAILED]
        told = [
            re.search(r"next: run (at the destination|in the DuckDB file): (.+); then trucker run", e) for e in stopped
        ]
        assert all(told), stopped
        if not told:
            return False
        self.trucker.stop()
        for found in filter(None, told):
            self.tally["statements asked for"] += 1
            if found[1] == "at the destination":
                self.warehouse.execute(*found[2].split("; "))
            else:
                with duckdb.connect(str(self.folder / "lake.duckdb")) as lake:
                    lake.execute(found[2])
        return True

    def assert_equal(self) -> None:
        """At rest, with trucker stopped: it holds the DuckDB file."""
        self.world.rest()
        self._points = []  # who dies at one before it has caught up is started without
        self.await_caught_up()
        self.disarm()
        self.await_caught_up()
        assert self.trucker.stop() == 0, self.trucker.output()
        folder = self.folder
        found = differences(self.world, self.shop, self.warehouse, folder / "lake.duckdb", folder / "audit" / "audit")
        assert found == []

    def close(self) -> None:
        self.trucker.close()
        self.near.close()
        self.far.close()


def test_the_world_and_its_misfortunes(tmp_path: Path, shop: Database, warehouse: Database, tally: Tally) -> None:
    """I2 to I8, with everything that can fail failing."""
    tally.seed = chosen_seed()
    world = World(shop, tally.seed, bold=True)
    world.create()
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    campaign = Misfortunes(tmp_path / "project", shop, warehouse, world, tally)
    suffered: list[str] = []
    try:
        while time.monotonic() < deadline:
            for _ in range(world.dice.randint(1, 4)):
                campaign.steps(world.dice.randrange(300))
                misfortune = world.dice.choice(campaign.all)
                suffered.append(misfortune.__name__)
                tally[misfortune.__name__] += 1
                misfortune()
                campaign.alive()
            campaign.assert_equal()
            tally["quiet points"] += 1
            campaign.arm()
            campaign.alive()
    except BaseException as error:
        error.add_note(f"after {world.steps} steps and {', '.join(suffered)}")
        raise
    finally:
        tally["steps"] = world.steps
        campaign.close()
        world.close()
    assert suffered
