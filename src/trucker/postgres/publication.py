"""The publication: which tables, columns and rows PostgreSQL sends.

Publishing a table can break the application that writes it: PostgreSQL refuses an UPDATE or DELETE of a published table
whose rows it cannot identify, or whose identity the column list or the row filter does not fit. Nothing is
therefore published that has not been checked (I11), and all of it changes in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import dict_row

from trucker.errors import SourceError
from trucker.pg.connection import PgConnection
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.catalog import identity_problem, load_table
from trucker.postgres.connect import translated
from trucker.source.publication import PublishedTable
from trucker.source.source_table import SourceTable
from trucker.table import TableId, quote_identifier

_OPERATIONS = ("insert", "update", "delete", "truncate")
_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"

_PUBLICATION = """
    select p.oid, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
           pg_get_userbyid(p.pubowner) as owner, pg_has_role(p.pubowner, 'USAGE') as owned
      from pg_publication p
     where p.pubname = %s"""

# prattrs and prqual, and publications of whole schemas, came with 15.
_MEMBERS = """
    select n.nspname, c.relname, to_jsonb(r) ->> 'prqual' as filter,
           (select array_agg(a.attname::text)
              from jsonb_array_elements_text(nullif(to_jsonb(r) -> 'prattrs', 'null')) as listed(number)
              join pg_attribute a on a.attrelid = r.prrelid and a.attnum = listed.number::int) as columns
      from pg_publication_rel r
      join pg_class c on c.oid = r.prrelid
      join pg_namespace n on n.oid = c.relnamespace
     where r.prpubid = %s"""

_PUBLISHED = """
    select t.schemaname, t.tablename, to_jsonb(t) -> 'attnames' as columns, to_jsonb(t) ->> 'rowfilter' as filter
      from pg_publication_tables t
     where t.pubname = %s"""

_FILTER_COLUMNS = "select attname from pg_attribute where attrelid = %s and attnum = any (%s) order by attnum"

_NOT_OWNED = """
    select c.oid::regclass::text, pg_get_userbyid(c.relowner)
      from pg_class c
     where c.oid = any (%s::oid[]) and not pg_has_role(c.relowner, 'USAGE')
     order by 1"""


@translated("making the publication")
def ensure_publication(
    connection: PgConnection, name: str, tables: Sequence[PublishedTable], *, managed: bool = True, dry: bool = False
) -> frozenset[TableId]:
    """Make the publication hold exactly these tables; or, where it is not `managed`, make sure that it serves them.

    Gives the tables that were not in it before, or with other columns or another condition: what was written to them
    until now is not in the stream as it is wanted. With `dry` nothing is changed. Raises `SourceError` and
    leaves everything as it was when a table cannot be published without harm, or a privilege is missing.
    `connection` must be in autocommit mode.
    """
    version = ServerFeatures.of(connection)
    _require_filters(version, tables)
    publication = None if managed else name
    sources = {wanted.table: load_table(connection, wanted.table, publication=publication) for wanted in tables}
    for source in sources.values():
        problem = identity_problem(source)
        if problem is not None:
            raise problem
    if managed:
        fitted = [_fitted(version, wanted, sources[wanted.table]) for wanted in tables]
        return _publish(connection, name, fitted, sources, dry=dry)
    problems = unserved(connection, name, tables, sources)
    if problems:
        raise problems[0]
    return frozenset()


@translated("publishing a table")
def publish_again(connection: PgConnection, name: str, wanted: PublishedTable, *, managed: bool = True) -> None:
    """Have the publication send a table that was made again under its name; nothing is done where it does already.

    One that is not `managed` must send it by itself. Raises `SourceError` and changes nothing as `ensure_publication`.
    """
    if not managed:
        ensure_publication(connection, name, [wanted], managed=False)
        return
    version, source = ServerFeatures.of(connection), load_table(connection, wanted.table)
    problem = identity_problem(source)
    row = _find(connection, name)
    problems = [*([problem] if problem else []), *_obstacles(connection, name, row, [source])]
    if problems:
        raise problems[0]
    if row is None or wanted.table in _contents(connection, row):
        return  # capture reports a publication that is gone
    clause = _table_clause(_fitted(version, wanted, source))
    # Another truck's copy may add it at the same time.
    with suppress(errors.DuplicateObject), connection.transaction():
        connection.execute(f"alter publication {quote_identifier(name)} add table {clause}".encode())
        if wanted.where:
            member = next(m for m in _rows(connection, _MEMBERS, [row["oid"]]) if _is_of(m, wanted.table))
            if problem := filter_problem(connection, source, member["filter"]):
                raise problem


def _is_of(member: Mapping[str, Any], table: TableId) -> bool:
    return (member["nspname"], member["relname"]) == (table.schema, table.name)


@translated("dropping the publication")
def drop_publication(connection: PgConnection, name: str) -> bool:
    """Drop the publication; False where there is none."""
    row = _find(connection, name)
    if row is None:
        return False
    _require_publication_owner(connection, name, row)
    connection.execute(f"drop publication if exists {quote_identifier(name)}".encode())
    return True


# -- a publication of trucker's own ---------------------------------------------------------------------------------


def _fitted(version: ServerFeatures, wanted: PublishedTable, source: SourceTable) -> PublishedTable:
    """The columns that can be listed: with the identity's added, and none at all under FULL or before 15."""
    if wanted.columns is None:
        return wanted
    unknown = [name for name in wanted.columns if name not in source.schema.names]
    if unknown:
        generated = [name for name in unknown if name in source.generated]
        raise SourceError(
            f"table {wanted.table} has no column {unknown[0]!r} to publish"
            + (": it is generated" if generated else ""),
            remedy=f"its columns are {', '.join(source.schema.names)}",
            code="TRK214",
        )
    if not version.column_lists or any(leaf.identity == "f" for leaf in source.leaves):
        return PublishedTable(wanted.table, None, wanted.where)
    identities = (name for leaf in source.leaves for name in leaf.identity_columns)
    needed = {*wanted.columns, *source.identity_columns, *source.schema.key, *identities}
    if needed >= set(source.schema.names):
        return PublishedTable(wanted.table, None, wanted.where)
    return PublishedTable(wanted.table, tuple(name for name in source.schema.names if name in needed), wanted.where)


def _publish(
    connection: PgConnection,
    name: str,
    tables: Sequence[PublishedTable],
    sources: Mapping[TableId, SourceTable],
    *,
    dry: bool,
) -> frozenset[TableId]:
    row = _find(connection, name)
    if row is not None and _is_as_wanted(connection, row, tables):
        return frozenset()
    problems = _obstacles(connection, name, row, list(sources.values()))
    if problems:
        raise problems[0]
    try:
        with connection.transaction(force_rollback=dry):
            before = _contents(connection, row)
            for statement in _statements(name, row, tables):
                connection.execute(statement.encode())
            _verify_filters(connection, name, tables, sources)
            after = _contents(connection, _find(connection, name))
    except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
        raise SourceError(
            f"publication {name}: {error.diag.message_primary}",
            remedy=error.diag.message_hint or error.diag.message_detail or "check the truck's `where` and columns",
            code="TRK213",
        ) from None

    return frozenset(table for table, content in after.items() if before.get(table) != content)


def _contents(
    connection: PgConnection, row: Mapping[str, Any] | None
) -> dict[TableId, tuple[frozenset[str] | None, str]]:
    """The publication's tables, each with its columns and condition as PostgreSQL keeps them, to be compared."""
    members = _rows(connection, _MEMBERS, [row["oid"]]) if row is not None else []
    return {
        TableId(member["nspname"], member["relname"]): (
            frozenset(member["columns"]) if member["columns"] else None,
            re.sub(r" :location -?\d+", "", member["filter"] or ""),
        )
        for member in members
    }


def unmanageable(
    connection: PgConnection,
    name: str,
    tables: Sequence[PublishedTable],
    sources: Mapping[TableId, SourceTable],
) -> list[SourceError]:
    """Everything that keeps the role from making the publication as wanted; nothing where it is so already."""
    version = ServerFeatures.of(connection)
    row = _find(connection, name)
    fitted = [_fitted(version, wanted, sources[wanted.table]) for wanted in tables]
    if row is not None and _is_as_wanted(connection, row, fitted):
        return []
    return _obstacles(connection, name, row, list(sources.values()))


def _statements(name: str, row: Mapping[str, Any] | None, tables: Sequence[PublishedTable]) -> list[str]:
    """ONLY keeps the children of an inheritance parent out; partitions come with their root all the same.

    Options are set only where they are wrong: it writes the publication's row anew, which counts as an alteration
    (`postgres.membership`).
    """
    quoted = quote_identifier(name)
    listed = ", ".join(_table_clause(wanted) for wanted in tables)
    if row is None:
        members = f" for table {listed}" if tables else ""
        return [f"create publication {quoted}{members} with ({_OPTIONS})"]
    change = [f"alter publication {quoted} set ({_OPTIONS})"] if _unpublished(row) or not row["pubviaroot"] else []
    # A list cannot be set to nothing; a publication without tables is dropped and made again.
    if not tables:
        return [f"drop publication {quoted}", f"create publication {quoted} with ({_OPTIONS})"]
    return [*change, f"alter publication {quoted} set table {listed}"]


def _table_clause(wanted: PublishedTable) -> str:
    columns = f" ({', '.join(quote_identifier(name) for name in wanted.columns)})" if wanted.columns else ""
    where = f" where ({wanted.where}\n)" if wanted.where else ""
    return f"only {wanted.table.quoted}{columns}{where}"


def _is_as_wanted(connection: PgConnection, row: Mapping[str, Any], tables: Sequence[PublishedTable]) -> bool:
    """Whether nothing has to change. With a row filter PostgreSQL has to be asked: it alone can compare conditions."""
    if any(wanted.where for wanted in tables) or row["puballtables"] or not row["pubviaroot"] or _unpublished(row):
        return False
    published = {}
    for member in _rows(connection, _MEMBERS, [row["oid"]]):
        if member["filter"]:
            return False
        columns = frozenset(member["columns"]) if member["columns"] else None
        published[TableId(member["nspname"], member["relname"])] = columns
    return published == {wanted.table: frozenset(wanted.columns) if wanted.columns else None for wanted in tables}


def _verify_filters(
    connection: PgConnection,
    name: str,
    tables: Sequence[PublishedTable],
    sources: Mapping[TableId, SourceTable],
) -> None:
    """A row filter may use the identity's columns only; PostgreSQL checks that late, at the application's UPDATE."""
    if not any(wanted.where for wanted in tables):
        return
    row = _find(connection, name)
    assert row is not None
    for member in _rows(connection, _MEMBERS, [row["oid"]]):
        source = sources[TableId(member["nspname"], member["relname"])]
        problem = filter_problem(connection, source, member["filter"])
        if problem is not None:
            raise problem


def filter_problem(connection: PgConnection, source: SourceTable, expression: str | None) -> SourceError | None:
    """Why a row filter, as PostgreSQL stores it, would break the application's UPDATE or DELETE of the table."""
    if not expression or source.whole_rows:
        return None
    numbers = sorted({int(number) for number in re.findall(r":varattno (\d+)", expression)})
    used = [column for (column,) in connection.execute(_FILTER_COLUMNS, [source.oid, numbers])]
    return outside_identity(source, used)


def outside_identity(source: SourceTable, used: Sequence[str]) -> SourceError | None:
    """An error where a condition on the columns `used` does not keep to the identity."""
    outside = [name for name in used if name not in source.identity_columns]
    if not outside or source.whole_rows:
        return None
    return SourceError(
        f"table {source.table}: `where` uses {', '.join(outside)}, which the replica identity does not contain: "
        "PostgreSQL would refuse every UPDATE and DELETE of the table",
        remedy="use key columns only, or run: " + "; ".join(_make_full(source)),
        code="TRK213",
    )


def _make_full(source: SourceTable) -> list[str]:
    return [f"ALTER TABLE {leaf.table.quoted} REPLICA IDENTITY FULL" for leaf in source.leaves]


# -- a publication made beforehand ------------------------------------------------------------------------------------


def unserved(
    connection: PgConnection,
    name: str,
    tables: Sequence[PublishedTable],
    sources: Mapping[TableId, SourceTable],
) -> list[SourceError]:
    """Everything in which a publication that is not trucker's own falls short of what is wanted."""
    row = _find(connection, name)
    quoted = quote_identifier(name)
    if row is None:
        listed = ", ".join(_table_clause(wanted) for wanted in tables)
        remedy = f"run: CREATE PUBLICATION {quoted} FOR TABLE {listed} WITH ({_OPTIONS})"
        return [SourceError(f"publication {name} does not exist", remedy=remedy, code="TRK240")]
    problems = []
    if lacking := _unpublished(row):
        problems.append(
            SourceError(
                f"publication {name} does not publish {', '.join(lacking)}",
                remedy=f"run: ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate')",
                code="TRK240",
            )
        )
    if not row["pubviaroot"] and any(source.partitioned for source in sources.values()):
        problems.append(
            SourceError(
                f"publication {name} sends the changes of partitions under the partitions' names",
                remedy=f"run: ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true)",
                code="TRK240",
            )
        )
        return problems
    members = {TableId(m["schemaname"], m["tablename"]): m for m in _rows(connection, _PUBLISHED, [name])}
    for wanted in tables:
        problem = _shortfall(quoted, wanted, sources[wanted.table], members.get(wanted.table))
        if problem is not None:
            problems.append(problem)
    return problems


def _shortfall(
    quoted: str, wanted: PublishedTable, source: SourceTable, member: Mapping[str, Any] | None
) -> SourceError | None:
    name = quoted.strip('"')
    if member is None:
        remedy = f"run: ALTER PUBLICATION {quoted} ADD TABLE {_table_clause(wanted)}"
        return SourceError(f"publication {name} does not contain table {wanted.table}", remedy=remedy, code="TRK240")
    published = frozenset(member["columns"] or source.schema.names)
    missing = [column for column in wanted.columns or source.schema.names if column not in published]
    if missing:
        return SourceError(
            f"publication {name} does not send {', '.join(missing)} of table {wanted.table}",
            remedy="leave them out with `only_columns` or `except_columns`, or add them to the publication",
            code="TRK240",
        )
    if _normal(member["filter"]) != _normal(wanted.where):
        theirs = member["filter"] or "none"
        return SourceError(
            f"publication {name} has another row filter for table {wanted.table} than the truck: {theirs}",
            remedy=f"give the truck exactly this `where`: {theirs}" if member["filter"] else "remove `where`",
            code="TRK240",
        )
    return None


def _normal(expression: str | None) -> str | None:
    """A condition without white space and outer parentheses."""
    if not expression:
        return None
    text = re.sub(r"\s+", "", expression)
    while text.startswith("(") and text.endswith(")") and _closes_at_end(text):
        text = text[1:-1]
    return text


def _closes_at_end(text: str) -> bool:
    """Whether the parenthesis that opens the text is the one that ends it."""
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position == len(text) - 1
    return False


# -- both -------------------------------------------------------------------------------------------------------------


def _require_filters(version: ServerFeatures, tables: Sequence[PublishedTable]) -> None:
    for wanted in tables:
        if wanted.where:
            version.require("row_filters", f"table {wanted.table}", "remove `where`, or upgrade the server")


def _obstacles(
    connection: PgConnection, name: str, row: Mapping[str, Any] | None, sources: Sequence[SourceTable]
) -> list[SourceError]:
    """What is in the way of creating or changing the publication, each with the statement that clears it."""
    if row is not None and row["puballtables"]:
        drop = f"DROP PUBLICATION {quote_identifier(name)}"
        return [
            SourceError(
                f"publication {name} is FOR ALL TABLES, so tables cannot be added to it",
                remedy=f"run: {drop}  (or set `publication` to its name to use it without changes)",
                code="TRK240",
            )
        ]
    user = quote_identifier(_current_user(connection))
    problems = []
    if row is None and not _may_create(connection):
        database = quote_identifier(connection.info.dbname)
        problems.append(
            SourceError(
                f"user {user} may not create publication {name}",
                remedy=f"run: GRANT CREATE ON DATABASE {database} TO {user}",
                code="TRK220",
            )
        )
    if row is not None and not row["owned"]:
        problems.append(_not_publication_owner(name, row, user))
    oids = [source.oid for source in sources]
    problems += [
        SourceError(
            f"user {user} is not the owner of table {table} and may not publish it",
            remedy=f"run: ALTER TABLE {table} OWNER TO {user}  or: GRANT {quote_identifier(owner)} TO {user}  "
            "(or create the publication yourself and set `publication` to its name)",
            code="TRK220",
        )
        for table, owner in connection.execute(_NOT_OWNED, [oids])
    ]
    return problems


def _require_publication_owner(connection: PgConnection, name: str, row: Mapping[str, Any]) -> None:
    if not row["owned"]:
        raise _not_publication_owner(name, row, quote_identifier(_current_user(connection)))


def _not_publication_owner(name: str, row: Mapping[str, Any], user: str) -> SourceError:
    return SourceError(
        f"publication {name} belongs to {row['owner']}",
        remedy=f"run: ALTER PUBLICATION {quote_identifier(name)} OWNER TO {user}",
        code="TRK220",
    )


def _find(connection: PgConnection, name: str) -> dict[str, Any] | None:
    return next(iter(_rows(connection, _PUBLICATION, [name])), None)


def _unpublished(row: Mapping[str, Any]) -> list[str]:
    return [operation for operation in _OPERATIONS if not row[f"pub{operation}"]]


def _current_user(connection: PgConnection) -> str:
    row = connection.execute("select current_user").fetchone()
    return str(row[0]) if row else connection.info.user


def _may_create(connection: PgConnection) -> bool:
    row = connection.execute("select has_database_privilege(current_database(), 'CREATE')").fetchone()
    return bool(row and row[0])


def _rows(connection: PgConnection, query: str, arguments: Any) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), arguments).fetchall()
