"""`check` for a source that is read through its standby: what is wrong with the standby, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fixtures.pg import Database
from fixtures.standby import Pair, follow, make_standby
from fixtures.waiting import wait_until
from trucker.adapters.postgres import PostgresConnection
from trucker.change import TableId
from trucker.finding import Finding, Level
from trucker.postgres import capabilities
from trucker.postgres.preflight import Needed, check_source
from trucker.postgres.slot import create_slot, find_slot
from trucker.source.publication import PublishedTable

TABLE = PublishedTable(TableId("public", "t"))


def check(pair: Pair, connection: PostgresConnection | None = None) -> list[Finding]:
    return check_source(connection or pair.connection, Needed("trucker_check", pair.slot, [TABLE]))


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def one(findings: list[Finding], part: str) -> Finding:
    found = [finding for finding in findings if part in finding.message]
    assert len(found) == 1, findings
    return found[0]


@pytest.fixture
def source(any_pair: Pair) -> Pair:
    return with_table(any_pair)


def with_table(pair: Pair) -> Pair:
    pair.database.execute("create table t (id int primary key)")
    pair.standby.catch_up()
    return pair


@contextmanager
def set_on_standby(pair: Pair, name: str, value: str) -> Iterator[None]:
    with pair.read() as connection:
        before = connection.execute("select current_setting(%s)", [name]).fetchone()
        try:
            connection.execute(f"alter system set {name} = '{value}'".encode())
            connection.execute("select pg_reload_conf()")
            wait_until(lambda: connection.execute("select current_setting(%s)", [name]).fetchone() != before)
            yield
        finally:
            connection.execute(f"alter system reset {name}".encode())
            connection.execute("select pg_reload_conf()")
            wait_until(lambda: connection.execute("select current_setting(%s)", [name]).fetchone() == before)


def test_a_standby_that_is_as_needed_has_only_good_findings(source: Pair) -> None:
    findings = check(source)
    assert bad(findings) == []
    one(findings, "a standby of the primary")
    one(findings, "bytes behind the primary")
    create_slot(source.connection, source.slot).close()
    findings = check(source)
    assert bad(findings) == []
    assert one(findings, f"replication slot {source.slot} is at").subject == (
        f"source (standby 127.0.0.1:{source.standby.port})"
    )


def test_settings_of_the_standby(pair: Pair) -> None:
    with_table(pair)
    with set_on_standby(pair, "hot_standby_feedback", "off"):
        [finding] = bad(check(pair))
        assert (finding.level, finding.code) == (Level.WARNING, "TRK263")
        assert "hot_standby_feedback = on" in finding.remedy
    with set_on_standby(pair, "recovery_min_apply_delay", "5min"):
        [finding] = bad(check(pair))
        assert (finding.level, finding.code) == (Level.ERROR, "TRK261")
    with set_on_standby(pair, "max_slot_wal_keep_size", "10MB"):
        [finding] = bad(check(pair))
        assert (finding.level, finding.code) == (Level.WARNING, "TRK234")
        assert "standby" in finding.subject


def test_feedback_without_a_slot_of_the_standbys_own(own_pair: Pair) -> None:
    with_table(own_pair)
    with set_on_standby(own_pair, "hot_standby_feedback", "on"):
        assert bad(check(own_pair)) == []
        follow(own_pair.standby, own_pair.database.server)
        [finding] = bad(check(own_pair))
    assert (finding.level, finding.code) == (Level.WARNING, "TRK263")
    assert "primary_slot_name is not set" in finding.message


def test_replay_that_is_paused(pair: Pair) -> None:
    with_table(pair)
    with pair.read() as standby:
        standby.execute("select pg_wal_replay_pause()")
        try:
            [finding] = bad(check(pair))
        finally:
            standby.execute("select pg_wal_replay_resume()")
    assert (finding.level, finding.code) == (Level.ERROR, "TRK261")
    assert "pg_wal_replay_resume" in finding.remedy


def test_a_server_that_is_too_old_to_decode_on_a_standby(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with_table(pair)
    monkeypatch.setitem(capabilities._SINCE, "standby_decoding", (99, "logical decoding on a standby"))
    [finding] = bad(check(pair))
    assert (finding.level, finding.code) == (Level.ERROR, "TRK206")
    assert "remove replica_host" in finding.remedy


def test_a_primary_another_database_and_an_unreachable_standby(pair: Pair, database: Database) -> None:
    with_table(pair)
    port = {"replica_host": "127.0.0.1", "replica_port": pair.database.server.port}
    finding = bad(check(pair, pair.database.connection.model_copy(update=port)))[0]
    assert finding.code == "TRK260"
    assert "not a standby" in finding.message
    elsewhere = pair.connection.model_copy(update={"replica_database": "postgres"})
    assert "replica_database is postgres" in bad(check(pair, elsewhere))[0].message
    [finding] = bad(check(pair, pair.connection.model_copy(update={"replica_port": 1})))
    assert finding.code == "TRK201"
    assert "standby 127.0.0.1:1" in finding.subject


def test_a_standby_that_follows_another_servers_promotion(
    own_pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with_table(own_pair)
    for second in make_standby(own_pair.database.server, tmp_path_factory):
        follow(second, own_pair.standby)
        cascade = own_pair.connection.model_copy(update={"replica_port": second.port})
        assert not [finding for finding in check(own_pair, cascade) if finding.level is Level.ERROR]
        own_pair.standby.promote()
        own_pair.standby.create_database("news")
        with second.connect() as connection:
            wait_until(lambda: connection.execute("select 1 from pg_database where datname = 'news'").fetchone())
        finding = bad(check(own_pair, cascade))[0]
        assert (finding.level, finding.code) == (Level.ERROR, "TRK260")
        assert "follows timeline 2" in finding.message


def test_privileges_are_those_of_each_sides_role(pair: Pair) -> None:
    with_table(pair)
    pair.database.execute(
        "create role writer login password 'w'",
        "create role reader login password 'r'",
        f"grant create on database {pair.database.name} to writer",
        "alter table t owner to writer",
    )
    try:
        pair.standby.catch_up()
        secrets = {user: pair.database.as_user(user, user[0]).password for user in ("writer", "reader")}
        config = pair.connection.model_copy(
            update={
                "user": "writer",
                "password": secrets["writer"],
                "replica_user": "reader",
                "replica_password": secrets["reader"],
            }
        )
        findings = bad(check(pair, config))
        assert one(findings, "may not replicate").remedy.startswith('run on the primary: ALTER ROLE "reader"')
        assert "GRANT SELECT" in one(findings, "may not read").remedy
        assert one(findings, "pg_log_standby_snapshot").level is Level.WARNING
        assert len(findings) == 3
        pair.database.execute(
            "alter role reader replication",
            "grant select on t to reader",
            "grant execute on function pg_log_standby_snapshot() to writer",
        )
        pair.standby.catch_up()
        assert bad(check(pair, config)) == []
    finally:
        pair.database.execute("drop owned by writer, reader", "drop role writer", "drop role reader")


def test_a_slot_lost_to_recovery(own_pair: Pair) -> None:
    with_table(own_pair)
    create_slot(own_pair.connection, own_pair.slot).close()
    own_pair.database.execute("create table gone (id int)", "drop table gone", "vacuum full pg_class")
    with own_pair.read() as connection:
        wait_until(lambda: (slot := find_slot(connection, own_pair.slot)) is not None and slot.lost)
    finding = one(check(own_pair), "was invalidated by the server")
    assert finding.level is Level.ERROR
    assert "rows_removed" in finding.message
    assert "hot_standby_feedback" in finding.remedy


def test_a_slot_on_the_wrong_side(pair: Pair) -> None:
    with_table(pair)
    create_slot(pair.database.connection, pair.slot).close()
    finding = one(check(pair), "is on the primary")
    assert (finding.level, finding.code) == (Level.ERROR, "TRK232")
    create_slot(pair.connection, pair.slot).close()
    finding = one(check(pair), "is on the primary too")
    assert finding.level is Level.WARNING
