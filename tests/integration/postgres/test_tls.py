"""TLS in all of libpq's modes, for queries, for replication, for capture's own stream and at a destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.proxy import Proxy
from fixtures.tls import Authority, Offer
from fixtures.waiting import wait_until
from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SinkError, SinkRefused, SourceError, TruckerError
from trucker.lsn import Lsn
from trucker.postgres.connect import connect, explain, parameters
from trucker.postgres.replication.stream import ReplicationStream, connect_pq
from trucker.sinks.postgres.session import close_idle, session

MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
Make = Callable[..., PostgresConnection]


@pytest.fixture
def behind(database: Database, authority: Authority) -> Iterator[Make]:
    """`behind(offer, ssl…)`: the database behind a server that offers TLS so, as connection with these settings."""
    proxies: list[Proxy] = []

    def make(offer: Offer, *, named: str = "localhost", demands: bool = False, **ssl: Any) -> PostgresConnection:
        proxies.append(Proxy(database.server.port, greet=authority.greet(offer, named, client_certificate=demands)))
        given = {"name": "source", "host": "localhost", "port": proxies[-1].port, "ssl": ssl}
        right = database.connection
        return PostgresConnection.model_validate(
            {**given, "database": right.database, "user": right.user, "pass": right.password, "parameters": ADDRESS}
        )

    yield make
    for proxy in proxies:
        proxy.close()


ADDRESS = {"hostaddr": "127.0.0.1"}  # what "localhost" is here must not depend on the machine


def encrypted(config: PostgresConnection) -> bool:
    """Whether all four kinds of connection are; they agree, or this fails."""
    found = []
    for replication in (False, True):
        with closing(connect(config, application="tls", replication=replication)) as connection:
            found.append(bool(connection.pgconn.ssl_in_use))
    stream = connect_pq({**config.conninfo(**parameters(config, "tls")), "replication": "database"}, -1, 10)
    found.append(bool(stream.ssl_in_use))
    stream.finish()
    with session(config) as lent:
        found.append(bool(lent.connection.pgconn.ssl_in_use))
    close_idle(config)
    assert len(set(found)) == 1, found
    return found[0]


def refused(config: PostgresConnection) -> str:
    """The source's code; the destination refuses for the same reason, and capture's stream too."""
    with pytest.raises(SourceError) as ordinary:
        connect(config, application="tls")
    with pytest.raises(SourceError) as replication:
        connect(config, application="tls", replication=True)
    with pytest.raises(TruckerError) as stream:
        connect_pq({**config.conninfo(**parameters(config, "tls")), "replication": "database"}, -1, 10)
    with pytest.raises(SinkError) as sink, session(config):
        pass
    assert type(sink.value) is SinkRefused
    assert sink.value.code == "TRK403"
    assert "`ssl`" in sink.value.remedy
    assert ordinary.value.code == replication.value.code == explain(config, stream.value.message).code
    assert "ssl" in ordinary.value.remedy
    return ordinary.value.code


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offer", ["none", "optional", "only"])
def test_every_mode_with_every_kind_of_server(behind: Make, authority: Authority, offer: Offer, mode: str) -> None:
    config = behind(offer, mode=mode, root_certificate=authority.root)
    if (offer == "none" and mode in ("require", "verify-ca", "verify-full")) or (offer == "only" and mode == "disable"):
        assert refused(config) == "TRK205"
    else:
        plain = offer == "none" or mode == "disable" or (mode == "allow" and offer == "optional")
        assert encrypted(config) is not plain


def test_who_the_server_is_matters_to_the_modes_that_say_so(
    behind: Make, authority: Authority, stranger: Authority
) -> None:
    """A certificate of another authority, and one for another host."""
    for mode in ("verify-ca", "verify-full"):
        assert refused(behind("optional", mode=mode, root_certificate=stranger.root)) == "TRK205"
    elsewhere = {"named": "elsewhere.example.com", "root_certificate": authority.root}
    assert encrypted(behind("optional", mode="verify-ca", **elsewhere))
    assert refused(behind("optional", mode="verify-full", **elsewhere)) == "TRK205"


def test_a_server_that_asks_for_a_client_certificate(
    behind: Make, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    ssl = {"mode": "verify-full", "root_certificate": authority.root}
    certificate, key = authority.client("trucker")
    assert encrypted(behind("only", demands=True, **ssl, certificate=certificate, key=key))
    assert refused(behind("only", demands=True, **ssl)) == "TRK205"
    foreign, its_key = stranger.client("trucker")
    assert refused(behind("only", demands=True, **ssl, certificate=foreign, key=its_key)) == "TRK205"
    open_key = tmp_path / "open.key"
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o644)
    assert refused(behind("only", demands=True, **ssl, certificate=certificate, key=open_key)) == "TRK205"


def test_tls_without_asking_first(behind: Make, authority: Authority) -> None:
    """sslnegotiation=direct, of PostgreSQL 17 and newer."""
    config = behind("only", mode="verify-full", root_certificate=authority.root)
    direct = config.model_copy(update={"parameters": {**ADDRESS, "sslnegotiation": "direct"}})
    assert encrypted(direct)


def test_the_stream_is_the_same_in_the_clear_and_encrypted(
    behind: Make, authority: Authority, database: Database
) -> None:
    """Messages and errors are the same, and both can halt."""
    database.execute("create table t (id int primary key, v text)", "create publication everything for all tables")
    config = behind("optional", mode="require", root_certificate=authority.root)
    found, errors = [], []
    for number in range(2):
        slot = f"trucker_{database.name}_{number}"
        database.execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    database.execute("insert into t select i, repeat('d' || i, 50) from generate_series(1, 500) i")
    for number, each in enumerate((database.connection, config)):
        conninfo = each.conninfo(**parameters(each, "tls", replication=True))
        found.append(_streamed(conninfo, f"trucker_{database.name}_{number}"))
        with closing(ReplicationStream.connect(conninfo, "trucker_not_there", "everything")) as stream:
            with pytest.raises(SourceError) as error:
                stream.start(Lsn(0))
            errors.append(str(error.value))
    assert len(found[0]) > 500
    assert found[0] == found[1]
    assert errors[0] == errors[1]


def _streamed(conninfo: dict[str, str | int], slot: str) -> list[bytes]:
    """Messages from the slot, up to the first commit."""
    messages: list[bytes] = []
    with closing(ReplicationStream.connect(conninfo, slot, "everything")) as stream:

        def committed() -> bool:
            stream.wait(0.05)
            stream.receive(messages.extend, 1 << 20)
            return any(message[:1] == b"C" for message in messages)

        stream.start(Lsn(0))
        wait_until(committed)
        stream.acknowledge(Lsn(0))
        stream.halt()
    return messages
