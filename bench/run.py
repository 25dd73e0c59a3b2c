"""`make bench`: trucker held against PostgreSQL's own tools, on this machine, in this run.

python bench/run.py [--quick] [--only stream,latency] [--rows N] [--repeat N] [--json FILE] [--merge]
python bench/run.py --markdown [--json FILE]      write the figures of a whole run into the documentation
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

import report
from figure import Verdict
from harness import Bench

# Each is a module here with `measure(bench)`, which makes its figures first and then fills them.
MEASURES = (
    "capture",
    "decode",
    "stream",
    "sinks",
    "events",
    "nats_events",
    "snapshot",
    "beside_copy",
    "latency",
    "rest",
    "tables",
    "sql_truck",
    "storage",
    "reload",
    "refresh",
    "verify",
    "replay",
)
RESULT = report.ROOT / "build" / "bench.json"


def main(arguments: list[str] | None = None) -> int:
    """The exit code is 1 when a measure failed, whatever the targets: a machine at work misses some."""
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    if options.markdown:
        for page in report.write_pages(options.json):
            console.print(f"written: {page.relative_to(report.ROOT)}")
        return 0
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}", highlight=False)

    about = report.machine()
    with tempfile.TemporaryDirectory(prefix="trucker-bench-") as folder, contextlib.ExitStack() as stack:
        bench = Bench(Path(folder), options.rows, options.repeat, options.quick, say)
        for server in (bench.source, bench.target):
            stack.callback(server.destroy)
        for name in options.only:
            with bench.measure(name):
                importlib.import_module(name).measure(bench)
            _write(bench, about, options, time.monotonic() - began)
        about["postgres"] = bench.source.version
    report.show(console, bench.figures, f"{options.rows:,} rows, median of {options.repeat}")
    console.print(f"{time.monotonic() - began:.0f} s; written to {options.json}", highlight=False)
    return 1 if any(figure.verdict is Verdict.MISSING and figure.target for figure in bench.figures) else 0


def _write(bench: Bench, about: dict[str, object], options: argparse.Namespace, seconds: float) -> None:
    """After every measure: what is there so far is kept, whatever becomes of the rest."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for figure in bench.figures:
        figure.at, figure.commit = figure.at or stamp, figure.commit or str(about["commit"])
    figures = report.merged(options.before, bench.figures)
    whole = {
        **about,
        "postgres": bench.source.version,
        "rows": bench.rows,
        "repeat": bench.repeat,
        "quick": bench.quick,
        "seconds": round(seconds),
    }
    report.write_json(options.json, report.report(figures, whole))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trucker against PostgreSQL's own tools")
    parser.add_argument("--quick", action="store_true", help="every row of the table in a small form, once")
    parser.add_argument("--rows", type=int, help="rows of each load (default: 1000000)")
    parser.add_argument("--repeat", type=int, help="rounds, in alternating order (default: 5)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="which measures (default: all)")
    parser.add_argument(
        "--json", type=Path, default=RESULT, help="the file with the result (default: build/bench.json)"
    )
    parser.add_argument("--merge", action="store_true", help="keep the file's figures of the measures that are not run")
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing: write the file's figures into the pages"
    )
    options = parser.parse_args(arguments)
    options.rows = options.rows or (50_000 if options.quick else 1_000_000)
    options.repeat = options.repeat or (1 if options.quick else 5)
    options.only = options.only or list(MEASURES)
    unknown = set(options.only) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    options.before = report.read_json(options.json)[1] if options.merge and options.json.exists() else []
    return options


if __name__ == "__main__":
    sys.exit(main())
