"""The sink: each method borrows a session and hands the work to the other modules of this package."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import psycopg
import pyarrow as pa

from trucker.abilities import Abilities
from trucker.adapters.postgres import POSTGRES, PostgresConnection
from trucker.change import Changes, CopiedRows, TableId, UnreadRows, as_changes
from trucker.errors import SinkError, TruckerError, TruckFailed
from trucker.finding import Finding
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, TruckState, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.letters import Choice, Redriven, reshaped
from trucker.sinks.output_sql import as_rows
from trucker.sinks.postgres import check, identity, state_tables
from trucker.sinks.postgres.apply import output_sql
from trucker.sinks.postgres.apply.commit import Commit
from trucker.sinks.postgres.compared_table import PostgresComparedTable
from trucker.sinks.postgres.copy import shadow_table
from trucker.sinks.postgres.copy.copy_part import UNFINISHED, copy_part
from trucker.sinks.postgres.copy.raw_copy import Passage, passage_of
from trucker.sinks.postgres.ddl import deferred_key, tables
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.failure import explain
from trucker.sinks.postgres.letters import letter_table
from trucker.sinks.postgres.letters.redrive import redrive
from trucker.sinks.postgres.session import Session, close_idle, session
from trucker.sinks.postgres.stage.output_stage import copy_rows, describe_rows, write_rows
from trucker.sinks.postgres.stage.raw_file import stage_raw
from trucker.sinks.postgres.stage.stage_store import PartWriter, drop_stages, list_stages, new_stage, stage_prefix
from trucker.sinks.postgres.stage.unfit_values import unfit_values
from trucker.sinks.sql.written_tables import WrittenTables
from trucker.sinks.table_identity import TableChange
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.text_files import TextFiles
from trucker.sinks.unfit_values import fitting
from trucker.table import Key


class PostgresSink(Sink):
    """Guarantee: exactly once. A source transaction becomes visible as a whole, over all tables and all trucks that go
    to this database; positions are in the same transaction.

    Executors stage in parallel; the driver applies in one transaction with set-based statements. The destination's
    own constraints, triggers and defaults are respected; `session_replication_role` is not touched.
    """

    name: ClassVar[str] = "postgres"
    abilities: ClassVar[Abilities] = POSTGRES.abilities

    def __init__(self, connection: PostgresConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._project = workspace.project
        self._tables: dict[Target, DestinationTable] = {}
        self._trucks: set[str] = set()
        self._new: set[TableId] = set()
        self._swept = False
        self.letters: dict[str, int] = {}
        self._used = False
        self._files = TextFiles(workspace.folder) if workspace.near else None
        self._unsure: set[TruckTable] = set()
        self._sizes: Mapping[TruckTable, int] = {}
        self._identities = identity.OidIdentities(workspace.project)
        self._written = WrittenTables(self._identities)
        self._letter_table = letter_table.letters_of(workspace.project)

    def open(self) -> Ledger:
        self._tables.clear()
        self._trucks.clear()
        self._written.clear()
        with self._session("opening the destination") as lent:
            state_tables.refuse_unusable(lent, self._connection.name)
            state_tables.create(lent)
            if not self._swept:
                # Only what an earlier process left: later, other lanes of this one may be staging.
                drop_stages(lent, list_stages(lent, stage_prefix(self._project)))
                if self._files is not None:
                    self._files.remove(stage_prefix(self._project))
            self.letters = self._letter_table.count(lent)
            self._identities.adopt(lent)
            ledger = state_tables.load(lent, self._project)
            if not self._swept:
                shadow_table.sweep(lent, self._project, ledger.copying)
                self._swept = True
            return ledger

    def prepare(self, target: Target) -> frozenset[str]:
        if target.statement is not None:
            with self._session(f"checking {target.statement.label}") as lent:
                self._tables[target] = output_sql.prepare(lent, target)
            return frozenset()
        with self._session(f"preparing table {target.table}") as lent:
            self._written.forget(target)
            table, new = tables.prepare(lent, self._project, target)
            self._tables[target] = table
            if new:
                self._new.add(target.table)
            if self.letters.get(target.truck):
                for letter in reshaped(self._letter_table.read(lent, target.truck), target.source):
                    self._letter_table.put(lent, letter)
        return frozenset(target.source.names) - table.columns.keys()

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        try:
            return self._stage(work, changes)
        except SinkError as error:
            change = None if error.transient else self._explanation([work.target])
            raise change or error from None

    def _explanation(self, targets: Sequence[Target]) -> SinkError | None:
        """The change to one of these tables that explains a failed write; None where no table has changed."""
        tables = [target for target in targets if not target.statement]
        with self._session("reading tables") as lent:
            return next((error for _, error in self._identities.refuse_written(lent, tables)), None)

    def _stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        target = work.target
        where = f"writing table {target.table}"
        if target.statement is not None:
            return self._stage_rows(work, changes)
        changes = self._fitting(work.target, where, changes)
        if work.batch.snapshot:
            with self._session(where, target) as lent:
                return copy_part(lent, self._project, work, self._describe(lent, target), changes)
        if (passage := self._passage(work, changes)) is not None and self._files is not None:
            chunk = stage_raw(passage, self._files, new_stage(self._project, work))
            return work.receipt(chunk.contents.rows, (chunk,)) if chunk else work.receipt(0, ())
        writer = PartWriter(self._project, work, lambda: self._session(where, target), self._describe, self._files)
        names = target.source.names
        for value in as_changes(changes):
            writer.add(value if value.schema.names == names else value.only(names))
        return work.receipt(writer.rows, writer.chunks())

    def _fitting(
        self, target: Target, where: str, values: Iterator[Changes | CopiedRows]
    ) -> Iterator[Changes | CopiedRows]:
        def find_unfit(name: str, texts: pa.Array) -> pa.Array:
            with self._session(where, target) as lent:
                return unfit_values(lent, self._describe(lent, target), name, texts)

        return fitting(target, values, find_unfit)

    def _passage(self, work: Work, rows: Iterator[Changes | CopiedRows]) -> Passage | None:
        """How rows of a copy that come with changes pass unread; None where they do not.

        Of a truck that sets rows aside each must have its place in the stream.
        """
        target = work.target
        if self._files is None or not isinstance(rows, UnreadRows) or target.truck in work.batch.dead_letters:
            return None
        table = self._tables.get(target)
        if table is None:
            with self._session(f"writing table {target.table}", target) as lent:
                table = self._describe(lent, target)
        passage = passage_of(rows, target, table)
        return passage if passage is not None and frozenset(passage.names) >= frozenset(target.source.key) else None

    def unfinished(self, receipt: Receipt) -> bool:
        return bool(receipt.staged == UNFINISHED)

    def finish_copy(self, target: Target) -> None:
        with self._session(f"creating the key of table {target.table}", target) as lent:
            deferred_key.finish(lent, self._project, target)

    def copied_parts(self, truck_table: TruckTable) -> tuple[str, frozenset[int]]:
        with self._session(f"reading the copied parts of {truck_table[1]}") as lent:
            return state_tables.parts(lent, self._project, truck_table)

    def _stage_rows(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        """Rows for output.sql."""
        target = work.target
        where = f"staging rows of {target.source.table}"
        fit = as_changes(self._fitting(target, where, as_rows(changes)))
        if work.batch.snapshot:
            with self._session(where, target) as lent:
                return copy_rows(lent, self._project, work, fit)
        return write_rows(self._project, work, lambda: self._session(where, target), self._describe, fit)

    def expect_copies(self, sizes: Mapping[TruckTable, int]) -> None:
        self._sizes = sizes

    def publish(self, delivery: Delivery) -> None:
        with self._session("committing a batch") as lent:
            trucks = set(delivery.plan.trucks)
            if not trucks <= self._trucks:
                state_tables.add_trucks(lent, self._project, trucks)
                self._trucks |= trucks
            timeout = self._connection.timeouts.statement
            commit = Commit(
                lent,
                self._project,
                self._describe,
                self._tables.clear,
                timeout=timeout,
                new=self._new,
                files=self._files,
                unsure=self._unsure,
                written=self._written,
                sizes=self._sizes,
                lettered=self.letters.keys(),
            )
            self._run(commit, delivery)
            if delivery.snapshot:
                self._tables.clear()  # a copy that counts may have given a table its key
            self.letters = {
                truck: count
                for truck, count in {**self.letters, **dict.fromkeys(trucks, 0), **commit.letters}.items()
                if count
            }

    def _run(self, commit: Commit, delivery: Delivery) -> None:
        """Commit. Where a commit fails because a table was replaced, the error names that table."""
        try:
            commit.run(delivery)
        except TruckFailed as error:
            targets = [target for target in delivery.targets if target.truck == error.truck]
            explained = error.reason.transient or delivery.snapshot
            change = None if explained else self._explanation(targets)
            raise TruckFailed(error.truck, change) if change else error from None

    def discard(self, batch: Batch) -> None:
        prefix = stage_prefix(self._project, batch)
        if self._files is not None:
            self._files.remove(prefix)
            return
        with self._session("removing staged rows") as lent:
            drop_stages(lent, list_stages(lent, prefix))

    def close(self) -> None:
        # Sinks of one destination share the process's connections; one that had none has none to give back.
        if self._used:
            close_idle(self._connection)

    def check(self) -> list[Finding]:
        return check.check(self._connection)

    def stored(self) -> Mapping[str, TruckState]:
        return check.stored(self._connection, self._project)

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        yield from check.examine(self._connection, self._project, targets, due)

    def changed_tables(self) -> Sequence[TableChange]:
        with self._session("reading tables") as lent:
            return self._identities.changed(lent)

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        with self._session("accepting tables") as lent, lent.connection.transaction():
            self._identities.accept(lent, truck_tables)
        self._written.clear()

    def select_keys(self, target: Target, where: str) -> Iterator[Key]:
        with self._session(f"reading table {target.table}", target) as lent:
            yield from check.select_keys(lent.connection, target, where)

    def compare(self, target: Target, groups: int) -> PostgresComparedTable:
        return PostgresComparedTable(self._connection, target, groups)

    def unique_columns(self, table: TableId) -> list[tuple[str, ...]]:
        return check.unique_columns(self._connection, table)

    def count_letters(self) -> Mapping[str, int]:
        with self._session("counting dead letters") as lent:
            return self._letter_table.count(lent)

    def redrive(self, choice: Choice, *, dry_run: bool) -> list[Redriven]:
        self._tables.clear()
        with self._session("redriving dead letters") as lent:
            return redrive(lent, self._project, choice, self._describe, dry_run=dry_run)

    def _describe(self, lent: Session, target: Target) -> DestinationTable:
        """The target's table as it was when last prepared; executors look once per shape of the target."""
        table = self._tables.get(target)
        if table is None:
            table = describe_rows(lent, target) if target.statement else tables.describe(lent, target.table)
            if table is None:
                raise SinkError(
                    f"table {target.table} does not exist",
                    remedy="run `trucker run`, which creates the table and copies it",
                )
            self._tables[target] = table
        return table

    @contextmanager
    def _session(self, doing: str, target: Target | None = None) -> Iterator[Session]:
        """A session, psycopg's errors turned into trucker's; after an error, tables are described again."""
        where = f"connection {self._connection.name}, {doing}"
        self._used = True
        try:
            with session(self._connection) as lent:
                yield lent
        except psycopg.Error as error:
            self._tables.clear()
            names = target.source.names if target else ()
            raise explain(error, where, table=target.table if target else None, copied=names) from None
        except Exception:
            self._tables.clear()
            raise
