"""Outcomes arrive while their job runs: in order, once each, whatever happens to tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fixtures.waiting import wait_until
from trucker.change import TableId
from trucker.engine.spark.job import start_job
from trucker.engine.spark.outcome_stream import OutcomeStream, board_of
from trucker.engine.stream.arriving_receipts import ArrivingReceipts
from trucker.engine.task.payload import Failure, Outcome
from trucker.errors import EngineError, TruckFailed
from trucker.sinks.batch import Receipt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableId("public", "t")


def outcome(part: int, *failed: str) -> Outcome:
    receipt = Receipt("truck", TABLE, part, 1)
    return Outcome({"here": [receipt]}, [Failure(truck, EngineError("no")) for truck in failed])


# Workers cannot import what tests define, so what they are to do travels as text.
MADE = """__import__("trucker.engine.task.payload", fromlist=["payload"]).Outcome({{"here": [
    __import__("trucker.sinks.base", fromlist=["base"]).Receipt("truck", None, {part}, 1)]}})"""
GATE = """__import__("subprocess").run(["sh", "-c", "while [ ! -e {go} ]; do sleep 0.01; done"]) and """
DIES = """(__import__("pathlib").Path("{died}").exists()
    or (__import__("pathlib").Path("{died}").touch(), __import__("os").kill(__import__("os").getpid(), 9))) and """


def test_the_first_outcome_arrives_before_the_last_task_ends(spark: SparkSession, tmp_path: Path) -> None:
    """I4: a part that was tried twice counts once. All but the first wait; one dies, with its worker."""
    gate, dies = GATE.format(go=tmp_path / "go"), DIES.format(died=tmp_path / "died")
    parts_made = [MADE.format(part=part) for part in range(4)]
    work = [f"{front}({made})" for front, made in zip(("", gate, gate + dies, gate), parts_made, strict=True)]
    arriving = start_job(spark, eval, work)
    parts = ArrivingReceipts("here", {"truck"}, arriving).by_part()
    assert [receipt.part for receipt in next(parts)] == [0]
    (tmp_path / "go").touch()
    assert [receipt.part for some in parts for receipt in some] == [1, 2, 3]
    assert (tmp_path / "died").exists()
    assert len(list(arriving)) == 4
    wait_until(lambda: not board_of(spark.sparkContext)._waiting, 10)


def test_a_failed_job_raises_its_error_in_every_waiting_thread(spark: SparkSession) -> None:
    arriving = start_job(spark, eval, ["1 / 0", "1 / 0"])
    for _ in range(2):
        with pytest.raises(EngineError, match="TRK599"):
            list(arriving)


def test_a_failed_truck_is_reported_to_its_destination_only() -> None:
    """I3, I8. Nobody takes what there is of its share for the whole."""
    arriving = OutcomeStream.done([outcome(0), outcome(1, "truck")])
    concerned = ArrivingReceipts("here", {"truck"}, arriving)
    parts = concerned.by_part()
    assert len(next(parts)) == 1
    with pytest.raises(TruckFailed):
        next(parts)
    with pytest.raises(TruckFailed):
        list(concerned)
    receipts, failed = concerned.settled()
    assert [receipt.part for receipt in receipts] == [0, 1]
    assert failed.keys() == {"truck"}
    assert sum(len(some) for some in ArrivingReceipts("here", {"other"}, arriving).by_part()) == 2
    assert not list(ArrivingReceipts("there", {"truck"}, OutcomeStream.done([outcome(0)])))
