"""Changes of a table that stop its truck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trucker.engine.truck.truck import Truck
from trucker.errors import SinkError, SourceError
from trucker.table import TableId

STALE: Final = "TRK426"


def attached_under_keep(truck: str, table: TableId, leaves: Sequence[TableId], why: str) -> SourceError:
    """Where the rows of attached partitions can be neither copied nor merged."""
    names = ", ".join(map(str, leaves))
    return SourceError(
        f"truck {truck}: {names} was attached to {table} with rows, which the destination does not have; they cannot"
        f" be merged there because {why}, and under partitions: keep the table is not copied again, because the rows"
        " kept there would go",
        remedy=f"detach it, empty it and insert its rows into {table}; or write partitions: follow in truck.yml, then"
        " trucker run",
        code="TRK255",
    )


def stale(truck: Truck, table: TableId, why: str) -> SinkError:
    """Where a truck may not copy a table again by itself."""
    remedy = f"run `trucker reset --truck {truck.name}`, then `trucker run`, which copies the table again"
    if not truck.tables[table].is_copied:
        remedy = (
            f"run `trucker reset --truck {truck.name} --table {table}`, then `trucker run`, which goes on with the "
            "changes from then on (copy: none); to have the table copied, give it another mode in input.copy before"
        )
    return SinkError(
        f"truck {truck.name}: the rows of {table} at the destination differ from the source: {why}",
        remedy=remedy,
        code=STALE,
    )
