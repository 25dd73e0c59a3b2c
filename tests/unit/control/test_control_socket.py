"""The control socket: one request, one answer, for this account alone, wherever the state folder is."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.config.problems import ConfigErrors
from trucker.control.client import ask
from trucker.control.message import Request, answer_line, error_line, parse_answer, parse_request, request_line
from trucker.control.server import ControlServer
from trucker.control.socket_path import socket_path
from trucker.errors import ConfigError, ControlError, LockedError, SinkUnavailable, TruckerError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@contextmanager
def serving(state: Path, answer: Callable[[Request], object]) -> Iterator[None]:
    state.mkdir(parents=True, exist_ok=True)
    server = ControlServer(state, answer)
    server.start()
    try:
        yield
    finally:
        server.close()


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), values, max_size=3), values)
def test_what_is_sent_arrives(command: str, arguments: dict[str, object], answer: object) -> None:
    for line in (request_line(Request(command, arguments)), answer_line(answer)):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
    assert parse_request(request_line(Request(command, arguments))) == Request(command, arguments)
    assert parse_answer(answer_line(answer)) == answer


@pytest.mark.parametrize(
    "error", [ConfigError("bad", remedy="edit it", code="TRK105"), ControlError("no"), SinkUnavailable("x")]
)
def test_an_error_arrives_as_an_error_of_its_kind(error: TruckerError) -> None:
    with pytest.raises(TruckerError) as raised:
        parse_answer(error_line(error))
    assert (raised.value.code, raised.value.message, raised.value.remedy) == (error.code, error.message, error.remedy)
    assert isinstance(error, type(raised.value))
    assert type(raised.value) is not TruckerError


def test_several_errors_arrive_as_several() -> None:
    with pytest.raises(ControlError) as raised:
        parse_answer(error_line(ConfigErrors([ConfigError("one"), ConfigError("two", code="TRK104")])))
    assert [single.message for single in raised.value.errors] == ["one", "two"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line", [b"", b"{\n", b"[]\n", b'{"format": 2}\n', b'{"format": 1, "command": 3}\n', b"\xff\n"]
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(ControlError, match="control socket") as raised:
        parse_request(line)
    assert raised.value.code == "TRK615"


def test_a_command_is_answered_and_the_socket_is_for_this_account_alone(tmp_path: Path) -> None:
    with serving(tmp_path, lambda request: {"did": request.command, **request.arguments}):
        assert stat.S_IMODE(socket_path(tmp_path).stat().st_mode) == 0o600
        assert ask(tmp_path, Request("pause", {"trucks": ["a"]})) == {"did": "pause", "trucks": ["a"]}
        assert ask(tmp_path, Request("stop")) == {"did": "stop"}
    assert not socket_path(tmp_path).exists()
    with pytest.raises(FileNotFoundError):
        ask(tmp_path, Request("stop"))


def test_a_state_folder_with_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    state = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    assert len(str(state)) > 200
    with serving(state, lambda request: request.command):
        assert socket_path(state).is_socket()
        assert ask(state, Request("stop")) == "stop"
    assert not socket_path(state).exists()


def test_a_socket_that_a_dead_process_left_behind_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(tmp_path)))
    with pytest.raises(ConnectionRefusedError):
        ask(tmp_path, Request("stop"))
    with serving(tmp_path, lambda _: "alive"):
        assert ask(tmp_path, Request("stop")) == "alive"


def test_one_that_was_not_started_leaves_the_socket_of_another_alone(tmp_path: Path) -> None:
    """As of a second instance, which finds the project locked."""
    with serving(tmp_path, lambda _: "first"):
        ControlServer(tmp_path, lambda _: "second").close()
        assert ask(tmp_path, Request("stop")) == "first"


def test_a_fault_names_its_kind_and_no_text(tmp_path: Path) -> None:
    """Its text may quote a row (I10)."""

    def fail(_: Request) -> object:
        raise ValueError("row data")

    with serving(tmp_path, fail), pytest.raises(ControlError, match="ValueError") as raised:
        ask(tmp_path, Request("pause"))
    assert "row data" not in str(raised.value)


def test_a_client_that_sends_nothing_or_goes_away_keeps_no_other_waiting(tmp_path: Path) -> None:
    with serving(tmp_path, lambda request: request.command), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(socket_path(tmp_path)))
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(socket_path(tmp_path)))
            gone.sendall(b"{")
        assert ask(tmp_path, Request("stop")) == "stop"


def test_an_instance_that_ends_before_it_answers_is_reported(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(tmp_path)))
        listener.listen()

        def hang_up() -> None:
            client, _ = listener.accept()
            client.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ControlError) as raised:
            ask(tmp_path, Request("reload"))
        thread.join()
    assert raised.value.code == "TRK616"


def test_every_line_is_json_with_its_format() -> None:
    for line in (request_line(Request("stop")), answer_line(None), error_line(LockedError("held"))):
        assert json.loads(line)["format"] == 1
