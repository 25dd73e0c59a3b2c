"""One batch, one transaction: all tables of all trucks, their positions and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg

from trucker.change import TableId
from trucker.errors import SinkError, SinkUnavailable, TruckerError, TruckFailed
from trucker.sinks.base import Batch, Receipt, Target
from trucker.sinks.ledger import Plan, foreign_rows
from trucker.sinks.postgres import own_tables
from trucker.sinks.postgres.apply import Step, staging_columns, steps, still_staged
from trucker.sinks.postgres.failure import explain, passing
from trucker.sinks.postgres.foreign_keys import refuse_foreign_keys
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage import Chunk, Part
from trucker.sinks.postgres.staging import Temporaries, copy_in, drop_stages, left_stages, stage_name, stage_prefix
from trucker.sinks.postgres.table import DestinationTable

Describe = Callable[[Session, Target], DestinationTable]


class Commit:
    """Commits batches in one session. Raises trucker's errors only, having written nothing then.

    The exception is a connection that is lost while COMMIT is under way: whether it took effect is not known then,
    and found out by the position when the batch is repeated (I4).
    """

    def __init__(self, session: Session, project: str, describe: Describe) -> None:
        self._session = session
        self._project = project
        self._describe = describe

    def run(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        try:
            self._apply(batch, receipts)
            self._session.run("commit")
            self._sweep(batch, receipts)
        except psycopg.Error as error:
            self._roll_back()
            if passing(error):
                raise explain(error, "committing a batch") from None
            raise self._blame(batch, receipts, error) from None
        except BaseException:
            self._roll_back()
            raise

    def _sweep(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Drop what attempts at this batch staged that did not become receipts."""
        if _stages(receipts):
            with suppress(psycopg.Error):
                drop_stages(self._session, left_stages(self._session, stage_prefix(self._project, batch)))

    def _roll_back(self) -> None:
        # Temporary tables made in this transaction go, those dropped in it come back.
        self._session.staging.clear()
        if not self._session.connection.closed:
            try:
                self._session.run("rollback")
            except psycopg.Error:
                self._session.connection.close()

    # -- whose fault ------------------------------------------------------------------------------------------------

    def _blame(self, batch: Batch, receipts: Sequence[Receipt], error: psycopg.Error) -> TruckerError:
        """COMMIT itself failed, by a deferred constraint: the truck without which it would not have is to blame."""
        reason = explain(error, "committing a batch")
        trucks = sorted({target.truck for target in batch.targets} | set(batch.positions))
        for truck in trucks if len(trucks) > 1 else ():
            if self._would_commit(*_without(batch, receipts, truck)):
                return TruckFailed(truck, reason)
        return TruckFailed(trucks[0], reason) if len(trucks) == 1 else reason

    def _would_commit(self, batch: Batch, receipts: Sequence[Receipt]) -> bool:
        try:
            self._apply(batch, receipts)
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

    def _apply(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Everything but COMMIT."""
        session = self._session
        ledger = own_tables.lock(session, self._project, _trucks(batch))
        plan = ledger.plan(batch)
        if plan.copies:
            refuse_foreign_keys(session, plan.copies)
        for copy in plan.copies:
            with _of(copy.target):
                self._begin_copy(copy.target, copy.ours)
        todo: list[Step] = []
        if batch.snapshot:
            self._settle_copies(batch, plan, receipts)
        else:
            todo = self._steps(batch, plan, receipts)
        self._run(todo, plan, _stages(receipts))

    def _begin_copy(self, target: Target, ours: bool) -> None:
        into = target.table.quoted
        if not ours and self._session.run(f"select exists (select from {into})").fetchone() == (True,):
            raise foreign_rows(target)
        if ours:
            self._session.run(f"truncate {into}")

    def _settle_copies(self, batch: Batch, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """A copy that begins forgets the parts of earlier ones; one that ends must have every part it is told of."""
        begun = {(copy.target.truck, copy.target.source.table) for copy in plan.copies}
        copied = own_tables.take_parts(self._session, self._project, begun | plan.apply)
        for receipt in receipts:
            slot = (receipt.truck, receipt.table)
            if slot in plan.apply and copied.get((*slot, batch.snapshot, receipt.part)) != receipt.rows:
                raise TruckFailed(
                    receipt.truck,
                    SinkError(f"part {receipt.part} of the copy of {receipt.table} is not at the destination"),
                )

    def _steps(self, batch: Batch, plan: Plan, receipts: Sequence[Receipt]) -> list[Step]:
        """Copy in what the receipts carry, and say what is to be run then."""
        found: list[Step] = []
        emptied: dict[TableId, Target] = {}
        temporaries = Temporaries(self._session)
        for target in batch.targets:
            if (target.truck, target.source.table) not in plan.apply:
                continue
            parts = _parts(target, receipts)
            last = max((number for number, part in enumerate(parts) if part.truncates), default=None)
            if last is not None:
                emptied[target.table] = target
                parts = parts[last:]  # what came before is void
            with _of(target):
                for part in parts:
                    for chunk in part.chunks:
                        found += self._staged(chunk, target, temporaries)
        if emptied:
            # In one statement, because tables that refer to each other can only be truncated together.
            names = ", ".join(table.quoted for table in emptied)
            found.insert(0, Step(next(iter(emptied.values())), f"truncate {names}", purpose="truncate"))
        return found

    def _staged(self, chunk: Chunk, target: Target, temporaries: Temporaries) -> list[Step]:
        table = self._describe(self._session, target)
        if chunk.table:
            staged = stage_name(chunk.table)
            return [
                still_staged(target, staged, chunk.contents.rows),
                *steps(chunk.contents, target, table, staged),
            ]
        staged = temporaries.take(staging_columns(chunk.contents, target, table))
        with _of(target, chunk.contents.columns):
            copy_in(self._session, staged, [chunk.text])
        return steps(chunk.contents, target, table, staged)

    def _run(self, todo: Sequence[Step], plan: Plan, stages: Sequence[str]) -> None:
        """All steps and the ledger in one round trip; then look what they did."""
        cursors: list[psycopg.Cursor[object]] = []
        try:
            with self._session.connection.pipeline():
                cursors.extend(self._session.run(step.statement, *step.parameters) for step in todo)
                own_tables.store(self._session, self._project, plan)
                drop_stages(self._session, stages)
        except psycopg.Error as error:
            failed = next((step for step, cursor in zip(todo, cursors, strict=False) if not _done(cursor)), None)
            if failed is None or passing(error):
                raise
            raise _failure(failed, error) from None
        cancelled = before = 0
        for step, cursor in zip(todo, cursors, strict=True):
            if step.cancels:
                cancelled = cursor.rowcount // 2
            elif step.expected is not None:
                less = cancelled if step.after_cancel else before if step.rest else 0
                _verify(step, cursor.rowcount, step.expected - less)
            before = cursor.rowcount + (before if step.rest else 0)


def _verify(step: Step, touched: int, expected: int) -> None:
    if touched == expected:
        return
    table = step.target.table
    if step.lost:
        raise _gone(table)
    raise TruckFailed(
        step.target.truck,
        SinkError(
            f"table {table}: to {step.purpose}, {expected} rows were expected at the destination, {touched} found",
            remedy=f"someone else has changed {table}, or a trigger keeps rows away; "
            f"run `trucker reset` for the truck to have the table copied again",
            code="TRK411",
        ),
    )


def _failure(step: Step, error: psycopg.Error) -> TruckerError:
    if step.lost and error.sqlstate == "42P01":
        return _gone(step.target.table)
    where = f"table {step.target.table}"
    return TruckFailed(step.target.truck, explain(error, where, table=step.target.table, columns=step.columns))


def _gone(table: TableId) -> SinkUnavailable:
    return SinkUnavailable(
        f"rows staged for table {table} are gone, as after a crash of the destination",
        remedy="they are staged again",
    )


def _done(cursor: psycopg.Cursor[object]) -> bool:
    result = cursor.pgresult
    ok = psycopg.pq.ExecStatus
    return result is not None and result.status in (ok.COMMAND_OK, ok.TUPLES_OK)


@contextmanager
def _of(target: Target, columns: Sequence[str] = ()) -> Iterator[None]:
    """What fails in here is the truck's."""
    try:
        yield
    except psycopg.Error as error:
        if passing(error):
            raise
        reason = explain(error, f"table {target.table}", table=target.table, columns=columns)
        raise TruckFailed(target.truck, reason) from None
    except SinkUnavailable:
        raise
    except SinkError as error:
        raise TruckFailed(target.truck, error) from None


def _trucks(batch: Batch) -> set[str]:
    return {*batch.positions, *batch.forget, *(t for t, _ in batch.tables), *(t.truck for t in batch.targets)}


def _parts(target: Target, receipts: Sequence[Receipt]) -> list[Part]:
    mine = [r for r in receipts if (r.truck, r.table) == (target.truck, target.source.table)]
    return [receipt.staged for receipt in sorted(mine, key=lambda receipt: receipt.part)]


def _stages(receipts: Sequence[Receipt]) -> list[str]:
    parts = [receipt.staged for receipt in receipts if isinstance(receipt.staged, Part)]
    return [chunk.table for part in parts for chunk in part.chunks if chunk.table]


def _without(batch: Batch, receipts: Sequence[Receipt], truck: str) -> tuple[Batch, list[Receipt]]:
    kept = replace(
        batch,
        positions={name: lsn for name, lsn in batch.positions.items() if name != truck},
        tables={slot: state for slot, state in batch.tables.items() if slot[0] != truck},
        targets=tuple(target for target in batch.targets if target.truck != truck),
        forget=tuple(name for name in batch.forget if name != truck),
    )
    return kept, [receipt for receipt in receipts if receipt.truck != truck]
