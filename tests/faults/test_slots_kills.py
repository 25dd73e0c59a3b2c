"""`kill -9` to a project whose tables are spread over several slots: nothing is lost, nothing is doubled (I4).

Set TRUCKER_SEED to repeat the changes; the moments are as random as the machine.
"""

from __future__ import annotations

import pytest

from fixtures.campaign import Campaign, kill, processes
from fixtures.random_dml import TABLES
from fixtures.waiting import wait_until

SPREAD = [["public.marks", "public.keyed", "public.bag"], ["public.*"]]


@pytest.fixture
def spread(campaign: Campaign) -> Campaign:
    """Two slots, with tables of every truck that has many in both."""
    campaign.project.config["connections"][0]["slots"] = SPREAD
    campaign.project.save()
    return campaign


def _everybody_copied(campaign: Campaign) -> bool:
    found = campaign.replica.query(
        "select count(*) from trucker.tables where phase <> 'copying' and truck not like 'sums%'"
    )
    return found == [(len(TABLES) + 1,)]


def test_one_of_the_captures_and_then_everything(spread: Campaign) -> None:
    """One stream lags while the other goes on; then the whole tree in the midst of both."""
    trucker = spread.start()
    trucker.wait_streaming(120)
    captures = wait_until(lambda: processes(trucker, "trucker.engine.capture"), 30, 0.05)
    assert len(captures) == 2
    kill(captures[1:])
    spread.load.wait(60)
    trucker.kill_tree()
    trucker = spread.start()
    spread.equal(trucker)
    positions = spread.replica.query("select truck from trucker.positions where lsn is not null order by 1")
    assert positions == [("replica",), ("replica~2",), ("sums",)]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slots", [2, 3, SPREAD])
def test_the_whole_tree_again_and_again(slots: object, campaign: Campaign) -> None:
    """In the copy, between streams that are at different places, and while the number of slots changes."""
    dice = campaign.load.dml.random
    for number in range(8):
        campaign.project.config["connections"][0]["slots"] = slots
        campaign.project.save()
        trucker = campaign.start()
        if number:
            trucker.wait_streaming(120)
        campaign.load.wait(dice.randrange(1, 80))
        kill(processes(trucker, "trucker.engine.capture")[-1:])
        campaign.load.wait(dice.randrange(1, 40))
        trucker.kill_tree()
    trucker = campaign.start()
    wait_until(lambda: _everybody_copied(campaign), 120, 0.2)
    campaign.equal(trucker)
