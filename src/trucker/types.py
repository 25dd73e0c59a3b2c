"""The one table of PostgreSQL's types. Each adapter defines their form in its store (`TypeForms`).

Inside trucker every cell is PostgreSQL's text in an Arrow string, whatever its type (decision 0005). A form is the type
that a destination converts that text to. For most types that is text itself: it is exact, and PostgreSQL reads it back.

| kind of type                            | form                                                          |
|-----------------------------------------|---------------------------------------------------------------|
| in `BUILT_IN`                           | that of its kind                                              |
| a domain                                | its base type's (the catalogue resolves it)                   |
| arrays, enums, composites, ranges of    | text; in PostgreSQL the same type, where the destination has  |
| users, types of extensions              | one of that name and shape, else text                         |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from trucker.table import Column


class Kind(StrEnum):
    """Families of PostgreSQL types. TEXT is every type whose text is kept as it is.

    NAME is for types that name an object of their database (a table, a role), which another database may not have.
    """

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
    NAME = "name"
    TEXT = "text"


class Unfit(StrEnum):
    """What is written for a value that the destination's form of its column cannot hold."""

    ERROR = "error"
    NULL = "null"
    TEXT = "text"


LARGEST_PRECISION: Final = 38
"""The digits of the largest decimal number in Arrow, Spark and most stores."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A type of PostgreSQL's own, as `format_type()` names it. Its oid is fixed for ever (pg_type.dat)."""

    name: str
    oid: int
    kind: Kind = Kind.TEXT


BUILT_IN: Final = (
    BuiltIn("smallint", 21, Kind.SMALLINT),
    BuiltIn("integer", 23, Kind.INTEGER),
    BuiltIn("bigint", 20, Kind.BIGINT),
    BuiltIn("numeric", 1700, Kind.NUMERIC),
    BuiltIn("real", 700, Kind.REAL),
    BuiltIn("double precision", 701, Kind.DOUBLE),
    BuiltIn("money", 790),
    BuiltIn("boolean", 16, Kind.BOOLEAN),
    BuiltIn("text", 25),
    BuiltIn("character varying", 1043),
    BuiltIn("character", 1042),
    BuiltIn("name", 19),
    BuiltIn('"char"', 18),
    BuiltIn("bytea", 17, Kind.BYTES),
    BuiltIn("bit", 1560),
    BuiltIn("bit varying", 1562),
    BuiltIn("date", 1082, Kind.DATE),
    BuiltIn("time without time zone", 1083, Kind.TIME),
    BuiltIn("time with time zone", 1266),
    BuiltIn("timestamp without time zone", 1114, Kind.TIMESTAMP),
    BuiltIn("timestamp with time zone", 1184, Kind.TIMESTAMPTZ),
    BuiltIn("interval", 1186),
    BuiltIn("uuid", 2950, Kind.UUID),
    BuiltIn("json", 114, Kind.JSON),
    BuiltIn("jsonb", 3802, Kind.JSON),
    BuiltIn("jsonpath", 4072),
    BuiltIn("xml", 142),
    BuiltIn("inet", 869),
    BuiltIn("cidr", 650),
    BuiltIn("macaddr", 829),
    BuiltIn("macaddr8", 774),
    BuiltIn("point", 600),
    BuiltIn("line", 628),
    BuiltIn("lseg", 601),
    BuiltIn("box", 603),
    BuiltIn("path", 602),
    BuiltIn("polygon", 604),
    BuiltIn("circle", 718),
    BuiltIn("int4range", 3904),
    BuiltIn("int8range", 3926),
    BuiltIn("numrange", 3906),
    BuiltIn("tsrange", 3908),
    BuiltIn("tstzrange", 3910),
    BuiltIn("daterange", 3912),
    BuiltIn("int4multirange", 4451),
    BuiltIn("int8multirange", 4536),
    BuiltIn("nummultirange", 4532),
    BuiltIn("tsmultirange", 4533),
    BuiltIn("tstzmultirange", 4534),
    BuiltIn("datemultirange", 4535),
    BuiltIn("tsvector", 3614),
    BuiltIn("tsquery", 3615),
    BuiltIn("pg_lsn", 3220),
    BuiltIn("oid", 26),
    BuiltIn("xid", 28),
    BuiltIn("xid8", 5069),
    BuiltIn("cid", 29),
    BuiltIn("tid", 27),
    BuiltIn("pg_snapshot", 5038),
    BuiltIn("txid_snapshot", 2970),
    BuiltIn("refcursor", 1790),
    BuiltIn("int2vector", 22),
    BuiltIn("oidvector", 30),
    BuiltIn("regclass", 2205, Kind.NAME),
    BuiltIn("regtype", 2206, Kind.NAME),
    BuiltIn("regproc", 24, Kind.NAME),
    BuiltIn("regprocedure", 2202, Kind.NAME),
    BuiltIn("regoper", 2203, Kind.NAME),
    BuiltIn("regoperator", 2204, Kind.NAME),
    BuiltIn("regrole", 4096, Kind.NAME),
    BuiltIn("regnamespace", 4089, Kind.NAME),
    BuiltIn("regconfig", 3734, Kind.NAME),
    BuiltIn("regdictionary", 3769, Kind.NAME),
    BuiltIn("regcollation", 4191, Kind.NAME),
    BuiltIn("aclitem", 1033, Kind.NAME),
)

_BY_NAME: Final = {each.name: each.kind for each in BUILT_IN}
_BY_OID: Final = {each.oid: each.kind for each in BUILT_IN}
_MODIFIER: Final = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")
_TYPMOD_HEADER: Final = 4


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A kind, and for a constrained numeric its precision and scale. In an array it is the elements'."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    array: bool = False

    @property
    def form_kind(self) -> Kind:
        """The kind whose form it takes: an array is text, and one of names is an array of text."""
        return Kind.TEXT if self.array and self.kind is not Kind.NAME else self.kind


@dataclass(frozen=True, slots=True)
class Form:
    """What a store makes of a type. `type` is the type there; `unfit` says in words which values it cannot hold."""

    type: str
    unfit: str = ""


class TypeForms:
    """The forms of PostgreSQL's types in one store: for its sink, and for its column in `docs/reference/TYPES.md`.

    `forms` has those that are not `text`. A subclass may override `of` where precision or scale matter.
    """

    title: ClassVar[str]
    text: ClassVar[Form]
    forms: ClassVar[Mapping[Kind, Form]] = {}
    domain: ClassVar[str] = "the base type's form"
    user_type: ClassVar[str] = ""
    """What becomes of enums, composite types and types of extensions, in words; that of text where it is empty."""

    def of(self, column: ColumnKind) -> Form:
        """The form of a column."""
        return self.forms.get(column.form_kind, self.text)

    def shown(self, form: Form) -> str:
        """A form in the documentation."""
        return f"`{form.type}`"


def column_kind(column: Column) -> ColumnKind:
    """The column's kind by its type's name where the catalogue gave one, else by its oid."""
    if not column.type_name:
        return _by_oid(column)
    modifier = _MODIFIER.search(column.type_name)
    name = _MODIFIER.sub("", column.type_name, count=1).strip()
    array = name.endswith("[]")
    kind = _BY_NAME.get(name.removesuffix("[]"), Kind.TEXT)
    if kind is Kind.NUMERIC and modifier:
        return ColumnKind(kind, int(modifier[1]), int(modifier[2] or 0), array)
    return ColumnKind(kind, array=array)


def _by_oid(column: Column) -> ColumnKind:
    kind = _BY_OID.get(column.type_oid, Kind.TEXT)
    if kind is not Kind.NUMERIC or column.typmod < _TYPMOD_HEADER:
        return ColumnKind(kind)
    packed = column.typmod - _TYPMOD_HEADER
    scale = packed & 0x7FF
    # PostgreSQL 15 made the scale a signed number of eleven bits; older ones are never that large.
    return ColumnKind(kind, packed >> 16 & 0xFFFF, scale - 0x800 if scale > 0x3FF else scale)
