"""Names of tables as a truck writes them, and patterns that choose among a database's tables.

    orders                table orders of schema public
    shop.orders           table orders of schema shop
    shop.*                every table of schema shop; * is any text, ? any one character, in either part
    "odd.name"."a*b"      double quotes take every character as it is; "" is one double quote
    !shop.audit_*         not these, whatever else chooses them

Names are taken as written: unlike in SQL, letters keep their case without quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trucker.table import TableId

DEFAULT_SCHEMA: Final = "public"

_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')


class PatternError(ValueError):
    """The text is no table's name or pattern."""


@dataclass(frozen=True, slots=True)
class _PatternPart:
    """One name or wildcard: `regex` matches it, `exact` is the name where there is no wildcard."""

    regex: re.Pattern[str]
    exact: str | None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern. `exact` is the one table it can mean, or None where it has a wildcard."""

    text: str
    excludes: bool
    schema: _PatternPart
    name: _PatternPart

    @property
    def exact(self) -> TableId | None:
        if self.schema.exact is None or self.name.exact is None:
            return None
        return TableId(self.schema.exact, self.name.exact)

    def matches(self, table: TableId) -> bool:
        return bool(self.schema.regex.fullmatch(table.schema) and self.name.regex.fullmatch(table.name))


def parse_pattern(text: str) -> Pattern:
    """Read one pattern, or raise `PatternError` saying what is wrong with it."""
    body = text.strip()
    excludes = body.startswith("!")
    parts = _parts(body.removeprefix("!").strip())
    schema = parts[0] if len(parts) == 2 else _PatternPart(re.compile(DEFAULT_SCHEMA), DEFAULT_SCHEMA)
    return Pattern(text, excludes, schema, parts[-1])


def is_pattern(text: str) -> bool:
    """Whether it has a wildcard, so that it may mean many tables or none."""
    return parse_pattern(text).exact is None


def parse_table(text: str, default_schema: str = DEFAULT_SCHEMA) -> TableId:
    """The one table a name means; wildcards and `!` are refused."""
    pattern = parse_pattern(text)
    if pattern.excludes or pattern.exact is None:
        raise PatternError("a single table is required, without ! and wildcards")
    has_schema = len(_parts(text.strip())) == 2
    return pattern.exact if has_schema else TableId(default_schema, pattern.exact.name)


def select_tables(patterns: Sequence[str], available: Sequence[TableId]) -> list[TableId]:
    """The tables that a pattern chooses and none excludes, in the order of `available`."""
    parsed = [parse_pattern(text) for text in patterns]
    included = [pattern for pattern in parsed if not pattern.excludes]
    excluded = [pattern for pattern in parsed if pattern.excludes]
    return [
        table
        for table in dict.fromkeys(available)
        if any(pattern.matches(table) for pattern in included)
        and not any(pattern.matches(table) for pattern in excluded)
    ]


def missing_tables(patterns: Sequence[str], available: Sequence[TableId]) -> list[TableId]:
    """The included tables, named without a wildcard, that are not available."""
    present = frozenset(available)
    exact = (pattern.exact for pattern in map(parse_pattern, patterns) if not pattern.excludes)
    return [table for table in dict.fromkeys(exact) if table is not None and table not in present]


def _parts(text: str) -> list[_PatternPart]:
    parts: list[_PatternPart] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            raise PatternError("this is not a table name or pattern")
        parts.append(_quoted(match[1]) if match[1] else _bare(match[2]))
        at = match.end()
        if at == len(text):
            break
        if text[at] != ".":
            raise PatternError("this is not a table name or pattern")
        at += 1
    if len(parts) > 2:
        raise PatternError("this has more parts than schema and table")
    return parts


def _quoted(text: str) -> _PatternPart:
    name = text.replace('""', '"')
    return _PatternPart(re.compile(re.escape(name)), name)


def _bare(text: str) -> _PatternPart:
    regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in text)
    return _PatternPart(re.compile(regex, re.DOTALL), None if set(text) & {"*", "?"} else text)
