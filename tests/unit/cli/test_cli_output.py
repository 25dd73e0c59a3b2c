"""What is shown while a project runs, and how logs are written."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from trucker.cli import live, output
from trucker.config.load import load_project
from trucker.errors import SinkError
from trucker.observe import logs
from trucker.observe.logs import JsonFormatter, LogFormat, TextFormatter
from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase, TruckStatus


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def truck(**values: Any) -> TruckStatus:
    return TruckStatus(**{"name": "orders", "source": "a", "destination": "b", "phase": TruckPhase.STREAMING, **values})


def status(*trucks: TruckStatus, updated: float = 1.0) -> ProjectStatus:
    return ProjectStatus("shop", "/shop", True, 7, "host", 0.0, updated, trucks)


def test_rates() -> None:
    rates = live.Rates()
    assert rates.of(status(truck(rows=100), updated=10)) == {}
    assert rates.of(status(truck(rows=300), truck(name="new"), updated=12)) == {"orders": 100}
    assert rates.of(status(truck(rows=300), updated=12)) == {}
    assert rates.of(status(truck(rows=0), updated=13)) == {"orders": 0}


def test_copies_are_told_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    times = [0.0]
    narrator = live.Narrator(clock=lambda: times[-1])
    copying = status(truck(phase=TruckPhase.COPYING, copying=(CopyProgress("public.a", 1, 2, 5),)))
    with caplog.at_level(logging.INFO, logger="trucker"):
        for now in (0.0, 5.0, 10.0, 11.0, 20.0):
            times.append(now)
            narrator(copying)
    assert [record.getMessage() for record in caplog.records] == [
        "truck orders is copying",
        "truck orders copies public.a 50 %, 5 rows",
        "truck orders copies public.a 50 %, 5 rows",
    ]


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with live.table() as on_status:
        on_status(status(truck(rows=10), updated=1))
        on_status(status(truck(rows=30), updated=2))
    assert "streaming" in screen.getvalue()
    assert "30 (20/s)" in screen.getvalue()


def test_the_table_needs_a_free_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    for adapter, free in (("stdout", False), ("postgres", True)):
        (tmp_path / "trucker.yml").write_text(
            f"connections: [{{name: a}}, {{name: b, adapter: {adapter}}}]\n", encoding="utf-8"
        )
        (tmp_path / "t/truck.yml").write_text(
            "input: {connection: a, table: t}\noutput: {connection: b}\n", encoding="utf-8"
        )
        config = load_project(tmp_path)
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert live.shows_table(config, quiet=False) is free
        assert not live.shows_table(config, quiet=True)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert not live.shows_table(config, quiet=False)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (300, "5 min"), (36000, "10 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB"), (3 * 10**12, "3.0 TB")]
)
def test_sizes(count: int, text: str) -> None:
    assert output.size(count) == text


def test_notes() -> None:
    assert output.note(truck(error="first\nsecond")) == "first"
    assert output.note(truck(copying=(CopyProgress("t", 0, 0, 0),))) == "t 0 %, 0 rows"
    assert output.note(truck()) == ""


def record(error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("trucker.x", logging.ERROR, "f", 1, "hello %s", ("you",), None)
    made.created = 0.0
    if error:
        made.exc_info = (type(error), error, None)
    vars(made).update(extra)
    return made


def test_text_lines() -> None:
    assert TextFormatter(debug=False).format(record()) == "1970-01-01T00:00:00.000Z error   trucker.x: hello you"


def test_json_lines() -> None:
    line = JsonFormatter(debug=False).format(record(truck="orders", lsn=Path("x")))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "error",
        "logger": "trucker.x",
        "message": "hello you",
        "truck": "orders",
        "lsn": "x",
    }


@pytest.mark.parametrize("form", [TextFormatter, JsonFormatter])
def test_exceptions_keep_row_data_to_themselves(form: type[TextFormatter] | type[JsonFormatter]) -> None:
    quiet, loud = form(debug=False), form(debug=True)
    strange = record(ValueError("Key (id)=(5) exists"))
    assert "ValueError" in quiet.format(strange)
    assert "(5)" not in quiet.format(strange)
    assert "(5)" in loud.format(strange)
    assert "[TRK400] full" in quiet.format(record(SinkError("full")))


def test_set_up_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(logging.INFO)
    logs.set_up(logging.INFO, LogFormat.JSON)
    logging.getLogger("trucker.x").info("once")
    logging.getLogger("other").info("not shown")
    logging.getLogger("trucker.x").debug("not shown")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "once"
