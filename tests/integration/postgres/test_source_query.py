"""`input.sql` on a real source: rows in and out exactly, in runs and by operation, bounded, and never as SQL."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.pg import Database, new_database
from fixtures.source_rows import Connection, input_sql, listed, prepared, rows_of, schema_of, sql_session, texts
from fixtures.type_values import NAMES, all_kinds, columns_of, create, create_user_types, fill
from trucker.change import DELETE, INSERT, UPDATE, Column, TableId, TableSchema, quote_identifier
from trucker.errors import ConfigError, Place, SourceError, SourceUnavailable, TruckerError
from trucker.postgres.source_query import prepare_query, run_query
from trucker.rows import POSITION, Rows
from trucker.slow_sql import SlowQueries
from trucker.testing.server import Server

MOST = 1_000_000


def public(name: str) -> TableId:
    return TableId("public", name)


@dataclass(frozen=True)
class Shop:
    """A source with items and customers, a session on it, and what is known of `item`."""

    database: Database
    connection: Connection
    item: TableSchema

    def run(self, text: str, rows: Rows, *, rows_max: int = MOST) -> Rows:
        return run_query(self.connection, prepared(self.connection, text, self.item), rows, rows_max=rows_max)

    def mistake(self, text: str) -> TruckerError:
        with pytest.raises(TruckerError) as caught:
            prepared(self.connection, text, self.item)
        return caught.value

    def failure(self, text: str, rows: Rows, *, rows_max: int = MOST) -> TruckerError:
        with pytest.raises(TruckerError) as caught:
            self.run(text, rows, rows_max=rows_max)
        # The session is fit for the next statement.
        assert self.connection.execute("select 1").fetchone() == (1,)
        return caught.value


@pytest.fixture(name="shop", scope="module")
def _shop(server: Server) -> Iterator[Shop]:
    for database in new_database(server, "source"):
        database.execute(
            "create table item (id int primary key, customer int, price numeric(10,2), note varchar(40), tags text[])",
            "create table customer (id int primary key, name text)",
            "insert into customer select i, 'customer ' || i from generate_series(1, 1000) i",
            "create function boom() returns int language plpgsql as $$ begin raise 'secret value %', 42; end $$",
        )
        with sql_session(database.connection) as connection:
            yield Shop(database, connection, schema_of(database.connection, public("item")))


def items(shop: Shop, *ids: int, op: int = INSERT) -> Rows:
    columns: list[list[str | None]] = [[str(i) for i in ids], ["7"] * len(ids), ["1.50"] * len(ids)]
    columns += [[None] * len(ids), ['{a,"b,c"}'] * len(ids)]
    return rows_of(shop.item, columns, op=op)


# -- exactly --------------------------------------------------------------------------------------------------------


def test_values_of_every_type_come_back_as_they_were(any_database: Database) -> None:
    """New and old values, NULLs, arrays of arrays: the same text, and the type that the column has."""
    with any_database.connect() as connection:
        create_user_types(connection)
        kinds = [*all_kinds(connection), *NAMES]
        columns = columns_of(kinds)
        connection.execute("select setseed(0.4)")
        connection.execute(create("public.every", columns).encode())
        connection.execute(fill("public.every", columns, rows=60).encode())
    schema = schema_of(any_database.connection, public("every"))
    names = ", ".join(quote_identifier(name) for name in schema.names)
    with sql_session(any_database.connection) as connection:
        cells = texts(connection, f"select {names} from public.every order by id")
        turned = [pa.concat_arrays([column.slice(1), column.slice(0, 1)]) for column in cells]
        rows = rows_of(schema, cells, turned, op=UPDATE)
        found = run_query(connection, prepared(connection, "select * from {{ rows }}", schema), rows, rows_max=MOST)
        assert found.names == rows.names
        for place, name in enumerate(found.names):
            assert found.cells.column(place).equals(rows.cells.column(place)), name
        assert [column.type_name for column in found.columns] == 2 * [column.type_name for column in schema.columns]
        declared = texts(connection, f"select {_types(schema, 't')} from public.every t limit 1")
        query = prepared(connection, f"select {_types(schema, 'r')} from {{{{ rows }}}} limit 1", schema)
        given = run_query(connection, query, rows, rows_max=MOST).cells.columns
    strict = {column.name for column in columns if not column.kind.null}
    assert strict
    for name, wanted, got in zip(schema.names, declared, given, strict=True):
        assert (got == wanted) or name in strict, name


def _types(schema: TableSchema, alias: str) -> str:
    return ", ".join(f"pg_typeof({alias}.{quote_identifier(n)}) as {quote_identifier(n)}" for n in schema.names)


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
CELLS = st.none() | TEXTS | st.sampled_from(
    ["", "NULL", "null", "{}", '"', "\\", '\\"', "'", "a,b", "{a}", " ", "\n", "\\N", "$1", "');drop table item;--"]
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=30))
def test_any_text_is_data(shop: Shop, cells: list[tuple[str | None, str | None]]) -> None:
    schema = TableSchema(
        public("item"), (shop.item.column("id"), _named(shop, "note", -1), _named(shop, "tags", -1)), ("id",)
    )
    ids = [str(number) for number in range(len(cells))]
    lists = [None if text is None else _array_of(text) for _, text in cells]
    rows = rows_of(schema, [ids, [text for text, _ in cells], lists])
    query = prepared(shop.connection, "select r.note, r.tags, r.tags[1] as first, r.id from {{ rows }}", schema)
    found = listed(run_query(shop.connection, query, rows, rows_max=MOST))
    assert [(row[0], row[2]) for row in found] == cells
    assert [row[3] for row in found] == ids


def _named(shop: Shop, name: str, typmod: int) -> Column:
    return replace(shop.item.column(name), typmod=typmod)


def _array_of(text: str) -> str:
    return '{"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"}'


def test_a_hundred_thousand_rows_in_one_statement(shop: Shop) -> None:
    count = 100_000
    ids = pa.array(np.arange(count)).cast(pa.string())
    rows = rows_of(shop.item, [ids, ids, ids, pa.nulls(count, pa.string()), pa.nulls(count, pa.string())], op=INSERT)
    text = """select r.id, c.name, r.operation, count(*) over () as all_of_them
        from {{ rows }} left join customer c on c.id = r.customer order by r.id"""
    found = shop.run(text, rows)
    assert len(found) == count
    assert found.cells.column("all_of_them").unique().to_pylist() == [str(count)]
    assert found.cells.column("name").null_count == count - 1000
    assert found.cells.column("id").equals(ids)


def test_types_of_what_it_gives(shop: Shop) -> None:
    text = """select r.id, r.price, r.note, {{ old.price }} as was, c.name, now() as at, r.tags || 'x'::text as more
        from {{ rows }} join public.customer c on true"""
    query = prepared(shop.connection, text, shop.item)
    assert [(column.name, column.type_name) for column in query.columns] == [
        ("id", "integer"),
        ("price", "numeric(10,2)"),
        ("note", "character varying(40)"),
        ("was", "numeric(10,2)"),
        ("name", "text"),
        ("at", "timestamp with time zone"),
        ("more", "text[]"),
    ]
    assert pickle.loads(pickle.dumps(query)) == query


# -- runs and operations --------------------------------------------------------------------------------------------


def mixed(shop: Shop) -> Rows:
    """Two runs, with all operations in the first."""
    op = [INSERT, DELETE, UPDATE, INSERT, UPDATE]
    new: list[list[str | None]] = [["1", None, "3", "4", "5"], ["1", None, "3", "4", "5"], *[[None] * 5] * 3]
    old: list[list[str | None]] = [[None, "2", "3", None, "5"], [None, "2", "9", None, "5"], *[[None] * 5] * 3]
    return rows_of(shop.item, new, old, op=op, run=[0, 0, 0, 0, 1])


def test_with_a_column_operation_a_run_is_one_statement(shop: Shop) -> None:
    text = """select coalesce(r.id, r.old__id) as id, r.operation, count(*) over () as together
        from {{ rows }} order by 1"""
    found = shop.run(text, mixed(shop))
    assert found.names == ("id", "together")
    assert listed(found) == [("1", "4"), ("2", "4"), ("3", "4"), ("4", "4"), ("5", "1")]
    assert found.op.tolist() == [INSERT, DELETE, UPDATE, INSERT, UPDATE]
    assert found.run.tolist() == [0, 0, 0, 0, 1]


def test_without_one_each_operation_runs_separately(shop: Shop) -> None:
    """Deletes come first, then updates, then inserts; the rows keep the operation."""
    found = shop.run(
        "select coalesce(r.id, r.old__id) as id, count(*) over () as together from {{ rows }}", mixed(shop)
    )
    assert listed(found) == [("2", "1"), ("3", "1"), ("1", "2"), ("4", "2"), ("5", "1")]
    assert found.op.tolist() == [DELETE, UPDATE, INSERT, INSERT, UPDATE]
    assert found.run.tolist() == [0, 0, 0, 0, 1]


def test_a_template_may_say_something_else_for_each_operation(shop: Shop) -> None:
    """What one operation does not give is NULL; one may give nothing at all, and not even look at its rows."""
    text = """
        {% if operation == "delete" -%}
            select {{ old.id }} as id from {{ rows }}
        {%- elif operation == "update" -%}
            select 1 as id where false
        {%- else -%}
            select {{ new.id }}, '{{ operation }} of {{ input_table }}' as what from {{ rows }}
        {%- endif %};"""
    found = shop.run(text, mixed(shop))
    assert found.names == ("id", "what")
    assert listed(found) == [("2", None), ("1", "insert of public.item"), ("4", "insert of public.item")]
    assert found.op.tolist() == [DELETE, INSERT, INSERT]


def test_a_query_may_change_the_operation(shop: Shop) -> None:
    found = shop.run("select r.id, 'delete' as operation from {{ rows }} where r.id = 1", mixed(shop))
    assert (listed(found), found.op.tolist()) == ([("1",)], [DELETE])


@pytest.mark.parametrize("operation", ["'upsert'", "null::text", "'Insert'"])
def test_an_operation_that_is_none_is_refused(shop: Shop, operation: str) -> None:
    error = shop.failure(f"select r.id, {operation} as operation from {{{{ rows }}}}", items(shop, 1))
    assert error.code == "TRK270"


def test_no_row_is_fine(shop: Shop) -> None:
    query = prepared(shop.connection, "select r.id, r.operation from {{ rows }} where false", shop.item)
    for rows in (items(shop, 1, 2), items(shop)):
        found = run_query(shop.connection, query, rows, rows_max=MOST)
        assert (len(found), found.names) == (0, ("id",))


def test_positions(shop: Shop) -> None:
    """`compact: none`: where a change stands is a column like any other."""
    values = ["1/2A", "2026-01-02 03:04:05.000006+00", "4294967296", "3"]
    rows = rows_of(shop.item, [["1"]] * 5, more={c: [v] for c, v in zip(POSITION, values, strict=True)})
    rows = Rows(rows.columns, rows.cells.set_column(4, "tags", pa.array(["{}"])), rows.op, rows.run)
    text = "select commit_lsn, commit_time, xid, ordinal from {{ rows }}"
    query = prepared(shop.connection, text, shop.item, positions=True)
    assert listed(run_query(shop.connection, query, rows, rows_max=MOST)) == [tuple(values)]
    assert [c.type_name for c in query.columns] == [c.type_name for c in POSITION]


# -- bounds ---------------------------------------------------------------------------------------------------------


def test_a_product_is_stopped(shop: Shop) -> None:
    """Before the server has made all of it: there would be a billion rows."""
    text = "select a.id from {{ rows }}, customer a, customer b, customer c"
    error = shop.failure(text, items(shop, 1), rows_max=5000)
    assert (error.code, error.transient) == ("TRK271", False)
    assert "5000 rows" in error.message
    assert len(shop.run("select c.id from {{ rows }}, customer c", items(shop, 1), rows_max=1000)) == 1000


def test_a_statement_that_takes_too_long_is_ended(shop: Shop) -> None:
    timeouts = shop.database.connection.timeouts.model_copy(update={"statement": 1.0})
    config = shop.database.connection.model_copy(update={"timeouts": timeouts})
    with sql_session(config) as connection:
        query = prepared(connection, "select r.id, pg_sleep(60)::text as x from {{ rows }}", shop.item)
        with pytest.raises(SourceError, match="took longer than 1 s") as caught:
            run_query(connection, query, items(shop, 1), rows_max=MOST)
    assert (caught.value.code, caught.value.transient) == ("TRK272", False)


def test_a_cancelled_statement_is_a_transient_error(shop: Shop) -> None:
    text = "select r.id, pg_cancel_backend(pg_backend_pid()) as x, pg_sleep(60)::text as y from {{ rows }}"
    error = shop.failure(text, items(shop, 1))
    assert isinstance(error, SourceUnavailable)


def test_slow_statements_are_logged_without_their_data(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    query = prepared(shop.connection, "select r.id, c.name from {{ rows }}, customer c limit 3", shop.item)
    for threshold in (0, 3_600_000):
        slow = SlowQueries("shop", threshold)
        with caplog.at_level(logging.INFO, "trucker.slow"):
            run_query(shop.connection, query, items(shop, 4711), rows_max=MOST, slow=slow)
    (record,) = caplog.records
    told = vars(record)
    assert (told["truck"], told["file"], told["rows"], told["rows_out"]) == ("shop", "trucks/t/input.sql", 1, 3)
    assert told["milliseconds"] >= 0
    assert "4711" not in caplog.text


# -- what is wrong with it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "words", "remedy"),
    [
        ("select r.id,\n  r.nte\nfrom {{ rows }}", (2, 3), "column r.nte does not exist", '"r.note"'),
        ("select r.idcustomer from {{ rows }}", (1, 8), "r.idcustomer does not exist", '"r.customer"'),
        ("select r.zz from {{ rows }}", (1, 8), "column r.zz does not exist", "the columns of r are id, customer"),
        ("select {{ new.nte }} from {{ rows }}", (1, 11), "unknown column new.nte", 'did you mean "note"?'),
        ("{# x #}\n\nselect r.id from {{ rows }} joyn customer c on c.id = r.id", (3, 29), "syntax error", "correct"),
        ("select r.id from {{ rows }} join customers c using (id)", (1, 34), '"customers" does not exist', "schema"),
        ("select r.id from {{ rows }} join nowhere.x using (id)", (1, 34), "nowhere.x", "schema.table"),
        ("select r.id, r.id from {{ rows }}", (1, 1), "two columns with the name id", "give each column its own name"),
        ("select r.*, c.* from {{ rows }} join customer c using (id)", (1, 1),
         "two columns with the name id", "duplicates"),
        ("select r.id, 1, 2 from {{ rows }}", (1, 1), "without a name", "as name"),
        ("select r.id from {{ rows }};\nselect 2", (2, 1), "more than one statement", "WITH"),
        (" -- {{ rows }}", (), "no statement", "SELECT"),
        ("select 1 as x", (), "does not use {{ rows }}", "{{ rows }}"),
        ("select '{{ rows }}' as x /* {{ rows }} */", (), "does not use {{ rows }}", "{{ rows }}"),
        ("/* {{ rows }} */ -- {{ rows }}\nselect r.id,\n r.nte from {{ rows }}", (3, 2), "r.nte", '"r.note"'),
        ("select row(r.id) as x from {{ rows }}", (), "cannot be a table column's", "::text"),
        ("insert into customer select r.id from {{ rows }} returning id", (1, 1), "writes", "SELECT"),
        ("with x as (delete from customer returning id) select r.id from {{ rows }}, x", (1, 1), "writes", "SELECT"),
        ("select r.id from {{ rows }} join customer c using (id) for update of c", (1, 1), "locks rows", "SELECT"),
        ("select from {{ rows }}", (1, 1), "returns no columns", "SELECT"),
        ("{% if operation == 'insert' %}select 1 as x{% else %}select 'a' as x{% endif %} from {{ rows }}", (),
         "does not have the same type", "cast"),
        ("select r.id + r.note as x from {{ rows }}", (1, 13), "operator does not exist", ""),
        ("select nosuch(r.id) as x from {{ rows }}", (1, 8), "function nosuch(integer) does not exist", ""),
    ],
)  # fmt: skip
def test_mistakes_are_reported_before_it_runs(
    shop: Shop, text: str, place: tuple[int, ...], words: str, remedy: str
) -> None:
    error = shop.mistake(text)
    assert isinstance(error, ConfigError)
    assert error.place == Place("trucks/t/input.sql", *place)
    assert words in error.message
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / (r.id - r.id)", "division by zero"),
        ("r.note::int", "invalid text representation"),
        ("public.boom()", "raise exception"),
        ("(select c.id from customer c)", "cardinality violation"),
    ],
)
def test_a_failure_on_rows_is_reported_without_their_data(shop: Shop, expression: str, words: str) -> None:
    """PostgreSQL's own words for some of these repeat the value (I10)."""
    rows = items(shop, 1)
    rows = Rows(rows.columns, rows.cells.set_column(3, "note", pa.array(["secret"])), rows.op, rows.run)
    error = shop.failure(f"select {expression} as x from {{{{ rows }}}}", rows)
    assert (error.code, error.transient) == ("TRK270", False)
    assert error.message == f"trucks/t/input.sql: {words}"
    assert "secret" not in str(error)


def test_a_missing_privilege_is_reported_before_it_runs(shop: Shop) -> None:
    shop.database.execute(
        "create role clerk_of_rows login password 'clerk'",
        "grant select on item to clerk_of_rows",
    )
    try:
        with sql_session(shop.database.as_user("clerk_of_rows", "clerk")) as connection:
            text = "select c.id from {{ rows }} join customer c using (id)"
            with pytest.raises(ConfigError, match="permission denied for table customer") as caught:
                prepared(connection, text, shop.item)
            assert 'TO "clerk_of_rows"' in caught.value.remedy
            assert prepared(connection, "select i.id from {{ rows }} join item i using (id)", shop.item)
    finally:
        shop.database.execute("drop owned by clerk_of_rows", "drop role clerk_of_rows")


def test_nothing_can_be_written_at_the_source(shop: Shop) -> None:
    shop.database.execute(
        "create function public.sneaky() returns int language sql volatile as"
        " 'insert into public.customer values (-1) returning id'"
    )
    error = shop.failure("select public.sneaky() as x from {{ rows }}", items(shop, 1))
    assert "read-only transaction" in error.message
    assert shop.database.query("select from customer where id = -1") == []


def test_names_are_found_by_the_roles_search_path(shop: Shop) -> None:
    shop.database.execute(
        "create schema aside",
        "create table aside.far as select 1 as id",
        f'alter role postgres in database "{shop.database.name}" set search_path = aside, public',
    )
    try:
        with sql_session(shop.database.connection) as connection:
            query = prepared(
                connection, "select f.id, c.name from {{ rows }} join far f using (id), customer c", shop.item
            )
            assert len(run_query(connection, query, items(shop, 1), rows_max=MOST)) == 1000
    finally:
        shop.database.execute(f'alter role postgres in database "{shop.database.name}" reset search_path')


# -- names are no SQL -----------------------------------------------------------------------------------------------

EVIL = "a\"b'; drop table public.victim; --\\ $1 {{ x }}"


def test_no_name_is_sql(database: Database) -> None:
    name, column = quote_identifier(f"E{EVIL}"[:60]), quote_identifier(EVIL[:50])
    table_name = quote_identifier(f"T{EVIL}"[:60])
    database.execute(
        "create table victim (id int)",
        f"create schema {quote_identifier(EVIL[:40])}",
        f"create type {quote_identifier(EVIL[:40])}.{name} as enum ('x', '\"); drop table victim; --')",
        f"create domain {quote_identifier(EVIL[:40])}.{column} as int not null",
        f"create table {quote_identifier(EVIL[:40])}.{table_name} ({column} int primary key,"
        f" e {quote_identifier(EVIL[:40])}.{name}, d {quote_identifier(EVIL[:40])}.{column})",
    )
    table = TableId(EVIL[:40], f"T{EVIL}"[:60])
    schema = schema_of(database.connection, table)
    rows = rows_of(schema, [["1"], ['"); drop table victim; --'], ["3"]])
    with sql_session(database.connection) as connection:
        loop = "{% for column in new %}{{ column }},{% endfor %}"
        for text in ("select * from {{ rows }}", f"select {loop} r.operation from {{{{ rows }}}}"):
            found = run_query(connection, prepared(connection, text, schema), rows, rows_max=MOST)
            assert listed(found)[0][:3] == ("1", '"); drop table victim; --', "3")
        with pytest.raises(ConfigError, match="could be read as SQL"):
            prepared(connection, "select '{{ input_table }}' as t, r.* from {{ rows }}", schema)
    assert database.query("select count(*) from victim") == [(0,)]


@pytest.mark.parametrize(("names", "positions"), [("operation text", False), ("old__id int", False), ("xid int", True)])
def test_columns_that_rows_have_for_themselves(database: Database, names: str, positions: bool) -> None:
    database.execute(f"create table t (id int primary key, {names})")
    schema = schema_of(database.connection, public("t"))
    with sql_session(database.connection) as connection:
        with pytest.raises(ConfigError, match="a name that rows reserve") as caught:
            prepare_query(connection, input_sql("select * from {{ rows }}"), schema, positions=positions)
        assert caught.value.code == "TRK133"


def test_a_table_with_too_many_columns(database: Database) -> None:
    database.execute(f"create table t (id int primary key, {', '.join(f'c{i} int' for i in range(832))})")
    schema = schema_of(database.connection, public("t"))
    with sql_session(database.connection) as connection:
        with pytest.raises(ConfigError, match="833 columns"):
            prepared(connection, "select * from {{ rows }}", schema)
        fewer = schema.only([name for name in schema.names if name != "c1" and name != "c2"])
        query = prepared(connection, "select r.id, r.c831 from {{ rows }}", fewer)
        rows = rows_of(fewer, [["1"]] * 831)
        assert listed(run_query(connection, query, rows, rows_max=MOST)) == [("1", "1")]
