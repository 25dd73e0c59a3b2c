"""Streams that refuse events: set aside with the position, sent again by redrive, gone when a table is copied again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trucker.abilities import Abilities
from trucker.errors import DataError, SinkError, SinkUnavailable, TruckFailed
from trucker.lsn import Lsn
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch
from trucker.sinks.committer import Committer
from trucker.sinks.event import Event, Events
from trucker.sinks.event_letters import LetterEventSink, name_event
from trucker.sinks.ledger import Ledger
from trucker.sinks.letters import Choice, KeepsLetters, Redriven
from trucker.table import TableId
from trucker.testing.handmade import insert
from trucker.testing.memory_events import Stream
from trucker.testing.suites.sink_suite import ITEMS, START, SinkMeans, target_of

TARGET = target_of(ITEMS, table=TableId("shop", "things"))


class StrictStream(LetterEventSink):
    """Guarantee: exactly once while the process lives; refuses rows with the ids in `bad`."""

    name: ClassVar[str] = "strict_stream"
    abilities: ClassVar[Abilities] = Abilities(every_change=True, dead_letters=True)
    stream: ClassVar[Stream] = Stream()
    bad: ClassVar[set[int]] = set()
    away: ClassVar[bool] = False
    dies: ClassVar[bool] = False

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(None, workspace)
        self.appended: dict[str, list[Event]] = {}

    def read_ledger(self) -> Ledger:
        self.appended = {}
        return self.stream.ledgers.get(self._project, Ledger())

    def append(self, truck: str, events: Iterator[Events]) -> None:
        rows = [event for piece in events for event in piece.rows()]
        errors = self._try(rows)
        self.appended[truck] = [row for row, error in zip(rows, errors, strict=True) if error is None]
        self.refuse(truck, [(row, error) for row, error in zip(rows, errors, strict=True) if error is not None])

    def store(self, ledger: Ledger) -> None:
        if self.away:
            raise SinkUnavailable("away")
        for truck, events in self.appended.items():
            self.stream.events[truck] += events
        self.stream.ledgers[self._project] = ledger
        if self.dies:
            raise SinkUnavailable("the answer was lost")

    def redeliver(self, truck: str, events: Sequence[Event]) -> Sequence[DataError | None]:
        errors = self._try(events)
        self.stream.events[truck] += [row for row, error in zip(events, errors, strict=True) if error is None]
        return errors

    def _try(self, events: Sequence[Event]) -> list[DataError | None]:
        error = DataError("too large", remedy="send less", code="TRK717", sqlstate="413")
        return [error if json.loads(event.key or b"{}").get("id") in self.bad else None for event in events]


class TestEventLetters(SinkMeans):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path
        for name, value in {"stream": Stream(), "bad": {2}, "away": False, "dies": False}.items():
            monkeypatch.setattr(StrictStream, name, value)

    def make_sink(self, project: str = "suite") -> Sink:
        return StrictStream(Workspace(project, self.folder, near=True))

    def step(self, sink: Committer, step: int, *rows: int, most: int | None = 10) -> None:
        batch = replace(self.batch([TARGET], step), dead_letters={} if most is None else {"main": most})
        changes = self.values(ITEMS, *(insert({"id": str(n)}) for n in rows), step=step)
        sink.commit(batch, self.write(batch, {TARGET: [[changes]]}))

    @property
    def delivered(self) -> list[int]:
        return [json.loads(event.key or b"")["id"] for event in StrictStream.stream.events["main"]]

    def redriven(self, *, dry_run: bool = False, **choice: Any) -> list[Redriven]:
        sink = self.make_sink()
        assert isinstance(sink, KeepsLetters)
        return sink.redrive(Choice(("main",), **choice), dry_run=dry_run)

    def count(self) -> dict[str, int]:
        sink = self.make_sink()
        assert isinstance(sink, KeepsLetters)
        assert sink.letters == sink.count_letters()
        return dict(sink.letters)

    def test_later_events_go_on_and_a_redriven_one_comes_late(self) -> None:
        sink = self.started(TARGET)
        self.step(sink, 1, 1, 2, 3)
        StrictStream.bad = set()
        self.step(sink, 2, 2, 4)
        assert (self.delivered, self.count()) == ([1, 3, 2, 4], {"main": 1})
        (done,) = self.redriven()
        assert (done.applied, self.delivered, self.count()) == (True, [1, 3, 2, 4, 2], {})
        events = StrictStream.stream.events["main"]
        assert events[-1].commit_lsn < events[2].commit_lsn, "it says that it is the older one"

    def test_what_is_shown_of_a_letter(self) -> None:
        self.step(self.started(TARGET), 1, 2)
        (done,) = self.redriven()
        assert done.applied is False
        shown = done.shown()
        assert shown.pop("id") > 0
        assert shown == {
            "truck": "main",
            "table": "public.items",
            "target": "shop.things",
            "operation": "insert",
            "key": {"id": "2"},
            "lsn": str(Lsn(START + 0x100 - 8)),
            "ordinal": 0,
            "applied": False,
            "tries": 2,
            "sqlstate": "413",
            "reason": "too large",
            "constraint": None,
        }

    def test_a_dry_run_tries_nothing(self) -> None:
        self.step(self.started(TARGET), 1, 2)
        StrictStream.bad = set()
        (foreseen,) = self.redriven(dry_run=True)
        assert (foreseen.applied, foreseen.letter.reason.message, foreseen.letter.tries) == (None, "too large", 1)
        assert (self.delivered, self.count()) == ([], {"main": 1})

    def test_a_letter_is_chosen_by_either_name_of_its_table(self) -> None:
        self.step(self.started(TARGET), 1, 2)
        for table, count in ((ITEMS.table, 1), (TARGET.table, 1), (TableId("public", "other"), 0)):
            assert len(self.redriven(table=table)) == count

    def test_a_truck_that_stops_says_which_event(self) -> None:
        sink = self.started(TARGET)
        with pytest.raises(TruckFailed) as caught:
            self.step(sink, 1, 1, 2, most=None)
        assert "insert of table shop.things, row (id = 2)): too large" in caught.value.message
        assert "on_error: dead_letter" in caught.value.remedy
        assert caught.value.code == "TRK717"
        assert (self.delivered, self.count()) == ([], {})

    def test_more_than_the_most_stop_the_truck(self) -> None:
        StrictStream.bad = {1, 2, 3}
        sink = self.started(TARGET)
        self.step(sink, 1, 1, 2, most=2)
        with pytest.raises(TruckFailed) as caught:
            self.step(sink, 2, 3, 4, most=2)
        assert caught.value.code == "TRK470"
        assert self.count() == {"main": 2}

    @pytest.mark.parametrize("lost", ["away", "dies"])
    def test_an_event_is_one_letter_whether_the_ledger_was_stored_or_not(self, lost: str) -> None:
        sink = self.started(TARGET)
        setattr(StrictStream, lost, True)
        with pytest.raises(SinkUnavailable):
            self.step(sink, 1, 1, 2)
        setattr(StrictStream, lost, False)
        assert self.redriven() == [], "not while it is not known whether it counts"
        again = self.committer()
        again.open()
        self.step(again, 1, 1, 2)
        assert (self.delivered, self.count()) == ([1], {"main": 1})
        assert len(self.redriven()) == 1

    def test_an_event_that_is_taken_when_it_comes_again_is_no_letter(self) -> None:
        sink = self.started(TARGET)
        StrictStream.away = True
        with pytest.raises(SinkUnavailable):
            self.step(sink, 1, 1, 2)
        StrictStream.away, StrictStream.bad = False, set()
        self.step(sink, 1, 1, 2)
        assert (self.delivered, self.count()) == ([1, 2], {})

    def test_a_copy_from_the_beginning_removes_the_letters(self) -> None:
        sink = self.started(TARGET)
        self.step(sink, 1, 2)
        self.begin_copy(sink, [TARGET], name="second")
        assert self.count() == {}

    def test_a_damaged_file_disturbs_no_status(self) -> None:
        """Whoever needs the letters says what is wrong."""
        sink = self.make_sink()
        assert isinstance(sink, StrictStream)
        (self.folder / "sink.letters.db").write_bytes(b"no database" * 1000)
        assert dict(sink.letters) == {}
        with pytest.raises(SinkError) as caught:
            sink.count_letters()
        assert caught.value.code == "TRK711"

    def test_a_reset_removes_the_letters(self) -> None:
        sink = self.started(TARGET)
        self.step(sink, 1, 2)
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
        assert self.count() == {}


def test_an_error_shows_the_key_in_part_and_never_the_value() -> None:
    event = Event(b'{"secret":1}', json.dumps({"k": "x" * 1000}).encode(), ITEMS.table, "update", 1, 2, "0/1/2", False)
    error = name_event(DataError("too large", remedy="send less"), event)
    assert len(error.message) < 200
    assert "secret" not in str(error)


def test_a_key_in_debeziums_envelope_is_shown_as_any_other() -> None:
    key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 7}}).encode()
    event = Event(b"{}", key, ITEMS.table, "update", 1, 2, "0/1/2", False)
    assert "row (id = 7)" in name_event(DataError("no"), event).message
