"""A package with an adapter and a sink of its own, `examples/custom_sink`, works like trucker's own."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import venv
from contextlib import closing
from pathlib import Path

import pytest

from fixtures.documents import ROOT
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, run_cli
from fixtures.waiting import busy, wait_until

_ON_AN_EXECUTOR = """
batch: {small_bytes: 0}
spark:
  master: local-cluster[1,1,512]
  settings: {spark.executor.memory: 512m}
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, so that nothing is written into the sources."""
    folder = tmp_path_factory.mktemp("example") / "custom_sink"
    shutil.copytree(ROOT / "examples" / "custom_sink", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, package: Path) -> str:
    """The interpreter of a new environment into which pip has installed the example.

    Nothing is downloaded: trucker, its dependencies and the build backend are those of the tests' own environment,
    which the new one has on its path.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder)}))
    (site / "tests_own.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    interpreter = str(folder / "bin" / "python")
    options = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")
    _succeeds(sys.executable, "-m", "pip", "--python", interpreter, "install", *options, str(package))
    return interpreter


def _succeeds(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300 * busy(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_passes_the_conformance_suite(python: str, package: Path) -> None:
    told = _succeeds(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "tests"))
    assert " passed" in told


def test_without_the_package_the_adapter_is_unknown(package: Path) -> None:
    refused = run_cli("check", str(package / "project"))
    assert refused.returncode != 0
    assert "TRK105" in refused.stderr
    assert "use one of postgres, duckdb, " in " ".join(refused.stderr.split())


def test_check_run_and_status_work(
    python: str, package: Path, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = database.connection
    for key in ("host", "port", "database", "user"):
        monkeypatch.setenv(f"SHOP_{key.upper()}", str(getattr(connection, key)))
    monkeypatch.setenv("SHOP_PASSWORD", connection.password.get_secret_value())
    folder = tmp_path / database.name
    shutil.copytree(package / "project", folder)
    # An executor of its own, not the driver, writes every part: it gets the connection, and imports the sink.
    with (folder / "trucker.yml").open("a") as file:
        file.write(_ON_AN_EXECUTOR)
    database.execute(
        "create table orders (id int primary key, note text)",
        "insert into orders select i, 'note ' || i from generate_series(1, 200) i",
        "create table visits (page text, seconds int)",
        "insert into visits values ('/', 1), ('/', 1), (null, 2)",
        "alter table visits replica identity full",
    )
    checked = run_cli("check", str(folder), python=python)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "pocket.db will be created" in " ".join(checked.stdout.split())
    assert not (folder / "pocket.db").exists()

    def same() -> bool:
        return all(_rows(folder / "pocket.db", table) == _source(database, table) for table in ("orders", "visits"))

    trucker = TruckerProcess(ProjectFolder(folder, database.name), python=python)
    try:
        trucker.wait_streaming(240)
        assert same()
        database.execute(
            "insert into orders values (201, null)",
            "update orders set note = 'changed' where id <= 10",
            "update orders set id = 300 where id = 20",
            "delete from orders where id between 100 and 110",
            "delete from visits where ctid = (select min(ctid) from visits)",
        )
        wait_until(same, 120)
        status = run_cli("status", str(folder), python=python)
        assert status.returncode == 0, status.stdout + status.stderr
        assert "shop" in status.stdout
        assert trucker.stop() == 0, trucker.output()
    finally:
        trucker.close()
    assert same()
    checked = run_cli("check", str(folder), python=python)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        return sorted(database.execute(f'select * from "public.{table}"').fetchall(), key=str)


def _source(database: Database, table: str) -> list[tuple[object, ...]]:
    return sorted(map(tuple, database.query(f"select * from {table}")), key=str)
