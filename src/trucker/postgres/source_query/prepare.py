"""Prepares input.sql, in the driver: PostgreSQL parses and plans it for a table, and describes its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from trucker.change import DELETE, INSERT, OPERATIONS, UPDATE, Column, TableSchema
from trucker.config.sql.sql_files import SqlFile
from trucker.config.sql.sql_lexer import Statement
from trucker.config.sql.sql_template import RenderedSql, SqlTemplate, TemplateRelation
from trucker.errors import ConfigError, Place
from trucker.pg.connection import PgConnection
from trucker.postgres.catalog import source_types
from trucker.postgres.source_query.failure import refused
from trucker.postgres.source_query.query import ORDER, ROWS, InputStatement, PostgresQuery, Variant, parameters_relation
from trucker.postgres.source_query.result import Field, describe, stream
from trucker.postgres.source_query.session import catalogue
from trucker.postgres.source_query.types import TEXT, InputColumn, load_input_columns
from trucker.postgres.source_query.usage import used_columns
from trucker.rows import OLD, OPERATION, POSITION
from trucker.source.source_table import SourceType

CLASH: Final = "TRK133"
UNUSABLE: Final = "TRK134"

MOST_COLUMNS: Final = 1664
"""PostgreSQL's limit for a select list (MaxTupleAttributeNumber)."""
_FROM_ROWS: Final = "select … from {{ rows }}, and join what it needs"
_PSEUDO: Final = ("record", "record[]", "void", "unknown", "cstring", "anyarray")


def prepare_query(connection: PgConnection, file: SqlFile, table: TableSchema, *, positions: bool) -> PostgresQuery:
    """Check that the file can run for this table, and describe its result. `positions`: rows have position columns.

    Raises a ConfigError with file, line and a suggestion where it cannot. Runs nothing.
    """
    template = SqlTemplate(file)
    names = _relation_names(file, table, positions)
    relation = TemplateRelation(ROWS, names)
    with catalogue(connection):
        input_columns = _input_columns(connection, table, positions)
        timeout = _timeout(connection)
    variants: dict[int, Variant] = {}
    fields_by_operation: dict[int, list[Field]] = {}
    used: set[str] = {OPERATION}
    for op in ORDER:
        if variants and not template.uses_operation:
            variants[op], fields_by_operation[op] = variants[DELETE], fields_by_operation[DELETE]
            continue
        sql = template.render(relation, operation=OPERATIONS[op], input_table=str(table.table))
        source = InputStatement.of(sql, _only_statement(sql))
        fields_by_operation[op] = _described(connection, source, input_columns, names)
        used |= used_columns(connection, source, input_columns, fields_by_operation[op])
        fields = tuple(field.name for field in fields_by_operation[op])
        variants[op] = Variant(source, fields, fields.index(OPERATION) if OPERATION in fields else -1)
    if not any(variant.source.uses_rows for variant in variants.values()):
        raise _unusable(
            file, "the file does not use {{ rows }}: it would return the same rows for every change", _FROM_ROWS
        )
    with catalogue(connection):
        columns = _result_columns(connection, file, [fields_by_operation[op] for op in (INSERT, UPDATE, DELETE)])
    by_operation = template.uses_operation or variants[INSERT].operation < 0
    return PostgresQuery(
        file, table.table, columns, tuple(input_columns), frozenset(used), variants, by_operation, timeout
    )


def _relation_names(file: SqlFile, table: TableSchema, positions: bool) -> tuple[str, ...]:
    """The columns of `{{ rows }}`. Names must be unique, and not more than PostgreSQL allows."""
    table_names = table.names
    added = [*(OLD + name for name in table_names), *(column.name for column in POSITION if positions), OPERATION]
    clash = [name for name in table_names if name in added]
    if clash:
        raise ConfigError(
            f"table {table.table} has a column {clash[0]}, a name that rows reserve",
            place=Place(file.label),
            remedy=f"rename the column with a rule, or leave it out: except_columns: [{clash[0]}]",
            code=CLASH,
        )
    if len(table_names) + len(added) > MOST_COLUMNS:
        raise ConfigError(
            f"table {table.table} has {len(table_names)} columns; with their old values that is more than the "
            f"{MOST_COLUMNS} columns of a PostgreSQL query",
            place=Place(file.label),
            remedy="read fewer columns with only_columns",
            code=CLASH,
        )
    return (*table_names, *added)


def _timeout(connection: PgConnection) -> float | None:
    row = connection.execute("select setting::int from pg_settings where name = 'statement_timeout'").fetchone()
    return row[0] / 1000 if row and row[0] else None


def _input_columns(connection: PgConnection, table: TableSchema, positions: bool) -> list[InputColumn]:
    new_columns = load_input_columns(connection, table.columns)
    more = load_input_columns(connection, POSITION) if positions else []
    return [
        *new_columns,
        *(replace(one, name=OLD + one.name) for one in new_columns),
        *more,
        InputColumn(OPERATION, TEXT, TEXT),
    ]


def _described(
    connection: PgConnection, source: InputStatement, input_columns: Sequence[InputColumn], names: Sequence[str]
) -> list[Field]:
    """The columns of the statement's result. It is planned, too: PostgreSQL checks privileges on tables only then."""
    relation = parameters_relation(input_columns)
    text, (whole, offset) = source.text(relation), source.whole(relation)
    try:
        fields = describe(connection, text)
    except psycopg.Error as error:
        raise refused(error, whole, offset, names, connection.info.user) from None
    _refuse_fields(whole.place(offset), fields)
    explain = "explain (format json) "
    try:
        (answer,) = stream(connection, explain + text, [None] * len(input_columns) if source.uses_rows else [])
    except psycopg.Error as error:
        raise refused(error, whole, offset - len(explain), names, connection.info.user) from None
    if _writes(json.loads(answer.column(0)[0].as_py())):
        raise ConfigError(
            "the statement writes or locks rows at the source",
            place=whole.place(offset),
            remedy="write a SELECT without FOR UPDATE; write to the destination with output.sql",
            code=UNUSABLE,
        )
    return fields


def _writes(plan: Any) -> bool:
    if isinstance(plan, list):
        return any(_writes(node) for node in plan)
    if not isinstance(plan, dict):
        return False
    return plan.get("Node Type") in ("ModifyTable", "LockRows") or any(_writes(part) for part in plan.values())


def _only_statement(sql: RenderedSql) -> Statement:
    statements = sql.statements()
    if len(statements) == 1:
        return statements[0]
    place = sql.place(statements[1].offset) if statements else Place(sql.file.label)
    raise ConfigError(
        "the file has more than one statement" if statements else "the file has no statement",
        place=place,
        remedy="write one SELECT; use a join or WITH for several steps",
        code=UNUSABLE,
    )


def _refuse_fields(place: Place, fields: Sequence[Field]) -> None:
    names = [field.name for field in fields]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if fields and doubled is None:
        return
    if not fields:
        message, remedy = "the statement returns no columns", "write a SELECT with the columns of the rows"
    elif doubled == "?column?":
        message, remedy = "the result has columns without a name", "name them: … as name"
    else:
        message = f"the result has two columns with the name {doubled}"
        remedy = "give each column its own name: r.id, c.name as customer; * of several tables returns duplicates"
    raise ConfigError(message, place=place, remedy=remedy, code=UNUSABLE)


def _result_columns(connection: PgConnection, file: SqlFile, results: Sequence[Sequence[Field]]) -> tuple[Column, ...]:
    """The columns of all operations' results, in the order in which they first come."""
    fields: dict[str, Field] = {}
    for field in (field for result in results for field in result if field.name != OPERATION):
        first = fields.setdefault(field.name, field)
        if first.type_oid != field.type_oid:
            raise _unusable(file, f"column {field.name} does not have the same type for every operation", "cast it")
        if first.typmod != field.typmod:
            fields[field.name] = replace(first, typmod=-1)
    types = source_types(connection, {(field.type_oid, field.typmod) for field in fields.values()})
    for field in fields.values():
        if types[field.type_oid, field.typmod].name in _PSEUDO:
            raise _unusable(
                file, f"the type of column {field.name} cannot be a table column's", "cast it, for example with ::text"
            )
    return tuple(_column(field, types[field.type_oid, field.typmod]) for field in fields.values())


def _column(field: Field, source_type: SourceType) -> Column:
    return Column(field.name, field.type_oid, field.typmod, source_type.name, definition=source_type.definition)


def _unusable(file: SqlFile, message: str, remedy: str) -> ConfigError:
    return ConfigError(message, place=Place(file.label), remedy=remedy, code=UNUSABLE)
