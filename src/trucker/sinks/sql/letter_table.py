"""Dead letters as rows of trucker's own table `dead_letters`; a `LetterStore`. Users may read it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, Generic

from trucker.lsn import Lsn
from trucker.sinks.letters import Letter, Reason, to_json
from trucker.sinks.sql.dialect import Dialect, T
from trucker.sinks.sql.ledger_tables import OF_TABLE, make_tables
from trucker.sinks.target import TruckTable
from trucker.table import TableId

_MAKE: Final = {
    "dead_letters": "id {letter_number}, project {text} NOT NULL, truck {text} NOT NULL, "
    "source_schema {text} NOT NULL, source_table {text} NOT NULL, target_schema {text} NOT NULL, "
    "target_table {text} NOT NULL, operation {text} NOT NULL, lsn {text} NOT NULL, ordinal BIGINT NOT NULL, "
    "key {text} NOT NULL, data {text} NOT NULL, sqlstate {text} NOT NULL, reason {text} NOT NULL, "
    "constraint_name {text}, column_name {text}, tries INTEGER NOT NULL, created_at {instant} NOT NULL, "
    "updated_at {instant} NOT NULL"
}
_CELLS: Final = (
    "truck",
    "source_schema",
    "source_table",
    "target_schema",
    "target_table",
    "operation",
    "lsn",
    "ordinal",
    "key",
    "data",
    "sqlstate",
    "reason",
    "constraint_name",
    "column_name",
    "tries",
)
_AS_TEXT: Final = ("lsn", "key", "data")


class LetterTable(Generic[T]):
    """One project's letters; the caller owns the transaction."""

    def __init__(self, dialect: Dialect[T], project: str) -> None:
        self._dialect = dialect
        self._project = project

    def make(self, transaction: T) -> None:
        """Create the table where it is missing."""
        make_tables(self._dialect, transaction, _MAKE)

    def count(self, transaction: T) -> dict[str, int]:
        """How many each truck has; none in a store that has no such table."""
        if "dead_letters" not in self._dialect.tables(transaction):
            return {}
        return dict(
            self._run(transaction, "SELECT truck, count(*) FROM {} WHERE project = ? GROUP BY truck", self._project)
        )

    def read(self, transaction: T, truck: str) -> list[Letter]:
        """A truck's letters, in the order of their positions."""
        cells = ", ".join(self._dialect.cell(name) if name in _AS_TEXT else name for name in _CELLS)
        rows = self._run(
            transaction, f"SELECT {cells}, id FROM {{}} WHERE project = ? AND truck = ?", self._project, truck
        )
        return sorted(map(_letter, rows), key=lambda letter: (letter.lsn, letter.ordinal, letter.number))

    def remove(self, transaction: T, numbers: Collection[int]) -> None:
        for number in sorted(numbers):
            self._run(transaction, "DELETE FROM {} WHERE id = ?", number)

    def put(self, transaction: T, letter: Letter) -> None:
        now, values = self._dialect.now, _values(letter)
        if letter.number:
            cells = ", ".join(f"{name} = ?" for name in _CELLS)
            statement = f"UPDATE {{}} SET {cells}, updated_at = {now} WHERE id = ?"
            self._run(transaction, statement, *values, letter.number)
            return
        places, number = ", ".join("?" * len(_CELLS)), self._dialect.new_number(transaction)
        self._run(
            transaction,
            f"INSERT INTO {{}} (id, project, {', '.join(_CELLS)}, created_at, updated_at) "
            f"VALUES ({{}}, ?, {places}, {now}, {now})",
            self._project,
            *values,
            number=number,
        )

    def forget(self, transaction: T, truck_tables: Collection[TruckTable]) -> None:
        for truck, table in truck_tables:
            self._run(transaction, f"DELETE FROM {{}} WHERE {OF_TABLE}", self._project, truck, table.schema, table.name)

    def _run(self, transaction: T, statement: str, *values: object, number: str = "") -> list[tuple[Any, ...]]:
        """Run a statement with the table's name, and the SQL of a new letter's number, in the places of `{}`."""
        name = self._dialect.name(transaction, "dead_letters")
        return self._dialect.run(transaction, statement.format(name, number), values)


def _letter(row: Sequence[Any]) -> Letter:
    truck, schema, table, to_schema, to_table, operation, lsn, ordinal, key, data, *reason, tries, number = row
    return Letter(
        truck,
        TableId(schema, table),
        TableId(to_schema, to_table),
        tuple(json.loads(key)),
        operation,
        json.loads(data),
        Lsn.parse(lsn),
        ordinal,
        Reason(*reason),
        tries,
        number,
    )


def _values(letter: Letter) -> list[object]:
    """The cells of a letter, in the order of `_CELLS`."""
    reason = letter.reason
    return [
        letter.truck,
        letter.source.schema,
        letter.source.name,
        letter.target.schema,
        letter.target.name,
        letter.operation,
        str(letter.lsn),
        letter.ordinal,
        to_json(letter.key_row),
        to_json(letter.data),
        reason.sqlstate,
        reason.message,
        reason.constraint,
        reason.column,
        letter.tries,
    ]
