"""A stream has each change once and in order, whatever breaks and however long it takes (I4). The duplicate window is
as short as the server allows, and over before anything comes again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.jetstream import messages
from fixtures.killed import KEEPS, kill_repeatedly
from fixtures.nats_sink import MAIN, OTHER, BrokenSink, StreamMeans, connection_of
from fixtures.proxy import Proxy
from fixtures.waiting import wait_until
from trucker.change import Lsn
from trucker.errors import SinkError, SinkUnavailable
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch
from trucker.sinks.event import Events
from trucker.sinks.nats.nats_session import NatsSession
from trucker.sinks.nats.sink import NatsSink
from trucker.testing.handmade import copied_rows_of, insert
from trucker.testing.jetstream import JetStreamServer
from trucker.testing.suites.sink_suite import ITEMS, START


def test_a_batch_that_was_interrupted_is_completed(means: StreamMeans) -> None:
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


def test_what_another_truck_commits_meanwhile_does_not_hide_the_interruption(means: StreamMeans) -> None:
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
    assert means.ledger()["unfinished"] == []


def test_a_copy_that_was_interrupted_leaves_none_of_its_rows(means: StreamMeans) -> None:
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


def test_a_replica_that_is_behind_hides_nothing(means: StreamMeans, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the leader has and a consumer's server has not yet is waited for."""
    broken = means.started(MAIN)
    assert isinstance(broken.sink, BrokenSink)
    broken.sink.left = 50
    batch = means.batch([MAIN])
    with pytest.raises(SinkUnavailable):
        broken.commit(batch, means.write(batch, {MAIN: means.many(100)}))
    means.await_window()
    pull, behind = NatsSession._pull, iter([True, True])

    async def pulled(session: NatsSession, consumer: Any) -> Any:
        return ([], False) if next(behind, False) else await pull(session, consumer)

    monkeypatch.setattr(NatsSession, "_pull", pulled)
    again = means.committer()
    again.open()
    means.apply(again, {MAIN: means.many(100)})
    assert means.ids() == list(range(100))


def test_a_ledger_that_comes_late_does_not_count_rows_that_were_removed(means: StreamMeans) -> None:
    """The process that copied is cut off before its ledger arrives; another takes its rows for those of an interrupted
    copy."""
    early, late = means.committer(), means.committer()
    early.open()
    assert isinstance(early.sink, BrokenSink)
    means.begin_copy(early, [MAIN])
    early.sink.before_store = late.open
    rows = [{"id": str(n), "name": "x", "qty": None, "note": None} for n in range(30)]
    copied = means.copied([MAIN])
    early.commit(copied, means.write(copied, {MAIN: [[copied_rows_of(ITEMS, rows)]]}))
    assert means.ids() == list(range(30))
    assert late.open()["main"].lsn == START


def test_rows_that_sql_returned_come_again_as_a_whole(means: StreamMeans, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_earlier_process_that_goes_on_writes_nothing_twice(means: StreamMeans) -> None:
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
    connection = connection_of(shared_nats.url, stream_name, stream_settings={"duplicate_window": 3600}, in_flight=7)
    means = StreamMeans(shared_nats, stream_name, tmp_path, connection)
    sink = means.started(MAIN)
    means.apply(sink, {MAIN: means.many(100)})
    sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
    means.copy(sink, {MAIN: []}, name="again")
    means.apply(sink, {MAIN: means.many(150, 1, first=1000)})
    assert means.ids() == [*range(100), *range(1000, 1150)]
    means.close()


def test_a_connection_that_is_cut_while_events_are_sent(
    shared_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    with Proxy(shared_nats.port) as proxy:
        connection = connection_of(f"nats://127.0.0.1:{proxy.port}", stream_name)
        means = StreamMeans(shared_nats, stream_name, tmp_path, connection)
        sink = means.started(MAIN)
        batch = means.batch([MAIN])
        receipts = means.write(batch, {MAIN: means.many(5000)})
        for _ in range(2):
            proxy.slow(400_000)
            before = means.last
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
        connection = connection_of(f"nats://127.0.0.1:{proxy.port}", stream_name, timeout=1)
        means = StreamMeans(shared_nats, stream_name, tmp_path, connection)
        sink = means.started(MAIN)
        batch = means.batch([MAIN])
        receipts = means.write(batch, {MAIN: means.many(10)})
        proxy.freeze()
        with pytest.raises(SinkUnavailable) as lost:
            sink.commit(batch, receipts)
        assert lost.value.code == "TRK730"
        sink.commit(batch, receipts)
        assert means.ids() == list(range(10))
        means.close()


def test_a_connection_that_is_lost_while_nothing_is_published_costs_no_retry(
    own_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    means = StreamMeans(own_nats, stream_name, tmp_path)
    sink = means.started(MAIN)
    assert isinstance(sink.sink, BrokenSink)
    session = sink.sink._session
    assert session is not None
    own_nats.kill()
    wait_until(lambda: not session.is_usable)
    own_nats.start()
    means.apply(sink, {MAIN: means.many(3)})
    assert means.ids() == [0, 1, 2]
    means.close()


def test_the_server_is_killed_while_events_are_sent(
    own_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    means = StreamMeans(own_nats, stream_name, tmp_path)
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


def _has(means: StreamMeans, count: int) -> bool:
    return means.last > count
