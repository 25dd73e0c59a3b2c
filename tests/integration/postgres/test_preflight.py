"""`check` for the source: everything that is missing, each with its remedy, and nothing changed by looking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fixtures.pg import Database
from trucker.adapters.postgres import PostgresConnection
from trucker.change import TableId
from trucker.finding import Finding, Level
from trucker.postgres.preflight import Needed, check_source
from trucker.postgres.slot import create_slot
from trucker.source.publication import PublishedTable
from trucker.testing.server import Server


def table(name: str, columns: tuple[str, ...] | None = None, where: str | None = None) -> PublishedTable:
    return PublishedTable(TableId("public", name), columns, where)


def check(config: PostgresConnection, *tables: PublishedTable, slot: str = "trucker_check") -> list[Finding]:
    return check_source(config, Needed("trucker_check", slot, tables))


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def one(findings: list[Finding], part: str) -> Finding:
    found = [finding for finding in findings if part in finding.message]
    assert len(found) == 1, findings
    return found[0]


def test_a_source_that_is_as_needed_has_only_good_findings(any_database: Database) -> None:
    any_database.execute("create table a (id int primary key, v text)")
    findings = check(any_database.connection, table("a"), table("a", ("id",), "id > 1"))
    assert bad(findings) == []
    assert len(findings) >= 7
    assert any_database.query("select 1 from pg_publication") == []
    assert any_database.query(f"select 1 from pg_replication_slots where database = '{any_database.name}'") == []


def test_an_unreachable_server_is_one_finding(database: Database) -> None:
    [finding] = check(database.connection.model_copy(update={"port": 1}))
    assert finding.level is Level.ERROR
    assert finding.code == "TRK201"


def test_a_wrong_password_is_not_repeated(database: Database) -> None:
    [finding] = check(database.as_user("postgres", "not-the-password"))
    assert finding.code == "TRK202"
    assert "not-the-password" not in repr(finding)


TABLES: dict[str, tuple[str, PublishedTable, str, str]] = {
    "absent": ("select 1", table("t"), "does not exist", "case-sensitive"),
    "view": ("create view t as select 1 as id", table("t"), "is a view", "its underlying tables"),
    "unlogged": ("create unlogged table t (id int primary key)", table("t"), "unlogged", "SET LOGGED"),
    "no identity": ("create table t (id int)", table("t"), "no usable replica identity", "REPLICA IDENTITY FULL"),
    "generated": (
        "create table t (id int primary key, g int generated always as (id + 1) stored)",
        table("t"),
        "generated columns are not replicated: g",
        "at the destination",
    ),
    "filter": ("create table t (id int primary key, v int)", table("t", None, "v > 1"), "`where` uses v", "FULL"),
    "bad filter": ("create table t (id int primary key)", table("t", None, "id >"), "not a valid condition", "correct"),
    "partitions to come": (
        "create table t (id int) partition by range (id); create table t_1 partition of t for values from (0) to (9);"
        " alter table t_1 replica identity full; alter table t replica identity full",
        table("t"),
        "on each new partition",
        "primary key",
    ),
}


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.replace(" ", "-"))
def test_what_is_wrong_with_a_table_is_found(database: Database, case: str) -> None:
    definition, wanted, message, remedy = TABLES[case]
    database.execute(*definition.split("; "), "create table fine (id int primary key)")
    findings = check(database.connection, wanted, table("fine"))
    [finding] = bad(findings)
    assert message in finding.message
    assert remedy in finding.remedy
    assert finding.subject == "source.public.t"
    assert one(findings, "can be copied and streamed").subject == "source.public.fine"


def test_a_role_without_privileges_gets_all_the_grants_to_run(any_database: Database) -> None:
    role = f"poor_{any_database.name}"
    any_database.execute(
        f"create role {role} login password 'poor'",
        "create schema hidden",
        "create table hidden.a (id int primary key)",
        "create table b (id int primary key)",
        "alter table b enable row level security",
        "create policy p on b using (true)",
    )
    config = any_database.as_user(role, "poor")
    wanted = [PublishedTable(TableId("hidden", "a")), table("b")]
    try:
        for _ in range(4):
            problems = bad(check(config, *wanted))
            for problem in problems:
                statements = problem.remedy.removeprefix("run: ").partition("  ")[0]
                any_database.execute(*statements.split("; "))
            if not problems:
                break
        assert bad(check(config, *wanted)) == []
        grants = {problem.code for problem in problems}
        assert grants <= {"TRK220"}
    finally:
        any_database.execute(f"drop owned by {role} cascade", f"drop role {role}")


def test_what_the_slot_is(any_database: Database) -> None:
    name = f"trucker_{any_database.name}"
    with create_slot(any_database.connection, name):
        pass
    assert "is at" in one(check(any_database.connection, slot=name), name).message
    other = any_database.connection.model_copy(update={"database": "postgres"})
    assert "belongs to database" in one(bad(check(other, slot=name)), name).message
    with any_database.connect() as connection:
        connection.execute("select pg_drop_replication_slot(%s)", [name])
        connection.execute("select pg_create_physical_replication_slot(%s)", [name])
        try:
            finding = one(bad(check(any_database.connection, slot=name)), "physical")
            assert f"pg_drop_replication_slot('{name}')" in finding.remedy
        finally:
            connection.execute("select pg_drop_replication_slot(%s)", [name])


def test_a_slot_in_use_names_its_reader(database: Database) -> None:
    name = f"trucker_{database.name}"
    with create_slot(database.connection, name, temporary=True):
        finding = one(check(database.connection, slot=name), "in use by pid")
        assert (finding.level, finding.code, finding.waits) == (Level.ERROR, "TRK231", True)
        assert "trucker slot" in finding.message


def test_a_slot_in_use_by_the_projects_own_instance_is_fine(database: Database) -> None:
    name = f"trucker_{database.name}"
    with create_slot(database.connection, name, temporary=True):
        findings = check_source(database.connection, Needed("trucker_check", name, ()), instance="process 7 on here")
        assert one(findings, "running instance (process 7 on here)").level is Level.OK
        assert bad(findings) == []


def test_a_slot_and_publication_named_beforehand_must_be_there(database: Database) -> None:
    config = database.connection.model_copy(update={"slot": "theirs", "publication": "theirs"})
    database.execute("create table a (id int primary key)")
    problems = bad(check_source(config, Needed("theirs", "theirs", [table("a")])))
    assert [problem.code for problem in problems] == ["TRK230", "TRK240"]
    assert "pg_create_logical_replication_slot('theirs'" in problems[0].remedy


def test_a_server_that_is_not_set_up(own_server: Server, wait_until: Callable[..., Any]) -> None:
    own_server.restart(
        settings={
            "max_replication_slots": "1",
            "max_wal_senders": "1",
            "max_slot_wal_keep_size": "64MB",
            "idle_replication_slot_timeout": "10min",
        }
    )
    config = own_server.connection("source")
    problems = {problem.message.split()[0]: problem for problem in bad(check(config))}
    assert "64 MB" in problems["max_slot_wal_keep_size"].message
    assert "600 s" in problems["idle_replication_slot_timeout"].message
    room = [problem for problem in bad(check(config)) if problem.code == "TRK230"]
    assert "max_replication_slots = 4" in room[0].remedy
    assert "max_wal_senders = 4" in room[1].remedy
    own_server.restart(settings={"wal_level": "replica"})
    assert "restart the server" in one(bad(check(config)), "wal_level is replica").remedy


def test_a_slot_that_the_server_gave_up(own_server: Server, wait_until: Callable[..., Any]) -> None:
    own_server.restart(settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    config = own_server.connection("source")
    create_slot(config, "trucker_lost").close()
    with own_server.connect() as connection:

        def lost() -> bool:
            _fill_wal(connection)
            row = connection.execute("select wal_status from pg_replication_slots").fetchone()
            return row == ("lost",)

        wait_until(lost)
    finding = one(bad(check(config, slot="trucker_lost")), "invalidated by the server (wal_removed)")
    assert finding.code == "TRK232"
    assert "trucker reset" in finding.remedy


def _fill_wal(connection: psycopg.Connection[Any]) -> None:
    connection.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 1000000))")
    connection.execute("select pg_switch_wal()")
    connection.execute("checkpoint")
