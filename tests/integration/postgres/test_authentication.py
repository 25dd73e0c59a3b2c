"""Ways in: passwords of every kind, by every way a project can give one, over IPv4, IPv6 and a Unix socket."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from fixtures.pg import Database
from fixtures.proxy import Proxy
from trucker.adapters.postgres import PostgresConnection
from trucker.config.project_folder import load_project
from trucker.postgres.connect import connect, parameters
from trucker.postgres.replication.stream import connect_pq
from trucker.sinks.postgres.session import close_idle, session

NASTY = "a%20b & c?d@e/f#g:h'i\"j\\k {{ l }} ${m} ;=, žluťoučký кот 漢字 🐎"


@pytest.fixture(params=["scram-sha-256", "md5"])
def user(request: pytest.FixtureRequest, database: Database) -> Iterator[str]:
    """A role whose password is as nasty as can be, stored so, and let in by that method."""
    method = request.param
    name = f"nasty_{secrets.token_hex(4)}"
    access = database.server.data / "pg_hba.conf"
    before = access.read_bytes()
    with database.connect() as connection:
        connection.execute("set client_min_messages = error")
        connection.execute(f"set password_encryption = '{method}'".encode())
        literal = "'" + NASTY.replace("'", "''") + "'"
        connection.execute(f"create role {name} login replication password {literal}".encode())
    access.write_bytes(f"host all,replication {name} all {method}\nlocal all {name} {method}\n".encode() + before)
    database.execute("select pg_reload_conf()")
    try:
        yield name
    finally:
        access.write_bytes(before)
        database.execute("select pg_reload_conf()", f"drop role {name}")


def _let_in(config: PostgresConnection) -> None:
    """Queries, replication, capture's own stream, and a destination's session."""
    for replication in (False, True):
        with closing(connect(config, application="way in", replication=replication)) as connection:
            assert connection.execute("select current_user::text").fetchone() == (config.user,)
    connect_pq({**config.conninfo(**parameters(config, "way in")), "replication": "database"}, -1, 10).finish()
    with session(config) as lent:
        assert lent.run("select current_user::text").fetchone() == (config.user,)
    close_idle(config)


def test_a_nasty_password_by_every_way(
    database: Database, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"host": "127.0.0.1", "port": database.server.port, "database": database.name, "user": user}
    sockets = database.query("show unix_socket_directories")[0][0]
    (tmp_path / "secret").write_text(NASTY + "\n", encoding="utf-8")
    monkeypatch.setenv("NASTY", NASTY)
    url = f"postgresql://{user}:{quote(NASTY, safe='')}@127.0.0.1:{database.server.port}/{database.name}"
    monkeypatch.setenv("NASTY_URL", url)
    quoted = "{% raw %}" + json.dumps(NASTY, ensure_ascii=False) + "{% endraw %}"  # JSON is YAML
    keys = ", ".join(f"{name}: {value}" for name, value in place.items())
    through = f"host: {sockets}, port: {database.server.port}, database: {database.name}, user: {user}"
    (tmp_path / "trucker.yml").write_text(
        f"""connections:
  - {{name: key, {keys}, pass: {quoted}}}
  - {{name: file, {keys}, pass_path: secret}}
  - {{name: template, {keys}, pass: {{{{ file("secret") }}}}}}
  - {{name: environment, {keys}, pass: {{{{ env("NASTY") }}}}}}
  - {{name: url, url: {{{{ env("NASTY_URL") }}}}}}
  - {{name: socket, {through}, pass_path: secret}}
""",
        encoding="utf-8",
    )
    truck = tmp_path / "trucks" / "any"
    truck.mkdir(parents=True)
    (truck / "truck.yml").write_text("{input: {connection: key, tables: public.*}, output: {connection: file}}")
    connections = load_project(tmp_path).connections
    assert [connection.name for connection in connections] == [
        "key", "file", "template", "environment", "url", "socket",
    ]  # fmt: skip
    for connection in connections:
        assert isinstance(connection, PostgresConnection)
        assert connection.password.get_secret_value() == NASTY
        _let_in(connection)


def test_over_ipv6(database: Database) -> None:
    try:
        proxy = Proxy(database.server.port, address="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 address ::1")
    with proxy:
        right = database.connection
        config = right.model_copy(update={"host": "::1", "port": proxy.port})
        _let_in(config)
        assert config.place == f"connection source ([::1]:{proxy.port})"
        secret = quote(right.password.get_secret_value(), safe="")
        url = f"postgresql://{right.user}:{secret}@[::1]:{proxy.port}/{right.database}"
        _let_in(PostgresConnection.model_validate({"name": "url", "url": url}))


def test_settings_of_libpq_come_before_ours(database: Database) -> None:
    given = {"application_name": "mine", "options": "-c work_mem=7MB -c TimeZone=Asia/Tokyo", "connect_timeout": "3"}
    config = database.connection.model_copy(update={"parameters": given})
    with closing(connect(config, application="ours")) as connection:
        found = [connection.execute(f"show {name}".encode()).fetchone() for name in ("work_mem", "timezone")]
        assert found == [("7MB",), ("UTC",)]
        assert connection.info.get_parameters()["application_name"] == "mine"
        assert connection.info.get_parameters()["connect_timeout"] == "3"


def test_an_address_that_does_not_answer(database: Database) -> None:
    """An address in brackets, as messages show it; nothing of it is a secret."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        config = database.connection.model_copy(update={"host": "/nowhere", "port": probe.getsockname()[1]})
    assert config.place.startswith("connection source (socket /nowhere, port ")
