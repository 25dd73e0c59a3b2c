"""What a column holds, as far as a sink that is not PostgreSQL cares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trucker.change import Column


class Kind(StrEnum):
    """Families of PostgreSQL types. TEXT is also every type that has no better home: its text is kept as it is."""

    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
    DOUBLE = "double"
    NUMERIC = "numeric"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A kind, and for a constrained numeric its precision and scale."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None


_BY_NAME: Final = {
    "smallint": Kind.SMALLINT,
    "integer": Kind.INTEGER,
    "bigint": Kind.BIGINT,
    "real": Kind.REAL,
    "double precision": Kind.DOUBLE,
    "numeric": Kind.NUMERIC,
    "boolean": Kind.BOOLEAN,
    "bytea": Kind.BYTES,
    "date": Kind.DATE,
    "time without time zone": Kind.TIME,
    "timestamp without time zone": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.TIMESTAMPTZ,
    "uuid": Kind.UUID,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
}

# The stream names a type by its oid only; those of the built-in types are fixed for ever (pg_type.dat).
_BY_OID: Final = {
    16: Kind.BOOLEAN,
    17: Kind.BYTES,
    20: Kind.BIGINT,
    21: Kind.SMALLINT,
    23: Kind.INTEGER,
    114: Kind.JSON,
    700: Kind.REAL,
    701: Kind.DOUBLE,
    1082: Kind.DATE,
    1083: Kind.TIME,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
    1700: Kind.NUMERIC,
    2950: Kind.UUID,
    3802: Kind.JSON,
}

_MODIFIER: Final = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")
_TYPMOD_HEADER: Final = 4


def column_kind(column: Column) -> ColumnKind:
    """The column's kind by its type's name where the catalog gave one, else by its oid."""
    if not column.type_name:
        return _by_oid(column)
    modifier = _MODIFIER.search(column.type_name)
    name = _MODIFIER.sub("", column.type_name, count=1).strip()
    kind = _BY_NAME.get(name, Kind.TEXT)
    if kind is Kind.NUMERIC and modifier:
        return ColumnKind(kind, int(modifier[1]), int(modifier[2] or 0))
    return ColumnKind(kind)


def _by_oid(column: Column) -> ColumnKind:
    kind = _BY_OID.get(column.type_oid, Kind.TEXT)
    if kind is not Kind.NUMERIC or column.typmod < _TYPMOD_HEADER:
        return ColumnKind(kind)
    packed = column.typmod - _TYPMOD_HEADER
    scale = packed & 0x7FF
    # PostgreSQL 15 made the scale a signed number of eleven bits; older ones are never that large.
    return ColumnKind(kind, packed >> 16 & 0xFFFF, scale - 0x800 if scale > 0x3FF else scale)
