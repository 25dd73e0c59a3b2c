"""A password is nowhere but in the file it was given in (I10): not on disk, in a page, in a process list or an error.

One run over TLS with passwords that are easy to find, with everything on that Spark can tell, with failures, killed in
the end; and what it leaves and says is searched.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.proxy import Proxy
from fixtures.searching import Mark, Searching, free_port, page
from fixtures.tls import Authority
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark


@pytest.fixture
def marks() -> tuple[Mark, Mark]:
    """The source's and the destination's."""
    return Mark(), Mark()


@pytest.fixture
def users(database: Database, destination: Database, marks: tuple[Mark, Mark]) -> Iterator[tuple[str, str]]:
    names = (f"reader_{database.name}", f"writer_{destination.name}")
    for place, name, mark in zip((database, destination), names, marks, strict=True):
        literal = "'" + mark.password.replace("'", "''") + "'"
        place.execute(f"create role {name} superuser login replication password {literal}")
    yield names
    for place, name in zip((database, destination), names, strict=True):
        place.execute(
            f"select pg_terminate_backend(pid, 20000) from pg_stat_activity where usename = '{name}'",
            f"reassign owned by {name} to postgres",
        )
    for name in names:
        database.execute(f"drop role {name}")


@pytest.fixture
def tls(database: Database, authority: Authority) -> Iterator[Proxy]:
    """Both databases' server, over TLS only, and only for who has a certificate."""
    with Proxy(database.server.port, greet=authority.greet("only", "127.0.0.1", client_certificate=True)) as proxy:
        yield proxy


@pytest.fixture
def secret_project(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    users: tuple[str, str],
    marks: tuple[Mark, Mark],
    tls: Proxy,
    authority: Authority,
    tmp_path: Path,
) -> ProjectFolder:
    """The source's password is in a file, the destination's in a URL in a file."""
    certificate, key = authority.client("trucker")
    ssl = {"mode": "verify-full", "root_certificate": str(authority.root), "certificate": str(certificate)}
    (tmp_path / "source-password").write_text(marks[0].password, encoding="utf-8")
    query = f"sslmode=verify-full&sslrootcert={authority.root}&sslcert={certificate}&sslkey={key}"
    place = f"127.0.0.1:{tls.port}/{destination.name}"
    (tmp_path / "url").write_text(f"postgresql://{users[1]}:{quote(marks[1].password, safe='')}@{place}?{query}")
    source = postgres("source", database) | {"user": users[0], "port": tls.port, "ssl": {**ssl, "key": str(key)}}
    del source["pass"]
    project.config["connections"] = [
        {**source, "pass_path": str(tmp_path / "source-password")},
        {"name": "replica", "url_path": str(tmp_path / "url")},
    ]
    (tmp_path / "events").mkdir()
    project.config["spark"] = {
        "settings": {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (tmp_path / "events").as_uri(),
            "spark.ui.enabled": "true",
            "spark.ui.port": str(free_port()),
        }
    }
    database.execute(
        "create table item (id int primary key, v text)",
        "insert into item select i, 'v' from generate_series(1, 2000) i",
    )
    return project.save().truck("copy", ["public.*"], {"connection": "replica"})


def test_it_is_nowhere(
    secret_project: ProjectFolder,
    database: Database,
    destination: Database,
    users: tuple[str, str],
    marks: tuple[Mark, Mark],
    start: Callable[..., TruckerProcess],
    tmp_path: Path,
) -> None:
    project = secret_project
    searching = Searching(marks, project.folder, tmp_path / "events")
    trucker = start("--debug")
    trucker.wait_streaming(90)
    scratch = _scratch(trucker)
    searching.folders.append(scratch)
    for number in range(5):
        database.execute(f"update item set v = v || 'x' where id % 5 = {number}")
        wait_until(lambda: same(database, destination, "item"))

    said = [" ".join(process.cmdline()) for process in trucker.tree()]
    said += [json.dumps(process.environ()) for process in trucker.tree()]
    assert len(said) >= 6
    assert any("trucker.capture.process" in line for line in said)
    pages = list(_pages(project))
    assert len(pages) >= 6
    said += pages

    database.execute(_END.format(users[0]))  # errors on both sides, and a password that is no longer right
    destination.execute(f"alter role {users[1]} password 'another'", _END.format(users[1]))
    database.execute("update item set v = 'last'")
    said.append(trucker.wait_phase(TruckPhase.RETRYING, timeout=60).error or "")
    assert "[TRK403]" in said[-1]
    for arguments in (["check", "--debug"], ["status", "--json"], ["run", "--once", "--debug"]):
        done = run_cli(arguments[0], str(project.folder), *arguments[1:])
        said += [done.stdout, done.stderr]
    trucker.kill_tree()
    assert searching.close() == set()
    assert searching.seen > 1000
    assert not [text[:200] for text in said for mark in marks if mark.is_in(text)]
    shutil.rmtree(scratch, ignore_errors=True)


_END = "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{}'"


def _java(trucker: TruckerProcess) -> psutil.Process:
    return next(process for process in trucker.tree() if "java" in process.name())


def _scratch(trucker: TruckerProcess) -> Path:
    """Where Spark puts what it needs on disk for a moment."""
    arguments = " ".join(_java(trucker).cmdline()) + (trucker.project.state / "java.arguments").read_text()
    found = re.search(r"-Djava\.io\.tmpdir=([^\s\"]+)", arguments)
    assert found is not None
    return Path(found[1])


def _pages(project: ProjectFolder) -> Iterator[str]:
    """Every page of Spark's UI."""
    site = f"http://127.0.0.1:{project.config['spark']['settings']['spark.ui.port']}"
    (application,) = json.loads(page(f"{site}/api/v1/applications"))
    api = f"api/v1/applications/{application['id']}"
    for name in ("jobs/", "stages/", "environment/", "executors/", *(f"{api}/{x}" for x in ("environment", "jobs"))):
        yield page(f"{site}/{name}")
