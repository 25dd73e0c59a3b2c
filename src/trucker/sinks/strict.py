"""A table that must have just the columns of a truck's result (`Target.strict`)."""

from __future__ import annotations

from collections.abc import Collection

from trucker.errors import SinkError
from trucker.sinks.target import Target


def refuse_columns(target: Target, columns: Collection[str], optional: Collection[str]) -> None:
    """Raise, with both sides, where the table has other columns; `optional` are those it gives a value of its own."""
    missing = [name for name in target.source.names if name not in columns]
    extra = [name for name in columns if name not in target.source.names and name not in optional]
    if not missing and not extra:
        return
    sides = (("only the rows have", missing), ("only the table has", extra))
    differences = "; ".join(f"{side} {', '.join(names)}" for side, names in sides if names)
    raise SinkError(
        f"truck {target.truck}: the columns of table {target.table} differ from those of the rows: "
        f"{differences} (the rows: {', '.join(target.source.names)}; the table: {', '.join(columns)})",
        remedy="use the same column names in the truck's SQL or rules, or alter the table; a column that only "
        "the table has needs a default",
        code="TRK486",
    )
