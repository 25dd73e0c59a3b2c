"""output.sql in a database: checked before anything is run, then run inside the batch's transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from trucker.change import Changes, CopiedRows
from trucker.config.sql.sql_template import RenderedSql
from trucker.errors import SinkUnavailable, TruckerError, TruckFailed
from trucker.sinks import output_sql
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.delivery import Load
from trucker.sinks.output_sql import Piece, Share
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.sinks.transactional.staged_changes import StagedPart


class OutputStatements(ABC):
    """The statements of trucks' files. A store says how it judges and runs one, and where the rows are."""

    @abstractmethod
    def judge(self, target: Target, piece: Piece) -> bool:
        """Raise for a statement that must not be part of the batch's transaction. Whether it makes things that the rest
        of the file may speak of."""

    @abstractmethod
    def plan(self, target: Target, piece: Piece) -> None:
        """Have the database look at a statement, without running it."""

    @abstractmethod
    def execute(self, target: Target, piece: Piece) -> None:
        """Run a statement; raises trucker's errors."""

    @abstractmethod
    def share(self, number: int, target: Target, receipt: Receipt) -> Share:
        """Bring the rows of a receipt to where the statements can read them: the share of this number in its part."""

    @abstractmethod
    def release(self, shares: Sequence[Share]) -> None:
        """A part is done."""

    @abstractmethod
    def settings(self) -> AbstractContextManager[None]:
        """What the session is to be like while statements are checked or run."""

    def check(self, target: Target, staged: str) -> None:
        """Check a truck's file over an empty stage, running none of it."""
        with self.settings():
            rendered = output_sql.renderings(target, staged)
            statements = [piece for text in rendered for piece in self._checked(target, text)]
        output_sql.refuse_empty(target, statements)

    def _checked(self, target: Target, rendered: RenderedSql) -> Sequence[Piece]:
        statements = output_sql.pieces(rendered)
        makes = [self.judge(target, piece) for piece in statements]
        for piece, last in zip(statements, makes, strict=True):
            self.plan(target, piece)
            if last:
                break
        return statements

    def run(self, loads: Iterable[Load]) -> None:
        """Run the files over what was staged. Raises `TruckFailed` for the truck whose file fails."""
        trucks: dict[str, list[Load]] = defaultdict(list)
        for load in loads:
            trucks[load.target.truck].append(load)
        for truck, due in trucks.items():
            try:
                for shares in self.parts(due):
                    with self.settings():
                        output_sql.run_part(shares, self.execute)
                    self.release(shares)
            except SinkUnavailable:
                raise
            except TruckerError as error:
                raise TruckFailed(truck, error) from None

    def parts(self, loads: Sequence[Load]) -> Iterator[Sequence[Share]]:
        """What one truck's statements are run over, part by part."""
        by_part: dict[int, list[tuple[Target, Receipt]]] = defaultdict(list)
        for load in loads:
            for receipt in load.parts:
                if receipt.rows:
                    by_part[receipt.part].append((load.target, receipt))
        for part in sorted(by_part):
            yield [self.share(number, *each) for number, each in enumerate(by_part[part])]


def stage_rows(spool: Spool, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
    """Stage the rows of one part, in an executor: run `n`, operation `k`, and the cells n0… as text."""
    counted: list[int] = []
    rows = spool.stage(work, _batches(work.target, changes, counted))
    return work.receipt(sum(counted), StagedPart(rows, rounds=1 if rows else 0))


def _batches(target: Target, changes: Iterator[Changes | CopiedRows], counted: list[int]) -> Iterator[pa.RecordBatch]:
    for value in output_sql.as_rows(changes):
        shaped = value.reshaped(target.source)
        output_sql.refuse_partial(target, shaped)
        counted.append(len(shaped))
        if len(shaped):
            names = ["n", "k", *(f"n{number}" for number in range(len(target.source.names)))]
            yield pa.RecordBatch.from_arrays(
                [pa.array(shaped.ordinal), pa.array(shaped.op), *shaped.new.columns], names=names
            )
