"""SQL by which a PostgreSQL server digests rows. Two servers that give the same `fingerprint` for the types of their
columns give equal digests to equal rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from trucker.row_digest import DigestedColumns
from trucker.table import quote_identifier

_FINGERPRINT: Final = (
    "select pg_catalog.current_setting('server_encoding'),"
    " pg_catalog.hashtextextended('digests of text' collate \"C\", 0)"
)
"""The function hashes bytes: it depends on the encoding, and on the byte order of the machine."""


def fingerprint_query() -> bytes:
    return _FINGERPRINT.encode()


def fingerprint(row: Sequence[object], types: Sequence[str]) -> str:
    """What a server's digests depend on: what `fingerprint_query` gave, and the types of the columns in their order."""
    return f"postgresql {' '.join(map(str, row))}: {', '.join(types)}"


def sums_query(relation: str, columns: DigestedColumns, condition: str = "") -> bytes:
    """`GroupSums` of the rows of a relation."""
    return (
        f"select {_group(columns)} as digest_group, count(*), sum({_digest(columns.columns)})"
        f" from {relation}{condition} group by 1"
    ).encode()


def rows_query(relation: str, columns: DigestedColumns, groups: Collection[int], condition: str = "") -> bytes:
    """COPY of the digested rows of some groups: the cells of the key, then the digest."""
    cells = "".join(f"{quote_identifier(name)}::text, " for name in columns.key)
    chosen = f"{_group(columns)} = any('{{{','.join(map(str, sorted(groups)))}}}'::int[])"
    clause = f"{condition} and {chosen}" if condition else f" where {chosen}"
    return f"copy (select {cells}{_digest(columns.columns)} from {relation}{clause}) to stdout".encode()


def _digest(names: Sequence[str]) -> str:
    row = f"row({', '.join(map(quote_identifier, names))})::text"
    return f'pg_catalog.hashtextextended(({row}) collate "C", 0)'


def _group(columns: DigestedColumns) -> str:
    return f"({_digest(columns.grouped_by)} & {columns.groups - 1})::int"
