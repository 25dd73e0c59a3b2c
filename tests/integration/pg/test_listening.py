"""Connections that notice silence, and tell it from work."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from fixtures.pg import Database
from fixtures.proxy import Proxy
from fixtures.waiting import wait_until
from trucker.pg.listening import Listening, Silent
from trucker.postgres.connect import parameters

SHORT = 0.3


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.server.port) as proxy:
        yield proxy


@pytest.fixture
def through(database: Database, proxy: Proxy) -> Callable[..., Listening]:
    def connect(application: str = "listening", *, replication: bool = False) -> Listening:
        config = database.connection.model_copy(update={"port": proxy.port})
        found = config.conninfo(**parameters(config, application, replication=replication)) | {"connect_timeout": 2}
        return Listening.open(found, SHORT)

    return connect


def _backends(database: Database, application: str) -> int:
    return int(database.query(f"select count(*) from pg_stat_activity where application_name = '{application}'")[0][0])


def test_a_statement_may_take_long(through: Callable[..., Listening]) -> None:
    with through() as connection:
        assert connection.execute("select 7 from pg_sleep(1.2)").fetchone() == (7,)
        assert not connection.pooled


def test_waiting_for_a_lock_or_an_open_transaction_is_not_silence(
    database: Database, through: Callable[..., Listening]
) -> None:
    """A lock, and a slot in the making that waits for an open transaction."""
    slot = f"patient_{database.name}"
    database.execute("create table t (n int)")
    with database.connect() as other:
        other.execute("begin; insert into t values (1); lock table t in access exclusive mode")
        timer = threading.Timer(1.2, lambda: other.execute("commit"))
        timer.start()
        with through(replication=True) as replication, through() as connection:
            replication.execute(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput".encode())
            assert connection.execute("select n from public.t").fetchone() == (1,)
        timer.join()


def test_a_stalled_network_is_noticed_and_its_backend_ended_later(
    database: Database, proxy: Proxy, through: Callable[..., Listening]
) -> None:
    """Nothing answers, the second connection as little as the first; what the backend holds is let go of (I4)."""
    database.execute("create table t (n int)", "insert into t values (1)")
    connection = through("stalled")
    connection.execute("begin; update public.t set n = 2")
    proxy.stall()
    with pytest.raises(Silent, match="no answer"):
        connection.execute("commit")
    assert connection.closed
    assert _backends(database, "stalled") == 1  # in a transaction, and nobody to end it
    proxy.heal()
    with through() as again:
        again.execute("update public.t set n = n + 10")
    found = database.query("select n from t")[0][0]
    assert found in (11, 12)  # the commit may have been delivered in the end


def test_a_half_open_connection_is_noticed_and_its_backend_ended(
    database: Database, proxy: Proxy, through: Callable[..., Listening]
) -> None:
    """Only this connection is dead: the server tells a new one that nobody is at work for it."""
    database.execute("create table t (n int)", "insert into t values (1)")
    connection = through("half-open")
    connection.execute("begin; update public.t set n = 2")
    assert proxy.freeze() == 1
    with pytest.raises(Silent):
        connection.execute("select 1")
    with database.connect() as other:
        other.execute("set lock_timeout = '10s'")
        other.execute("update t set n = n + 10")
    assert database.query("select n from t") == [(11,)]


def test_a_pipeline_on_a_lost_connection_leaves_no_generator_unfinished(
    database: Database, through: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would print the error with which such a generator ends."""
    unraisable: list[object] = []
    connection = through("lost")

    def lose() -> None:
        with connection.pipeline():
            connection.execute("select 1")
            database.query("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'lost'")
            wait_until(lambda: not _backends(database, "lost"))
            connection.execute("select 1")

    with monkeypatch.context() as patched:
        patched.setattr(sys, "unraisablehook", unraisable.append)
        with pytest.raises(psycopg.OperationalError):
            lose()
        gc.collect()
    assert not unraisable


def test_a_copy_that_stands_still_is_noticed(
    database: Database, proxy: Proxy, through: Callable[..., Listening]
) -> None:
    database.execute("create table t (n text)")
    connection = through()
    with pytest.raises(psycopg.OperationalError, match="no answer"):
        _copy_into_nothing(connection, proxy)
    assert database.query("select count(*) from t") == [(0,)]


def _copy_into_nothing(connection: Listening, proxy: Proxy) -> None:
    with connection.cursor() as cursor, cursor.copy("copy public.t from stdin") as copy:
        copy.write(b"x\n")
        proxy.freeze()
        for _ in range(400):
            copy.write(b"y" * 100_000 + b"\n")
