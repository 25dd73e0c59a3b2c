"""Parses the Relation message, which describes a table from there on."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from trucker.errors import SourceError
from trucker.pgoutput.wire import RELATION, malformed
from trucker.table import Column, TableId


@dataclass(frozen=True)
class Relation:
    """A table as the stream describes it.

    `identity` is `pg_class.relreplident` (d, n, f, i); `key_columns` are the columns of that identity, which is
    not always the primary key.
    """

    oid: int
    table: TableId
    identity: str
    columns: tuple[Column, ...]
    key_columns: tuple[str, ...]


@lru_cache(maxsize=4096)
def parse_relation(message: bytes) -> Relation:
    """The Relation message `message`, its kind byte included."""
    return parse_relation_at(message, None)


def parse_relation_at(message: bytes, index: int | None) -> Relation:
    """The same for message number `index` of a run, which errors then name."""
    try:
        relation, end = _parse(message)
    except (struct.error, ValueError, IndexError):
        raise malformed(index, RELATION, "the message is truncated or not UTF-8") from None
    if end != len(message):
        raise malformed(index, RELATION, "the message continues after its last column")
    if len({column.name for column in relation.columns}) != len(relation.columns):
        raise malformed(index, RELATION, "two columns have the same name")
    return relation


def relation_of_run(message: bytes, index: int) -> Relation:
    """As `parse_relation`, from its cache, with an error that names the message's number."""
    try:
        return parse_relation(message)
    except SourceError:
        return parse_relation_at(message, index)


def _parse(message: bytes) -> tuple[Relation, int]:
    if message[0] != RELATION:
        raise ValueError
    (oid,) = struct.unpack_from(">I", message, 1)
    schema, at = _string(message, 5)
    name, at = _string(message, at)
    identity, count = struct.unpack_from(">cH", message, at)
    at += 3
    columns, key = [], []
    for _ in range(count):
        flags = message[at]
        column, at = _string(message, at + 1)
        type_oid, typmod = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(Column(column, type_oid, typmod))
        if flags & 1:
            key.append(column)
    table = TableId(schema or "pg_catalog", name)
    return Relation(oid, table, identity.decode("ascii"), tuple(columns), tuple(key)), at


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
