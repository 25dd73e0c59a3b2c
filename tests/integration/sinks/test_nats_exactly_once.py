"""A stream has each change once and in order, whatever breaks and however long it takes (I4). The duplicate window is
as short as the server allows, and over before anything comes again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from fixtures.jetstream import api, asked, messages
from fixtures.killed import KEEPS, kill_repeatedly
from fixtures.proxy import Proxy
from fixtures.waiting import wait_until
from trucker.adapters.nats import NatsConnection
from trucker.change import Lsn
from trucker.errors import SinkError, SinkUnavailable
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch
from trucker.sinks.event import Events
from trucker.sinks.nats.sink import NatsSink
from trucker.testing.handmade import changes_of, copied_rows_of, insert
from trucker.testing.jetstream import JetStreamServer
from trucker.testing.suites.sink_suite import ITEMS, PAIR, START, SinkMeans, target_of

WINDOW = 0.1
MAIN, OTHER = target_of(ITEMS), target_of(PAIR, "other")


class BrokenSink(NatsSink):
    """Fails when it is asked for the events behind so many."""

    left: int | None = None

    def append(self, truck: str, events: Iterator[Events]) -> None:
        super().append(truck, events if self.left is None else self._first(events, self.left))

    def _first(self, events: Iterator[Events], left: int) -> Iterator[Events]:
        for piece in events:
            yield piece.slice(0, min(left, len(piece)))
            left -= len(piece)
            if left <= 0:
                assert self._session is not None
                self._session.settle()
                raise SinkUnavailable("the process ends here")


class Means(SinkMeans):
    """A stream of the test's own, and sinks of it."""

    def __init__(self, server: JetStreamServer, stream: str, folder: Path, port: int = 0) -> None:
        self.server, self.stream, self.folder = server, stream, folder
        self.url = f"nats://127.0.0.1:{port}" if port else server.url
        self.made: list[NatsSink] = []

    def make_sink(self, project: str = "suite") -> Sink:
        sink = BrokenSink(connection_of(self.url, self.stream), Workspace(project, self.folder / "work"))
        self.made.append(sink)
        return sink

    def many(self, count: int, step: int = 1, first: int = 0) -> Sequence[Any]:
        lsn = Lsn(START + 0x100 * step - 8)
        rows = changes_of(ITEMS, [insert({"id": str(first + n), "name": "x" * 50}) for n in range(count)], lsn=lsn)
        return [[rows]]

    def ids(self) -> list[int]:
        """The rows that a consumer finds, in the stream's order."""
        return [json.loads(each.value)["new"]["id"] for each in messages(self.server.url, self.stream)]

    def await_window(self) -> None:
        """Wait until the server recognizes no id any more."""
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.5 * WINDOW)

    def close(self) -> None:
        for sink in self.made:
            sink.close()


def connection_of(url: str, stream: str, **more: Any) -> NatsConnection:
    settings = {"name": stream, "duplicate_window": WINDOW} | more.pop("stream_settings", {})
    return NatsConnection(
        name="bus",
        adapter="nats",
        servers=(url,),
        stream=settings,
        subject=f"{stream}.{{{{ schema }}}}.{{{{ table }}}}",
        timeout=more.pop("timeout", 5),
        **more,
    )


@pytest.fixture
def means(shared_nats: JetStreamServer, stream_name: str, tmp_path: Path) -> Iterator[Means]:
    means = Means(shared_nats, stream_name, tmp_path)
    yield means
    means.close()


def test_a_batch_that_was_interrupted_is_completed(means: Means) -> None:
    """The restart cuts batches otherwise: first a shorter one, then one that goes beyond the interruption."""
    broken = means.started(MAIN)
    assert isinstance(broken.sink, BrokenSink)
    broken.sink.left = 3000
    whole = replace(means.batch([MAIN], 2), start=START)
    parts = [[*means.many(1000, 1)[0], *means.many(4000, 2, first=1000)[0]]]
    with pytest.raises(SinkUnavailable):
        broken.commit(whole, means.write(whole, {MAIN: parts}))
    assert means.ids() == list(range(3000))
    means.await_window()
    again = means.committer()
    assert again.open()["main"].lsn == START
    means.apply(again, {MAIN: means.many(1000, 1)}, 1)
    means.apply(again, {MAIN: means.many(4000, 2, first=1000)}, 2)
    assert means.ids() == list(range(5000))


def test_what_another_truck_commits_meanwhile_does_not_hide_the_interruption(means: Means) -> None:
    broken = means.started(MAIN, OTHER)
    assert isinstance(broken.sink, BrokenSink)
    broken.sink.left = 700
    batch = means.batch([MAIN])
    receipts = means.write(batch, {MAIN: means.many(1000)})
    with pytest.raises(SinkUnavailable):
        broken.commit(batch, receipts)
    for step in (1, 2):  # each in a process of its own
        again = means.committer()
        again.open()
        means.change(again, OTHER, insert({"a": str(step)}), step=step)
        again.close()
        means.await_window()
    last = means.committer()
    last.open()
    means.apply(last, {MAIN: means.many(1000)})
    rows = [json.loads(each.value)["new"] for each in messages(means.server.url, means.stream)]
    assert [row["id"] for row in rows if "id" in row] == list(range(1000))
    assert [row["a"] for row in rows if "a" in row] == [1, 2]
    means.apply(last, {MAIN: means.many(3, 2, first=1000)}, 2)
    assert json.loads(_ledger(means))["unfinished"] == []


def test_a_copy_that_was_interrupted_leaves_none_of_its_rows(means: Means) -> None:
    broken = means.committer()
    broken.open()
    assert isinstance(broken.sink, BrokenSink)
    broken.sink.left = 2000
    rows = [{"id": str(n), "name": "x", "qty": None, "note": None} for n in range(3000)]
    with pytest.raises(SinkUnavailable):
        means.copy(broken, {MAIN: [[copied_rows_of(ITEMS, rows)]]}, name="first-1")
    assert len(means.ids()) == 2000
    again = means.committer()
    again.open()
    assert means.ids() == []
    means.copy(again, {MAIN: [[copied_rows_of(ITEMS, rows[::-1])]]}, name="first-2")
    assert means.ids() == list(range(2999, -1, -1))


def test_rows_that_sql_returned_come_again_as_a_whole(means: Means, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids differ where batches are cut otherwise."""
    plain = Events.rows

    def with_digests(events: Events) -> Iterator[Any]:
        for event in plain(events):
            yield event._replace(id=f"{event.id}/{hash(event.value) & 0xFFFFFFFF:08x}")

    monkeypatch.setattr(Events, "rows", with_digests)
    broken = means.started(MAIN)
    assert isinstance(broken.sink, BrokenSink)
    broken.sink.left = 10
    batch = means.batch([MAIN])
    with pytest.raises(SinkUnavailable):
        broken.commit(batch, means.write(batch, {MAIN: means.many(20)}))
    assert len(means.ids()) == 10
    broken.sink.left = None
    means.apply(broken, {MAIN: means.many(20)})
    assert means.ids() == list(range(20))


def test_an_earlier_process_that_goes_on_writes_nothing_twice(means: Means) -> None:
    """Another has taken over meanwhile: whichever comes late is refused."""
    early = means.started(MAIN)
    late = means.committer()
    late.open()
    means.apply(late, {MAIN: means.many(10)})
    batch = means.batch([MAIN])
    receipts = means.write(batch, {MAIN: means.many(10)})
    with pytest.raises(SinkError, match="another program writes") as refused:
        early.commit(batch, receipts)
    assert refused.value.code == "TRK739"
    assert refused.value.transient
    early.commit(batch, receipts)  # it reads what there is, and sees that the batch is there
    means.apply(early, {MAIN: means.many(5, 2, first=10)}, 2)
    assert means.ids() == list(range(15))


def test_an_event_with_the_id_of_another_is_not_dropped(
    shared_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    """A database was restored, and its LSNs come again while the server knows the ids."""
    means = Means(shared_nats, stream_name, tmp_path)
    means.make_sink = lambda project="suite": NatsSink(  # type: ignore[method-assign]
        connection_of(shared_nats.url, stream_name, stream_settings={"duplicate_window": 3600}, in_flight=7),
        Workspace(project, tmp_path / "work"),
    )
    sink = means.started(MAIN)
    means.apply(sink, {MAIN: means.many(100)})
    sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
    means.copy(sink, {MAIN: []}, name="again")
    means.apply(sink, {MAIN: means.many(150, 1, first=1000)})
    assert means.ids() == [*range(100), *range(1000, 1150)]
    sink.close()


def test_a_connection_that_is_cut_while_events_are_sent(
    shared_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    with Proxy(shared_nats.port) as proxy:
        means = Means(shared_nats, stream_name, tmp_path, proxy.port)
        sink = means.started(MAIN)
        batch = means.batch([MAIN])
        receipts = means.write(batch, {MAIN: means.many(5000)})
        for _ in range(3):
            proxy.slow(400_000)
            before = _last(means)
            cutter = _Watcher(partial(_has, means, before + 300), proxy.cut)
            with pytest.raises(SinkUnavailable) as lost:
                sink.commit(batch, receipts)
            assert lost.value.code == "TRK730"
            cutter.join()
            means.await_window()
            proxy.heal()
        sink.commit(batch, receipts)
        assert means.ids() == list(range(5000))
        means.close()


def test_a_connection_that_is_dead_without_knowing_it(
    shared_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    with Proxy(shared_nats.port) as proxy:
        means = Means(shared_nats, stream_name, tmp_path, proxy.port)
        means.make_sink = lambda project="suite": NatsSink(  # type: ignore[method-assign]
            connection_of(means.url, stream_name, timeout=1), Workspace(project, tmp_path / "work")
        )
        sink = means.started(MAIN)
        batch = means.batch([MAIN])
        receipts = means.write(batch, {MAIN: means.many(10)})
        proxy.freeze()
        with pytest.raises(SinkUnavailable) as lost:
            sink.commit(batch, receipts)
        assert lost.value.code == "TRK730"
        sink.commit(batch, receipts)
        assert means.ids() == list(range(10))
        sink.close()


def test_the_server_is_killed_while_events_are_sent(
    own_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    means = Means(own_nats, stream_name, tmp_path)
    sink = means.started(MAIN)
    batch = means.batch([MAIN])
    receipts = means.write(batch, {MAIN: means.many(20_000)})
    killer = _Watcher(partial(_has, means, 1000), own_nats.kill)
    with pytest.raises(SinkUnavailable) as lost:
        sink.commit(batch, receipts)
    assert lost.value.code == "TRK730"
    killer.join()
    with pytest.raises(SinkUnavailable):  # it is still away
        sink.commit(batch, receipts)
    own_nats.start()
    sink.commit(batch, receipts)
    assert means.ids() == list(range(20_000))
    means.close()


def make_sink(folder: Path) -> NatsSink:
    url, stream = (folder / "stream").read_text().split()
    return NatsSink(connection_of(url, stream), Workspace("p", folder / "work"))


def test_killed(shared_nats: JetStreamServer, stream_name: str, tmp_path: Path) -> None:
    (tmp_path / "stream").write_text(f"{shared_nats.url} {stream_name}")

    def check(committed: int) -> None:
        sink = make_sink(tmp_path)
        position = sink.open().states()["main"].lsn
        sink.close()
        last = position // 10 - 1
        assert last >= committed
        events = [json.loads(each.value) for each in messages(shared_nats.url, stream_name)]
        counted = [
            (event["operation"], event["key"]["id"]) for event in events if Lsn.parse(event["commit_lsn"]) < position
        ]
        expected = [("insert", 0)]
        for number in range(1, last + 1):
            expected += [("insert", number), ("update", 0)]
            expected += [("delete", number - KEEPS)] if number > KEEPS else []
        assert counted == expected

    kill_repeatedly("integration.sinks.test_nats_exactly_once", tmp_path, check, 2)


class _Watcher(threading.Thread):
    """Does something once a condition is true."""

    def __init__(self, condition: Callable[[], bool], then: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._condition, self._then = condition, then
        self.start()

    def run(self) -> None:
        wait_until(self._condition)
        self._then()


def _last(means: Means) -> int:
    return int(api(means.server.url, f"STREAM.INFO.{means.stream}")["state"]["last_seq"])


def _has(means: Means, count: int) -> bool:
    return _last(means) > count


def _ledger(means: Means) -> bytes:
    async def question(client: Client) -> bytes:
        bucket = await client.jetstream().key_value(f"trucker_{means.stream}")
        value = (await bucket.get("ledger")).value
        assert value is not None
        return value

    return asked(means.server.url, question)
