"""Slots and snapshots on a standby, and what recovery can do to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from fixtures.pg import Database
from fixtures.standby import Pair
from fixtures.waiting import wait_until
from trucker.errors import SourceError, SourceUnavailable
from trucker.lsn import Lsn
from trucker.postgres import standby as reading
from trucker.postgres.connect import connect
from trucker.postgres.replication.heartbeat import Heart
from trucker.postgres.replication.stream import ReplicationStream
from trucker.postgres.slot import STANDBY_TRIES, create_slot, current_lsn, find_slot, identify
from trucker.postgres.slot_creation import new_slot
from trucker.postgres.snapshot import enter_snapshot
from trucker.postgres.standby import Unguarded, await_replay, committed_lsn, slot_in_the_making
from trucker.process.stopping import Stopped

PEEK = """
    select count(*) filter (where get_byte(data, 0) = 73)
      from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1', 'publication_names', 'p')"""


@contextmanager
def inserting(database: Database) -> Iterator[None]:
    """Two writers that insert one row per transaction, every third one in a subtransaction."""
    done = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            while not done.is_set():
                connection.execute("insert into t default values")
                connection.execute("begin; savepoint a; insert into t default values; release a; commit")

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        try:
            yield
        finally:
            done.set()
        for writer in writers:
            writer.result()


def test_a_snapshot_on_the_standby_meets_its_stream(any_pair: Pair) -> None:
    """What the exported snapshot shows and what the slot sends is every row once, with writers at work all the time."""
    database = any_pair.database
    database.execute("create table t (id serial primary key)", "create publication p for table t")
    with inserting(database):
        wait_until(lambda: database.query("select count(*) > 50 from t")[0][0])
        with create_slot(any_pair.connection, any_pair.slot, failover=True) as exported:
            wait_until(lambda: current_lsn_of(any_pair) > exported.lsn)
            seen = {rows_in(any_pair, exported.snapshot) for _ in range(2)}
    any_pair.standby.catch_up()
    total = database.query("select count(*) from t")[0][0]
    with any_pair.read() as connection:
        row = connection.execute(PEEK, [any_pair.slot]).fetchone()
        found = find_slot(connection, any_pair.slot)
    assert row is not None
    assert found is not None
    assert not found.failover
    assert any_pair.slots() == ([], [any_pair.slot])
    assert len(seen) == 1
    assert seen.pop() + row[0] == total


def current_lsn_of(pair: Pair) -> Lsn:
    with pair.read() as connection:
        return current_lsn(connection)


def rows_in(pair: Pair, snapshot: str) -> int:
    with connect(pair.replica, application="test") as connection:
        enter_snapshot(connection, snapshot)
        row = connection.execute("select count(*) from public.t").fetchone()
        assert row is not None
        return int(row[0])


def test_a_temporary_slot_goes_with_its_connection(pair: Pair) -> None:
    with create_slot(pair.connection, pair.slot, temporary=True):
        assert pair.slots() == ([], [pair.slot])
    wait_until(lambda: pair.slots() == ([], []))


def test_a_slot_waits_for_the_primarys_transactions_and_names_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trucker.postgres.slot.PATIENCE", 0.05)
    monkeypatch.setattr(reading, "GUARD_SECONDS", 0.05)  # several guards take turns meanwhile
    pair.database.execute("create table t (id int)")
    with pair.database.connect(autocommit=False, application_name="slow one") as writer, ThreadPoolExecutor() as pool:
        writer.execute("insert into t values (1)")
        made = pool.submit(create_slot, pair.connection, pair.slot, temporary=True)
        wait_until(lambda: len(caplog.records) > 5)
        assert not made.done()
        writer.commit()
        with made.result(20) as exported:
            assert rows_in(pair, exported.snapshot) == 1
    assert 'application "slow one"' in caplog.records[0].transactions[0]  # type: ignore[attr-defined]


def test_a_role_that_cannot_list_running_transactions_gets_the_grant_to_run(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.database.execute("create role plain login replication password 'p4ss-w0rd'")
    try:
        pair.standby.catch_up()
        config = pair.connection.model_copy(
            update={"user": "plain", "password": pair.database.as_user("plain", "p4ss-w0rd").password}
        )
        with ThreadPoolExecutor() as pool:
            made = pool.submit(create_slot, config, pair.slot, temporary=True)
            wait_until(lambda: caplog.records)
            wait_until(lambda: pair.slots()[1])
            while not made.done():
                pair.database.execute("checkpoint")  # which the primary does of itself, some time
            made.result().close()
    finally:
        pair.database.execute("drop role plain")
    remedies = [getattr(record, "remedy", "") for record in caplog.records]
    assert any('GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO "plain"' in remedy for remedy in remedies)


def test_the_slot_is_made_when_the_standby_has_replayed_what_the_primary_has(pair: Pair) -> None:
    with pair.read() as standby, ThreadPoolExecutor() as pool:
        standby.execute("select pg_wal_replay_pause()")
        wait_until(lambda: standby.execute("select pg_get_wal_replay_pause_state() = 'paused'").fetchone() == (True,))
        pair.database.execute("set synchronous_commit = off; create table t (id int primary key)")
        made = pool.submit(create_slot, pair.connection, pair.slot, temporary=True)
        wait_until(lambda: standby.execute("select 1 from pg_stat_activity where application_name = 'trucker replay'"))
        assert not made.done()
        standby.execute("select pg_wal_replay_resume()")
        with made.result(20) as exported:
            assert rows_in(pair, exported.snapshot) == 0


def test_a_slot_in_the_making_is_given_up_when_it_is_time_to_stop(pair: Pair) -> None:
    pair.database.execute("create table t (id int)")
    stop = threading.Event()
    with pair.database.connect(autocommit=False) as writer, ThreadPoolExecutor() as pool:
        writer.execute("insert into t values (1)")
        made = pool.submit(new_slot, pair.connection, pair.slot, stop, temporary=False)
        wait_until(lambda: pair.slots()[1])
        stop.set()
        with pytest.raises(Stopped):
            made.result(20)
    wait_until(lambda: pair.slots() == ([], []))


def test_a_standby_that_does_not_come_is_waited_for_only_so_long(pair: Pair) -> None:
    with pair.database.connect() as connection:
        lsn = Lsn(committed_lsn(connection) + 1000)
    with pytest.raises(SourceUnavailable, match="bytes short of") as caught:
        await_replay(pair.replica, lsn, timeout=0.1)
    assert caught.value.code == "TRK261"
    assert "pg_wal_replay_resume" in caught.value.remedy
    stop = threading.Event()
    stop.set()
    with pytest.raises(SourceUnavailable, match="stopped"):
        await_replay(pair.replica, lsn, stop)


def test_a_primary_is_no_standby(pair: Pair) -> None:
    with pytest.raises(SourceError, match="not a standby") as caught:
        await_replay(pair.database.connection, Lsn(1))
    assert caught.value.code == "TRK260"
    assert not caught.value.transient


def test_guards_know_when_rows_may_be_gone(own_pair: Pair) -> None:
    own_pair.database.execute("create table t (id int)", "insert into t select generate_series(1, 1000)")
    own_pair.standby.catch_up()
    with slot_in_the_making(own_pair.connection) as guards:
        lsn = current_lsn_of(own_pair)
        guards.vouch(lsn)
        remove_all_rows(own_pair)
        own_pair.standby.catch_up()
        with pytest.raises(SourceUnavailable, match="may have removed rows") as caught:
            guards.vouch(lsn)
    assert "hot_standby_feedback" in caught.value.remedy


def test_guards_know_when_recovery_waits_for_them(own_pair: Pair) -> None:
    """It would not look again whom else it has to wait for, when they go: not even for the new snapshot's session."""
    own_pair.database.execute("create table t (id int)", "insert into t select generate_series(1, 1000)")
    patience(own_pair, "20s")
    with slot_in_the_making(own_pair.connection) as guards:
        lsn = current_lsn_of(own_pair)
        clean_up(own_pair)
        with pytest.raises(Unguarded):
            guards.vouch(lsn)


def test_a_snapshot_that_recovery_has_ended_cannot_be_entered_again(own_pair: Pair) -> None:
    """How a reader that came while recovery waited learns that rows it should have seen may have gone."""
    own_pair.database.execute("create table t (id int)", "insert into t select generate_series(1, 1000)")
    patience(own_pair, "1s")
    with create_slot(own_pair.connection, own_pair.slot, temporary=True) as exported:
        assert exported.standby
        clean_up(own_pair)
        with closing(connect(own_pair.replica, application="late reader")) as reader:
            enter_snapshot(reader, exported.snapshot)
            own_pair.standby.catch_up()
        with connect(own_pair.replica, application="test") as connection, pytest.raises(SourceUnavailable):
            enter_snapshot(connection, exported.snapshot)


def patience(pair: Pair, time: str) -> None:
    """How long recovery waits for sessions in its way, once all that is there has been replayed."""
    with pair.read() as connection:
        connection.execute(f"alter system set max_standby_streaming_delay = '{time}'".encode())
        connection.execute("select pg_reload_conf()")
        wait_until(
            lambda: connection.execute("select current_setting('max_standby_streaming_delay')").fetchone() == (time,)
        )
    pair.standby.catch_up()


def clean_up(pair: Pair) -> None:
    """Delete everything and wait until recovery has somebody in its way."""
    remove_all_rows(pair)
    query = "select wait_event like 'RecoveryConflict%' from pg_stat_activity where backend_type = 'startup'"
    wait_until(lambda: pair.query(query) == [(True,)])


def remove_all_rows(pair: Pair) -> None:
    """Delete everything and have VACUUM take it away: it leaves what somebody in passing (an ANALYZE) may still see."""
    pair.database.execute("delete from t")

    def gone() -> bool:
        pair.database.execute("vacuum t")
        return pair.database.query("select pg_relation_size('t')") == [(0,)]

    wait_until(gone)


def test_a_slot_whose_snapshot_is_not_vouched_for_is_made_again_and_dropped_at_last(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def refuse(_: object, lsn: Lsn) -> None:
        asked.append(lsn)
        raise Unguarded("spoiled")

    monkeypatch.setattr("trucker.postgres.standby._Guards.vouch", refuse)
    with pytest.raises(Unguarded, match="spoiled"):
        create_slot(pair.connection, pair.slot)
    assert len(asked) == STANDBY_TRIES
    assert pair.slots() == ([], [])


def test_a_slot_lost_to_recovery_is_reported(own_pair: Pair) -> None:
    own_pair.database.execute("create publication p for all tables")
    create_slot(own_pair.connection, own_pair.slot).close()
    own_pair.database.execute("create table gone (id int)", "drop table gone", "vacuum full pg_class")
    with own_pair.read() as connection:
        wait_until(lambda: (slot := find_slot(connection, own_pair.slot)) is not None and slot.lost)
    stream = ReplicationStream.connect(own_pair.replica.conninfo(), own_pair.slot, "p")
    try:
        with pytest.raises(SourceError, match="recovery on the standby removed rows") as caught:
            stream.inspect()
    finally:
        stream.close()
    assert caught.value.code == "TRK232"
    assert "hot_standby_feedback" in caught.value.remedy


def test_the_heart_beats_on_the_primary_and_notices_a_promotion(own_pair: Pair) -> None:
    own_pair.database.execute("create publication p for all tables")
    heart = Heart(own_pair.connection.conninfo(), "p", own_pair.replica.conninfo())
    try:
        before = current_lsn_of(own_pair)
        assert heart.beat("1")
        wait_until(lambda: current_lsn_of(own_pair) > before)
        own_pair.standby.promote()
        with pytest.raises(SourceError, match="promoted") as caught:
            heart.beat("2")
    finally:
        heart.close()
    assert caught.value.code == "TRK260"
    assert not caught.value.transient
    assert "set `host` to it" in caught.value.remedy


def test_a_standby_is_the_same_system_and_can_be_started_again(pair: Pair) -> None:
    with pair.database.connect() as here, pair.read() as there:
        assert identify(here) == identify(there)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            there.execute("create table t (id int)")
    pair.standby.restart()
    pair.database.execute("create table t (id int)")
    pair.standby.catch_up()
    assert pair.query("select count(*) from t") == [(0,)]
