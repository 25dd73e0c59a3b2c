"""Reads values that a change did not send, because they did not change, from the source, by key (I7).

The source is read as of now. A change whose row no longer exists is left out: its delete follows in the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import errors

from trucker.change import DELETE, TRUNCATE, Changes, Mask, TableSchema, quote_identifier
from trucker.errors import SourceError
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import query_error, translated
from trucker.postgres.source_query.arrays import LARGEST, array_literal
from trucker.postgres.source_query.result import stream
from trucker.postgres.source_query.session import catalogue
from trucker.postgres.source_query.types import InputColumn, load_input_columns

GONE: Final = "TRK273"
TOO_LARGE: Final = "TRK274"

# The equality operators of the key's index: the operator of a user-defined type may not be in the search path.
_EQUALS: Final = """
    select a.attname::text, format('operator(%%I.%%s)', s.nspname, o.oprname)
      from pg_class r
      join pg_namespace n on n.oid = r.relnamespace
      join pg_index i on i.indrelid = r.oid
       and case r.relreplident when 'i' then i.indisreplident else i.indisprimary end
     cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) as k(attnum, class)
      join pg_attribute a on a.attrelid = r.oid and a.attnum = k.attnum
      join pg_opclass c on c.oid = k.class
      join pg_amop e on e.amopfamily = c.opcfamily and e.amopstrategy = 3
       and e.amoplefttype = c.opcintype and e.amoprighttype = c.opcintype
      join pg_operator o on o.oid = e.amopopr
      join pg_namespace s on s.oid = o.oprnamespace
     where n.nspname = %s and r.relname = %s"""
_ANY: Final = "operator(pg_catalog.=)"


def reselect(connection: PgConnection, changes: Changes, *, only: Collection[str] | None = None) -> Changes:
    """The same changes with every value: none is `unchanged` any more.

    `only` names the columns that are used (`PostgresQuery.used`); the others stay NULL. Updates that change the key
    must have been split (`fold.split_moves`). Raises SourceError where the table has no key, or a column no longer
    exists.
    """
    if only is not None:
        changes = replace(changes, unchanged={name: mask for name, mask in changes.unchanged.items() if name in only})
    lacking = _lacks_value(changes)
    if not lacking.any():
        return replace(changes, unchanged={})
    schema = changes.schema
    if not schema.key:
        raise SourceError(
            f"table {schema.table} has no key to read unsent values again with",
            remedy=f"add a primary key, or run: ALTER TABLE {schema.table.quoted} REPLICA IDENTITY FULL",
            code="TRK212",
        )
    names = [name for name in schema.names if name in changes.unchanged]
    rows = np.flatnonzero(lacking)
    values = _read(connection, schema, names, _keys(changes, rows))
    return _filled(changes, names, rows, values)


def _lacks_value(changes: Changes) -> Mask:
    """The rows that lack a value."""
    lacking = np.zeros(len(changes), np.bool_)
    for mask in changes.unchanged.values():
        lacking |= mask
    lacking &= (changes.op != DELETE) & (changes.op != TRUNCATE)
    return lacking


def _keys(changes: Changes, rows: np.ndarray[Any, np.dtype[np.int64]]) -> list[pa.Array]:
    """The key's cells. A long key value that was not sent in the new tuple is in the old one."""
    chosen = pa.array(rows)
    return [
        pc.coalesce(changes.new.column(name).take(chosen), changes.old.column(name).take(chosen))
        for name in changes.schema.key
    ]


def _read(connection: PgConnection, schema: TableSchema, names: Sequence[str], keys: Sequence[pa.Array]) -> pa.Table:
    """The values by the number of the key, which is column 0."""
    doing = f"reading unsent values of {schema.table}"
    with translated(doing), catalogue(connection):
        key_columns = load_input_columns(connection, [schema.column(name) for name in schema.key])
        equals = dict(connection.execute(_EQUALS.encode(), [schema.table.schema, schema.table.name]).fetchall())
    numbers = InputColumn("n", "pg_catalog.int8", "pg_catalog.int8")
    parameters = [
        array_literal(pa.array(np.arange(len(keys[0]))).cast(pa.string()), plain=True),
        *(array_literal(cells, one.delimiter, plain=one.plain) for cells, one in zip(keys, key_columns, strict=True)),
    ]
    pieces, size = [], 0
    try:
        statement = _statement(schema, names, [numbers, *key_columns], equals)
        with closing(stream(connection, statement, parameters)) as results:
            for piece in results:
                pieces.append(piece)
                size += piece.nbytes
                if size > LARGEST:
                    raise _too_large(schema)
    except (errors.UndefinedColumn, errors.UndefinedTable) as error:
        raise _cannot_read(schema, error) from None
    except psycopg.Error as error:
        raise query_error(doing, error) from None
    return pa.Table.from_batches(pieces) if pieces else pa.table({str(i): _no_texts() for i in range(len(names) + 1)})


def _no_texts() -> pa.Array:
    return pa.array([], pa.string())


def _statement(
    schema: TableSchema, names: Sequence[str], key_columns: Sequence[InputColumn], equals: dict[str, str]
) -> str:
    keys = [replace(one, name=f"k{number}") for number, one in enumerate(key_columns)]
    listed = ", ".join(one.parameter(number) for number, one in enumerate(keys, start=1))
    values = "".join(f", t.{quote_identifier(name)}" for name in names)
    same = " and ".join(
        f"t.{quote_identifier(name)} {equals.get(name, _ANY)} k.k{number}"
        for number, name in enumerate(schema.key, start=1)
    )
    return f"select k.k0{values} from (select {listed}) as k join {schema.table.quoted} as t on {same}"


def _filled(
    changes: Changes, names: Sequence[str], rows: np.ndarray[Any, np.dtype[np.int64]], values: pa.Table
) -> Changes:
    """The changes with the values that were read; without those whose row no longer exists."""
    where = np.full(len(changes), -1, np.int64)
    where[rows[values.column(0).cast(pa.int64()).to_numpy()]] = np.arange(values.num_rows)
    places = pa.array(where, mask=where < 0)
    cells = list(changes.new.columns)
    for number, name in enumerate(names, start=1):
        at = changes.schema.names.index(name)
        read = values.column(number).combine_chunks().take(places)
        cells[at] = pc.if_else(pa.array(changes.unchanged[name]), read, cells[at])
    full = replace(changes, new=pa.RecordBatch.from_arrays(cells, names=list(changes.schema.names)), unchanged={})
    vanished = np.zeros(len(changes), np.bool_)
    vanished[rows] = where[rows] < 0
    return full.take(~vanished) if vanished.any() else full


def _cannot_read(schema: TableSchema, error: psycopg.Error) -> SourceError:
    return SourceError(
        f"table {schema.table}: an unsent value cannot be read again: {error.diag.message_primary}",
        remedy="leave the column out of the truck; or copy the table again: run `trucker reset --truck NAME`, "
        "then `trucker run`",
        code=GONE,
    )


def _too_large(schema: TableSchema) -> SourceError:
    return SourceError(
        f"table {schema.table}: the unsent values are larger than {LARGEST >> 20} MiB in one part of a batch",
        remedy="lower `batch.part_bytes` in trucker.yml,"
        f" or run: ALTER TABLE {schema.table.quoted} REPLICA IDENTITY FULL",
        code=TOO_LARGE,
    )
