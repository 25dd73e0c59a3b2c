"""One batch, one transaction: all tables of all trucks, their positions and states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg

from trucker.errors import DataError, SinkUnavailable, TruckerError, TruckFailed
from trucker.failpoint import reach
from trucker.sinks.batch import Batch, Phase, Receipt
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.ledger import Copy, Plan, foreign_rows
from trucker.sinks.postgres import identity, state_tables
from trucker.sinks.postgres.apply.merge_sql import staging_columns, steps, straight
from trucker.sinks.postgres.apply.output_sql import CopiedOutputs, PostgresOutputs
from trucker.sinks.postgres.copy import shadow_table
from trucker.sinks.postgres.ddl import deferred_key
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.ddl.foreign_keys import refuse_foreign_keys
from trucker.sinks.postgres.failure import blaming, explain, passing
from trucker.sinks.postgres.letters import letter_table
from trucker.sinks.postgres.letters.postgres_isolation import PostgresIsolation
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.output_stage import StagedRows, begin_rows
from trucker.sinks.postgres.stage.raw_file import fits, plain_rows
from trucker.sinks.postgres.stage.stage_store import Temporaries, drop_stages, list_stages, stage_name, stage_prefix
from trucker.sinks.postgres.stage.text_stage import TextStage, copied_columns, copy_in, plain_columns, typed_from_plain
from trucker.sinks.sql.merge_steps import Step, Unforeseen, check_touched, gone, still_staged
from trucker.sinks.sql.staged_text import Chunk
from trucker.sinks.sql.written_tables import WrittenTables
from trucker.sinks.table_identity import TableIdentity
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.text_files import TextFiles
from trucker.table import TableId

Describe = Callable[[Session, Target], DestinationTable]

_OWN: Final = ("k", "l", "n")


class Commit:
    """Commits batches in one session. Raises trucker's errors only, having written nothing then.

    The exception is a connection that is lost while COMMIT is under way: whether it took effect is not known then,
    and found out by the position when the batch is repeated (I4).
    """

    def __init__(
        self,
        session: Session,
        project: str,
        describe: Describe,
        look_again: Callable[[], None],
        *,
        timeout: float | None = None,
        new: Collection[TableId] = (),
        files: TextFiles | None = None,
        unsure: set[TruckTable] | None = None,
        written: WrittenTables[Session, TableIdentity, TableIdentity],
        sizes: Mapping[TruckTable, int] | None = None,
        lettered: Collection[str] = (),
    ) -> None:
        """`unsure` are the trucks' tables whose rows have been found other than foreseen; it grows. `sizes` says about
        how many bytes the copies that begin will bring. `lettered` are the trucks that may have letters, besides those
        whose batch sets rows aside."""
        self._sizes = sizes or {}
        self._lettered = lettered
        self._written = written
        self._touched: list[Target] = []
        self._ends_copies = False
        self._files = files
        self._unsure = set() if unsure is None else unsure
        self._session = session
        self._project = project
        self._describe = describe
        self._look_again = look_again
        self._timeout = timeout
        self._new = new
        self._text_stages = 0
        self.letters: dict[str, int] = {}

    def run(self, delivery: Delivery) -> None:
        """Commit. Where a row is refused, all is done again with that truck's rows apart (`PostgresIsolation`)."""
        apart: frozenset[str] = frozenset()
        while True:
            try:
                self._commit(delivery, apart)
                return
            except TruckFailed as error:
                more = {error.truck}
                if not isinstance(error.reason, DataError) or more <= apart:
                    raise
            except DataError:
                more = {target.truck for target in delivery.targets}
                if more <= apart:
                    raise
            except Unforeseen as unforeseen:
                self._unsure.add(unforeseen.target.truck_table)
                more = set()
            apart |= more

    def _commit(self, delivery: Delivery, apart: frozenset[str]) -> None:
        try:
            self._apply(delivery, apart)
            reach("sink.commit.before")
            self._session.run("commit")
            reach("sink.commit.after")
            self._sweep(delivery)
        except psycopg.Error as error:
            self._roll_back()
            if passing(error):
                raise explain(error, "committing a batch") from None
            raise self._blame(delivery, error, apart) from None
        except BaseException:
            self._roll_back()
            raise

    def _sweep(self, delivery: Delivery) -> None:
        """Drop what was staged for the batch, by attempts without a receipt too; after a crash `open` does it."""
        files, tables = _staged_beside(delivery.receipts)
        if not files and not tables:
            return
        prefix = stage_prefix(self._project, delivery.batch)
        if self._files is not None and files:
            self._files.remove(prefix)
        if tables:
            with suppress(psycopg.Error):
                drop_stages(self._session, list_stages(self._session, prefix))

    def _roll_back(self) -> None:
        # Temporary tables made in this transaction go, those dropped in it come back.
        self._session.staging.clear()
        if not self._session.connection.closed:
            try:
                self._session.run("rollback")
            except psycopg.Error:
                self._session.connection.close()

    # -- whose fault ------------------------------------------------------------------------------------------------

    def _blame(self, delivery: Delivery, error: psycopg.Error, apart: frozenset[str]) -> TruckerError:
        """COMMIT itself failed, by a deferred constraint: the truck without which it would not have is to blame."""
        reason = explain(error, "committing a batch")
        trucks = delivery.plan.trucks
        for truck in trucks if len(trucks) > 1 else ():
            if self._would_commit(delivery.without(truck), apart - {truck}):
                return TruckFailed(truck, reason)
        return TruckFailed(trucks[0], reason) if len(trucks) == 1 else reason

    def _would_commit(self, delivery: Delivery, apart: frozenset[str]) -> bool:
        try:
            self._apply(delivery, apart)
            self._session.run("set constraints all immediate")
        except psycopg.Error as error:
            if passing(error):
                raise explain(error, "committing a batch") from None
            return False
        except TruckFailed:
            return False
        finally:
            self._roll_back()
        return True

    # -- the transaction --------------------------------------------------------------------------------------------

    def _apply(self, delivery: Delivery, apart: frozenset[str]) -> None:
        """Everything but COMMIT."""
        session, plan, copied = self._session, delivery.plan, bool(delivery.snapshot)
        trucks = plan.trucks
        lettered = {*self._lettered, *delivery.batch.dead_letters}.intersection(trucks)
        stored, self.letters = state_tables.lock(session, self._project, trucks, plan.entries, lettered=lettered)
        delivery.verify(stored)
        due = delivery.targets
        self._touched = [target for target in due if not target.statement]
        self._ends_copies = copied
        self._written.learn(session, self._touched)
        if delivery.copies:
            self._begin_copies(delivery)
        if self.letters:
            begun = [copy.target.truck_table for copy in delivery.copies]
            letter_table.letters_of(self._project).forget(session, begun)
        if copied:
            self._settle_copies(delivery)
        else:
            self._settle_begun(delivery)
        outputs = [target for target in due if target.statement]
        if outputs:
            self._outputs(copied=copied).run(
                load for load in delivery.loads_of(delivery.receipts) if load.target.statement
            )
        if copied:
            self._run([], plan)
            return
        written = {truck for truck, _ in plan.apply} - {target.truck for target in outputs}
        apart = frozenset(written & (apart | self.letters.keys()))
        if not apart:
            self._apply_by_part(delivery)
            return
        loads = delivery.loads_of(delivery.receipts)
        self._run(self._steps([load for load in loads if load.target.truck not in apart], Temporaries(session)))
        for truck in sorted(apart):
            self._apply_apart(truck, delivery, [load for load in loads if load.target.truck == truck])
        self._run([], plan)

    def _outputs(self, *, copied: bool) -> PostgresOutputs:
        if copied:
            return CopiedOutputs(self._session, self._project, self._describe, self._timeout)
        return PostgresOutputs(self._session, self._describe, self._timeout)

    def _apply_by_part(self, delivery: Delivery) -> None:
        """Part by part, while later ones are still being staged."""
        todo: list[Step] = []
        temporaries = Temporaries(self._session)
        for loads in delivery.loads_by_part():
            self._run(todo)
            todo = self._steps(loads, temporaries)
        self._run(todo, delivery.plan)

    def _apply_apart(self, truck: str, delivery: Delivery, loads: Sequence[Load]) -> None:
        """The rows of one truck, so that refused rows can be found."""
        session, most = self._session, delivery.batch.dead_letters.get(truck)
        self._look_again()  # what did not fit may fit by now
        emptied = [load.target for load in loads if load.truncates]
        if emptied:
            with blaming(emptied[0]):
                session.run(f"truncate {', '.join(target.table.quoted for target in emptied)}")
        rounds: dict[tuple[int, int], list[TextStage]] = defaultdict(list)
        for load in loads:
            for receipt in load.parts:
                for place, chunk in enumerate(receipt.staged):
                    with blaming(load.target, chunk.contents.columns):
                        rounds[receipt.part, place].append(self._text_stage(chunk, load.target))
        stored = letter_table.load(session, self._project, [truck])
        isolation = PostgresIsolation(session, truck, self._describe, stored, most)
        try:
            targets = [load.target for load in loads]
            stages = [rounds[each] for each in sorted(rounds)]
            isolation.run(targets, lambda: stages, [target.source.table for target in emptied])
        except psycopg.Error as error:
            if passing(error):
                raise
            raise TruckFailed(truck, explain(error, f"truck {truck}")) from None
        letter_table.store(session, self._project, isolation.pending, most)
        self.letters[truck] = len(isolation.pending)

    def _text_stage(self, chunk: Chunk, target: Target) -> TextStage:
        """A chunk's rows as text."""
        table, contents = self._describe(self._session, target), chunk.contents
        if chunk.table and chunk.plain:
            name = stage_name(chunk.table)
        elif chunk.types:
            name = self._plain(chunk, target)
        else:
            name = self._next_name()
            self._session.run(f"create temporary table {name} ({plain_columns(contents, target)}) on commit drop")
            columns = copied_columns(contents, target)
            if chunk.table:
                texts = ", ".join(column if column in _OWN else f"{column}::text" for column in columns.split(", "))
                self._session.run(f"insert into {name} ({columns}) select {texts} from {stage_name(chunk.table)}")
            else:
                copy_in(self._session, f"{name} ({columns})", self._text(chunk))
        if chunk.table and self._session.run(f"select count(*) from {name}").fetchone() != (contents.rows,):
            raise gone(target.table)
        return TextStage(self._session, target, table, contents, name)

    def _plain(self, chunk: Chunk, target: Target) -> str:
        """The table that has a binary chunk's rows as text."""
        assert self._files is not None
        name = self._next_name()
        plain_rows(self._session, chunk, self._files, target, name)
        return name

    def _next_name(self) -> str:
        self._text_stages += 1
        return f"p_{self._text_stages}"

    def _begin_copies(self, delivery: Delivery) -> None:
        """Rows of an earlier copy stay, and the new copy goes into a shadow table; other copies go straight into their
        table, which is truncated first where it holds rows of an unfinished copy."""
        session, copies = self._session, delivery.copies
        late = deferred_key.find(session, self._project, [copy.target.truck_table for copy in copies])
        straight = []
        for copy in copies:
            truck_table = copy.target.truck_table
            if copy.target.statement:
                with blaming(copy.target):
                    begin_rows(session, self._project, copy.target, self._describe(session, copy.target))
            elif truck_table not in late and (copy.whole or shadow_table.find(session, self._project, truck_table)):
                with blaming(copy.target):
                    if not copy.ours:
                        self._refuse_foreign(copy.target)
                    shadow_table.begin(session, self._project, copy.target)
            else:
                straight.append(copy)
        if straight:
            refuse_foreign_keys(session, straight)
        for copy in straight:
            with blaming(copy.target):
                self._empty(copy)
                self._put_off_key(copy.target, delivery.batch, late.get(copy.target.truck_table))

    def _empty(self, copy: Copy) -> None:
        if not copy.ours:
            self._refuse_foreign(copy.target)
        else:
            self._session.run(f"truncate {copy.target.table.quoted}")

    def _put_off_key(self, target: Target, batch: Batch, due: deferred_key.LateKey | None) -> None:
        """A table of trucker's own gets its key when the copy is complete, if it is large; one that is still `due` was
        put off by a copy that broke off."""
        if due is not None:
            deferred_key.make(self._session, self._project, target)
        created = target.table in self._new or (due is not None and due.table == target.table)
        large = self._sizes.get(target.truck_table, 0) >= deferred_key.LARGE
        if created and large and target.source.key and target.truck not in batch.dead_letters:
            deferred_key.put_off(self._session, self._project, target)

    def _refuse_foreign(self, target: Target) -> None:
        row = self._session.run(f"select exists (select from {target.table.quoted})").fetchone()
        if row == (True,):
            raise foreign_rows(target)

    def _settle_copies(self, delivery: Delivery) -> None:
        """A copy that begins forgets the parts of earlier ones; one that ends must have every part that has a
        receipt."""
        session, plan = self._session, delivery.plan
        begun = {copy.target.truck_table for copy in delivery.copies}
        copied = state_tables.take_parts(session, self._project, begun | plan.apply)
        loads = delivery.loads()
        for receipt in (receipt for load in loads for receipt in load.parts):
            if copied.get((*receipt.truck_table, delivery.snapshot, receipt.part)) != receipt.rows:
                raise TruckFailed(
                    receipt.truck,
                    SinkUnavailable(
                        f"part {receipt.part} of the copy of {receipt.table} is missing at the destination, as "
                        "after a crash of its server",
                        remedy="none needed: trucker copies the table again",
                    ),
                    receipt.table,
                )
        self._settle_waiting(loads)
        self._make_keys(delivery.targets)

    def _settle_begun(self, delivery: Delivery) -> None:
        """Tables that go on with what they have of a copy in one go, or without a copy, need the keys that it put off;
        its parts are no longer told apart."""
        begun = [
            target
            for target in self._touched
            if (entry := delivery.plan.entries.get(target.truck_table)) is not None
            and (before := delivery.before.entries.get(target.truck_table)) is not None
            and (target.uncopied or (entry.state.cursor and before.phase is Phase.COPYING))
        ]
        self._make_keys(begun)
        state_tables.take_parts(self._session, self._project, [target.truck_table for target in begun])

    def _make_keys(self, targets: Sequence[Target]) -> None:
        """Make the keys that were put off for a copy, be it one that was given up."""
        if not targets or not deferred_key.find(self._session, self._project, [t.truck_table for t in targets]):
            return
        for target in targets:
            with blaming(target):
                deferred_key.make(self._session, self._project, target)

    def _settle_waiting(self, loads: Sequence[Load]) -> None:
        """Bring the tables in line with the copies that wait in shadow tables."""
        session = self._session
        copies = [
            shadow_table.WaitingCopy(load.target, self._describe(session, load.target), waiting, load.adds)
            for load in loads
            if not load.target.statement
            and (waiting := shadow_table.find(session, self._project, load.target.truck_table))
        ]
        for copy, statement in shadow_table.settle(session, copies):
            with blaming(copy.target, copy.target.source.names):
                session.run(statement)
        shadow_table.end(session, self._project, [copy.target.truck_table for copy in copies])

    def _steps(self, loads: Sequence[Load], temporaries: Temporaries) -> list[Step]:
        """Copy in what the receipts carry, and say what is to be run then; of very many some have been run already."""
        loads = [load for load in loads if not load.target.statement]
        emptied = {load.target.table: load.target for load in loads if load.truncates}
        pending: list[Step] = []
        if emptied:
            # In one statement, because tables that refer to each other can only be truncated together.
            names = ", ".join(table.quoted for table in emptied)
            pending.append(Step(next(iter(emptied.values())), f"truncate {names}", purpose="truncate"))
        for target, chunk in _in_order(loads):
            if temporaries.full:
                self._run(pending)
                pending = []
                temporaries.empty()
            with blaming(target):
                into = self._straight(chunk, target)
                pending += [] if into else self._staged(chunk, target, temporaries)
            if into:
                # What comes before it must have been done: the same row may have been deleted.
                self._run(pending)
                pending = []
                self._copy_straight(chunk, target, into)
            elif chunk.file:
                self._run(pending)
                pending = []
                temporaries.empty()
        return pending

    def _straight(self, chunk: Chunk, target: Target) -> str | None:
        if chunk.table or target.shared or target.awaits_rows or target.truck_table in self._unsure:
            return None
        table = self._describe(self._session, target)
        return straight(chunk.contents, target, table) if fits(chunk, table) else None

    def _copy_straight(self, chunk: Chunk, target: Target, into: str) -> None:
        """New rows without a stage; where some are there already, or a trigger keeps some away, that is unforeseen."""
        try:
            rows = copy_in(self._session, into, self._text(chunk), binary=bool(chunk.types))
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            raise Unforeseen(target) from None
        except psycopg.Error as error:
            if passing(error):
                raise
            where, names = f"table {target.table}", chunk.contents.columns
            reason = explain(error, where, table=target.table, copied=names)
            raise TruckFailed(target.truck, reason, target.source.table) from None
        if rows != chunk.contents.rows:
            raise Unforeseen(target)

    def _text(self, chunk: Chunk) -> Iterable[bytes | memoryview]:
        if not chunk.file:
            return [chunk.text]
        assert self._files is not None
        return self._files.read(chunk.file)

    def _staged(self, chunk: Chunk, target: Target, temporaries: Temporaries) -> list[Step]:
        table = self._describe(self._session, target)
        contents, sure = chunk.contents, not target.shared and target.truck_table not in self._unsure
        if chunk.table:
            staged = stage_name(chunk.table)
            check = still_staged(target, staged, contents.rows)
            if not chunk.plain:
                return [check, *steps(contents, target, table, staged, sure=sure)]
            typed = temporaries.take(staging_columns(contents, target, table))
            brought = typed_from_plain(contents, target, table, staged, typed)
            return [check, brought, *steps(contents, target, table, typed, sure=sure)]
        staged = temporaries.take(staging_columns(contents, target, table))
        if not fits(chunk, table):
            brought = typed_from_plain(contents, target, table, self._plain(chunk, target), staged)
            return [brought, *steps(contents, target, table, staged, sure=sure)]
        with blaming(target, contents.columns):
            into = f"{staged} ({copied_columns(contents, target)})"
            copy_in(self._session, into, self._text(chunk), binary=bool(chunk.types))
        return steps(contents, target, table, staged, sure=sure)

    def _run(self, todo: Sequence[Step], plan: Plan | None = None) -> None:
        """All steps, and the ledger where a plan is given, in one round trip; then look what they did."""
        if not todo and plan is None:
            return
        cursors: list[psycopg.Cursor[object]] = []
        tables: psycopg.Cursor[Any] | None = None
        try:
            with self._session.connection.pipeline():
                cursors.extend(self._session.run(step.statement, *step.parameters) for step in todo)
                if plan is not None:
                    if self._touched:
                        # After the steps: what they have written to cannot be dropped or altered until COMMIT.
                        tables = identity.ask(self._session, [target.table for target in self._touched])
                    reach("sink.position.before")
                    state_tables.store(self._session, self._project, plan)
                    reach("sink.position.after")
        except psycopg.Error as error:
            failed = next((step for step, cursor in zip(todo, cursors, strict=False) if not _done(cursor)), None)
            if failed is None or passing(error):
                raise
            raise _failure(failed, error) from None
        check_touched([(step, cursor.rowcount) for step, cursor in zip(todo, cursors, strict=True)])
        if tables is not None:
            self._refuse_changed(tables.fetchall())

    def _refuse_changed(self, rows: Sequence[tuple[int, int, list[str]]]) -> None:
        """Raise where a table that has been written to is not the one that trucker has filled."""
        by_number = {number: (oid, columns) for number, oid, columns in rows}
        seen = [by_number.get(number) for number in range(1, len(self._touched) + 1)]
        changed = self._written.compare(self._touched, seen, identity.identity_of, copied=self._ends_copies)
        for target, reason in changed:
            raise TruckFailed(target.truck, reason)


def _failure(step: Step, error: psycopg.Error) -> TruckerError:
    if step.lost and error.sqlstate == "42P01":
        return gone(step.target.table)
    if step.sure and error.sqlstate in ("23505", "23P01"):
        raise Unforeseen(step.target)
    where = f"table {step.target.table}"
    reason = explain(error, where, table=step.target.table, columns=step.columns)
    return TruckFailed(step.target.truck, reason, step.target.source.table)


def _done(cursor: psycopg.Cursor[object]) -> bool:
    result = cursor.pgresult
    ok = psycopg.pq.ExecStatus
    return result is not None and result.status in (ok.COMMAND_OK, ok.TUPLES_OK)


def _in_order(loads: Sequence[Load]) -> Iterator[tuple[Target, Chunk]]:
    """Table by table; those that share one part by part, since a row may leave one of them and come to another."""
    parts = [(receipt.part, load.target, receipt.staged) for load in loads for receipt in load.parts]
    shared = sorted((each for each in parts if each[1].shared), key=lambda each: each[0])
    for _, target, chunks in (*(each for each in parts if not each[1].shared), *shared):
        for chunk in chunks:
            yield target, chunk


def _staged_beside(receipts: Iterable[Receipt]) -> tuple[bool, bool]:
    """Whether rows of these receipts were staged in files, and in tables."""
    files = tables = False
    for receipt in receipts:
        # What was staged of a part before a truncate has no receipt.
        files, tables = files or receipt.truncates, tables or receipt.truncates
        if isinstance(receipt.staged, tuple):
            for chunk in receipt.staged:
                files, tables = files or bool(chunk.file), tables or bool(chunk.table)
        elif isinstance(receipt.staged, StagedRows):
            tables = tables or bool(receipt.staged.table)
    return files, tables
