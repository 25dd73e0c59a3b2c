"""What `trucker verify` does with one table of a truck in the running instance: refuse it, or compare it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Protocol

from trucker.config.sql.sql_files import BY_OPERATION, OUTPUT
from trucker.control.answers import Verification
from trucker.engine.destination.destination import Destination
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.truck import Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.engine.verify.verifier import TableDifferences, Verifier
from trucker.errors import ControlError
from trucker.observe.status import TruckPhase
from trucker.sinks.base import Sink
from trucker.sinks.compared_table import ComparesTables
from trucker.table import Partitions, TableId

log = logging.getLogger("trucker.verify")

PATIENCE_SECONDS: Final = 30.0
"""So long a table may take to follow its truck: another command may have it for a moment."""

_LOOK_SECONDS: Final = 0.1


class VerifiedSource(Protocol):
    """What is needed of the run of a source."""

    runs: dict[str, TruckRun]
    destinations: Mapping[str, Destination]

    def at_snapshot(self, kind: type[Verifier], lane: Lane, **more: Any) -> Verifier:
        """What compares the table of a lane."""

    def run_at_snapshot(self, worker: Verifier) -> bool:
        """Have its table brought to a snapshot, in this thread; whether the lane goes on."""


def comparable_tables(truck: Truck, table: TableId | None, sink: Sink) -> list[TableId]:
    """The tables of a truck to compare, or the one that is asked for. Raises `ControlError` where it cannot be done."""
    if table is not None and table not in truck.tables:
        names = sorted(map(str, truck.tables))
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        raise ControlError(
            f"truck {truck.name} does not read table {table}",
            remedy=f"give --table with one of its tables: {', '.join(names[:10])}{more}",
            code="TRK640",
        )
    tables = sorted(truck.tables) if table is None else [table]
    if why := _obstacle(truck, tables, sink):
        raise ControlError(
            f"truck {truck.name} cannot be verified: {why}", remedy="verify the other trucks", code="TRK641"
        )
    return tables


def _obstacle(truck: Truck, tables: Sequence[TableId], sink: Sink) -> str:
    config, outputs = truck.config, [table.output for table in truck.tables.values()]
    shared = [truck.tables[table].output for table in tables if outputs.count(truck.tables[table].output) > 1]
    if sink.abilities.every_change:
        return f"its destination {truck.destination} keeps every change, and not the rows as they are"
    if config is not None and config.file(OUTPUT):
        return "what its output.sql makes of the rows is not known"
    if config is not None and config.compact == "none":
        return "it writes every change (compact: none), and not the rows as they are"
    if shared:
        return f"several of its tables go into {shared[0]}"
    if not isinstance(sink, ComparesTables):
        return f"a {sink.name} destination offers no comparison"
    return ""


def keeps_rows(truck: Truck, table: TableId) -> bool:
    """Whether the destination rightly has rows that the source no longer has."""
    partitions = truck.tables[table].partitions
    deletes = truck.config is not None and truck.config.file(BY_OPERATION["delete"]) is not None
    return partitions is Partitions.KEEP or deletes


def verify_table(
    source: VerifiedSource, stream: SourceStream, truck: str, table: TableId, stop: threading.Event
) -> Verification:
    """Compare a table of a truck that streams."""
    began = time.monotonic()
    lane = _detached(source, stream, truck, table, stop)
    with closing(source.at_snapshot(Verifier, lane)) as verifier:
        source.run_at_snapshot(verifier)
        comparison = verifier.compare(stop)
    rows_stay = keeps_rows(source.runs[truck].truck, table)
    verification = _verification(truck, table, comparison, rows_stay, time.monotonic() - began)
    facts = {"truck": truck, "table": str(table), "position": str(comparison.position)}
    counts = {"rows": comparison.expected_rows, "differing": verification.differing}
    log.info("table verified", extra={**facts, **counts, "seconds": verification.seconds})
    return verification


def _detached(source: VerifiedSource, stream: SourceStream, truck: str, table: TableId, stop: threading.Event) -> Lane:
    """The table in a lane of its own, once it follows its truck."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not stop.is_set():
        run = source.runs[truck]
        lane = stream.detach(run, table)
        if lane is not None:
            return lane
        if time.monotonic() >= deadline or run.has_ended or run.phase is TruckPhase.PAUSED:
            break
        stop.wait(_LOOK_SECONDS)
    raise ControlError(
        f"table {table} does not follow truck {truck} now: the truck is {source.runs[truck].phase.value}",
        remedy="run `trucker status`, and verify it when the truck streams",
        code="TRK642",
    )


def _verification(
    truck: str, table: TableId, comparison: TableDifferences, rows_stay: bool, seconds: float
) -> Verification:
    differences = comparison.differences
    return Verification(
        truck,
        str(table),
        position=str(comparison.position),
        source_rows=comparison.expected_rows,
        destination_rows=comparison.stored_rows,
        missing=differences.missing,
        extra=() if rows_stay else differences.extra,
        different=differences.different,
        keyless_missing=differences.keyless_missing,
        keyless_extra=0 if rows_stay else differences.keyless_extra,
        complete=comparison.complete,
        keeps_rows=rows_stay,
        seconds=round(seconds, 3),
    )
