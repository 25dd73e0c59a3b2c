"""`make bench`: trucker held against PostgreSQL's own tools, on this machine, in this run.

python bench/run.py [--quick] [--rows N] [--repeat N] [--only capture,stream,snapshot,sql_truck] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import capture
import snapshot
import sql_truck
import stream
import trucker
from harness import Bench, Figure

MEASURES = {
    "capture": capture.measure,
    "stream": stream.measure,
    "snapshot": snapshot.measure,
    "sql_truck": sql_truck.measure,
}


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}", highlight=False)

    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="trucker-bench-") as folder, contextlib.ExitStack() as stack:
        bench = Bench(Path(folder), options.rows, options.repeat, stack, say)
        for name in options.only:
            figures += MEASURES[name](bench)
    _show(console, figures, options)
    if options.json:
        options.json.write_text(json.dumps(_report(figures, options), indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {options.json}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trucker against PostgreSQL's own tools")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, once")
    parser.add_argument("--rows", type=int, help="rows of each load (default: 500000)")
    parser.add_argument("--repeat", type=int, help="times each is measured, in alternating order (default: 3)")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(MEASURES), help="which measures")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    options.rows = options.rows or (50_000 if options.quick else 500_000)
    options.repeat = options.repeat or (1 if options.quick else 3)
    unknown = set(options.only) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    return options


def _show(console: Console, figures: list[Figure], options: argparse.Namespace) -> None:
    table = Table("measure", "unit", "trucker", "reference", "ratio", "against")
    table.title = f"{options.rows:,} rows, median of {options.repeat}"
    for figure in figures:
        reference = _number(statistics.median(figure.reference)) if figure.reference else "-"
        ratio = f"{figure.ratio:.2f}" if figure.ratio is not None else "-"
        ours = _number(statistics.median(figure.trucker))
        table.add_row(figure.name, figure.unit, ours, reference, ratio, figure.reference_name or "-")
    console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _report(figures: list[Figure], options: argparse.Namespace) -> dict[str, object]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trucker": trucker.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "rows": options.rows,
        "repeat": options.repeat,
        "figures": [figure.as_dict() for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
