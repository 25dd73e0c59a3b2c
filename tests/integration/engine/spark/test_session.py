from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trucker.engine.spark import session as session_module
from trucker.engine.spark import session_future as starting_module
from trucker.engine.spark.session import start_session
from trucker.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_settings_are_the_tuned_ones(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


def test_workers_run_this_python_with_this_trucker_and_no_zip(spark: SparkSession) -> None:
    def look(_: object) -> tuple[str, str, str]:
        import pyspark

        import trucker

        return sys.executable, trucker.__file__, pyspark.__file__

    import pyspark

    import trucker

    found = spark.sparkContext.parallelize([1], 1).map(look).collect()
    assert found == [(sys.executable, trucker.__file__, pyspark.__file__)]


def test_workers_are_forked_with_the_modules_of_the_projects_sources(spark: SparkSession) -> None:
    """No task has to import a driver: the engine does not name it, the adapters in use do."""

    def look(_: object) -> tuple[bool, str]:
        import os

        return "trucker.postgres.source" in sys.modules, os.environ["TRUCKER_WORKER_MODULES"]

    (found,) = spark.sparkContext.parallelize([1], 1).map(look).collect()
    assert found == (True, "trucker.postgres.source")


def test_spark_looks_for_no_data_sources_in_the_modules_of_this_python(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    manager = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$"), "MODULE$")
    assert manager.dataSourceBuilders().isDefined()
    assert manager.dataSourceBuilders().get().isEmpty()


@pytest.mark.parametrize(("files", "started"), [((), "start_context"), (("transform.sql",), "start_session")])
def test_a_session_is_started_only_for_sql(
    files: tuple[str, ...], started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []
    for name in ("start_context", "start_session"):
        monkeypatch.setattr(
            starting_module, name, lambda *_, name=name, **options: calls.append((name, options["settings"]))
        )
    monkeypatch.setattr(starting_module, "_shared", lambda _: [])
    truck = SimpleNamespace(file=lambda name: name in files)
    spark_config = SimpleNamespace(master="local[*]", settings={"spark.executor.memory": "2g"})
    config: Any = SimpleNamespace(
        unique_id="x", trucks=[truck], spark=spark_config, state_folder=tmp_path, is_built=False
    )
    starting_module.started(config)
    assert calls == [(started, {"spark.executor.memory": "2g"})]


def test_a_failed_task_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def fail_once(value: int) -> int:
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return value

    assert spark.sparkContext.parallelize([7], 1).map(fail_once).collect() == [7]


def test_a_started_session_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert spark is not None
    assert "TRUCKER_JVM_ARGUMENTS" not in os.environ


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3]", "local[3,4]"),
        ("local[3,1]", "local[3,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_try_again(given: str, used: str) -> None:
    assert session_module._retrying(given) == used


def test_scratch_is_emptied_and_its_path_fits_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = session_module._scratch(deep)
    try:
        assert len(str(folder)) < 60
        (folder / "left").write_text("")
        assert session_module._scratch(deep) == folder
        assert list(folder.iterdir()) == []
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        folder.rmdir()


_START = """
import json, sys
from pathlib import Path
from trucker.engine.spark.session import start_session, stop_session
from trucker.errors import TruckerError
state, master, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
try:
    spark = start_session("test", master=master, settings=settings, state=state, record=False)
except TruckerError as error:
    print(json.dumps({"code": error.code, "message": error.message, "remedy": error.remedy}))
    sys.exit(3)
java = spark.sparkContext._jvm.java.lang
print(json.dumps({
    "sum": spark.sparkContext.parallelize([1, 2, 3], 1).sum(),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "heap": java.Runtime.getRuntime().maxMemory(),
    "version": java.System.getProperty("java.version"),
}))
stop_session(spark)
"""


def start(
    state: Path, master: str = "local[1]", environment: dict[str, str] | None = None, **settings: str
) -> dict[str, object]:
    """A session in a process of its own: what it printed, and nothing else on the terminal."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", _START, state, master, json.dumps(named)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
        timeout=120,
    )
    assert done.stderr == ""
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_users_settings_win_and_the_terminal_stays_quiet(tmp_path: Path) -> None:
    found = start(tmp_path, spark_sql_shuffle_partitions="7", spark_driver_memory="600m")
    assert (found["sum"], found["partitions"]) == (6, "7")
    assert int(str(found["heap"])) <= 600 << 20
    assert (tmp_path / "spark.log").exists()


def test_it_starts_on_the_bundled_java_alone(tmp_path: Path) -> None:
    """Nothing on PATH but what a plain system has; a class path entry keeps this start from recording an archive."""
    plain = tmp_path / "bin"
    plain.mkdir()
    for name in ("sh", "chmod", "ls", "readlink", "rm", "mv", "cat"):
        (plain / name).symlink_to(_which(name))
    environment = {"PATH": str(plain), "JAVA_HOME": "", "TRUCKER_CACHE": str(tmp_path / "cache")}
    found = start(tmp_path / "state", environment=environment, spark_driver_extraClassPath=str(tmp_path / "x.jar"))
    assert found["sum"] == 6
    assert str(found["version"]).startswith("25")


@pytest.mark.soak  # `tests/cluster/test_standalone.py` has executors of their own, too
def test_executors_in_separate_processes(tmp_path: Path) -> None:
    found = start(tmp_path, master="local-cluster[1,1,512]", spark_executor_memory="512m")
    assert found["sum"] == 6


def test_a_jvm_that_does_not_start_is_reported_with_the_reason(tmp_path: Path) -> None:
    found = start(tmp_path, spark_driver_memory="lots")
    assert found["code"] == "TRK505"
    assert "lots" in str(found["message"])
    assert "spark.out" in str(found["remedy"])


def test_an_invalid_master_is_reported(tmp_path: Path) -> None:
    found = start(tmp_path, master="nonsense://x")
    assert found["code"] == "TRK505"
    assert "Master must either be" in str(found["message"])


def test_a_heap_too_small_for_spark_is_reported(tmp_path: Path) -> None:
    found = start(tmp_path, spark_driver_memory="200m")
    assert found["code"] == "TRK506"
    assert "Insufficient driver memory" in str(found["message"])


def test_a_state_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError) as raised:
        start_session("test", state=tmp_path / "file" / "state")
    assert raised.value.code == "TRK507"


def _which(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found
