"""What libpq says, as one of trucker's errors: what may pass, what will not, and the way out."""

from __future__ import annotations

import pickle

import psycopg
import pytest
from psycopg import errors
from pydantic import SecretStr

from trucker.adapters.postgres import PostgresConnection, Ssl
from trucker.errors import SourceError, SourceRefused, SourceUnavailable
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.connect import SESSION_SETTINGS, explain, parameters, query_error, translated

CONFIG = PostgresConnection(
    name="shop", host="db.example", database="orders", user="app", password=SecretStr("correct horse")
)
PLACE = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: '

REFUSED = {
    'FATAL:  password authentication failed for user "app"': ("TRK202", "pass_path"),
    "fe_sendauth: no password supplied": ("TRK202", "pass"),
    'FATAL:  database "orders" does not exist': ("TRK203", "`database`"),
    'FATAL:  role "app" is not permitted to log in': ("TRK202", "`user`"),
    'FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "app", database "orders", no encryption': (
        "TRK204",
        "host orders app",
    ),
    "FATAL:  pg_hba.conf rejects connection": ("TRK204", "pg_hba.conf"),
    'FATAL:  permission denied for database "orders"': ("TRK220", "GRANT CONNECT"),
    "FATAL:  must be superuser or replication role to start walsender": ("TRK220", "REPLICATION"),
    "FATAL:  permission denied to start WAL sender": ("TRK220", "REPLICATION"),
    "server does not support SSL, but SSL was required": ("TRK205", "prefer"),
    "SSL error: certificate verify failed": ("TRK205", "root_certificate"),
    'root certificate file "/x" does not exist': ("TRK205", "`ssl`"),
    "FATAL:  connection requires a valid client certificate": ("TRK205", "`ssl.key`"),
}

POOLED = "FATAL:  unsupported startup parameter: replication"

PASSING = {
    "Connection refused": "listens there",
    "timeout expired": "`host` and `port`",
    "FATAL:  the database system is starting up": "wait",
    "FATAL:  the database system is shutting down": "wait",
    "FATAL:  sorry, too many clients already": "max_connections",
    "FATAL:  number of requested standby connections exceeds max_wal_senders (currently 1)": "max_wal_senders",
    "failed to resolve host 'db.example': [Errno -2] Name or service not known": "check `host`",
    "FATAL:  das Datenbanksystem startet": "`host`",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_user_can_put_right_is_an_error_with_a_remedy_and_is_tried_again(reason: str) -> None:
    error = explain(CONFIG, PLACE + reason)
    code, remedy = REFUSED[reason]
    assert type(error) is SourceRefused
    assert (error.code, error.transient) == (code, True)
    assert remedy in error.remedy


def test_a_pooler_is_an_error_that_does_not_pass() -> None:
    error = explain(CONFIG, PLACE + POOLED)
    assert type(error) is SourceError
    assert (error.code, error.transient) == ("TRK207", False)
    assert "the server itself" in error.remedy
    assert "connection shop (db.example:5432)" in error.message
    assert "10.0.0.1" not in error.message


def test_a_server_that_requires_tls_and_one_that_refuses_the_user_are_different_errors() -> None:
    """Both say "no encryption"; only who has not tried TLS may be let in with it."""
    words = 'FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "app", database "orders", no encryption'
    plain = CONFIG.model_copy(update={"ssl": Ssl(mode="disable")})
    assert explain(CONFIG, PLACE + words).code == "TRK204"
    assert explain(plain, PLACE + words).code == "TRK205"
    assert "`ssl: require`" in explain(plain, PLACE + words).remedy


@pytest.mark.parametrize("reason", PASSING)
def test_what_may_pass_is_tried_again(reason: str) -> None:
    error = explain(CONFIG, PLACE + reason)
    assert isinstance(error, SourceUnavailable)
    assert error.transient
    assert PASSING[reason] in error.remedy
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_every_connection_asks_for_the_same_text() -> None:
    for replication in (False, True):
        options = str(parameters(CONFIG, "x", replication=replication)["options"])
        for name, value in SESSION_SETTINGS.items():
            assert f"-c {name}={value}" in options


def test_failed_statements_keep_no_detail() -> None:
    with pytest.raises(SourceUnavailable) as caught, translated("reading"):
        raise errors.LockNotAvailable("canceling statement due to lock timeout")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(SourceError, match="reading: division by zero"), translated("reading"):
        raise errors.DivisionByZero("division by zero\nDETAIL: row (1, secret)")
    assert query_error("reading", psycopg.OperationalError("the connection is lost")).transient
    assert query_error("reading", psycopg.InterfaceError("the connection is closed")).transient


def test_capabilities_by_version() -> None:
    old, new = ServerFeatures(140012), ServerFeatures(180004)
    assert (str(old), str(new)) == ("14.12", "18.4")
    assert old.messages
    assert not any((old.row_filters, old.column_lists, old.failover_slots, old.standby_decoding))
    assert new.row_filters
    assert new.column_lists
    assert new.failover_slots
    assert new.generated_columns
    assert new.idle_slot_timeout
    assert ServerFeatures(160000).standby_decoding
    assert "PostgreSQL 14.12 lacks row filters" in old.explain("row_filters")
    assert "has" in new.explain("row_filters")
    with pytest.raises(SourceError, match="came with 17"):
        old.require("failover_slots", "slot x", "upgrade")
    new.require("failover_slots", "slot x", "upgrade")
