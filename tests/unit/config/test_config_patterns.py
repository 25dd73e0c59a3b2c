"""Tables chosen by names and patterns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.change import TableId
from trucker.config.patterns import PatternError, is_pattern, missing_tables, parse_pattern, parse_table, select_tables

TABLES = [
    TableId("public", "orders"),
    TableId("public", "audit_log"),
    TableId("public", "Orders"),
    TableId("public", "a.b"),
    TableId("public", "a*b"),
    TableId("shop", "orders"),
    TableId("odd schema", 'say "hi"'),
]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["orders"], ["public.orders"]),
        (["public.orders"], ["public.orders"]),
        (["shop.orders", "orders"], ["public.orders", "shop.orders"]),
        (["Orders"], ["public.Orders"]),
        (["public.*"], ["public.orders", "public.audit_log", "public.Orders", "public.a.b", "public.a*b"]),
        (["*"], ["public.orders", "public.audit_log", "public.Orders", "public.a.b", "public.a*b"]),
        (["*.orders"], ["public.orders", "shop.orders"]),
        (["*.*", "!public.*"], ["shop.orders", 'odd schema.say "hi"']),
        (["!public.audit_*", "public.?udit_*", "shop.*"], ["shop.orders"]),
        (["?rders"], ["public.orders", "public.Orders"]),
        (['public."a*b"'], ["public.a*b"]),
        (['"a.b"'], ["public.a.b"]),
        (['"odd schema"."say ""hi"""'], ['odd schema.say "hi"']),
        (["! public.*", "*.*"], ["shop.orders", 'odd schema.say "hi"']),
        (["nothing.*"], []),
        (["rders"], []),
    ],
)
def test_select(patterns: list[str], chosen: list[str]) -> None:
    assert [str(table) for table in select_tables(patterns, TABLES)] == chosen


def test_a_table_is_chosen_once() -> None:
    assert select_tables(["orders", "*"], [TABLES[0], TABLES[0]]) == [TABLES[0]]


def test_missing() -> None:
    patterns = ["orders", "gone", "shop.gone", "gone.*", "!shop.nix", "gone"]
    assert missing_tables(patterns, TABLES) == [TableId("public", "gone"), TableId("shop", "gone")]


def test_is_pattern() -> None:
    assert [is_pattern(text) for text in ("a.*", "a?", "a.b", '"a*"', "!a.*")] == [True, True, False, False, True]


def test_parse_table() -> None:
    assert parse_table("a") == TableId("public", "a")
    assert parse_table("a", "main") == TableId("main", "a")
    assert parse_table('"x.y".a', "main") == TableId("x.y", "a")


@pytest.mark.parametrize("text", ["", "!", "a.", ".a", "a..b", "a.b.c", '"a', 'a"b', '""', "a b", "a.b c", "a.!b c"])
def test_bad_patterns(text: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(text)


@pytest.mark.parametrize("text", ["a.*", "!a", "?"])
def test_bad_tables(text: str) -> None:
    with pytest.raises(PatternError, match="a single table"):
        parse_table(text)


@settings(deadline=None)
@given(st.text(min_size=1), st.text(min_size=1))
def test_every_table_can_be_named_exactly(schema: str, name: str) -> None:
    table = TableId(schema, name)
    others = [TableId(schema, name + "x"), TableId(schema + "x", name), TableId(schema, "y" + name)]
    assert select_tables([table.quoted], [*others, table]) == [table]
    assert parse_table(table.quoted) == table
    assert select_tables(["*.*", f"!{table.quoted}"], [*others, table]) == others
