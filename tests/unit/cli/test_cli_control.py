"""Commands to a running instance: what they hand on, what they print, and their exit codes."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trucker.cli.main import main
from trucker.control.answers import Refresh, RefreshState, Reloaded, TruckPause
from trucker.errors import ConfigError, ControlError
from trucker.finding import Finding, Level

Captured = pytest.CaptureFixture[str]
FakeProject = Any


def test_pause_and_resume_hand_on_the_trucks(project: FakeProject, capsys: Captured) -> None:
    running = TruckPause("a", True, True, True, "paused", "0/100", 2_000_000, ("public.t",))
    project.pauses = [running, TruckPause("b", True, False, True, "paused", None, None, busy=True)]
    assert main(["pause", "a", "b", "--project", "shop"]) == 0
    assert project.calls == [("load", Path("shop")), ("pause", "a", "b")]
    first, second, keeps = capsys.readouterr().out.splitlines()
    assert first == (
        "truck a: paused; the copy of public.t is finished first; at 0/100; the change log keeps 2.0 MB for it"
    )
    assert second == "truck b: is paused already; a batch is still being applied"
    assert keeps.startswith("the change log keeps what paused trucks have not applied, without limit")
    project.pauses = [TruckPause("a", False, True, True), TruckPause("b", False, False, True)]
    assert main(["resume", "a", "b"]) == 0
    assert capsys.readouterr().out == "truck a: goes on\ntruck b: is not paused\n"


def test_without_an_instance_pause_says_that_it_is_for_the_next_one(project: FakeProject, capsys: Captured) -> None:
    project.pauses = [TruckPause("a", True, True, False)]
    assert main(["pause", "a"]) == 0
    assert "is paused from the next `trucker run` on; no instance runs now" in capsys.readouterr().out
    assert main(["pause", "a", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["truck"], shown["paused"], shown["running"]) == ("a", True, False)


def test_a_truck_that_has_failed_is_not_shown_as_resting(project: FakeProject, capsys: Captured) -> None:
    project.pauses = [TruckPause("a", True, True, True, "failed")]
    main(["pause", "a"])
    assert "has failed, which `trucker status` explains" in capsys.readouterr().out


def test_reload_prints_what_was_taken_up(project: FakeProject, capsys: Captured) -> None:
    project.reloaded = Reloaded(False, (), ("new",), ("old",), ("orders",), ("orders",), ("main",), 0.5)
    assert main(["reload", "shop", "--truck", "new", "--on-sql-change", "go-on", "--interrupt-copies"]) == 0
    assert project.calls == [("load", Path("shop")), ("reload", "new", "go-on", True)]
    assert capsys.readouterr().out.splitlines() == [
        "added: new",
        "removed: old",
        "changed: orders",
        "go on with the new SQL or rules: orders",
        "restarted: main, in 500 ms",
    ]
    project.reloaded = Reloaded()
    assert main(["reload"]) == 0
    assert capsys.readouterr().out == "nothing has changed\n"
    assert project.calls[-1] == ("reload", None, "refuse", False)


def test_reload_prints_errors_as_check_does(project: FakeProject, capsys: Captured) -> None:
    finding = Finding(Level.ERROR, "main", "no such table", "create it", "TRK210")
    project.reloaded = Reloaded(True, (finding,))
    assert main(["reload"]) == 1
    out = capsys.readouterr().out
    assert "error   main: [TRK210] no such table" in out
    assert "next: create it" in out
    assert out.endswith("nothing was changed\n")
    assert main(["reload", "--json"]) == 1
    assert Reloaded.from_json(json.loads(capsys.readouterr().out)) == project.reloaded


def test_a_source_that_is_tried_again_is_no_failure_of_the_command(project: FakeProject) -> None:
    waits = Finding(Level.ERROR, "main", "gone", "none needed", "TRK201", waits=True)
    project.reloaded = Reloaded(False, (waits,), sources=("main",))
    assert main(["reload"]) == 0


@pytest.mark.parametrize(("arguments", "wait"), [([], True), (["--wait"], True), (["--no-wait"], False)])
def test_stop(project: FakeProject, capsys: Captured, arguments: list[str], wait: bool) -> None:
    assert main(["stop", "shop", *arguments]) == 0
    assert project.calls == [("load", Path("shop")), ("stop", wait)]
    assert capsys.readouterr().out == f"process 7 on host {'has ended' if wait else 'is stopping'}\n"
    assert main(["stop", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pid": 7, "host": "host", "ended": wait}


@pytest.mark.parametrize("command", [["pause", "a"], ["resume", "a"], ["reload"], ["stop"], ["refresh", "a"]])
def test_errors_of_the_instance_are_printed_with_their_next_step(
    project: FakeProject, capsys: Captured, command: list[str]
) -> None:
    for error, code in ((ControlError("no instance", code="TRK611"), 1), (ConfigError("bad"), 2)):
        error.remedy = "do this"
        project.error = error
        assert main(command) == code
        assert capsys.readouterr().err == f"error: [{error.code}] {error.message}\nnext: do this\n"


def test_pause_needs_a_truck(project: FakeProject) -> None:
    assert main(["pause"]) == 2


QUEUED = Refresh(3, "a", "public.t", 1.0, where="id >\n 5")


def test_refresh_hands_on_what_is_to_be_read(project: FakeProject, capsys: Captured) -> None:
    project.listed = [QUEUED]
    assert main(["refresh", "a", "--project", "shop", "--table", "t", "--where", "id > 5"]) == 0
    assert project.calls == [("load", Path("shop")), ("refresh", "a", "t", "id > 5", None)]
    assert capsys.readouterr().out == "refresh 3: truck a, public.t where id > 5: queued\n"
    project.listed = [Refresh(4, "a", "public.t", 1.0), Refresh(5, "a", "public.u", 1.0, reason="it waits")]
    assert main(["refresh", "a"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "refresh 4: truck a, all of public.t: queued",
        "refresh 5: truck a, all of public.u: queued; it waits",
    ]


def test_refresh_reads_keys_from_a_file_or_standard_input(
    project: FakeProject, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.listed = [Refresh(3, "a", "public.t", 1.0, keys=2, total=2, done=1, deleted=1)]
    file = tmp_path / "keys.csv"
    file.write_text('1,"a, b"\n\n2,""\n', encoding="utf-8")
    assert main(["refresh", "a", "--keys", str(file)]) == 0
    assert project.calls[-1] == ("refresh", "a", None, None, [("1", "a, b"), ("2", "")])
    assert capsys.readouterr().out == "refresh 3: truck a, public.t, 2 keys: queued; 1 of 2 read, 1 deleted\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("7\n8\n"))
    assert main(["refresh", "a", "--keys", "-"]) == 0
    assert project.calls[-1] == ("refresh", "a", None, None, [("7",), ("8",)])
    capsys.readouterr()
    assert main(["refresh", "a", "--keys", str(tmp_path / "missing.csv")]) == 3
    assert "missing.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "code"), [(RefreshState.DONE, 0), (RefreshState.QUEUED, 0), (RefreshState.FAILED, 1)]
)
def test_refresh_waits_for_the_end(project: FakeProject, capsys: Captured, state: RefreshState, code: int) -> None:
    project.listed, project.ended = [QUEUED], [replace(QUEUED, state=state)]
    assert main(["refresh", "a", "--wait", "--json"]) == code
    assert project.calls[-1] == ("await_refreshes", 3)
    assert [Refresh.from_json(each) for each in json.loads(capsys.readouterr().out)] == project.ended


def test_refreshes_are_listed_and_cancelled(project: FakeProject, capsys: Captured) -> None:
    assert main(["refresh", "--list"]) == 0
    assert capsys.readouterr().out == "no refresh is listed\n"
    project.ended = [replace(QUEUED, state=RefreshState.CANCELLED)]
    assert main(["refresh", "--cancel", "3"]) == 0
    assert project.calls[-1] == ("cancel_refresh", 3)
    assert capsys.readouterr().out == "refresh 3: truck a, public.t where id > 5: cancelled\n"
    assert main(["refresh"]) == 2
    assert "name one: trucker refresh TRUCK" in capsys.readouterr().err
