"""`kill -9` to any process of a running project, at any moment: nothing is lost, nothing is doubled (I4).

Set TRUCKER_SEED to repeat the changes; the moments are as random as the machine.
"""

from __future__ import annotations

import psutil
import psycopg

from fixtures.campaign import Campaign, kill, processes
from fixtures.pg import Database
from fixtures.waiting import wait_until


def test_the_small_processes_come_back(campaign: Campaign) -> None:
    """Capture, a Spark worker and all of them: the project goes on without being started again."""
    trucker = campaign.start()
    trucker.wait_streaming(120)
    for words, child in (
        ("trucker.capture.process", False),
        ("pyspark.worker", True),
        ("pyspark.worker", False),  # the daemon with all its workers
    ):
        campaign.caught_up(trucker)
        campaign.load.wait(campaign.load.dml.random.randrange(5, 60))
        victims = wait_until(lambda words=words, child=child: processes(trucker, words, child=child), 30, 0.05)
        kill(victims)
        campaign.load.wait(20)
        campaign.caught_up(trucker)
    campaign.equal(trucker)


def test_the_large_ones_are_started_again(campaign: Campaign) -> None:
    """The whole tree in the middle of the copy, then the JVM, then the driver alone: nothing of it stays behind."""
    campaign.source.execute(
        "insert into keyed (id, word) select i, repeat('w', 100) from generate_series(200000, 300000) i"
    )
    trucker = campaign.start()
    wait_until(lambda: _copying(campaign.replica), 60, 0.005)
    trucker.kill_tree()
    for words in ("org.apache.spark.deploy.SparkSubmit", "-m trucker run"):
        trucker = campaign.start()
        campaign.caught_up(trucker)
        campaign.load.wait(campaign.load.dml.random.randrange(5, 60))
        everybody = trucker.tree()
        kill(processes(trucker, words))
        code = trucker.process.wait(60)
        assert code == (-9 if words.startswith("-m") else 1), trucker.output()
        if code == 1:
            assert "TRK511" in trucker.output()
            assert "/trucker/" not in trucker.output().replace(str(campaign.project.folder), ""), (
                "a traceback of our own"
            )
        _, left = psutil.wait_procs(everybody, 30)
        assert not left, [process.cmdline() for process in left]
    trucker = campaign.start()
    campaign.equal(trucker)


def _copying(destination: Database) -> bool:
    try:
        return bool(destination.query("select 1 from trucker.tables where phase = 'copying'"))
    except psycopg.errors.UndefinedTable:
        return False
