from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from trucker.engine.spark import launch as launch_module
from trucker.engine.spark.java import Java, cache_folder, find_java
from trucker.engine.spark.launch import archive_missing, prepare_launch, spark_home


@pytest.fixture(scope="module")
def java() -> Java:
    return find_java(cache_folder())


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Java:
    """The runtime in the wheel, whatever else the machine has."""
    return find_java(tmp_path_factory.mktemp("bundled"), {"PATH": ""})


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def arguments(java: Java, cache: Path, state: Path, **settings: str) -> list[str]:
    """The JVM's arguments as written down for it."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    launch = prepare_launch(java, cache, state, ["-Done=1"], named, memory="512m")
    lines = Path(launch.environment["TRUCKER_JVM_ARGUMENTS"]).read_text().splitlines()
    return [line[1:-1].replace('\\"', '"').replace("\\\\", "\\") for line in lines]


def test_spark_home_hides_the_zip_and_keeps_the_rest(java: Java, tmp_path: Path) -> None:
    home = spark_home(tmp_path, java)
    assert list((home / "python" / "lib").iterdir()) == []
    assert (home / "jars").resolve().name == "jars"
    assert (home / "bin" / "spark-class").exists()
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    options = (home / "options").read_text().splitlines()
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in options
    assert not [option for option in options if option.startswith(("-Xmx", "--add-modules", "-cp"))]
    assert spark_home(tmp_path, java) == home


def test_settings_that_concern_the_jvm_are_used(java: Java, tmp_path: Path) -> None:
    plain = arguments(java, tmp_path, tmp_path)
    assert "-Xmx512m" in plain
    assert "-Done=1" in plain
    given = arguments(
        java, tmp_path, tmp_path, spark_driver_memory="2g", spark_driver_extraJavaOptions="-Da='b c' -Dd=\"e\\f\""
    )
    assert "-Xmx2g" in given
    assert given[-2:] == ["-Da=b c", "-Dd=e\\f"]


def test_a_folder_on_the_class_path_forgoes_the_archive(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    launch = prepare_launch(java, tmp_path, tmp_path, [], {"spark.driver.extraClassPath": "/x.jar"}, memory="1g")
    assert launch.archive is None
    assert not launch.recording
    lines = Path(launch.environment["TRUCKER_JVM_ARGUMENTS"]).read_text().splitlines()
    assert lines[1].startswith('"/x.jar:/etc/hadoop:')


def test_the_first_start_records_and_the_next_uses(java: Java, tmp_path: Path) -> None:
    assert archive_missing(java, tmp_path)
    first = prepare_launch(java, tmp_path, tmp_path, [], {}, memory="1g")
    assert first.recording
    assert first.archive is not None
    first.archive.write_bytes(b"archive")
    second = prepare_launch(java, tmp_path, tmp_path, [], {}, memory="1g")
    assert not second.recording
    assert second.archive == first.archive
    assert not archive_missing(java, tmp_path)


def test_a_session_that_may_not_record_does_not(java: Java, tmp_path: Path) -> None:
    launch = prepare_launch(java, tmp_path, tmp_path, [], {}, memory="1g", record=False)
    assert not launch.recording
    assert launch.archive is None


def test_what_killed_recordings_left_and_the_oldest_archives_go(java: Java, tmp_path: Path) -> None:
    archive = prepare_launch(java, tmp_path, tmp_path, [], {}, memory="1g").archive
    assert archive is not None
    archive.write_bytes(b"")
    old = time.time() - 7200
    stale = archive.parent / "x.jsa.1234.tmp"
    fresh = archive.parent / "y.jsa.1234.tmp"
    others = [archive.parent / f"{number}.jsa" for number in range(4)]
    for age, path in enumerate([stale, *others]):
        path.write_bytes(b"")
        os.utime(path, (old - age, old - age))
    fresh.write_bytes(b"")
    prepare_launch(java, tmp_path, tmp_path, [], {}, memory="1g")
    assert not stale.exists()
    assert fresh.exists()
    assert sorted(path.name for path in archive.parent.glob("*.[ja][so]*") if path.suffix != ".tmp") == sorted(
        [archive.name, "0.jsa", "1.jsa"]
    )


@pytest.mark.parametrize("content", [b"", b"not an archive", os.urandom(100_000)])
@pytest.mark.parametrize("which", ["java", "bundled"])
def test_a_broken_archive_stops_no_start(
    which: str, content: bytes, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    java: Java = request.getfixturevalue(which)
    archive = tmp_path / f"broken.{'aot' if java.major >= 25 else 'jsa'}"
    archive.write_bytes(content)
    options = launch_module._archive_options(archive, None)
    done = subprocess.run([java.binary, *options, "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def submit(home: Path, tmp_path: Path, code: int) -> subprocess.CompletedProcess[str]:
    """Run our spark-submit on a java that makes its archive and ends with `code`."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f'#!/bin/sh\necho "said $@"\necho whole > "$TRUCKER_JVM_RECORDING"\nexit {code}\n')
    java.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(java.parents[1]),
        "TRUCKER_JVM_ARGUMENTS": "file",
        "TRUCKER_JVM_OUTPUT": str(tmp_path / "out"),
        "TRUCKER_JVM_RECORDING": str(tmp_path / "archive.tmp"),
        "TRUCKER_JVM_ARCHIVE": str(tmp_path / "archive"),
    }
    return subprocess.run(
        [home / "bin" / "spark-submit", "a b"], env=environment, capture_output=True, text=True, check=False
    )


def test_an_archive_gets_its_name_only_when_the_jvm_ended_well(java: Java, tmp_path: Path) -> None:
    home = spark_home(tmp_path, java)
    assert submit(home, tmp_path, 137).returncode == 137
    assert not (tmp_path / "archive").exists()
    assert not (tmp_path / "archive.tmp").exists()
    done = submit(home, tmp_path, 0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "archive").read_text() == "whole\n"
    assert (tmp_path / "out").read_text() == "said @file org.apache.spark.deploy.SparkSubmit a b\n"
