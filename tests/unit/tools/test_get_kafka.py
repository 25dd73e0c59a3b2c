"""The tool that gets a broker's jars: none of its failures stops `make test`, and nothing unknown is taken."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fixtures.documents import ROOT

Mvn = Callable[[str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a cache folder and checksums of the test's own."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import get_kafka

    jars = tmp_path / "kafka"
    checksums = tmp_path / "jars.sha256"
    checksums.write_text(f"{hashlib.sha256(b'jar').hexdigest()}  broker.jar\n")
    monkeypatch.setattr(get_kafka, "kafka_jars", lambda: jars)
    monkeypatch.setattr(get_kafka, "has_kafka", lambda: (jars / "complete").exists())
    monkeypatch.setattr(get_kafka, "CHECKSUMS", checksums)
    monkeypatch.setattr(sys, "argv", ["get_kafka.py"])
    return get_kafka


@pytest.fixture
def mvn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mvn:
    """Puts a program of that name on the path, which runs these lines of shell."""

    def put(lines: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "mvn").write_text(f"#!/bin/sh\n{lines}\n")
        (folder / "mvn").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return put


def test_jars_with_the_right_checksums_are_taken(tool: ModuleType, mvn: Mvn) -> None:
    mvn("test -f pom.xml && printf jar > broker.jar")
    assert tool.main() == 0
    assert (tool.kafka_jars() / "broker.jar").read_bytes() == b"jar"
    mvn("exit 1")
    assert tool.main() == 0, "it is not asked again"
    assert tool.has_kafka()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("printf other > broker.jar", "do not have the checksums"),
        ("printf jar > broker.jar; printf jar > more.jar", "do not have the checksums"),
        ("echo 'no network'; exit 1", "no network"),
    ],
)
def test_what_fails_is_said_and_nothing_is_left(
    tool: ModuleType, mvn: Mvn, lines: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mvn(lines)
    assert tool.main() == 0
    assert words in capsys.readouterr().out
    assert not tool.has_kafka()
    assert not tool.kafka_jars().exists()


def test_without_maven_it_says_how_to_get_it(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.main() == 0
    assert "there is no mvn" in (said := capsys.readouterr().out)
    assert "apt-get install maven" in said
