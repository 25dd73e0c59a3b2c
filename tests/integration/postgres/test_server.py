"""The embedded server: up, down, crashed, and gone with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from fixtures.pg import Database
from fixtures.waiting import wait_until
from trucker.testing.server import Server


def test_runs_with_logical_replication_and_asks_for_a_password(any_server: Server) -> None:
    with any_server.connect() as connection:
        assert connection.execute("show wal_level").fetchone() == ("logical",)
        assert connection.info.server_version // 10000 == any_server.version
    config = any_server.connection("x", password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(**config.conninfo())


def test_survives_a_crash_with_its_data_and_its_port(own_server: Server) -> None:
    with own_server.connect() as connection:
        connection.execute("create table kept as select 1 as id")
    port = own_server.port
    own_server.kill()
    assert not own_server.running
    own_server.start()
    assert own_server.port == port
    with own_server.connect() as connection:
        assert connection.execute("select id from kept").fetchone() == (1,)


def test_takes_new_settings_at_a_restart(own_server: Server) -> None:
    own_server.restart(settings={"work_mem": "5MB"})
    with own_server.connect() as connection:
        assert connection.execute("show work_mem").fetchone() == ("5MB",)


def test_every_server_has_an_identity_of_its_own(own_server: Server, server: Server) -> None:
    query = "select system_identifier from pg_control_system()"
    with own_server.connect() as one, server.connect() as other:
        assert one.execute(query).fetchone() != other.execute(query).fetchone()


def test_says_why_it_does_not_start(tmp_path: Path) -> None:
    broken = Server(tmp_path / "broken", settings={"shared_buffers": "nonsense"})
    with pytest.raises(Exception, match="shared_buffers"):
        broken.start()
    broken.destroy()


def test_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from trucker.testing.server import Server;"
        "server = Server(pathlib.Path(sys.argv[1])).start(); print(server.pid, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "server")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    postmaster = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    def gone() -> bool:
        try:
            return Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    wait_until(gone)
    Server(tmp_path / "server").destroy()


def test_its_programs_run(server: Server, database: Database) -> None:
    said = subprocess.run(
        [server.bin / "psql", "-Atc", "select current_database()"],
        env=server.environment(database.name),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == database.name
