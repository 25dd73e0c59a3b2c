"""Subjects of NATS: what a table's name becomes, and what a stream takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trucker.sinks.nats.subjects import escaped, is_taken, subject_of
from trucker.table import TableId

NAMES = st.text(max_size=20)


def test_what_nats_does_not_allow_is_escaped() -> None:
    assert escaped("orders_2026-é") == "orders_2026-é"
    assert escaped("a.b c*>%") == "a%2Eb%20c%2A%3E%25"
    assert escaped("") == "%"
    assert escaped("\u2028") == "%E2%80%A8"


@given(NAMES)
def test_a_name_is_one_token(name: str) -> None:
    token = escaped(name)
    assert token
    assert not set(token) & set(" .*>\t\r\n\0")
    assert len(token.split()) == 1


@given(NAMES, NAMES)
def test_names_stay_different(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (one == other)


def test_the_template_gives_the_subject() -> None:
    table = TableId("public", "odd.name")
    assert subject_of("app.{{ schema }}.{{ table }}", table, "shop.1") == "app.public.odd%2Ename"
    assert subject_of("app.{{ truck }}.{{ table | upper }}", table, "shop.1") == "app.shop%2E1.ODD%2ENAME"


def test_wildcards_match_as_at_the_server() -> None:
    assert is_taken(["app.>"], "app.public.orders")
    assert is_taken(["other", "app.*.orders"], "app.public.orders")
    assert is_taken(["app.public.orders"], "app.public.orders")
    assert not is_taken(["app.>"], "app")
    assert not is_taken(["app.*"], "app.public.orders")
    assert not is_taken(["app.public.orders"], "app.public.order")
    assert not is_taken([], "app")
