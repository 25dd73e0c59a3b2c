"""The stream into DuckDB and into JSON lines against the stream into PostgreSQL: three truckers on the same WAL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from figure import ratio_at_least
from harness import TABLE, Bench, fill, touch
from ways import MARKER, FileTruck, Markers, Truck, Way

STORES = {
    "DuckDB": {"name": "target", "adapter": "duckdb", "path": "out.duckdb"},
    "JSON lines": {"name": "target", "adapter": "jsonl", "path": "out"},
}
SHARE = 4


def measure(bench: Bench) -> None:
    """Rows per second of inserts and of updates, caught up with as in the measure `stream`."""
    rows = bench.rows // SHARE
    loads: dict[str, Callable[[psycopg.Connection[Any]], None]] = {
        "inserts": lambda source: fill(source, "bench", 1, rows),
        "updates": lambda source: touch(source, "bench", 1, rows),
    }
    figures = {
        (store, kind): bench.figure(
            f"stream into {store}, {kind}", "rows/s", ratio_at_least(1.0), "trucker into PostgreSQL", rows
        )
        for store in STORES
        for kind in loads
    }
    source = bench.database(bench.source, "sinks", TABLE.format(name="bench"), MARKER)
    markers = Markers(source)
    ways: list[Way] = [
        Truck(bench, source, "sinks"),
        *(FileTruck(bench, source, store, entry) for store, entry in STORES.items()),
    ]
    for way in ways:  # all three have been started by now
        way.ready()
    for number in bench.rounds():
        source.execute(b"truncate bench")
        ready = markers.put()
        for way in ways:
            way.wait(ready)
        for kind, load in loads.items():
            for way in ways:
                way.hold()
            load(source)
            marker = markers.put()
            bench.settle()

            def timed(way: Way, kind: str = kind, marker: int = marker) -> None:
                with bench.profiled() as cpu:
                    rate = rows / way.catch_up(marker)
                bench.say(f"stream into {way.name}, {kind}: {rate:,.0f} rows/s")
                for (store, of), figure in figures.items():
                    if of != kind or (way.name != store and not isinstance(way, Truck)):
                        continue
                    (figure.trucker if way.name == store else figure.reference).append(rate)
                    (figure.trucker_cpu if way.name == store else figure.reference_cpu).append(cpu)

            bench.alternate(number, *(lambda way=way: timed(way) for way in ways))
