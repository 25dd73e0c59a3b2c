"""A connection pooler in between: never for a source, and for a destination only if a session stays whole."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from fixtures.pg import Database
from fixtures.pooler import find_pgbouncer
from fixtures.postgres_sink import PostgresDestination
from fixtures.waiting import wait_until
from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SinkError, SourceError
from trucker.postgres.connect import connect
from trucker.postgres.preflight import Needed, check_source
from trucker.sinks.base import Workspace
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.session import close_idle, session
from trucker.testing.handmade import insert
from trucker.testing.installation import account, reachable_temporary
from trucker.testing.suites.sink_suite import ITEMS, target_of
from trucker.testing.suites.table_suite import item

PGBOUNCER = find_pgbouncer()
pytestmark = pytest.mark.skipif(
    PGBOUNCER is None,
    reason="pgbouncer is missing; get it by `make pgbouncer`, or `apt-get install pgbouncer` as root",
)

Through = Callable[..., PostgresConnection]


@pytest.fixture
def through(database: Database) -> Iterator[Through]:
    """`through(mode, **settings)`: the database behind a pgbouncer of that mode."""
    running: list[subprocess.Popen[bytes]] = []
    folder = reachable_temporary("pooler")

    def make(mode: str, **settings: str) -> PostgresConnection:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        right = database.connection
        users = folder / f"{mode}.txt"
        users.write_text(f'"{right.user}" "{right.password.get_secret_value()}"\n')
        lines = {"listen_addr": "127.0.0.1", "listen_port": str(port), "unix_socket_dir": "", "pool_mode": mode}
        lines |= {"auth_type": "scram-sha-256", "auth_file": str(users), "logfile": str(folder / "log"), **settings}
        configuration = folder / f"{mode}.ini"
        configuration.write_text(
            f"[databases]\n* = host=127.0.0.1 port={database.server.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        account().own(folder)
        assert PGBOUNCER is not None
        running.append(subprocess.Popen([PGBOUNCER, "-q", str(configuration)], cwd="/", **account().popen))
        config = right.model_copy(update={"port": port})
        wait_until(lambda: _answers(config))
        return config

    yield make
    for process in running:
        process.terminate()
        process.wait(20)
    shutil.rmtree(folder)


def _answers(config: PostgresConnection) -> bool:
    try:
        psycopg.connect(**config.conninfo()).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("settings", [{}, {"ignore_startup_parameters": "options,extra_float_digits"}], ids=str)
def test_a_source_behind_a_pooler_is_refused(through: Through, settings: dict[str, str]) -> None:
    """Before anything is made (I11): for queries, for replication, and by `check`."""
    config = through("session", **settings)
    for replication in (False, True):
        with pytest.raises(SourceError, match="a connection pooler answers") as refused:
            connect(config, application="pooled", replication=replication)
        assert refused.value.code == "TRK207"
        assert not refused.value.transient
    (finding,) = check_source(config, Needed("p", "s", []))
    assert (finding.code, "to the server itself" in finding.remedy) == ("TRK207", True)


@contextmanager
def _pooled(database: Database, config: PostgresConnection) -> Iterator[PostgresDestination]:
    place = PostgresDestination(replace(database, connection=config))
    try:
        yield place
    finally:
        place.close()


@pytest.mark.parametrize("settings", [{}, {"ignore_startup_parameters": "options,extra_float_digits"}], ids=str)
def test_a_destination_behind_a_pooler_that_keeps_sessions_whole(
    database: Database, through: Through, settings: dict[str, str]
) -> None:
    config = through("session", **settings)
    with _pooled(database, config) as place:
        items = target_of(ITEMS)
        sink = place.started(items)
        for number in range(3):
            place.change(sink, items, insert(item(number)), step=number + 1)
        assert len(place.rows(ITEMS.table)) == 3
        with session(config) as lent:
            assert lent.run("show timezone").fetchone() == ("UTC",)
            assert lent.run("show search_path").fetchone() == ("pg_catalog",)
            assert lent.run("show lock_timeout").fetchone() == ("30s",)


@pytest.mark.parametrize("order", ["0", "1"], ids=["last in first out", "round robin"])
def test_a_destination_behind_a_pooler_that_mixes_sessions_up_is_refused(through: Through, order: str) -> None:
    config = through("transaction", ignore_startup_parameters="options", server_round_robin=order)
    sink = PostgresSink(config, Workspace("pooled", Path("unused")))
    with pytest.raises(SinkError, match="in transaction mode") as refused:
        sink.open()
    assert refused.value.code == "TRK420"
    assert [finding.code for finding in sink.check()] == ["TRK420"]
    close_idle(config)
