"""Capture against a real server: what it takes, when it acknowledges, what it refuses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from fixtures.capture import Source, all_captured, capturing, inserted, prepare, streamed_source
from fixtures.pg import Database, new_database
from fixtures.waiting import wait_until
from trucker.capture.supervisor import CaptureState, CaptureSupervisor
from trucker.changelog.folder.writer import LogWriter
from trucker.changelog.format.durable import read_durable
from trucker.changelog.log_creation import create_log
from trucker.changelog.reader import LogReader
from trucker.errors import ChangeLogError, LockedError, SourceError, TruckerError
from trucker.lsn import Lsn
from trucker.testing.server import Server


@pytest.fixture
def source(any_database: Database, tmp_path: Path) -> Source:
    any_database.execute("create table t (id int primary key, note text)")
    return prepare(any_database, tmp_path / "log")


@pytest.fixture
def modern(database: Database, tmp_path: Path) -> Source:
    """The same on PostgreSQL 18 alone."""
    database.execute("create table t (id int primary key, note text)")
    return prepare(database, tmp_path / "log")


def test_every_transaction_in_commit_order(source: Source) -> None:
    with capturing(source.spec) as capture:
        source.database.execute(
            "insert into t values (1, 'a'), (2, 'b')",
            "update t set note = 'c' where id = 1",
            "alter table t add column more text default 'm'",
            "insert into t values (3, 'd')",
            "delete from t where id = 2",
            "truncate t",
        )
        all_captured(capture, source)
        found = list(source.captured().values())
    assert ["".join(text[:1].decode() for text in each.changes) for each in found] == ["II", "U", "I", "D", "T"]
    assert b"more" not in found[0].shapes[0]
    assert b"more" in found[2].shapes[0]
    assert capture.state is CaptureState.STOPPED


def test_acknowledged_is_what_is_durable(source: Source) -> None:
    """I2: the slot follows the log, and never runs ahead of it."""
    with capturing(source.spec) as capture, source.database.connect() as connection:
        for number in range(15):
            connection.execute("insert into t values (%s)", [number])
            confirmed = source.confirmed()
            assert confirmed <= read_durable(source.spec.folder).seen_lsn
        all_captured(capture, source)
        lsn = source.lsn()
        wait_until(lambda: source.confirmed() >= lsn, timeout=5)


def test_an_idle_slot_follows_the_servers_wal(source: Source) -> None:
    """From the first second, though not one row of a published table changes."""
    source.database.execute("create unlogged table noise (id int)")
    with capturing(source.spec):
        for _ in range(2):
            source.database.execute("select pg_switch_wal()", "create table x (id int)", "drop table x")
            lsn = source.lsn()
            wait_until(lambda lsn=lsn: source.confirmed() >= lsn, timeout=5)
            assert read_durable(source.spec.folder).seen_lsn >= lsn
    assert source.captured() == {}


def test_heartbeats_move_the_slot_and_stay_out_of_the_log(source: Source) -> None:
    with capturing(replace(source.spec, heartbeat=0.05)) as capture:
        before = source.confirmed()
        wait_until(lambda: capture.beat is not None and source.confirmed() > before)
    assert source.captured() == {}
    assert not list(source.spec.folder.glob("*.open"))


def test_logical_messages_are_kept(source: Source) -> None:
    with capturing(source.spec) as capture:
        source.database.execute("select pg_logical_emit_message(true, 'mark', 'low')")
        all_captured(capture, source)
    assert len(source.captured()) == 1


def test_a_large_transaction_passes_in_bounded_memory(modern: Source) -> None:
    """I9."""
    rows = 100_000
    with capturing(replace(modern.spec, segment_bytes=8 << 20)) as capture:
        small = _peak(capture)
        modern.database.execute(f"insert into t select g, repeat('x', 400) from generate_series(1, {rows}) g")
        all_captured(capture, modern)
        assert _peak(capture) - small < 20 << 20
    (found,) = modern.captured().values()
    assert inserted(found)[-1] == str(rows)
    assert len(found.changes) == rows
    assert len(list(modern.spec.folder.glob("*.segment"))) >= 5


def _peak(capture: CaptureSupervisor) -> int:
    """The most memory the process ever had."""
    text = Path(f"/proc/{capture.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) << 10


def test_a_stop_makes_received_changes_durable(modern: Source) -> None:
    with capturing(modern.spec) as capture:
        modern.database.execute("insert into t values (1)")
        lsn = modern.lsn()
        wait_until(lambda: read_durable(modern.spec.folder).commit_lsn > modern.start)
        pid = capture.pid
        capture.stop()
        assert capture.trouble is None
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert read_durable(modern.spec.folder).seen_lsn <= lsn
    assert len(modern.captured()) == 1


def test_sigterm_ends_it_and_the_supervisor_brings_it_back(modern: Source) -> None:
    with capturing(modern.spec) as capture:
        assert capture.pid is not None
        os.kill(capture.pid, signal.SIGTERM)
        wait_until(lambda: capture.restarts == 1 and capture.state is CaptureState.CONNECTED)
        modern.database.execute("insert into t values (1)")
        all_captured(capture, modern)
    assert len(modern.captured()) == 1


def test_a_lost_connection_is_made_again(modern: Source) -> None:
    with capturing(modern.spec) as capture, modern.database.connect() as connection:
        for number in range(3):
            connection.execute("insert into t values (%s)", [number])
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", [modern.slot]
            )
        connection.execute("insert into t values (9)")
        all_captured(capture, modern)
        assert capture.restarts == 0
        wait_until(lambda: capture.trouble is None)
    assert [inserted(found) for found in modern.captured().values()] == [["0"], ["1"], ["2"], ["9"]]


# -- what it refuses ----------------------------------------------------------------------------------------------


def refused(source: Source) -> TruckerError:
    with capturing(source.spec, connected=False) as capture:
        wait_until(lambda: capture.state is CaptureState.FAILED)
        failure = capture.failure()
        with pytest.raises(type(failure)):
            capture.wait_seen(Lsn(2**60))
    assert failure is not None
    assert failure.remedy
    assert capture.state is CaptureState.FAILED
    return failure


def test_a_missing_slot(source: Source) -> None:
    source.database.query(f"select pg_drop_replication_slot('{source.slot}')")
    failure = refused(source)
    assert isinstance(failure, SourceError)
    assert f'slot "{source.slot}" does not exist' in str(failure)


def test_a_missing_publication(source: Source) -> None:
    name = source.spec.source.publication.replace('"', '""')
    source.database.execute(f'drop publication "{name}"')
    assert "does not exist" in str(refused(source))


def test_a_publication_dropped_in_use_is_noticed(source: Source) -> None:
    """PostgreSQL 18 would go on without it, and changes would be missing in silence."""
    name = source.spec.source.publication.replace('"', '""')
    with capturing(replace(source.spec, heartbeat=0.05)) as capture:
        source.database.execute(f'drop publication "{name}"', "insert into t values (1)")
        wait_until(lambda: capture.state is CaptureState.FAILED)
        assert "publication" in (capture.trouble or "")


def test_the_slot_of_another_database(modern: Source) -> None:
    name = f"{modern.slot}_other"
    streamed = streamed_source(modern.database.connection, name, modern.spec.source.publication)
    spec = replace(modern.spec, source=streamed)
    with modern.database.server.connect() as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', true)", [name])
        assert "database postgres" in str(refused(replace(modern, spec=spec)))


def test_another_server_behind_the_same_name(modern: Source, tmp_path: Path) -> None:
    other = replace(modern.spec.identity, system_identifier="1")
    create_log(tmp_path / "other", other, modern.start)
    spec = replace(modern.spec, log=tmp_path / "other", identity=other)
    assert "is not the one of the change log" in str(refused(replace(modern, spec=spec)))


def test_a_log_that_is_behind_the_slot(modern: Source, tmp_path: Path) -> None:
    modern.database.execute("insert into t values (1)")
    modern.database.query(f"select pg_replication_slot_advance('{modern.slot}', pg_current_wal_lsn())")
    failure = refused(modern)
    assert isinstance(failure, ChangeLogError)
    assert "but the slot is at" in str(failure)


def test_a_log_that_is_ahead_of_the_server(modern: Source, tmp_path: Path) -> None:
    create_log(tmp_path / "ahead", modern.spec.identity, Lsn(modern.lsn() + (1 << 40)))
    assert "ahead of the server" in str(refused(replace(modern, spec=replace(modern.spec, log=tmp_path / "ahead"))))


def test_a_missing_log(modern: Source, tmp_path: Path) -> None:
    failure = refused(replace(modern, spec=replace(modern.spec, log=tmp_path / "nowhere")))
    assert isinstance(failure, ChangeLogError)
    assert "does not exist" in str(failure)


def test_a_wrong_password_never_shows(modern: Source) -> None:
    connection = modern.database.connection.model_copy(update={"password": SecretStr("not-it-4711")})
    streamed = streamed_source(connection, modern.slot, modern.spec.source.publication)
    with capturing(replace(modern.spec, source=streamed), connected=False) as capture:
        trouble = wait_until(lambda: capture.trouble)
        assert "[TRK202]" in trouble
        assert "4711" not in trouble
        assert capture.failure() is None


def test_a_password_that_is_put_right_in_its_file_is_used_at_the_next_connect(modern: Source, tmp_path: Path) -> None:
    given = modern.database.connection
    file = tmp_path / "password"
    file.write_text("not-it-4711\n")
    connection = given.model_copy(update={"password": SecretStr("not-it-4711")})
    connection.secrets_in({"pass": file})
    streamed = streamed_source(connection, modern.slot, modern.spec.source.publication)
    with capturing(replace(modern.spec, source=streamed), connected=False) as capture:
        wait_until(lambda: "[TRK202]" in (capture.trouble or ""))
        file.write_text(given.password.get_secret_value() + "\n")
        wait_until(lambda: capture.state is CaptureState.CONNECTED)


def test_a_slot_in_use_is_waited_for_and_its_user_is_named(modern: Source, tmp_path: Path) -> None:
    create_log(tmp_path / "second", modern.spec.identity, modern.start)
    other = replace(modern.spec, log=tmp_path / "second")
    with capturing(modern.spec) as first, capturing(other, connected=False) as second:
        wait_until(lambda: second.state is CaptureState.RECONNECTING)
        assert f'application "trucker capture {modern.slot}"' in (second.trouble or "")
        first.stop()
        # It takes the slot over; unless the first has let it move on past the second's log, which is refused.
        wait_until(lambda: second.state in (CaptureState.CONNECTED, CaptureState.FAILED))
        failure = second.failure()
        assert failure is None or failure.code == "TRK304"


def test_a_second_writer_of_the_same_log(modern: Source) -> None:
    with capturing(modern.spec), pytest.raises(LockedError, match="is being written by process"):
        LogWriter(modern.spec.folder, modern.spec.identity)


@pytest.fixture
def stingy(own_server: Server) -> Iterator[Database]:
    """A database on a server that keeps next to no WAL for slots."""
    own_server.restart(settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    yield from new_database(own_server, "source")


def test_an_invalidated_slot(stingy: Database, tmp_path: Path) -> None:
    source = prepare(stingy, tmp_path / "log")
    query = f"select wal_status from pg_replication_slots where slot_name = '{source.slot}'"

    def lost() -> bool:
        stingy.execute("select pg_logical_emit_message(false, 'x', 'y')", "select pg_switch_wal()", "checkpoint")
        return bool(stingy.query(query)[0][0] == "lost")

    wait_until(lost)
    assert "invalidated" in str(refused(source))


def test_readers_follow_a_running_capture(modern: Source) -> None:
    reader = LogReader(modern.spec.folder)
    with capturing(modern.spec), modern.database.connect() as connection:
        position = modern.start
        for number in range(20):
            connection.execute("insert into t values (%s)", [number])
            assert reader.wait(position, 10).commit_lsn > position
            batch = reader.next_range(position, 1 << 20)
            assert batch.commit_time
            position = batch.end
    reader.close()
    assert len(modern.captured()) == 20
