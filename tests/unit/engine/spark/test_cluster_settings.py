"""What a session on a cluster is started with, and what is made of an executor that does not fit."""

from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import trucker
from trucker import failpoint
from trucker.changelog.format.segment import SegmentId
from trucker.changelog.reader import BlockRef
from trucker.config.project_folder import load_project
from trucker.engine.snapshot.copier import CHUNK_BYTES, LEAST_CHUNK_BYTES, MOST_CHUNKS, chunk_bytes
from trucker.engine.spark import cluster, executor_entry, interpreter, session_future
from trucker.engine.spark.package_zip import shipped
from trucker.engine.task.partition import LEAST_PART, consecutive
from trucker.errors import EngineError
from trucker.lsn import Lsn
from trucker.testing.project_folder import write_project

MIB = 1 << 20


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://h:1", False),
    ],
)
def test_local_is_what_runs_tasks_in_the_driver(master: str, local: bool) -> None:
    assert cluster.is_local(master) is local


def test_the_users_settings_and_trucker_s_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(failpoint.VARIABLE, "log.prune.after=kill")
    asked = {
        "spark.files": "own.txt, s3a://bucket/far",
        "spark.archives": "env.tar.gz#environment",
        "spark.executor.extraJavaOptions": "-Dmine=1",
        "spark.executorEnv.PYTHONPATH": "/mine",
        "spark.executorEnv.MALLOC_ARENA_MAX": "9",
    }
    found = cluster.settings(tmp_path, tmp_path, asked, [tmp_path, tmp_path / "log"])
    package = shipped(tmp_path)
    assert found["spark.files"].split(",") == [f"{tmp_path}/own.txt", "s3a://bucket/far", package.as_uri()]
    assert found["spark.archives"] == f"{tmp_path}/env.tar.gz#environment"
    assert found["spark.executorEnv.PYTHONPATH"] == f"{package.name}:/mine"
    assert found["spark.executorEnv.MALLOC_ARENA_MAX"] == "9"
    assert found["spark.executorEnv.OPENBLAS_NUM_THREADS"] == "1"
    assert found[f"spark.executorEnv.{failpoint.VARIABLE}"] == "log.prune.after=kill"
    options = shlex.split(found["spark.executor.extraJavaOptions"])
    assert options[-1] == "-Dmine=1"
    assert (tmp_path / "executor.log4j2.properties").read_text().count("%replace") == 3  # as the driver's
    marks = found[cluster.MARKS].split(":")
    assert marks == [f"{tmp_path}/cluster.mark", f"{tmp_path}/log/cluster.mark"]
    assert all(Path(mark).exists() for mark in marks)


@pytest.mark.parametrize("python", ["./environment/bin/python", "python9", "/opt/environment/bin/python3"])
def test_a_python_that_only_executors_have_is_this_one_in_the_driver(tmp_path: Path, python: str) -> None:
    seats = interpreter.away(python, tmp_path, {})
    name = seats.environment.get("PYSPARK_PYTHON", python)
    code = f"exec {name} -c 'import sys; print(sys.executable)'"
    folder = seats.environment.get("TRUCKER_JVM_FOLDER", "/")
    ran = subprocess.run(
        ["/bin/sh", "-c", code],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **seats.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == sys.executable
    there = seats.settings.get("spark.executorEnv.PATH", "")
    assert there.startswith("/opt/environment/bin:") is python.startswith("/")


def test_a_python_that_both_have_is_called_by_its_path(tmp_path: Path) -> None:
    assert interpreter.away(sys.executable, tmp_path, {}) == interpreter.Seats()
    assert list(tmp_path.iterdir()) == []


def test_trucker_as_a_zip_is_whole_and_made_once(tmp_path: Path) -> None:
    package = shipped(tmp_path)
    stamp = package.stat().st_mtime_ns
    assert shipped(tmp_path) == package
    assert package.stat().st_mtime_ns == stamp
    code = (
        "import trucker, trucker.engine.spark.executor_entry as t, trucker.engine.stream.stream_task;"
        "print(trucker.__file__, trucker.engine.stream.stream_task.__file__, t._digest_here())"
    )
    environment = {"PYTHONPATH": package.name, "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "shipped",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    first, work, digest = ran.stdout.split()
    assert package.name in first
    assert work.endswith("stream_task.pyc")  # compiled: no executor has to do that
    assert digest == executor_entry.digest_of(Path(trucker.__file__).parent)
    with zipfile.ZipFile(package) as archive:
        assert "trucker/engine/stream/stream_task.py" in archive.namelist()  # for a Python of another version


def test_a_zip_of_another_trucker_is_another_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text("1")
    before = executor_entry.digest_of(tmp_path / "one")
    executor_entry.digest_of.cache_clear()
    (tmp_path / "one" / "a.py").write_text("2")
    assert executor_entry.digest_of(tmp_path / "one") != before


# -- executors that do not fit -------------------------------------------------------------------------------------


def test_an_executor_made_of_the_same_fits(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    executor_entry.check_here(executor_entry.runtime_here(mark))
    executor_entry.check_here(None)
    mark.unlink()
    executor_entry.check_here(executor_entry.runtime_here(mark))  # it is not looked at again


@pytest.mark.parametrize(
    ("driver", "code", "said"),
    [
        (replace(executor_entry.runtime_here(), python="3.9.1"), "TRK514", "has Python 3"),
        (replace(executor_entry.runtime_here(), trucker="0123"), "TRK514", "another trucker"),
        (
            replace(
                executor_entry.runtime_here(), modules={**executor_entry.runtime_here().modules, "pyarrow": "1.0.0"}
            ),
            "TRK514",
            "the driver has 1.0.0",
        ),
        (
            replace(
                executor_entry.runtime_here(), modules={**executor_entry.runtime_here().modules, "pyspark": "4.2.9"}
            ),
            "TRK514",
            "has pyspark 4.3",
        ),
        (
            replace(executor_entry.runtime_here(), marks=("/no/such/folder/cluster.mark",)),
            "TRK516",
            "folder /no/such/folder",
        ),
        (
            executor_entry.runtime_here(adapters=["trucker_no_such_store.adapter"]),
            "TRK515",
            "cannot import trucker_no_such_store.adapter",
        ),
    ],
)
def test_an_executor_with_other_versions_is_reported(driver: executor_entry.Runtime, code: str, said: str) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        executor_entry.check_here(driver)
    assert caught.value.code == code
    assert caught.value.remedy
    # And the driver, which has it as text inside Spark's, says the same.
    text = (
        f"Job aborted: Task 0 failed 4 times: PythonException: Traceback\n{EngineError.__name__}: {caught.value}\n\tat"
    )
    again = cluster.misfit(Exception(text))
    assert again is not None
    assert (again.code, again.message, again.remedy) == (code, caught.value.message, caught.value.remedy)
    assert not again.transient


def test_a_patch_release_makes_no_difference() -> None:
    modules = {name: f"{version}.post1" for name, version in executor_entry.runtime_here().modules.items()}
    executor_entry.check_here(replace(executor_entry.runtime_here(), modules=modules))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "x: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11",
            "TRK514",
        ),
        ('java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory', "TRK515"),
        (
            "Error from python worker:\n  /usr/bin/python3: Error while finding module: No module named 'trucker'",
            "TRK515",
        ),
    ],
)
def test_sparks_message_about_a_python_that_does_not_start(text: str, code: str) -> None:
    found = cluster.misfit(Exception(text))
    assert found is not None
    assert found.code == code


def test_any_other_failure_is_none_of_it() -> None:
    assert cluster.misfit(Exception("Job aborted: [TRK401] the destination is away\n  next: wait")) is None


# -- as many parts as there are cores ------------------------------------------------------------------------------


def _blocks(count: int, size: int) -> list[BlockRef]:
    segment = SegmentId(Lsn(0), 0)
    return [BlockRef(segment, number * size, size, Lsn(number), Lsn(number), (1,)) for number in range(count)]


@pytest.mark.parametrize(("cores", "parts"), [(1, 4), (2, 4), (6, 6), (16, 16), (64, 16)])
def test_every_core_has_a_part_where_there_is_enough_for_it(cores: int, parts: int) -> None:
    """64 MiB: four parts by size; as many as there are cores, until a part is not worth a task."""
    cut = consecutive(_blocks(64, MIB), 16 * MIB, cores)
    assert len(cut) == parts
    assert [block for part in cut for piece in part.pieces for block in piece] == _blocks(64, MIB)


def test_little_is_one_part_however_many_cores_there_are() -> None:
    assert len(consecutive(_blocks(1, LEAST_PART - 1), 16 * MIB, 64)) == 1


@pytest.mark.parametrize(
    ("total", "cores", "size"),
    [
        (0, 2, LEAST_CHUNK_BYTES),
        (48 * MIB, 2, 8 * MIB),
        (1 << 40, 2, (1 << 40) // MOST_CHUNKS),
        (1 << 30, 2, CHUNK_BYTES),
        (1 << 30, 100, (1 << 30) // 300),
    ],
)
def test_chunks_of_a_copy_are_small_enough_for_all_cores(total: int, cores: int, size: int) -> None:
    assert chunk_bytes(total, cores) == size


# -- what executors must see ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "adapter", "sql", "shared"),
    [
        (None, "postgres", False, ["state"]),
        ("/shared/log", "postgres", False, ["/shared/log"]),
        ("/shared/log", "duckdb", False, ["state", "/shared/log"]),
        ("s3://bucket/log", "postgres", False, []),
        ("s3://bucket/log", "jsonl", False, ["state"]),
        ("s3://bucket/log", "postgres", True, ["state"]),
    ],
)
def test_only_folders_that_executors_use_must_be_shared(
    tmp_path: Path, log: str | None, adapter: str, sql: bool, shared: list[str]
) -> None:
    kind = {"name": "there", "adapter": adapter, **({} if adapter == "postgres" else {"path": "there"})}
    settings: dict[str, object] = {"connections": [{"name": "source", "adapter": "postgres"}, kind]}
    if log:
        settings["log"] = {"location": log}
    truck = {"input": {"connection": "source", "tables": ["public.*"]}, "output": {"connection": "there"}}
    write_project(tmp_path, settings, {"one": truck})
    if sql:
        (tmp_path / "trucks" / "one" / "transform.sql").write_text("select * from {{ rows }}")
    config = load_project(tmp_path)
    assert [str(path) for path in session_future._shared(config)] == [
        str(config.state_folder) if name == "state" else name for name in shared
    ]
