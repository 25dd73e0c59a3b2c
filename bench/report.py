"""The table of a run: on the terminal, as JSON, and as Markdown between the markers of a page.

Figures in the documentation are never typed: `python bench/run.py --markdown` writes them from the JSON of a whole run.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import trucker
from figure import Cpu, Figure, Verdict, number, spread

ROOT = Path(__file__).resolve().parents[1]
PAGES = {ROOT / "README.md": ("short",), ROOT / "docs" / "explanation" / "performance.md": ("table", "cpu")}
# What a user wants to know before anything else; the page on performance has all rows.
SHORT = (
    "stream, inserts, against native subscription",
    "stream, updates, against native subscription",
    "stream, hot keys, against native subscription",
    "first copy, against native initial sync",
    "first copy, against pg_dump | pg_restore",
    "commit to visible, 100 transactions/s, p50, against native subscription",
    "commit to visible, pgbench at 2,000 transactions/s, p99",
    "start of `trucker run` to first row, warm cache",
    "idle CPU, all processes",
    "memory during a transaction of 5,000,000 rows, resident",
)
_COLORS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.MISSING: "yellow", Verdict.OPEN: "dim"}
_SMALL_CPU = 0.05


# -- on the terminal ------------------------------------------------------------------------------------------------


def show(console: Console, figures: Sequence[Figure], title: str) -> None:
    """The table with spreads and verdicts, what is not measured and why, and the CPU behind each rate."""
    table = Table("measure", "unit", "trucker (spread)", "reference (spread)", "ratio (spread)", "target", "")
    table.title = title
    for figure in figures:
        color = _COLORS[figure.verdict]
        table.add_row(
            named(figure),
            figure.unit,
            text_of(figure.value, figure.trucker),
            text_of(figure.reference_value, figure.reference),
            text_of(figure.ratio, figure.ratios),
            figure.target_text,
            f"[{color}]{figure.verdict}[/{color}]",
        )
    console.print(table)
    for figure in figures:
        if figure.missing or figure.note:
            console.print(f"[dim]{figure.name}: {figure.missing or figure.note}[/dim]", highlight=False)
    cpu = Table("CPU seconds per million rows", "side", "sum", "by processes")
    cpu.title = "what bounds each rate"
    for name, side, total, groups in cpu_rows(figures):
        cpu.add_row(name, side, total, groups)
    if cpu.row_count:
        console.print(cpu)
    console.print(summary(figures), highlight=False)


def named(figure: Figure) -> str:
    """The row's name, with what it is held against."""
    if not figure.against or figure.against in figure.name:
        return figure.name
    return f"{figure.name}, against {figure.against}"


def text_of(middle: float | None, values: Sequence[float]) -> str:
    """`205,000 (198,000–209,000)`; a dash for nothing, no spread for one value."""
    if middle is None:
        return "–"
    limits = spread(values) if len(values) > 1 else None
    return f"{number(middle)} ({number(limits[0])}–{number(limits[1])})" if limits else number(middle)


def cpu_rows(figures: Sequence[Figure]) -> list[tuple[str, str, str, str]]:
    """For each figure and side that has been profiled: the sum, and the groups that matter."""
    rows = []
    for figure in figures:
        sides: tuple[tuple[str, Cpu], ...] = (
            ("trucker", figure.per_million("trucker")),
            (figure.against or "reference", figure.per_million("reference")),
        )
        for side, spent in sides:
            if spent:
                groups = ", ".join(f"{group} {number(each)}" for group, each in spent.items() if each >= _SMALL_CPU)
                rows.append((figure.name, side, number(sum(spent.values())), groups))
    return rows


def summary(figures: Sequence[Figure]) -> str:
    """How many targets hold."""
    verdicts = [figure.verdict for figure in figures if figure.target is not None]
    counts = {verdict: verdicts.count(verdict) for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.MISSING)}
    return (
        f"{counts[Verdict.PASS]} of {len(verdicts)} targets reached, {counts[Verdict.FAIL]} missed,"
        f" {counts[Verdict.MISSING]} not measured"
    )


# -- as JSON --------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Where and with what a run is made."""
    return {
        "trucker": trucker.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
    }


def report(figures: Sequence[Figure], about: Mapping[str, Any]) -> dict[str, Any]:
    """A whole run for JSON."""
    return {
        "format": 1,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **about,
        "summary": summary(figures),
        "figures": [figure.as_dict() for figure in figures],
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """A run that was written down, and its figures."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content, [Figure.from_dict(raw) for raw in content["figures"]]


def merged(earlier: Sequence[Figure], measured: Sequence[Figure]) -> list[Figure]:
    """The figures of an earlier run, those of the measures that have been run again in their place."""
    again = {figure.measure for figure in measured}
    figures: list[Figure] = []
    replaced: set[str] = set()
    for figure in earlier:
        if figure.measure not in again:
            figures.append(figure)
        elif figure.measure not in replaced:
            replaced.add(figure.measure)
            figures += [each for each in measured if each.measure == figure.measure]
    return figures + [figure for figure in measured if figure.measure not in replaced]


def commit() -> str:
    """The commit that is measured; with a plus where the tree differs from it."""
    try:
        described = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# -- as Markdown ----------------------------------------------------------------------------------------------------


def markdown(content: Mapping[str, Any], figures: Sequence[Figure], parts: Sequence[str] = ("table",)) -> str:
    """What stands between a page's markers."""
    rounds = content["repeat"]
    if "short" in parts:
        figures = [figure for figure in figures if named(figure) in SHORT]
    lines = [
        f"PostgreSQL {content['postgres']} with fsync on, {content['rows']:,} rows of ten columns a round, source,"
        f" destination and trucker on the same {content['cores']} cores; median of {rounds} rounds in alternating"
        f" order, the least and the largest in parentheses. Measured {content['at'][:10]} at `{content['commit']}`:"
        f" {content['summary']}.",
        "",
        "| measure | trucker | reference | ratio | target | |",
        "|---|---|---|---|---|---|",
        *(_row(figure) for figure in figures),
    ]
    if "cpu" in parts:
        lines += [
            "",
            "CPU seconds per million rows, by what the processes are there for:",
            "",
            "| measure | side | sum | by processes |",
            "|---|---|---|---|",
            *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in cpu_rows(figures)),
        ]
    notes = [
        f"- {_cell(each.name)}: {_cell(each.missing or each.note)}" for each in figures if each.missing or each.note
    ]
    return "\n".join([*lines, *(["", *notes] if "cpu" in parts and notes else [])])


def _row(figure: Figure) -> str:
    unit = f" {figure.unit}" if figure.trucker else ""
    measured = f"{text_of(figure.value, figure.trucker)}{unit}"
    reference = f"{text_of(figure.reference_value, figure.reference)}{unit if figure.reference else ''}"
    ratio = text_of(figure.ratio, figure.ratios)
    verdict = {"pass": "reached", "FAIL": "**missed**", "–": ""}.get(figure.verdict, figure.verdict)
    cells = (named(figure), measured, reference, ratio, figure.target_text, verdict)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def between(page: str, text: str, mark: str = "bench") -> str:
    """The page with this text between its markers."""
    start, end = f"<!-- {mark}:start -->", f"<!-- {mark}:end -->"
    before, opened, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"no {start} … {end} in the page")
    return f"{before}{start}\n{text}\n{end}{after}"


def write_pages(path: Path) -> list[Path]:
    """Write the figures of a whole run into the pages that show them; those that were written."""
    content, figures = read_json(path)
    if content.get("quick"):
        raise ValueError(f"{path} is of a quick run: its rows are too few to be shown to anybody")
    for page, parts in PAGES.items():
        page.write_text(between(page.read_text(encoding="utf-8"), markdown(content, figures, parts)), encoding="utf-8")
    return list(PAGES)
