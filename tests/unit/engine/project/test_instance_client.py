"""Commands find the running instance, or say why they do not reach it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from trucker.control.message import Request
from trucker.control.server import ControlServer
from trucker.control.socket_path import socket_path
from trucker.engine.project import instance_client
from trucker.engine.project.instance_client import ask_instance
from trucker.engine.project.lock import ProjectLock
from trucker.errors import ControlError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_client, "PATIENCE_SECONDS", 0.1)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    lock = ProjectLock(tmp_path)
    lock.acquire(wait=False)
    yield tmp_path
    lock.release()


def test_none_runs(tmp_path: Path) -> None:
    assert ask_instance(tmp_path, "stop", {}) is None


def test_the_socket_of_a_dead_process_is_not_asked(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(tmp_path)))
    assert ask_instance(tmp_path, "stop", {}) is None


def test_the_instance_answers(held: Path) -> None:
    server = ControlServer(held, lambda request: [request.command])
    server.start()
    try:
        assert ask_instance(held, "stop", {}) == ["stop"]
    finally:
        server.close()


def test_a_holder_without_a_socket_is_named(held: Path) -> None:
    with pytest.raises(ControlError, match=r"does not answer at .*control\.sock") as raised:
        ask_instance(held, "stop", {})
    assert raised.value.code == "TRK610"
    assert "kill" in raised.value.remedy


def test_an_instance_on_another_host_is_named(held: Path) -> None:
    """As where the state folder is shared: a socket is of one host."""
    holder = json.loads((held / "lock").read_text())
    (held / "lock").write_text(json.dumps({**holder, "host": "elsewhere"}))
    with pytest.raises(ControlError, match="another host: process") as raised:
        ask_instance(held, "pause", {"trucks": ["a"]})
    assert raised.value.remedy == "run `trucker pause` on elsewhere"


def test_a_request_has_the_arguments(held: Path) -> None:
    requests: list[Request] = []
    server = ControlServer(held, requests.append)
    server.start()
    try:
        ask_instance(held, "pause", {"trucks": ["a", "b"]})
    finally:
        server.close()
    assert requests == [Request("pause", {"trucks": ["a", "b"]})]
