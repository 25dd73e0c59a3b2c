"""Slots: created with a snapshot, found, held, dropped; and what the server says of itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures.pg import Database
from fixtures.waiting import wait_until
from trucker.change import Lsn
from trucker.errors import SourceError
from trucker.postgres.connect import connect
from trucker.postgres.slot import (
    create_slot,
    current_lsn,
    drop_slot,
    emit_heartbeat,
    find_slot,
    identify,
    who_holds,
)


def slot_name(database: Database) -> str:
    return f"trucker_{database.name}"


def test_a_permanent_slot_outlives_its_connection(any_database: Database) -> None:
    name = slot_name(any_database)
    with create_slot(any_database.connection, name, failover=True) as exported:
        assert exported.snapshot
        assert exported.lsn > 0
    with any_database.connect() as connection:
        found = find_slot(connection, name)
        assert found is not None
        assert (found.plugin, found.database, found.temporary) == ("pgoutput", any_database.name, False)
        assert found.confirmed_flush_lsn == exported.lsn
        assert found.failover == (any_database.server.version >= 17)
        assert not found.lost
        assert who_holds(connection, name) == "nobody"
        assert drop_slot(connection, name)
        assert find_slot(connection, name) is None
        assert not drop_slot(connection, name)


def test_a_temporary_slot_ends_with_its_connection_and_its_user_is_named(any_database: Database) -> None:
    name = slot_name(any_database)
    with any_database.connect() as connection:
        with create_slot(any_database.connection, name, temporary=True):
            found = find_slot(connection, name)
            assert found is not None
            assert found.temporary
            assert found.active_pid
            held = who_holds(connection, name)
            assert f"pid {found.active_pid}" in held
            assert f'application "trucker slot {name}"' in held
            assert "127.0.0.1" in held
            with pytest.raises(SourceError, match="in use by pid"):
                drop_slot(connection, name)
        wait_until(lambda: find_slot(connection, name) is None)


def test_a_slot_that_waits_names_the_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trucker.postgres.slot.PATIENCE", 0.05)
    database.execute("create table t (id int)")
    with database.connect(autocommit=False, application_name="slow one") as writer, ThreadPoolExecutor() as pool:
        writer.execute("insert into t values (1)")
        made = pool.submit(create_slot, database.connection, slot_name(database), temporary=True)
        wait_until(lambda: caplog.records)
        assert not made.done()
        writer.commit()
        made.result(20).close()
    assert 'application "slow one"' in caplog.records[0].transactions[0]  # type: ignore[attr-defined]


def test_a_slot_that_exists_is_not_made_again(database: Database) -> None:
    name = slot_name(database)
    create_slot(database.connection, name).close()
    with pytest.raises(SourceError, match="already exists") as caught:
        create_slot(database.connection, name)
    assert caught.value.code == "TRK231"
    assert not caught.value.transient


def test_a_role_without_replication_gets_the_statement_to_run(database: Database) -> None:
    database.execute("create role plain login password 'p4ss-w0rd'")
    try:
        with pytest.raises(SourceError, match="may not replicate") as caught:
            create_slot(database.as_user("plain", "p4ss-w0rd"), "trucker_x")
        assert 'ALTER ROLE "plain" REPLICATION' in caught.value.remedy
        assert "p4ss-w0rd" not in str(caught.value)
    finally:
        database.execute("drop role plain")


def test_identity_is_the_same_over_both_kinds_of_connection(any_database: Database) -> None:
    with (
        connect(any_database.connection, application="test") as ordinary,
        connect(any_database.connection, application="test", replication=True) as replication,
    ):
        identity = identify(ordinary)
        assert identity == identify(replication)
        assert (identity.timeline, identity.database) == (1, any_database.name)
        row = replication.execute("IDENTIFY_SYSTEM").fetchone()
        assert row is not None
        assert row[0] == identity.system_identifier


def test_a_heartbeat_moves_the_log(any_database: Database) -> None:
    with any_database.connect() as connection:
        before = current_lsn(connection)
        assert isinstance(before, Lsn)
        assert emit_heartbeat(connection)
        wait_until(lambda: current_lsn(connection) > before)


def test_a_refused_heartbeat_is_reported(database: Database) -> None:
    function = "pg_logical_emit_message(boolean, text, text, boolean)"
    database.execute(f"revoke execute on function {function} from public", "create role mute")
    with database.connect() as connection:
        connection.execute("set role mute")
        assert not emit_heartbeat(connection)
        assert connection.info.transaction_status.name == "IDLE"
        connection.execute("reset role")
        connection.execute("drop role mute")
