"""Subjects of NATS: which one an event has, and which ones a stream takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trucker.config.name_template import name_of
from trucker.table import TableId

_REFUSED: Final = re.compile(r"[\s.*>%\x00-\x20\x7f-\x9f]")


def escaped(name: str) -> str:
    """A name as one token of a subject: each byte of what NATS does not allow there as `%` and two digits. Different
    names stay different."""
    if not name:
        return "%"
    return _REFUSED.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def subject_of(template: str, table: TableId, truck: str) -> str:
    """The subject that the template gives to a table of a truck."""
    return name_of(template, TableId(escaped(table.schema), escaped(table.name)), escaped(truck))


def is_taken(patterns: Iterable[str], subject: str) -> bool:
    """Whether a stream of these subjects takes a message of this one."""
    return any(_matches(pattern.split("."), subject.split(".")) for pattern in patterns)


def _matches(pattern: list[str], subject: list[str]) -> bool:
    if pattern[-1] == ">":
        return len(subject) >= len(pattern) and _matches(pattern[:-1], subject[: len(pattern) - 1])
    return len(pattern) == len(subject) and all(
        expected in ("*", token) for expected, token in zip(pattern, subject, strict=True)
    )
