"""The table of types against the server's own list."""

from __future__ import annotations

from fixtures.pg import Database
from fixtures.type_values import BUILT_IN as TESTED
from fixtures.type_values import NAMES
from trucker.types import BUILT_IN

# What only the server itself writes; nobody can type a value of them in.
INTERNAL = {
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}


def test_every_built_in_type_is_in_the_table(any_database: Database) -> None:
    """By name and oid: what is not there would be text by accident, and is missing from TYPES.md."""
    known = dict(
        any_database.query(
            "select t.typname::text, t.oid::int from pg_type t join pg_namespace n on n.oid = t.typnamespace"
            " where n.nspname = 'pg_catalog' and t.typtype in ('b', 'r', 'm')"
            " and t.typsubscript <> 'array_subscript_handler'::regproc"
            " or t.typname in ('int2vector', 'oidvector')"
        )
    )
    names = dict(any_database.query("select oid::int, format_type(oid, null) from pg_type where oid < 16384"))
    wanted = {names[oid]: oid for name, oid in known.items() if name not in INTERNAL}
    assert {each.name: each.oid for each in BUILT_IN} == wanted


def test_every_type_of_the_table_is_tested() -> None:
    tested = {kind.type.split("(")[0].strip('"') for kind in (*TESTED, *NAMES)}
    assert {each.name.strip('"') for each in BUILT_IN} <= tested
