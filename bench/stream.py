"""The stream into PostgreSQL against a native subscription, from the same WAL.

*Catching up*, which the targets are for: the changes wait in the slots, made with nobody at work beside them; a way is
let go, and the clock runs until a marker committed after them is visible. Everything from the walsender to the
commit at the destination is in it, capture into the change log included; what made the load is not.

*Beside the load*: the clock runs from the first statement of the load until the marker is visible. On a small machine
the load takes much of it, for either side the same, so that the ratio says less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from figure import Figure, ratio_at_least
from harness import TABLE, Bench, fill, touch, touch_hot
from ways import MARKER, Markers, Native, Truck, Way

Load = Callable[[psycopg.Connection[Any], int], None]

BESIDE_SHARE = 10
HOT_SHARE = 100


def measure(bench: Bench) -> None:
    """Rows per second of inserts, of updates, and of updates of few keys."""
    loads: dict[str, Load] = {
        "inserts": lambda source, rows: fill(source, "bench", 1, rows),
        "updates": lambda source, rows: touch(source, "bench", 1, rows),
        "hot keys": lambda source, rows: touch_hot(source, "bench", 1, rows, rows // HOT_SHARE),
    }
    bounds = {"inserts": 1.0, "updates": 1.5, "hot keys": 5.0}
    figures = {
        kind: bench.figure(f"stream, {kind}", "rows/s", ratio_at_least(bounds[kind]), Native.name, bench.rows)
        for kind in loads
    }
    few = bench.rows // BESIDE_SHARE
    under_load = {
        kind: bench.figure(f"stream, {kind}, beside the load", "rows/s", None, Native.name, few)
        for kind in ("inserts", "updates")
    }
    tables = (TABLE.format(name="bench"), MARKER)
    source = bench.database(bench.source, "stream", *tables)
    markers = Markers(source)
    native, truck = Native(bench, source, "stream_native", *tables), Truck(bench, source, "stream_truck")
    truck.ready()
    sides = (truck, native)
    for number in bench.rounds():
        _begin(source, markers, sides)
        for kind, load in loads.items():
            _catch_up(bench, number, markers, sides, figures[kind], lambda load=load: load(source, bench.rows))
        for kind, figure in under_load.items():
            _begin(source, markers, sides) if kind == "inserts" else None
            _under_load(bench, number, markers, sides, figure, lambda kind=kind: loads[kind](source, few))


def _begin(source: psycopg.Connection[Any], markers: Markers, sides: tuple[Way, ...]) -> None:
    """Empty tables on all sides, and everybody at work."""
    source.execute(b"truncate bench")
    number = markers.put()
    for side in sides:
        side.wait(number)


def _catch_up(
    bench: Bench, number: int, markers: Markers, sides: tuple[Way, ...], figure: Figure, load: Callable[[], None]
) -> None:
    for side in sides:
        side.hold()
    load()
    marker = markers.put()
    bench.settle()

    def timed(side: Way) -> None:
        with bench.profiled() as cpu:
            seconds = side.catch_up(marker)
        _note(bench, figure, side, bench.rows / seconds, cpu)

    bench.alternate(number, *(lambda side=side: timed(side) for side in sides))
    for server, names in ((bench.source, ("stream",)), (bench.target, ("stream_native", "stream_truck"))):
        for name in names:
            with server.connect(name) as connection:
                connection.execute("vacuum bench")


def _under_load(
    bench: Bench, number: int, markers: Markers, sides: tuple[Way, ...], figure: Figure, load: Callable[[], None]
) -> None:
    first, second = sides
    source = first.source

    def timed(side: Way, other: Way) -> None:
        source.execute(b"truncate bench") if "inserts" in figure.name else None
        ready = markers.put()
        for each in sides:
            each.wait(ready)
        other.hold()
        bench.settle()
        with bench.profiled(source) as cpu:
            began = time.time()
            load()
            seconds = side.wait(markers.put()) - began
        other.release()
        _note(bench, figure, side, figure.rows / seconds, cpu)

    bench.alternate(number, lambda: timed(first, second), lambda: timed(second, first))


def _note(bench: Bench, figure: Figure, side: Way, rate: float, cpu: dict[str, float]) -> None:
    is_trucker = isinstance(side, Truck)
    (figure.trucker if is_trucker else figure.reference).append(rate)
    (figure.trucker_cpu if is_trucker else figure.reference_cpu).append(cpu)
    bench.say(f"{figure.name}, {side.name}: {rate:,.0f} rows/s")
