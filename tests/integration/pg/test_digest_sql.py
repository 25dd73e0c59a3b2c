"""Digests by PostgreSQL: equal rows have equal ones, and rows that look alike do not."""

from __future__ import annotations

from itertools import combinations

from fixtures.pg import Database
from trucker.pg.digest_sql import fingerprint, fingerprint_query, rows_query, sums_query
from trucker.row_digest import DigestedColumns

COLUMNS = DigestedColumns(("id", "a", "b"), ("id",), 64)


def test_rows_that_look_alike_have_other_digests(database: Database) -> None:
    database.execute("create table alike (id int, a text, b text)")
    rows = [(None, "x"), ("x", None), ("", "x"), ("x", ""), (None, None), ("", ""), ("x,", ""), ("x", ","), ("b", "a")]
    with database.connect() as connection:
        digests = []
        for a, b in rows:
            connection.execute(b"truncate alike")
            connection.execute(b"insert into alike values (1, %s, %s)", [a, b])
            ((_, count, digest),) = connection.execute(sums_query("alike", COLUMNS)).fetchall()
            assert count == 1
            digests.append(digest)
    assert all(first != second for first, second in combinations(digests, 2))


def test_sums_are_those_of_the_rows_that_are_listed(database: Database) -> None:
    database.execute(
        "create table digested (id int, a text, b text)",
        "insert into digested select i, nullif(i % 7, 0)::text, 'b' from generate_series(1, 500) i",
    )
    with database.connect() as connection:
        sums = {
            group: (count, int(digests))
            for group, count, digests in connection.execute(sums_query("digested", COLUMNS))
        }
        for group in (0, 17, 63):
            with connection.cursor() as cursor, cursor.copy(rows_query("digested", COLUMNS, [group])) as copy:
                listed = [int(digest or "") for _, digest in copy.rows()]
            assert (len(listed), sum(listed)) == sums[group]
        some = connection.execute(sums_query("digested", COLUMNS, " where id > 490")).fetchall()
        assert sum(count for _, count, _ in some) == 10


def test_a_table_of_as_many_columns_as_there_can_be_is_digested(database: Database) -> None:
    names = tuple(f"c{number}" for number in range(1600))
    database.execute(
        f"create table wide ({', '.join(f'{name} int2' for name in names)})", "insert into wide values (1)"
    )
    with database.connect() as connection:
        ((_, count, digest),) = connection.execute(sums_query("wide", DigestedColumns(names, (), 64))).fetchall()
    assert (count, digest != 0) == (1, True)


def test_types_and_encoding_are_in_the_fingerprint(database: Database) -> None:
    with database.connect() as connection:
        row = connection.execute(fingerprint_query()).fetchone()
    assert row is not None
    assert fingerprint(row, ["integer", "text"]) != fingerprint(row, ["text", "integer"])
    assert "UTF8" in fingerprint(row, [])
