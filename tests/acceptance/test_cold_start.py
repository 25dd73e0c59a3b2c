"""What a user waits for at the start: help needs no JVM, and a run uses the classes that an earlier one archived.

How long it takes is measured by `make bench`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from trucker.engine.spark.cds_archive import warm_up

_HELP = """
import sys
from trucker.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"pyspark", "pyarrow", "numpy", "psycopg", "duckdb"} & sys.modules.keys()
assert not heavy, heavy
"""


def test_help_answers_without_java_and_loads_nothing_heavy(tmp_path: Path) -> None:
    """No JVM can have been started: there is none."""
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _HELP], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run" in done.stdout


@pytest.mark.spark
def test_a_run_uses_the_archived_classes(project: ProjectFolder, database: Database, destination: Database) -> None:
    assert warm_up()
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    project.connect(postgres("replica", destination)).truck("t", ["public.t"], {"connection": "replica"})
    process = TruckerProcess(project)
    try:
        process.wait_streaming(120)
        java = next(found for found in process.tree() if found.name() == "java")
        mapped = {Path(found.path) for found in java.memory_maps()}
        assert any(path.suffix in (".aot", ".jsa") and path.parent.name == "archive" for path in mapped)
        assert process.stop(signal.SIGTERM) == 0
    finally:
        process.close()
    assert destination.query("select id from t") == [(1,)]
