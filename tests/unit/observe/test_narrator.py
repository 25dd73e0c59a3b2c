"""What the log says of a running project as a whole."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trucker.observe.narrator import Narrator
from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase, TruckStatus


class Told:
    """A narrator, its clock, and the records that it logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "trucker")
        self.times = [0.0]
        self.narrator = Narrator(clock=lambda: self.times[-1])
        self._caplog = caplog

    def at(self, now: float, *trucks: TruckStatus) -> list[tuple[str, dict[str, Any]]]:
        """Message and facts of what is logged for this status."""
        self.times.append(now)
        self._caplog.clear()
        self.narrator(ProjectStatus("shop", "/shop", True, 7, "host", 0.0, now, trucks))
        plain = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
        return [
            (record.getMessage(), {name: value for name, value in vars(record).items() if name not in plain})
            for record in self._caplog.records
        ]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def truck(name: str = "a", phase: TruckPhase = TruckPhase.STREAMING, **values: Any) -> TruckStatus:
    return TruckStatus(name, "source", "replica", phase, **values)


def test_trucks_that_wait_for_the_same_reason_are_one_line(told: Told) -> None:
    told.at(0, truck("a"), truck("b"))
    error = "[TRK401] the server is away\n  next: start it"
    waiting = [truck(name, TruckPhase.RETRYING, error=error) for name in ("a", "b")]
    cause = {"code": "TRK401", "reason": "the server is away", "remedy": "start it"}
    assert told.at(1, *waiting) == [
        ("truck is retrying", {"trucks": ["a", "b"], "destination": "replica", **cause}),
    ]
    assert told.at(2, *waiting) == []
    assert told.at(13.5, truck("a"), truck("b")) == [
        ("truck is streaming", {"trucks": ["a", "b"], "destination": "replica", "interrupted_seconds": 12.5}),
    ]


def test_copies_are_logged_every_ten_seconds(told: Told) -> None:
    copying = truck(phase=TruckPhase.COPYING, copying=(CopyProgress("public.t", 1, 2, 500, 50, 100, 2.0),))
    assert [message for message, _ in told.at(0, copying)] == ["truck is copying"]
    assert told.at(5, copying) == []
    facts = {"percent": 50, "rows": 500, "rows_per_second": 250.0, "seconds_left": 2.0}
    assert told.at(10, copying) == [("table is being copied", {"truck": "a", "table": "public.t", **facts})]
    assert told.at(11, copying) == []


def test_a_summary_every_minute_in_which_rows_moved_and_every_ten_otherwise(told: Told) -> None:
    told.at(0, truck(rows=0, lag_seconds=0.0, lag_bytes=0))
    assert told.at(59, truck(rows=600, lag_seconds=0.0, lag_bytes=0)) == []
    streaming = truck(rows=600, lag_seconds=1.5, lag_bytes=70)
    facts = {"streaming": 1, "rows": 600, "seconds": 60.0, "rows_per_second": 10.0, "lag_seconds": 1.5, "lag_bytes": 70}
    assert told.at(60, streaming) == [("summary", facts)]
    assert told.at(400, streaming) == []
    ((message, later),) = told.at(660, truck(rows=600, lag_seconds=None, blind_since=1.0))
    assert (message, later["rows"], later["lag_seconds"], later["blind"]) == ("summary", 0, None, 1)
