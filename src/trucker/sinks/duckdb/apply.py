"""The SQL that makes a batch's staged rows true in a table.

With a key, in this order, each step on all rows of the batch at once:
    1. rows go whose key is deleted, and rows that stand where a moving key will come, but no row that itself moves
    2. rows whose key moves are updated, the key included; being one statement, keys may swap or rotate
    3. rows are updated whose key stays: in the columns sent, no others
    4. what is not there yet is inserted
An update with cells not sent whose row is not there cannot be made whole: the truck stops (I7, I8), or, where the
row is still to come (`Target.awaits_rows`), the update is left out.
UPDATE and INSERT were measured against MERGE (as fast for updates, half as fast for inserts) and DELETE with INSERT
(as fast, but the file grows to twice the size). DuckDB keeps what an UPDATE replaces in memory until the transaction
ends, about 100 bytes a row, while DELETE takes less than ten and INSERT none: very many rows (`LARGE`) are joined with
what the table holds of them into a table that spills, deleted and inserted again (I9).

Without a key a batch adds and removes copies of whole rows; the sum is taken on PostgreSQL's text before any typing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from trucker.change import DELETE, UPDATE, quote_identifier
from trucker.errors import DataError, SinkError
from trucker.sinks.duckdb.session import run
from trucker.sinks.duckdb.table import Table, constraint_of, has_unique, unfit_value
from trucker.sinks.duckdb.types import from_text
from trucker.sinks.target import Target
from trucker.sinks.transactional.staged_changes import MOVE, Batches, StagedLoad, key_positions
from trucker.types import Unfit

LARGE: Final = 200_000
# Rows that do not fit are looked for until there are so many.
_UNFIT: Final = 2_000

# Errors about a value of a row.
VALUES: Final[tuple[type[duckdb.Error], ...]] = (duckdb.DataError, duckdb.InvalidInputException)


def apply_load(connection: duckdb.DuckDBPyConnection, table: Table, load: StagedLoad) -> None:
    """Apply a load inside the caller's transaction; `DataError` where a row is refused for what is in it."""
    applier = Applier(connection, table, load)
    try:
        applier.copy() if load.copied else applier.run()
    except (*VALUES, duckdb.ConstraintException) as error:
        raise refusal(error, load.target) from None


class Applier:
    """Applies a load to its table inside the caller's transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: Table, load: StagedLoad) -> None:
        self._connection = connection
        self._table = table
        self._load = load
        schema = load.target.source
        self._names = [quote_identifier(name) for name in schema.names]
        self._types = [table.types[name] for name in schema.names]
        self._unfit = [load.target.unfit_of(name) for name in schema.names]
        self._key = key_positions(schema)

    def copy(self) -> None:
        """Snapshot rows, into a table that holds none of them."""
        self._insert_staged()

    def run(self) -> None:
        """Streamed changes."""
        self._apply_keyed() if self._key else self._apply_bag()

    # -- tables with a key ---------------------------------------------------------------------------------------

    def _apply_keyed(self) -> None:
        keys = [f"{self._typed('k', i, position)} AS k{i}" for i, position in enumerate(self._key)]
        cells = [f"{self._typed('n', i, i)} AS n{i}" for i in range(len(self._names))]
        self._scan(
            f"CREATE TEMP TABLE staged AS SELECT action, kept, round, {', '.join([*keys, *cells])} FROM incoming"
        )
        try:
            for rows in self._rounds():
                self._remove(rows)
                self._move(rows)
                self._update(rows)
                self._refuse_lost(rows)
                self._add(rows)
        finally:
            self._drop("staged")

    def _rounds(self) -> list[str]:
        """The rows of each round as SQL. Rounds that have no key in common are one."""
        if self._load.rounds == 1 or not self._keys_recur():
            return ["(SELECT rowid AS place, * FROM staged)"]
        return [f"(SELECT rowid AS place, * FROM staged WHERE round = {number})" for number in range(self._load.rounds)]

    def _keys_recur(self) -> bool:
        new = ", ".join(f"n{position} AS k{i}" for i, position in enumerate(self._key))
        old = ", ".join(f"k{i}" for i in range(len(self._key)))
        keys = f"SELECT {new}, round FROM staged UNION ALL SELECT {old}, round FROM staged WHERE action = {MOVE}"
        recurring = f"SELECT 1 FROM ({keys}) GROUP BY {old} HAVING min(round) <> max(round) LIMIT 1"
        return bool(run(self._connection, recurring))

    def _remove(self, rows: str) -> None:
        moves = self._load.count(MOVE)
        if not moves and not self._load.count(DELETE):
            return
        new = self._on("t", "s", "n")
        stays = ""
        if moves:
            itself = " AND ".join(f"m.k{i} = s.n{position}" for i, position in enumerate(self._key))
            stays = f" AND NOT EXISTS (FROM {rows} m WHERE m.action = {MOVE} AND {itself})"
        gone = f"SELECT * FROM {rows} s WHERE s.action IN ({DELETE}, {MOVE}){stays}"
        self._do(f"DELETE FROM {self._table.sql} t USING ({gone}) s WHERE {new}")

    def _move(self, rows: str) -> None:
        if not self._load.count(MOVE):
            return
        cells = (
            f"{name} = CASE WHEN s.kept[{i + 1}] = '1' THEN t.{name} ELSE s.n{i} END"
            for i, name in enumerate(self._names)
        )
        self._do(
            f"UPDATE {self._table.sql} t SET {', '.join(cells)} FROM {rows} s "
            f"WHERE s.action = {MOVE} AND {self._on('t', 's', 'k')}"
        )

    def _update(self, rows: str) -> None:
        if self._load.count(UPDATE) >= LARGE and not has_unique(self._connection, self._load.target.table):
            self._rewrite(rows)
            return
        for mask in (None, *self._load.kept()):
            sent = [i for i in range(len(self._names)) if i not in self._key and (mask is None or mask[i] == "0")]
            if not sent:
                continue
            which = "s.kept IS NULL" if mask is None else f"s.kept = '{mask}'"
            cells = ", ".join(f"{self._names[i]} = s.n{i}" for i in sent)
            self._do(
                f"UPDATE {self._table.sql} t SET {cells} FROM {rows} s "
                f"WHERE s.action = {UPDATE} AND {which} AND {self._on('t', 's', 'n')}"
            )

    def _rewrite(self, rows: str) -> None:
        """The rows that are there and change, taken out, changed and put back; unchanged cells come along (I7)."""
        partial = bool(self._load.kept())
        cells = [
            f"CASE WHEN s.kept[{i + 1}] = '1' THEN t.{name} ELSE s.n{i} END AS {name}"
            if partial
            else f"s.n{i} AS {name}"
            for i, name in enumerate(self._names)
            if i not in self._key
        ]
        if not cells:
            return
        changed = f"{rows} s WHERE s.action = {UPDATE} AND {self._on('t', 's', 'n')}"
        merged = f"SELECT t.* REPLACE ({', '.join(cells)}) FROM {self._table.sql} t, {changed}"
        run(self._connection, f"CREATE TEMP TABLE rewritten AS {merged}")
        try:
            self._do(f"DELETE FROM {self._table.sql} t USING {changed}")
            self._do(f"INSERT INTO {self._table.sql} SELECT * FROM temp.rewritten")
        finally:
            self._drop("rewritten")

    def _refuse_lost(self, rows: str) -> None:
        if self._load.target.awaits_rows or (not self._load.kept() and not self._load.count(MOVE)):
            return
        ((lost,),) = run(
            self._connection,
            f"SELECT count(*) FROM {rows} s WHERE s.kept IS NOT NULL AND {self._absent(rows)}",
        )
        if lost:
            raise SinkError(
                f"table {self._load.target.table}: {lost} updated rows are missing, and the source did not send "
                "all of their values",
                remedy="another program changed the table; to copy it again, run `trucker reset --truck"
                f" {self._load.target.truck}`, then `trucker run`",
                code="TRK440",
            )

    def _add(self, rows: str) -> None:
        cells = ", ".join(f"s.n{i}" for i in range(len(self._names)))
        self._do(
            f"INSERT INTO {self._table.sql} ({', '.join(self._names)}) SELECT {cells} FROM {rows} s "
            f"WHERE s.kept IS NULL AND {self._absent(rows)}"
        )

    def _absent(self, rows: str) -> str:
        """That a row which is to be is not. Asked by a join, not an anti join: only from the former does DuckDB learn
        which keys it need not look at in the table (measured: 2 ms against 11 for one row in two million)."""
        present = f"SELECT s.place FROM {rows} s JOIN {self._table.sql} t ON {self._on('t', 's', 'n')}"
        return f"s.action <> {DELETE} AND s.place NOT IN ({present})"

    def _on(self, table: str, staged: str, side: str) -> str:
        numbers = self._key if side == "n" else range(len(self._key))
        return " AND ".join(
            f"{table}.{self._names[position]} = {staged}.{side}{number}"
            for position, number in zip(self._key, numbers, strict=True)
        )

    # -- tables without ------------------------------------------------------------------------------------------

    def _apply_bag(self) -> None:
        if not self._load.count(DELETE):
            self._insert_staged()
            return
        texts = ", ".join(f"n{i}" for i in range(len(self._names)))
        summed = f"SELECT sum(delta) AS delta, {texts} FROM incoming GROUP BY {texts} HAVING sum(delta) <> 0"
        typed = ", ".join(f"{self._typed('n', i, i)} AS n{i}" for i in range(len(self._names)))
        self._scan(f"CREATE TEMP TABLE staged AS SELECT delta, {typed} FROM ({summed})")
        try:
            self._remove_copies(texts)
            # A row that comes twice is two rows.
            self._do(
                f"INSERT INTO {self._table.sql} ({', '.join(self._names)}) "
                f"SELECT {texts} FROM staged, unnest(range(delta::BIGINT)) WHERE delta > 0"
            )
        finally:
            self._drop("staged")

    def _remove_copies(self, cells: str) -> None:
        """Exactly as many copies of a row as went; texts that are equal once typed (0 and -0) are one row."""
        gone = (
            f"SELECT row_number() OVER () AS id, -sum(delta) AS copies, {cells} "
            f"FROM staged WHERE delta < 0 GROUP BY {cells}"
        )
        same = " AND ".join(f"t.{name} IS NOT DISTINCT FROM s.n{i}" for i, name in enumerate(self._names))
        matches = (
            "SELECT t.rowid AS place, copies, row_number() OVER (PARTITION BY s.id) AS nth "
            f"FROM {self._table.sql} t JOIN ({gone}) s ON {same}"
        )
        removed = self._do(
            f"DELETE FROM {self._table.sql} WHERE rowid IN (SELECT place FROM ({matches}) WHERE nth <= copies)"
        )
        ((due,),) = run(self._connection, "SELECT coalesce(-sum(delta), 0) FROM staged WHERE delta < 0")
        if removed < due:
            raise SinkError(
                f"table {self._load.target.table}: {due - removed} rows to delete are missing",
                remedy="another program changed the table; to copy it again, run `trucker reset --truck"
                f" {self._load.target.truck}`, then `trucker run`",
                code="TRK441",
            )

    # -- both ----------------------------------------------------------------------------------------------------

    def _insert_staged(self) -> None:
        typed = ", ".join(self._typed("n", i, i) for i in range(len(self._names)))
        self._scan(f"INSERT INTO {self._table.sql} ({', '.join(self._names)}) SELECT {typed} FROM incoming")

    def _typed(self, side: str, number: int, position: int) -> str:
        return from_text(f"{side}{number}", self._types[position], self._unfit[position])

    def _do(self, statement: str) -> int:
        """The number of rows it touched."""
        ((count,),) = run(self._connection, statement)
        return int(count)

    def _drop(self, name: str) -> None:
        with suppress(duckdb.Error):  # an aborted transaction takes the table along with it
            run(self._connection, f"DROP TABLE IF EXISTS temp.{name}")

    def _scan(self, statement: str) -> None:
        """Run a statement that reads the staged rows as `incoming`."""
        scan(self._connection, self._load.batches, statement)

    def unfit(self) -> list[tuple[int, DataError]]:
        """Rows with a value that cannot be read as its column's type: the place of each, and which value it is.

        Outside the transaction that failed of them; of very many, the first.
        """
        tests = [
            "NULL"
            if unfit is Unfit.NULL
            else f"CASE WHEN n{i} IS NOT NULL AND TRY({self._typed('n', i, i)}) IS NULL THEN n{i} END"
            for i, unfit in enumerate(self._unfit)
        ]
        tested = f"SELECT place, [{', '.join(tests)}] AS cells FROM incoming"
        statement = f"SELECT * FROM ({tested}) WHERE list_any_value(cells) IS NOT NULL"
        rows = scan(self._connection, self._numbered, f"{statement} ORDER BY place LIMIT {_UNFIT}")
        target = self._load.target
        return [(place, unfit_value(target, *next(self._columns(cells)))) for place, cells in rows]

    def _columns(self, cells: Sequence[str | None]) -> Iterator[tuple[str, str, str]]:
        for name, kind, text in zip(self._load.target.source.names, self._types, cells, strict=True):
            if text is not None:
                yield name, kind, text

    def _numbered(self) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in self._load.batches():
            yield batch.append_column("place", pa.array(np.arange(before, before + len(batch))))
            before += len(batch)


def scan(connection: duckdb.DuckDBPyConnection, batches: Batches, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement over staged rows as `incoming`. What the reading raised is raised again."""
    failure: list[BaseException] = []
    stream = batches()
    first = next(stream)

    def rest() -> Iterator[pa.RecordBatch]:
        try:
            yield first
            yield from stream
        except BaseException as error:
            failure.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(first.schema, rest())
    connection.register("incoming", reader)
    try:
        return run(connection, statement)
    except duckdb.Error:
        if failure:
            raise failure[0] from None
        raise
    finally:
        with suppress(duckdb.Error):  # an aborted transaction takes the name along with it
            connection.unregister("incoming")


def refusal(error: duckdb.Error, target: Target) -> DataError:
    """Why a row is refused, without DuckDB's words: they may hold values (I10)."""
    table = f"table {target.table}"
    if not isinstance(error, duckdb.ConstraintException):
        return DataError(
            f"{table} refuses a row of the source: {type(error).__name__}", code="TRK447", sqlstate="22000"
        )
    text = str(error)
    state, constraint = constraint_of(text)
    column = text.rsplit(".", 1)[-1].strip() if state == "23502" else None
    column = column if column in target.source.names else None
    of = f" on column {column}" if column else ""
    return DataError(
        f"{table} has {constraint}{of} that a row of the source violates (SQLSTATE {state})",
        remedy="drop the constraint; tables that trucker creates have none",
        code="TRK448",
        sqlstate=state,
        column=column,
    )
