"""Which types hold every value of which others, in PostgreSQL's own names for them (`format_type`).

A type widens another if every value of the other is a value of it, and the server's own cast gives just that one.
"""

from __future__ import annotations

import re
from typing import Final

_MODIFIER: Final = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")
_INTEGERS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_LENGTHS: Final = frozenset({"character varying", "bit varying"})
_PRECISIONS: Final = frozenset(
    {"time without time zone", "time with time zone", "timestamp without time zone", "timestamp with time zone"}
)
_MICROSECONDS: Final = 6


def holds(kind: str, other: str) -> bool:
    """Whether a column of type `kind` takes every value of type `other`, as it is."""
    return kind in (other, "text") or widens(kind, other)


def widens(kind: str, other: str) -> bool:
    """Whether a column of type `other` may be altered to `kind`: every value stays what it is."""
    if kind.endswith("[]") and other.endswith("[]"):
        return widens(kind.removesuffix("[]"), other.removesuffix("[]"))
    name, room = _parse(kind)
    old, need = _parse(other)
    if name in _INTEGERS and old in _INTEGERS:
        return _INTEGERS[name] > _INTEGERS[old]
    if name == "numeric":
        return _numeric(room, old, need)
    if (name, old) == ("double precision", "real"):
        return True
    if (name, old) in (("text", "character varying"), ("character varying", "character varying")):
        return name == "text" or _longer(room, need)
    if name == old and name in _LENGTHS:
        return _longer(room, need)
    if name == old and name in _PRECISIONS:
        return (room[0] if room else _MICROSECONDS) > (need[0] if need else _MICROSECONDS)
    return False


def _parse(kind: str) -> tuple[str, tuple[int, int] | None]:
    """The type's name without its modifier, and that: a length or precision, and a scale."""
    modifier = _MODIFIER.search(kind)
    name = _MODIFIER.sub("", kind, count=1).strip()
    return name, (int(modifier[1]), int(modifier[2] or 0)) if modifier else None


def _longer(room: tuple[int, int] | None, need: tuple[int, int] | None) -> bool:
    return need is not None and (room is None or room[0] > need[0])


def _numeric(room: tuple[int, int] | None, old: str, need: tuple[int, int] | None) -> bool:
    """Digits before the point and after it must both have room."""
    if old in _INTEGERS:
        return room is None or room[0] - room[1] >= _INTEGERS[old]
    if old != "numeric" or need is None:
        return False
    return room is None or (room != need and room[0] - room[1] >= need[0] - need[1] and room[1] >= need[1])
