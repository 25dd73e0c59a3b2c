"""Rows of a snapshot on their way from one PostgreSQL to another, as COPY writes them and as COPY reads them.

In binary where that means the same at both ends: every column has, here and there, one type of PostgreSQL's own whose
binary form holds nothing but the value and has been the same since long before the oldest version that is supported.
Not so the types of users and extensions, and whatever is made of them: their binary form may hold numbers of the
database's own. As text all others, which is exact for every type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trucker.change import RawCopy, TableId, UnreadRows, quote_identifier
from trucker.errors import SinkError
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target

# By their numbers, which are the same in every database: each type's own and that of its array.
_BINARY: Final = {
    "boolean": (16, 1000),
    "bytea": (17, 1001),
    "bigint": (20, 1016),
    "smallint": (21, 1005),
    "integer": (23, 1007),
    "text": (25, 1009),
    "json": (114, 199),
    "real": (700, 1021),
    "double precision": (701, 1022),
    "macaddr": (829, 1040),
    "inet": (869, 1041),
    "cidr": (650, 651),
    "character": (1042, 1014),
    "character varying": (1043, 1015),
    "date": (1082, 1182),
    "time": (1083, 1183),
    "timestamp": (1114, 1115),
    "timestamptz": (1184, 1185),
    "interval": (1186, 1187),
    "timetz": (1266, 1270),
    "bit": (1560, 1561),
    "bit varying": (1562, 1563),
    "numeric": (1700, 1231),
    "uuid": (2950, 2951),
    "jsonb": (3802, 3807),
}
BINARY: Final = frozenset(number for both in _BINARY.values() for number in both)


@dataclass(frozen=True, slots=True)
class Passage:
    """Rows that can pass unread: what is asked of the source is what the destination takes.

    They pass in binary where there are `types`, which are those of the columns by number.
    """

    rows: UnreadRows
    table: TableId
    names: tuple[str, ...]
    types: tuple[int, ...]
    at_once: bool

    def open(self) -> RawCopy:
        """The rows as the source writes them. One that is not taken to its end must be closed."""
        return self.rows.raw(self.names, binary=bool(self.types))

    def take(self, session: Session, into: str) -> int:
        """Copy them `into` a table, inside the caller's transaction; how many there are.

        With `at_once` constraints that are deferred are checked, too.
        """
        columns = ", ".join(map(quote_identifier, self.names))
        options = " (format binary)" if self.types else ""
        raw = self.open()
        try:
            with session.connection.cursor() as cursor:
                with cursor.copy(f"copy {into} ({columns}) from stdin{options}".encode()) as copy:
                    for block in raw:
                        copy.write(block)
                taken = cursor.rowcount
        except BaseException:
            raw.close()
            raise
        check_taken(self.table, taken, raw.rows)
        if self.at_once:
            session.run("set constraints all immediate")
        return taken


def passage_of(rows: UnreadRows, target: Target, table: DestinationTable, *, at_once: bool = False) -> Passage | None:
    """How these rows pass; None where the target takes a column that they have not."""
    names = tuple(name for name in target.source.names if table.writable(name))
    types = {column.name: column.type_oid for column in rows.schema.columns}
    if not names or not types.keys() >= frozenset(names):
        return None
    binary = all(types[name] == table.columns[name].type_oid and types[name] in BINARY for name in names)
    return Passage(rows, target.table, names, tuple(types[name] for name in names) if binary else (), at_once)


def check_taken(table: TableId, taken: int, sent: int | None) -> None:
    """Raise where a table has not taken every row."""
    if taken != sent:
        raise SinkError(
            f"table {table} accepted {taken} of {sent} copied rows",
            remedy="check the destination's table for triggers or rules that discard rows",
        )
