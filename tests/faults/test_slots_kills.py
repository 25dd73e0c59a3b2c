"""`kill -9` to a project whose tables are spread over several slots: nothing is lost, nothing is doubled (I4).

Set TRUCKER_SEED to repeat the changes; the moments are as random as the machine.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fixtures.campaign import Campaign, kill, processes
from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres
from fixtures.random_dml import TABLES
from fixtures.waiting import wait_until

SPREAD = [["public.marks", "public.keyed", "public.bag"], ["public.*"]]


def _copied(destination: Database, count: int) -> bool:
    try:
        found = destination.query("select count(*) from trucker.tables where phase <> 'copying' and truck ~ '^replica'")
    except psycopg.errors.UndefinedTable:
        return False
    return found == [(count,)]


def test_the_whole_tree_and_then_one_capture(
    project: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """In the midst of the copies, and of a transaction over tables of both slots; then one stream's process alone."""
    database.execute(
        "create table a (id int primary key, n int)",
        "create table b (n int)",
        "alter table b replica identity full",
        "insert into a select i, 0 from generate_series(1, 50000) i",
        "insert into b select i % 100 from generate_series(1, 50000) i",
    )
    project.config["connections"][0]["slots"] = [["public.a"], ["public.b"]]
    project.connect(postgres("replica", destination)).truck("replica", ["public.*"], {"connection": "replica"})
    trucker = start()
    wait_until(lambda: destination.query("select to_regclass('b') is not null") == [(True,)], 120, 0.01)
    database.execute("update a set n = n + 1", "insert into b select 7 from generate_series(1, 1000)")
    trucker.kill_tree()
    trucker = start()
    wait_until(lambda: _copied(destination, 2), 120, 0.05)
    for number in range(100):
        database.execute(f"update a set n = n + 1 where id % 100 = {number}; delete from b where n = {number}")
        database.execute(f"insert into b select {number} from generate_series(1, 20)")
        if number == 50:
            captures = wait_until(lambda: processes(trucker, "trucker.capture.process")[1:], 60)
            kill(captures)
    wait_until(lambda: same(database, destination, "a", "b"), 120, 0.1)
    assert trucker.stop() == 0, trucker.output()
    positions = destination.query("select truck from trucker.positions where lsn is not null order by 1")
    assert positions == [("replica",), ("replica~2",)]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slots", [2, 3, SPREAD])
def test_the_whole_tree_again_and_again(slots: object, campaign: Campaign) -> None:
    """In the copy, and while streams are at different places."""
    dice = campaign.load.dml.random
    campaign.project.config["connections"][0]["slots"] = slots
    campaign.project.save()
    for number in range(8):
        trucker = campaign.start()
        if number:
            trucker.wait_streaming(240)
        campaign.load.wait(dice.randrange(1, 80))
        kill(processes(trucker, "trucker.capture.process")[-1:])
        campaign.load.wait(dice.randrange(1, 40))
        trucker.kill_tree()
    trucker = campaign.start()
    wait_until(lambda: _copied(campaign.replica, len(TABLES) + 1), 240, 0.2)
    campaign.equal(trucker)
