"""Only the columns that an input.sql looks at travel to it, and no query can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.pg import new_database
from fixtures.source_rows import Connection, listed, prepared, rows_of, schema_of, sql_session
from trucker.change import UPDATE, TableId, TableSchema
from trucker.errors import ConfigError
from trucker.postgres.source_query import PostgresQuery, run_query
from trucker.rows import Rows
from trucker.testing.server import Server

ALL = frozenset({"id", "a", "b", "c", "old__id", "old__a", "old__b", "old__c", "operation"})


@dataclass(frozen=True)
class Source:
    connection: Connection
    schema: TableSchema
    rows: Rows

    def prepare(self, text: str) -> PostgresQuery:
        return prepared(self.connection, text, self.schema)

    def answers(self, query: PostgresQuery) -> list[tuple[str | None, ...]]:
        return sorted(listed(run_query(self.connection, query, self.rows, rows_max=100_000)), key=str)

    def check(self, query: PostgresQuery) -> None:
        assert self.answers(query) == self.answers(replace(query, used=ALL))


@pytest.fixture(name="source", scope="module")
def _source(server: Server) -> Iterator[Source]:
    for database in new_database(server, "source"):
        database.execute(
            "create table t (id int primary key, a int, b int, c int)",
            "create table o (id int primary key, a int)",
            "insert into o select i, i % 3 from generate_series(1, 9) i",
        )
        schema = schema_of(database.connection, TableId("public", "t"))
        new = [[str(i * step % 11) for i in range(1, 12)] for step in (1, 2, 3, 5)]
        old = [[str(i * step % 13) for i in range(1, 12)] for step in (1, 5, 7, 9)]
        with sql_session(database.connection) as connection:
            yield Source(connection, schema, rows_of(schema, new, old, op=UPDATE))


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("select r.id from {{ rows }}", {"id"}),
        ("select * from {{ rows }}", ALL),
        ("select to_jsonb(r) as j from {{ rows }}", ALL),
        ("select count(r) as n from {{ rows }}", ALL),
        ("select r.id, o.a as o from {{ rows }} left join o on o.id = r.b where r.operation = 'update'", {"id", "b"}),
        ("with x as (select * from {{ rows }}) select x.c from x", {"c"}),
        ("with x(p, q, s, t) as (select * from {{ rows }}) select t from x", ALL),
        ("select j.z from ({{ rows }} cross join o) as j(x, y, z)", {"b"}),
        ("select to_jsonb(j) as x from ({{ rows }} cross join (select 1 as one) o) as j", ALL),
        ("with x as materialized (select r.a as p, r.b as q from {{ rows }}) select p from x", {"a", "b"}),
        ("select id from {{ rows }} union all select old__c from {{ rows }}", {"id", "old__c"}),
        ("select id, sum(b - old__b) over () as s from {{ rows }} natural join o", {"id", "a", "b", "old__b"}),
        ("select o.id from o where exists (select from {{ rows }} where r.id = o.id)", {"id"}),
        ("select o.id from o where o.id in (select c from {{ rows }})", {"c"}),
        ("select distinct on (a) b from {{ rows }} order by a, c desc", {"a", "b", "c"}),
        ("select x.k from {{ rows }} cross join lateral (select r.a * 2 as k) x order by r.b", {"a", "b"}),
        ("select (select max(o.a) from o where o.id = r.old__a) as m, c from {{ rows }}", {"old__a", "c"}),
        ("select 1 as one from {{ rows }}", set()),
        ("select r.a, p.a as b from {{ rows }} join (select * from {{ rows }}) p on p.old__id = r.id",
         {"a", "old__id", "id"}),
        ("select id, row_number() over (partition by a order by b) as n from {{ rows }}", {"id", "a", "b"}),
        ("{% if operation == 'delete' %}select old__a as x from {{ rows }}{% else %}select a as x from {{ rows }}"
         "{% endif %}", {"a", "old__a"}),
    ],
)  # fmt: skip
def test_the_columns_that_a_query_uses(source: Source, text: str, used: set[str]) -> None:
    query = source.prepare(text)
    assert query.used >= used
    assert query.used - {"operation"} == used - {"operation"}
    source.check(query)


COLUMN = st.sampled_from(["id", "a", "b", "c", "old__id", "old__a", "old__c"])
VALUE = st.one_of(
    COLUMN.map("r.{}".format),
    st.tuples(COLUMN, COLUMN).map(lambda two: f"r.{two[0]} - r.{two[1]}"),
    COLUMN.map("(select max(o.a) from o where o.id = r.{})".format),
    COLUMN.map("sum(r.{0}) over (partition by r.a order by r.id)".format),
    st.just("length(to_jsonb(r)::text)"),
    st.just("(r).b"),
)
SOURCE = st.sampled_from(
    ["{{ rows }}", "{{ rows }} left join o on o.id = r.b", "o right join {{ rows }} on o.id = r.old__a",
     "{{ rows }} join lateral (select r.c as k offset 0) l on true", "(select * from {{ rows }} offset 0) as r",
     "(select * from {{ rows }} union all select * from {{ rows }}) as r(id, a, b, c, old__id, old__a, old__b, old__c)",
     "{{ rows }} cross join (select count(*) as n from {{ rows }} where r.old__b > 3) n"]
)  # fmt: skip
WHERE = st.none() | st.tuples(COLUMN, COLUMN).map(lambda two: f"r.{two[0]} > r.{two[1]}") | COLUMN.map(
    "r.{} in (select o.id from o)".format
) | COLUMN.map("exists (select from o where o.a = r.{})".format)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUE, min_size=1, max_size=3), SOURCE, WHERE, st.sampled_from(["", " order by r.c", " limit 100"]))
def test_no_query_can_tell(source: Source, values: list[str], relation: str, where: str | None, end: str) -> None:
    listing = ", ".join(f"{value} as v{number}" for number, value in enumerate(values))
    text = f"select {listing} from {relation}{f' where {where}' if where else ''}{end}"
    try:
        query = source.prepare(text)
    except ConfigError:
        return
    source.check(query)
