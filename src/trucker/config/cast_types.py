"""The types that a rule can give a column, by the names people write for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trucker.types import BUILT_IN, Kind

_OIDS: Final = {each.name: each.oid for each in BUILT_IN}
_KINDS: Final = {each.name: each.kind for each in BUILT_IN}
# PostgreSQL's limits: VARHDRSZ, which it adds to type modifiers, MaxAttrSize for varchar(n), and the numeric precision.
_HEADER: Final = 4
_LONGEST: Final = 10_485_760
_MOST_DIGITS: Final = 1000

NAMES: Final = (
    "text",
    "character varying",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "real",
    "double precision",
    "boolean",
    "date",
    "time without time zone",
    "timestamp without time zone",
    "timestamp with time zone",
    "uuid",
    "json",
)

_ALIASES: Final = {
    "varchar": "character varying",
    "int2": "smallint",
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "decimal": "numeric",
    "float4": "real",
    "float": "double precision",
    "float8": "double precision",
    "bool": "boolean",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}

_WRITTEN: Final = re.compile(r"([a-z0-9 ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")


class TypeNameError(ValueError):
    """The text names no type that a rule can give a column."""


@dataclass(frozen=True, slots=True)
class CastType:
    """A type with its modifier: a length, or precision and scale."""

    name: str
    length: int | None = None
    scale: int | None = None

    @property
    def kind(self) -> Kind:
        return _KINDS[self.name]

    @property
    def oid(self) -> int:
        return _OIDS[self.name]

    @property
    def typmod(self) -> int:
        if self.length is None:
            return -1
        packed = self.length if self.scale is None else self.length << 16 | self.scale
        return packed + _HEADER

    @property
    def type_name(self) -> str:
        """As format_type() gives it."""
        if self.length is None:
            return self.name
        return f"{self.name}({self.length})" if self.scale is None else f"{self.name}({self.length},{self.scale})"


def parse_type(text: str) -> CastType:
    """Read a type's name, or raise `TypeNameError` saying what is wrong with it."""
    match = _WRITTEN.fullmatch(" ".join(text.lower().split()))
    name = _ALIASES.get(match[1], match[1]) if match else ""
    if match is None or name not in NAMES:
        raise TypeNameError(f"a rule cannot cast to this type; the types are {', '.join(NAMES)}")
    numbers = [int(number) for number in match.groups()[1:] if number is not None]
    if not numbers:
        return CastType(name)
    if name == "character varying" and len(numbers) == 1 and 1 <= numbers[0] <= _LONGEST:
        return CastType(name, numbers[0])
    if name == "numeric":
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if 1 <= precision <= _MOST_DIGITS and scale <= precision:
            return CastType(name, precision, scale)
    raise TypeNameError("this type does not take these numbers in parentheses")
