"""The driver's standard output: the lines of `json_lines`, in commit order truck by truck."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from trucker import private
from trucker.adapters.stdout import StdoutConnection
from trucker.change import Changes, CopiedRows, TableId
from trucker.errors import SinkError, SinkUnavailable, TruckerError
from trucker.finding import Finding, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Batch, Capabilities, Receipt, Sink, Target, TruckState, Work, Workspace
from trucker.sinks.json_lines import block
from trucker.sinks.ledger import Ledger
from trucker.sinks.spool import Spool
from trucker.sinks.staged_lines import stage_lines, staged_lines


class StdoutSink(Sink):
    """Guarantee: at least once, in commit order; a crash between printing and noting the position prints again."""

    name: ClassVar[str] = "stdout"
    capabilities: ClassVar[Capabilities] = Capabilities(
        keeps_changes=True, exactly_once=False, guarantee="at least once: a batch may be printed again after a crash"
    )

    def __init__(self, connection: StdoutConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._workspace = workspace
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._ledger: Ledger | None = None

    @property
    def _positions(self) -> Path:
        return self._workspace.folder / f"{self._connection.name}.positions.json"

    def check(self) -> list[Finding]:
        """Whether the positions can be read. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            self._load()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, "lines go to standard output, at least once")]

    def stored(self) -> Mapping[str, TruckState]:
        return self._load().states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """There are no tables to refuse."""
        yield from ()

    def open(self) -> Mapping[str, TruckState]:
        if self._ledger is None:
            self._spool.clear()
        self._ledger = self._load()
        return self._ledger.states()

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return stage_lines(self._spool, work, changes)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        if self._ledger is None:
            raise SinkError(f"connection {self._connection.name} was not opened")
        self._spool.keep_only(batch, [receipt.staged for receipt in receipts])
        plan = self._ledger.plan(batch)
        if not plan.empty:
            due = [receipt for receipt in receipts if (receipt.truck, receipt.table) in plan.apply]
            self._print(batch, due)
            ledger = self._ledger.after(plan)
            self._save(ledger)
            self._ledger = ledger
        self._spool.discard(batch)

    def _print(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        out = sys.stdout.buffer
        try:
            for truck in sorted({receipt.truck for receipt in receipts}):
                for text in staged_lines(self._spool, batch, [r for r in receipts if r.truck == truck]):
                    out.write(block(text))
            out.flush()
        except BrokenPipeError as error:
            _silence_stdout()
            raise SinkError(
                "standard output was closed by its reader",
                remedy="restart trucker with a reader that stays open; nothing is lost",
                code="TRK458",
            ) from error
        except OSError as error:
            raise SinkUnavailable(f"printing failed: {error.strerror or error}", code="TRK456") from error

    def _save(self, ledger: Ledger) -> None:
        try:
            private.make_folder(self._workspace.folder)
            ledger_file.save(self._positions, self._workspace.project, ledger, opener=private.open_file)
        except OSError as error:
            raise SinkUnavailable(
                f"writing the position to {self._positions} failed: {error.strerror or error}",
                remedy="free disk space for, or give trucker access to, the project's state folder",
                code="TRK456",
            ) from error

    def _load(self) -> Ledger:
        content = ledger_file.load(self._positions, self._workspace.project)
        return ledger_file.ledger_from_json(content) if content else Ledger()


def _silence_stdout() -> None:
    """What is still buffered would fail again when Python flushes at its end: let it go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)
