"""Connections: the same settings whatever the server's defaults, and an end to waiting."""

from __future__ import annotations

import socket

import pytest

from fixtures.pg import Database
from trucker.adapters.postgres import Timeouts
from trucker.errors import SourceError, SourceUnavailable
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.catalog import list_tables
from trucker.postgres.connect import SESSION_SETTINGS, connect


@pytest.mark.parametrize("replication", [False, True], ids=["ordinary", "replication"])
def test_defaults_of_database_and_role_do_not_show(any_database: Database, replication: bool) -> None:
    for setting in ("datestyle = 'SQL, DMY'", "timezone = 'Asia/Tokyo'", "statement_timeout = '1ms'"):
        any_database.execute(f"alter database {any_database.name} set {setting}")
    with connect(any_database.connection, application="test settings", replication=replication) as connection:
        for name, value in SESSION_SETTINGS.items():
            row = connection.execute(f"show {name}".encode()).fetchone()
            assert row is not None
            assert row[0].startswith(value), name
        assert connection.execute("show application_name").fetchone() == ("test settings",)
        assert ServerFeatures.of(connection).major == any_database.server.version


def test_a_server_that_never_answers_is_given_up(database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = database.connection.model_copy(
            update={"port": silent.getsockname()[1], "timeouts": Timeouts(connect=2)}
        )
        with pytest.raises(SourceUnavailable, match="timeout"):
            connect(config, application="test")


def test_refusals_name_the_remedy_and_not_the_password(database: Database) -> None:
    wrong = database.as_user("postgres", "not-the-password")
    with pytest.raises(SourceError, match="is not accepted") as caught:
        connect(wrong, application="test")
    assert caught.value.transient, "it may be put right while a project runs"
    assert "not-the-password" not in str(caught.value)
    with pytest.raises(SourceError, match='database "nowhere" does not exist:'):
        connect(database.connection.model_copy(update={"database": "nowhere"}), application="test")
    strict = database.connection.ssl.model_copy(update={"mode": "require"})
    with pytest.raises(SourceError, match="does not support TLS"):
        connect(database.connection.model_copy(update={"ssl": strict}), application="test")


def test_a_server_too_old_is_refused(database: Database) -> None:
    class Old:
        class info:  # noqa: N801
            server_version = 130011

    with pytest.raises(SourceError, match=r"PostgreSQL 13\.11; 14 or newer is needed"):
        ServerFeatures.of(Old())  # type: ignore[arg-type]


def test_a_connection_lost_under_way_may_pass(database: Database) -> None:
    with connect(database.connection, application="test") as connection:
        with database.connect() as other:
            other.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(SourceUnavailable, match="reading the catalogue"):
            list_tables(connection)
