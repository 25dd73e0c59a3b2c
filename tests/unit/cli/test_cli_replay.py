"""`trucker replay`: what it hands on, what it prints and where, and its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trucker.cli.main import main
from trucker.control.answers import Replay
from trucker.errors import ChangeLogError

Captured = pytest.CaptureFixture[str]
FakeProject = Any

DONE = Replay("all.replay-1", "audit", "0/100", "0/200", "2026-01-31T12:00:00Z", 12_345, True, 1.25)


def test_it_says_what_was_replayed_from_where_to_where(project: FakeProject, capsys: Captured) -> None:
    project.replayed = DONE
    arguments = ["replay", "all", "--from", "0/100", "--to", "2026-01-31T12:00:00Z", "--into", "audit", "-p", "shop"]
    assert main(arguments) == 0
    assert project.calls == [("load", Path("shop")), ("replay", "all", "0/100", "2026-01-31T12:00:00Z", "audit")]
    assert capsys.readouterr().out == (
        "truck all.replay-1: 12,345 rows written to audit, from 0/100 to 0/200 (2026-01-31T12:00:00Z), 1.2 s\n"
    )
    assert main(["replay", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == DONE.to_json()


def test_what_was_stopped_is_no_success(project: FakeProject, capsys: Captured) -> None:
    project.replayed = replace(DONE, complete=False, end_time=None)
    assert main(["replay", "all"]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "stopped before the end"


def test_standard_output_is_for_changes_where_they_go_there(project: FakeProject, capsys: Captured) -> None:
    project.replayed = replace(DONE, into="out")
    assert main(["replay", "all"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err.startswith("truck all.replay-1: 12,345 rows")) == ("", True)


def test_an_error_ends_it(project: FakeProject, capsys: Captured) -> None:
    project.error = ChangeLogError("it begins at 0/300", code="TRK313")
    assert main(["replay", "all"]) == 3
    assert "error: [TRK313] it begins at 0/300" in capsys.readouterr().err
