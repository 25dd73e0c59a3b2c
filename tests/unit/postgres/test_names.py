"""The names of slot and publication: allowed by PostgreSQL, and never the same for two projects."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trucker.postgres.slot import object_name

names = st.text(min_size=1, max_size=80)
likely = st.text(alphabet="ab_-A.1", min_size=1, max_size=8)


def test_simple_names_stay_readable() -> None:
    assert object_name("shop", "source_db") == "trucker_shop_source_db"


def test_what_is_lost_is_made_up_for_by_a_hash() -> None:
    assert re.fullmatch(r"trucker_my_shop_source_[0-9a-f]{10}", object_name("My-Shop", "source"))


@given(names, names)
def test_names_are_what_postgres_allows(unique_id: str, connection: str) -> None:
    name = object_name(unique_id, connection)
    assert re.fullmatch(r"[a-z0-9_]+", name)
    assert len(name) <= 63
    assert name == object_name(unique_id, connection)


@given(st.tuples(likely, likely), st.tuples(likely, likely))
def test_two_projects_never_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (object_name(*one) == object_name(*other)) == (one == other)
