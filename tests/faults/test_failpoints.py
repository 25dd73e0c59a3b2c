"""SIGKILL at every boundary that must survive it, and at random: nothing is lost, nothing is doubled (I3, I4).

TRUCKER_SEED, which every run prints, repeats the changes, the order of the faults and how often a point is passed
before it strikes; the moments are as random as the machine.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import trucker
from fixtures.campaign import Campaign, Ended, kill, processes
from fixtures.project import TruckerProcess
from fixtures.strikes import Strikes
from fixtures.tally import Tally
from fixtures.waiting import wait_until
from trucker.failpoint import POINTS, VARIABLE
from trucker.testing.object_storage import ObjectStorage

# Of a first copy that is large, which this load is not, or incremental: `test_copy_kills` and
# `test_incremental_kills` have them.
LARGE = ("worker.finish.", "copy.chunk.")
# What only one kind of storage for the change log comes by.
OF_OBJECTS = ("capture.put.",)
# Of commands, which this campaign does not give: `test_reload_kills` and `test_refresh_kills` do.
COMMANDS = ("reload.", "refresh.")
# Of a receiver of events, which this load has none of: `test_webhook_kills` does.
RECEIVER = ("events.", "letters.")
ELSEWHERE = (*LARGE, *COMMANDS, *RECEIVER)
# What a campaign that is under way does not come by.
PASSED = ("setup.", "copy.", *OF_OBJECTS, *ELSEWHERE)
OF_FILES = ("capture.write.", "capture.fsync.", "capture.seal.")
# In how many places a point is: each sink has its own, and each kind of storage.
PLACES = {"sink.position.": 8, "sink.commit.": 7, "capture.publish.": 2, "log.prune.": 2, "copy.begin.": 3}


# With every fact that the lines have.
LOG = ("--log-format", "json")


# A start dies at these before it needs Spark.
BEFORE_SPARK = "setup."
WITHOUT_SPARK = """
import sys
from types import SimpleNamespace
from trucker.project import Project

Project.load(sys.argv[1]).run(spark=SimpleNamespace(sparkContext=SimpleNamespace(master="local")))
"""


def _die_before_spark(campaign: Campaign, point: str, failpoints: str) -> None:
    command = [sys.executable, "-c", WITHOUT_SPARK, str(campaign.project.folder)]
    environment = {**os.environ, VARIABLE: failpoints}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == -9, f"{point}: ended with {ended.returncode}\n{ended.stdout}{ended.stderr}"


def _die(trucker: TruckerProcess, point: str) -> None:
    code = trucker.process.wait(300)
    assert code == -9, f"{point}: ended with {code}\n{trucker.output()}"


def _dealt(points: Sequence[str], hands: int) -> Iterator[list[str]]:
    """The points in so many shares."""
    for hand in range(hands):
        yield list(points[hand::hands])


def _strike_everywhere(campaign: Campaign, tmp_path: Path, points: Sequence[str]) -> None:
    """Every one of the points, once; the load goes on. Capture dies at its own while the driver comes up anyway."""
    # Those that only the first start passes, in its order: a start that dies there is followed by another.
    first = [point for point in points if point.startswith(("setup.", "copy."))]
    # The process that passes it is started again by those that are left: several may strike in one run.
    survived = [point for point in points if point.startswith(("capture.", "worker."))]
    # The driver's own: the project must be started again.
    fatal = [point for point in points if point not in (*first, *survived)]
    dice = random.Random(campaign.seed)
    strikes = Strikes(tmp_path / "strikes", dice)
    survived, fatal = dice.sample(survived, len(survived)), dice.sample(fatal, len(fatal))
    for point in first:
        if point.startswith(BEFORE_SPARK):
            _die_before_spark(campaign, point, strikes.arm([point], 1))
        else:
            _die(campaign.start(failpoints=strikes.arm([point], 1)), point)
    for point, others in zip(fatal, _dealt(survived, len(fatal)), strict=True):
        faults = f"{strikes.arm([point], 3)}; {strikes.arm(others, 4)}"
        _die(campaign.start(failpoints=faults), point)
    running = campaign.start(failpoints=strikes.arm(strikes.left(survived), 1))

    def all_struck() -> bool:
        assert running.process.poll() is None, running.output()
        return not strikes.left(points)

    try:
        wait_until(all_struck, 300, 0.1)
    except AssertionError:
        pytest.fail(f"never reached: {strikes.left(points)}\n{running.output()}")
    campaign.equal(running)


@pytest.mark.timeout(1200)
def test_killed_at_every_boundary(campaign: Campaign, tmp_path: Path) -> None:
    _strike_everywhere(
        campaign, tmp_path, [point for point in POINTS if not point.startswith((*OF_OBJECTS, *ELSEWHERE))]
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_killed_at_every_boundary_of_a_log_of_objects(
    campaign: Campaign, tmp_path: Path, shared_storage: ObjectStorage, bucket: str
) -> None:
    campaign.project.config["log"] = {"location": bucket, "s3": shared_storage.s3}
    campaign.project.save()
    _strike_everywhere(campaign, tmp_path, [point for point in POINTS if not point.startswith((*OF_FILES, *ELSEWHERE))])


def test_every_point_is_in_the_code_once() -> None:
    """A point that nothing reaches would never strike; some have their place in several kinds of a thing."""
    source = Path(trucker.__file__).parent
    found = [name for path in source.rglob("*.py") for name in re.findall(r'reach\("([^"]+)"\)', path.read_text())]
    assert set(found) == set(POINTS)
    for point in POINTS:
        assert found.count(point) == next((count for start, count in PLACES.items() if point.startswith(start)), 1)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_the_long_campaign(campaign: Campaign, tmp_path: Path, tally: Tally) -> None:
    """Failpoints and processes at random, one, several or all at once, for as long as TRUCKER_SOAK_MINUTES says."""
    dice = random.Random(campaign.seed)
    strikes = Strikes(tmp_path / "strikes", dice)
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    tally.seed = campaign.seed
    running = campaign.start(*LOG)
    while time.monotonic() < deadline:
        for _ in range(dice.randrange(3, 25)):
            campaign.load.wait(dice.randrange(1, 200))
            tally[_strike(campaign, running, dice)] += 1
            if not _survives(running):
                tally.update(f"killed at {point}" for point in strikes.forget())
                points = dice.sample([p for p in POINTS if not p.startswith(PASSED)], dice.randrange(6))
                running = campaign.start(*LOG, failpoints=strikes.arm(points, 30))
                tally["started"] += 1
        running.close()
        campaign.equal(campaign.start(*LOG))
        tally["quiet points"] += 1
        tally["transactions"] = campaign.load.dml.transactions
        campaign.load.go()
        running = campaign.start(*LOG)


def _strike(campaign: Campaign, running: TruckerProcess, dice: random.Random) -> str:
    """Something happens to it, or it is let catch up; what it was."""
    match dice.randrange(5):
        case 0:
            running.kill_tree()
            return "all killed"
        case 1:
            kill([dice.choice(running.tree())])
            return "any one killed"
        case 2:
            words = dice.choice(("trucker.capture.process", "pyspark", "SparkSubmit"))
            kill(processes(running, words))
            return f"{words} killed"
        case 3:
            running.stop_after_kills()
            return "stopped"
        case _:
            with suppress(Ended):  # a point that was armed has struck meanwhile
                campaign.caught_up(running)
            return "left to catch up"


def _survives(trucker: TruckerProcess) -> bool:
    """Whether it is still there a moment after something was done to it."""
    try:
        trucker.process.wait(3)
    except subprocess.TimeoutExpired:
        return True
    return False
