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
"""The function hashes bytes: its result depends on the encoding, and on the byte order of the machine."""


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
    """Half of the time of a hash of the whole row's text, which PostgreSQL quotes character by character."""
    cells = [
        f'coalesce(pg_catalog.hashtextextended({quote_identifier(name)}::text collate "C", {seed}), {seed})'
        for seed, name in enumerate(names)
    ]
    return _together(cells)


def _together(terms: Sequence[str]) -> str:
    """The terms by exclusive or, as a balanced tree: a chain of a thousand would be too deep for the server's stack."""
    if len(terms) < 2:
        return terms[0]
    half = len(terms) // 2
    return f"({_together(terms[:half])} # {_together(terms[half:])})"


def _group(columns: DigestedColumns) -> str:
    return f"({_digest(columns.grouped_by)} & {columns.groups - 1})::int"
