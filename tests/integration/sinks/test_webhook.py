"""The webhook sink against the public suite, and what it does besides: dead letters, retries without repetition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fixtures.json_lines import written
from fixtures.receiver import OK, Received, Receiver, Reply, in_turn, receiving
from fixtures.webhook import PROXIES, webhook_sink
from trucker.errors import SinkRefused, SinkUnavailable, TruckFailed
from trucker.finding import Level
from trucker.sinks.base import Sink
from trucker.sinks.committer import Committer
from trucker.sinks.letters import Choice
from trucker.sinks.webhook.sink import WebhookSink
from trucker.table import TableId
from trucker.testing.handmade import delete, insert, update
from trucker.testing.suites.sink_suite import ITEMS, ChangeSinkSuite, SinkMeans, Written, target_of

TARGET = target_of(ITEMS)
OTHER = target_of(ITEMS, "other", TableId("shop", "things"))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with receiving() as server:
        yield server


class TestWebhook(ChangeSinkSuite):
    rows: ClassVar[int] = 1

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path, receiver: Receiver) -> Iterator[None]:
        self.folder, self.receiver = tmp_path, receiver
        self.sinks: list[WebhookSink] = []
        yield
        for sink in self.sinks:
            sink.close()

    def make_sink(self, project: str = "suite") -> Sink:
        self.sinks.append(webhook_sink(self.receiver.url, self.folder, project, batch={"rows": self.rows}, parallel=1))
        return self.sinks[-1]

    def written(self, table: TableId) -> list[Written]:
        """What the requests have: an array is taken apart as it is, so that numbers keep their digits."""
        bodies = [request.body for request in self.receiver.taken]
        if self.rows > 1:
            assert all(body.startswith(b"[") and body.endswith(b"]") for body in bodies)
            bodies = [json.dumps(event, ensure_ascii=False).encode() for body in bodies for event in json.loads(body)]
        return written(b"".join(body + b"\n" for body in bodies), table)


class TestWebhookArrays(TestWebhook):
    rows = 3


class TestDeliveries(SinkMeans):
    """What comes again after a failure, and what does not."""

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path, receiver: Receiver) -> Iterator[None]:
        self.settings: dict[str, Any] = {}
        self.folder, self.receiver = tmp_path, receiver
        self.sinks: list[WebhookSink] = []
        yield
        for sink in self.sinks:
            sink.close()

    def make_sink(self, project: str = "suite") -> WebhookSink:
        timeouts = {"connect": 120, "read": 120, "retry": 0}
        self.sinks.append(webhook_sink(self.receiver.url, self.folder, project, timeouts=timeouts, **self.settings))
        return self.sinks[-1]

    def step(self, sink: Committer, step: int, *rows: int, most: int | None = None, other: bool = False) -> None:
        targets = [TARGET, OTHER] if other else [TARGET]
        letters = {} if most is None else {target.truck: most for target in targets}
        batch = replace(self.batch(targets, step), dead_letters=letters)
        changes = self.values(ITEMS, *(insert({"id": str(n)}) for n in rows), step=step)
        sink.commit(batch, self.write(batch, {target: [[changes]] for target in targets}))

    def taken(self, table: TableId = ITEMS.table) -> list[int]:
        events = self.receiver.events
        return [each["new"]["id"] for each in events if (each["schema"], each["table"]) == (table.schema, table.name)]

    def refusing(self, *rows: int, status: int = 422) -> None:
        def answer(request: Received) -> Reply:
            return Reply(status) if any(each["new"]["id"] in rows for each in request.events) else OK

        self.receiver.answering = answer

    def test_what_was_taken_before_a_failure_is_not_sent_again(self) -> None:
        """Within one process: a receiver that fails in the middle of a large batch is not sent its begin again."""
        sink = self.started(TARGET)
        self.refusing(7, status=503)
        for _ in range(3):
            with pytest.raises(SinkUnavailable):
                self.step(sink, 1, *range(1, 20))
            sink.open()
        self.receiver.answering = lambda _: OK
        self.step(sink, 1, *range(1, 20))
        assert sorted(self.taken()) == list(range(1, 20))

    def test_after_a_restart_events_come_again_with_the_same_ids(self) -> None:
        sink = self.started(TARGET)
        self.refusing(7, status=503)
        with pytest.raises(SinkUnavailable):
            self.step(sink, 1, *range(1, 20))
        before = {request.id for request in self.receiver.taken}
        self.receiver.answering = lambda _: OK
        again = self.committer()
        again.open()
        self.step(again, 1, *range(1, 20))
        assert before
        assert len({request.id for request in self.receiver.taken}) == 19
        assert set(self.taken()) == set(range(1, 20))

    def test_a_truck_that_fails_does_not_have_the_others_events_sent_twice(self) -> None:
        sink = self.started(TARGET, OTHER)
        self.receiver.answering = lambda request: (
            Reply(400) if request.headers["trucker-table"] == "shop.things" else OK
        )
        with pytest.raises(TruckFailed) as caught:
            self.step(sink, 1, 1, 2, 3, other=True)
        assert caught.value.truck == "other"
        assert "HTTP 400" in caught.value.message
        assert "row (id = " in caught.value.message
        batch = self.batch([TARGET, OTHER], 1).without(["other"])
        changes = self.values(ITEMS, *(insert({"id": str(n)}) for n in (1, 2, 3)))
        sink.commit(batch, self.write(batch, {TARGET: [[changes]]}))
        assert sorted(self.taken()) == [1, 2, 3]
        assert self.taken(OTHER.table) == []

    def test_refused_events_are_set_aside_and_sent_again_with_their_ids(self) -> None:
        sink = self.started(TARGET)
        self.refusing(2, 5)
        self.step(sink, 1, 1, 2, 3, most=10)
        self.step(sink, 2, 4, 5, 2, most=10)
        assert sorted(self.taken()) == [1, 3, 4]
        refused = [request.id for request in self.receiver.received if request not in self.receiver.taken]
        beside = self.make_sink()
        assert dict(beside.letters) == {"main": 3}
        assert [done.applied for done in beside.redrive(Choice(("main",)), dry_run=False)] == [False] * 3
        self.refusing(5)
        done = beside.redrive(Choice(("main",)), dry_run=False)
        assert [each.applied for each in done] == [True, False, True]
        assert sorted(self.taken()) == [1, 2, 2, 3, 4]
        assert {request.id for request in self.receiver.taken if request.events[0]["new"]["id"] == 2} <= set(refused)
        assert dict(beside.letters) == {"main": 1}

    def test_letters_that_were_taken_before_the_receiver_went_away_are_gone(self) -> None:
        sink = self.started(TARGET)
        self.refusing(*range(1, 10))
        self.step(sink, 1, *range(1, 10), most=10)
        self.refusing(7, status=503)
        beside = self.make_sink()
        with pytest.raises(SinkUnavailable):
            beside.redrive(Choice(("main",)), dry_run=False)
        assert self.taken()
        assert beside.count_letters()["main"] == 9 - len(self.taken())
        self.receiver.answering = lambda _: OK
        assert all(done.applied for done in beside.redrive(Choice(("main",)), dry_run=False))
        assert sorted(self.taken()) == list(range(1, 10))

    def test_a_truck_that_stays_failed_is_not_sent_what_was_taken(self) -> None:
        """Each time it is tried again, while other trucks go on."""
        sink = self.started(TARGET, OTHER)
        self.refusing(5)
        for step in (1, 2, 3):
            with pytest.raises(TruckFailed):
                self.step(sink, 1, 1, 2, 3, 4, 5)
            self.change(sink, OTHER, insert({"id": "6"}), step=step)
        assert sorted(self.taken()) == sorted(set(self.taken()))

    def test_a_letter_outlives_a_failure_behind_it_and_is_one(self) -> None:
        sink = self.started(TARGET)
        self.receiver.answering = lambda request: {2: Reply(422), 9: Reply(503)}.get(request.events[0]["new"]["id"], OK)
        with pytest.raises(SinkUnavailable):
            self.step(sink, 1, *range(1, 10), most=10)
        self.refusing(2)
        self.step(sink, 1, *range(1, 10), most=10)
        assert sorted(self.taken()) == [n for n in range(1, 10) if n != 2]
        assert dict(self.make_sink().letters) == {"main": 1}

    def test_more_refused_events_than_allowed_stop_the_truck(self) -> None:
        sink = self.started(TARGET)
        self.receiver.answering = lambda _: Reply(404)
        with pytest.raises(TruckFailed) as caught:
            self.step(sink, 1, *range(1, 200), most=3)
        assert caught.value.code == "TRK470"
        assert len(self.receiver.received) <= 3 + 1 + 4, "not all events are tried in vain"
        assert dict(self.make_sink().letters) == {}

    def test_credentials_are_read_anew_after_a_refusal(self) -> None:
        file = self.folder / "headers"
        file.write_text("Authorization: Bearer old\n")
        sink = self.make_sink()
        connection = sink._connection.model_copy()
        connection.secrets_in({"headers": file})
        sink._connection = connection
        self.receiver.answering = lambda request: (
            OK if request.headers.get("authorization") == "Bearer new" else Reply(401)
        )
        committer = Committer(sink)
        committer.open()
        self.copy(committer, {TARGET: []})
        with pytest.raises(SinkRefused):
            self.step(committer, 1, 1)
        file.write_text("Authorization: Bearer new\n")
        committer.open()
        self.step(committer, 1, 1)
        assert self.taken() == [1]

    def test_tombstones_are_not_sent(self) -> None:
        """Debezium's envelope has one behind each delete, also of an update that changes a key."""
        self.settings = {"format": "debezium", "parallel": 1}
        sink = self.started(TARGET)
        moved = update({"id": "2", "name": None, "qty": None, "note": None}, old={"id": "1"})
        self.change(sink, TARGET, insert({"id": "1"}), moved, delete({"id": "2"}))
        assert [event["op"] for event in self.receiver.events] == ["c", "d", "c", "d"]

    @pytest.mark.parametrize("rows", [1, 10])
    def test_the_marks_of_a_transaction_stand_around_its_events(self, rows: int) -> None:
        self.settings = {"transactions": True, "parallel": 4, "batch": {"rows": rows}}
        sink = self.started(TARGET)
        for step in (1, 2):
            self.change(sink, TARGET, *(insert({"id": str(n)}) for n in range(30)), step=step)
        operations = [event["operation"] for event in self.receiver.events]
        assert operations == ["begin", *["insert"] * 30, "end"] * 2

    def test_large_events_pass_in_pieces(self) -> None:
        sink = self.started(TARGET)
        batch = self.batch([TARGET])
        rows = [insert({"id": str(n), "note": "x" * 1_000_000}) for n in range(40)]
        sink.commit(batch, self.write(batch, {TARGET: [[self.values(ITEMS, *rows)]]}))
        assert sorted(self.taken()) == list(range(40))

    def test_check_asks_the_host_and_sends_nothing(self) -> None:
        (finding,) = self.make_sink().check()
        assert (finding.level, self.receiver.received) == (Level.OK, [])
        self.receiver.shutdown()
        self.receiver.server_close()
        (finding,) = self.make_sink().check()
        assert (finding.level, finding.code, finding.waits) == (Level.ERROR, "TRK712", True)
        assert not (self.folder / "suite").exists()

    def test_a_pause_between_two_batches_is_kept(self) -> None:
        sink = self.started(TARGET)
        self.receiver.answering = in_turn(Reply(429, {"Retry-After": "3000"}))
        for _ in range(3):
            with pytest.raises(SinkUnavailable):
                self.step(sink, 1, 1)
            sink.open()
        assert len(self.receiver.received) == 1
