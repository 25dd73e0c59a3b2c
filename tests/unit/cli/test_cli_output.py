"""What is shown while a project runs, and how logs are written."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.cli import live, output
from trucker.config.project_folder import load_project
from trucker.errors import SinkError
from trucker.observe import logs, units
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


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with live.table() as on_status:
        on_status(status(truck(rows=10), updated=1))
        on_status(status(truck(rows=30), updated=2))
    assert "streaming" in screen.getvalue()
    assert "30 (20 rows/s)" in screen.getvalue()


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
    ("seconds", "text"),
    [(0, "0 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (300, "5 min"), (36000, "10 h"), (864000, "10 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB"), (3 * 10**12, "3.0 TB")]
)
def test_sizes(count: int, text: str) -> None:
    assert units.size(count) == text


def test_notes() -> None:
    assert output.note(truck(error="[TRK401] first\n  next: second")) == "[TRK401]"
    assert output.note(truck(blind_since=0.0)) == "lag unknown since 1970-01-01T00:00:00Z"
    assert output.note(truck()) == ""


def test_a_lag_that_is_not_known_is_not_shown_as_none() -> None:
    assert output.lag(truck(lag_seconds=None, lag_bytes=0)) == "unknown, 0 B"
    assert output.lag(truck(lag_seconds=0.0, lag_bytes=0)) == "0 ms, 0 B"
    assert output.lag(truck(phase=TruckPhase.STARTING)) == "unknown"
    assert output.lag(truck(phase=TruckPhase.COPYING)) == "-"


def test_a_blind_truck_is_not_green() -> None:
    assert output.state(truck()).style == "green"
    blind = output.state(truck(blind_since=5.0))
    assert (blind.plain, blind.style) == ("streaming, blind", "yellow")


COPIES = (CopyProgress("public.a", 1, 4, 500, 900, 1000, 2.0), CopyProgress("public.b", 0, 9, 0, 0, 5000))


def test_every_copy_has_its_own_figures(capsys: pytest.CaptureFixture[str]) -> None:
    output.status_text(status(truck(phase=TruckPhase.COPYING, copying=COPIES)))
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines[-3:] == [
        ["copying", "done", "rows", "rate", "left"],
        ["orders: public.a", "90 %", "500", "250 rows/s", "200 ms"],
        ["orders: public.b", "0 %", "0", "-", "-"],
    ]


def test_a_terminal_has_a_bar_for_each_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    with live.table() as on_status:
        on_status(status(truck(phase=TruckPhase.COPYING, copying=COPIES)))
    assert "━" * 20 in screen.getvalue()
    assert "90 %" in screen.getvalue()


def test_of_many_copies_those_under_way_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = tuple(CopyProgress(f"public.t{number}", 0, 1, 0) for number in range(20))
    output.status_text(status(truck(phase=TruckPhase.COPYING, copying=(*waiting, COPIES[0]))))
    text = capsys.readouterr().out
    assert "public.a" in text
    assert "and 13 tables more" in text


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=20).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.integers(0, len(sizes)))
    )
)
def test_a_copy_is_at_100_per_cent_when_all_is_done_and_not_before(drawn: tuple[list[int], int]) -> None:
    sizes, done = drawn
    progress = CopyProgress("t", done, len(sizes), 0, sum(sizes[:done]), sum(sizes), 1.0)
    assert 0 <= progress.percent <= 100
    assert (progress.percent == 100) is (done == len(sizes))
    assert progress.seconds_left is None or progress.seconds_left >= 0


def test_an_error_is_shown_once_with_the_trucks_it_concerns(capsys: pytest.CaptureFixture[str]) -> None:
    error = "[TRK401] the destination is away\n  next: wait"
    trucks = [truck(name=name, phase=TruckPhase.RETRYING, error=error) for name in ("a", "b", "c")]
    output.status_text(status(*trucks))
    out = capsys.readouterr().out
    assert out.count("the destination is away") == 1
    assert out.endswith("a, b, c: [TRK401] the destination is away\n  next: wait\n")


def record(error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("trucker.x", logging.ERROR, "f", 1, "hello %s", ("you",), None)
    made.created = 0.0
    if error:
        made.exc_info = (type(error), error, None)
    vars(made).update(extra)
    return made


def test_text_lines() -> None:
    assert TextFormatter(debug=False).format(record()) == "1970-01-01T00:00:00.000Z error   trucker.x: hello you"


def test_a_text_line_has_message_subject_facts_code_reason_and_remedy() -> None:
    made = record(remedy="free\nspace", code="TRK305", rows=5, reason="no space", table="public.a b", truck="orders")
    assert TextFormatter(debug=False).format(made) == (
        '1970-01-01T00:00:00.000Z error   trucker.x: hello you: truck=orders table="public.a b" rows=5: '
        "[TRK305] no space; next: free space"
    )


def test_numbers_and_lists_in_a_text_line() -> None:
    line = TextFormatter(debug=False).format(record(seconds=1.5, whole=2.0, trucks=["a", "b"], lag_seconds=None))
    assert line.endswith('trucks="a, b" seconds=1.5 whole=2 lag_seconds=unknown')


def test_an_error_of_truckers_own_is_one_line_without_traceback() -> None:
    line = TextFormatter(debug=False).format(record(SinkError("full", remedy="make room"), truck="orders"))
    assert line.endswith("hello you: truck=orders: [TRK400] full; next: make room")
    entry = json.loads(JsonFormatter(debug=False).format(record(SinkError("full", remedy="make room"))))
    assert (entry["code"], entry["reason"], entry["remedy"]) == ("TRK400", "full", "make room")


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
