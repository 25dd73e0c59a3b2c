"""The benchmark's own arithmetic: figures, verdicts, the written table, and that a failure loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MODULES = ("figure", "report", "processes", "harness", "run")


@pytest.fixture(name="bench", scope="module")
def _bench() -> Iterator[dict[str, Any]]:
    """The modules of `bench/`, which are a program's and no package."""
    import importlib

    sys.path.insert(0, str(ROOT / "bench"))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(ROOT / "bench"))
        for name in [name for name, found in sys.modules.items() if _of_bench(found)]:
            del sys.modules[name]


def _of_bench(module: object) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(ROOT / "bench"))


def rate(bench: dict[str, Any], ours: list[float], theirs: list[float], bound: float = 1.0) -> Any:
    found = bench["figure"].Figure(
        "stream", "stream, inserts", "rows/s", bench["figure"].ratio_at_least(bound), "native"
    )
    found.trucker += ours
    found.reference += theirs
    return found


def test_a_ratio_is_the_median_of_the_rounds(bench: dict[str, Any]) -> None:
    figure = rate(bench, [100, 60, 90], [100, 50, 100])
    assert figure.ratios == [1.0, 1.2, 0.9]
    assert figure.ratio == 1.0
    assert (figure.value, figure.reference_value) == (90, 100)


@pytest.mark.parametrize(
    ("ours", "theirs", "bound", "verdict"),
    [
        ([100.0], [100.0], 1.0, "pass"),
        ([99.0], [100.0], 1.0, "FAIL"),
        ([500.0], [100.0], 5.0, "pass"),
        ([], [100.0], 1.0, "not measured"),
        ([100.0], [], 1.0, "not measured"),
    ],
)
def test_a_target_of_a_ratio(
    bench: dict[str, Any], ours: list[float], theirs: list[float], bound: float, verdict: str
) -> None:
    assert rate(bench, ours, theirs, bound).verdict == verdict


def test_a_target_of_a_value(bench: dict[str, Any]) -> None:
    figure = bench["figure"].Figure("latency", "p50", "ms", bench["figure"].at_most(80), trucker=[70, 90, 75])
    assert figure.verdict == "pass"
    assert figure.target_text == "≤ 80.0 ms"
    figure.trucker += [100, 100]
    assert figure.verdict == "FAIL"
    assert bench["figure"].Figure("latency", "p50", "ms", trucker=[1.0]).verdict == "–"


def test_cpu_is_shown_per_million_rows_largest_first(bench: dict[str, Any]) -> None:
    figure = rate(bench, [1.0], [1.0])
    figure.rows = 500_000
    figure.trucker_cpu += [{"jvm": 1.0, "workers": 2.0}, {"workers": 4.0}, {"jvm": 2.0, "workers": 3.0}]
    assert figure.per_million("trucker") == {"workers": 6.0, "jvm": 2.0}
    assert list(figure.per_million("trucker")) == ["workers", "jvm"]
    assert figure.per_million("reference") == {}


def written(bench: dict[str, Any], path: Path, figures: list[Any], **about: Any) -> None:
    told = {"postgres": 18, "rows": 10, "repeat": 3, "quick": False, "cores": 2, "commit": "abc", **about}
    bench["report"].write_json(path, bench["report"].report(figures, told))


def test_a_run_survives_being_written_and_read(bench: dict[str, Any], tmp_path: Path) -> None:
    figure = rate(bench, [3.0, 2.0], [1.0, 2.0], 1.5)
    figure.trucker_cpu.append({"jvm": 1.0})
    figure.rows = 10
    written(bench, tmp_path / "build" / "bench.json", [figure])
    content = json.loads((tmp_path / "build" / "bench.json").read_text())
    assert content["summary"] == "1 of 1 targets reached, 0 missed, 0 not measured"
    assert content["figures"][0]["ratio_spread"] == [1.0, 3.0]
    assert content["figures"][0]["cpu_seconds_per_million_rows"]["trucker"] == {"jvm": 100_000.0}
    _, (back,) = bench["report"].read_json(tmp_path / "build" / "bench.json")
    assert back == figure


def test_what_is_measured_again_takes_its_old_place(bench: dict[str, Any]) -> None:
    named = lambda measure, name: bench["figure"].Figure(measure, name, "s", trucker=[1.0])  # noqa: E731
    before = [named("a", "a1"), named("b", "b1"), named("b", "b2"), named("c", "c1")]
    found = bench["report"].merged(before, [named("b", "b3"), named("d", "d1")])
    assert [figure.name for figure in found] == ["a1", "b3", "c1", "d1"]


def test_the_table_is_written_between_the_markers(
    bench: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench:start -->\nold\n<!-- bench:end -->\nafter\n")
    monkeypatch.setattr(bench["report"], "PAGES", {page: ("table", "cpu")})
    missed, missing = rate(bench, [50.0], [100.0]), rate(bench, [], [])
    missing.name, missing.missing = "first copy, against COPY | COPY", "no driver"
    written(bench, tmp_path / "bench.json", [missed, missing])
    bench["report"].write_pages(tmp_path / "bench.json")
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:start -->\n")
    assert text.endswith("\n<!-- bench:end -->\nafter\n")
    assert "old" not in text
    assert "| stream, inserts, against native | 50.0 rows/s | 100 rows/s | 0.50 | ≥ 1.00 × | **missed** |" in text
    assert "| first copy, against COPY &#124; COPY, against native | – | – | – | ≥ 1.00 × | not measured |" in text
    assert "no driver" in text


def test_a_quick_run_is_not_for_pages(bench: dict[str, Any], tmp_path: Path) -> None:
    written(bench, tmp_path / "bench.json", [], quick=True)
    with pytest.raises(ValueError, match="quick"):
        bench["report"].write_pages(tmp_path / "bench.json")


def test_the_pages_have_their_markers(bench: dict[str, Any]) -> None:
    for page in bench["report"].PAGES:
        assert bench["report"].between(page.read_text(encoding="utf-8"), "x").count("<!-- bench:start -->\nx\n") == 1


class _Idle:
    """In place of a server."""

    version = 18

    def start(self) -> None: ...


def test_a_failing_measure_keeps_its_rounds_and_the_others(bench: dict[str, Any], tmp_path: Path) -> None:
    harness = bench["harness"].Bench(tmp_path, 10, 3, True, lambda _: None)
    harness.source = harness.target = _Idle()
    undone: list[str] = []
    with harness.measure("one"):
        first = harness.figure("first", "s")
        second = harness.figure("second", "s", bench["figure"].at_most(1))
        harness.callback(undone.append, "made")
        first.trucker += [1.0, 2.0]
        raise RuntimeError("the server\nis gone")
    with harness.measure("two"):
        harness.figure("third", "s").trucker.append(3.0)
    with harness.measure("three"):
        raise RuntimeError("before any figure")
    assert undone == ["made"]
    assert (first.value, first.note) == (1.5, "after 2 rounds: RuntimeError: the server is gone")
    assert (second.verdict, second.missing) == ("not measured", "RuntimeError: the server is gone")
    assert [figure.name for figure in harness.figures] == ["first", "second", "third", "three"]
    assert harness.figures[2].note == ""


def test_cpu_is_counted_by_group_also_of_processes_that_have_ended(bench: dict[str, Any]) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with bench["processes"].CpuProfile({}) as profile:
        subprocess.run([sys.executable, "-c", burn], check=True)
        subprocess.run([sys.executable, "-c", burn, "-m trucker"], check=True)
    assert profile.seconds["client tools"] + profile.seconds.get("driver", 0.0) >= 0.55


def test_every_measure_can_be_imported(bench: dict[str, Any]) -> None:
    import importlib

    for name in bench["run"].MEASURES:
        assert callable(importlib.import_module(name).measure)
