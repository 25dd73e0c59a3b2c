"""Stands in for a destination's sink where rows are not to be written: takes what would be, for the driver to read."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Final

import pyarrow as pa

from trucker.change import Changes, CopiedRows, as_changes
from trucker.config.adapter import Component, Connection
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.spool import Spool

PREFIX: Final = "verify-"
_PLACE: Final = "trucker.engine.verify.row_spool:RowSpool"


class RowSpool(Sink):
    """Stages the new rows of changes. Nothing is ever published."""

    name: ClassVar[str] = "rows"

    def __init__(self, connection: Connection, workspace: Workspace) -> None:
        self._spool = Spool(workspace.folder, near=workspace.near)

    def open(self) -> Ledger:
        return Ledger()

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        rows = 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for value in as_changes(changes):
                rows += len(value)
                yield value.reshaped(work.target.source).new

        return work.receipt(rows, self._spool.stage(work, batches()))

    def publish(self, delivery: Delivery) -> None:
        raise AssertionError("rows that are compared are not published")

    def staged(self, receipts: Sequence[Receipt]) -> Iterator[pa.RecordBatch]:
        """The rows of these receipts."""
        return self._spool.read_all(receipts)


def spool_spec(spec: SinkSpec) -> SinkSpec:
    """How tasks make a spool in the place of a destination's sink, in a folder that no other has."""
    connection = spec.connection.model_copy(update={"name": f"{spec.connection.name} (compared)"})
    workspace = replace(spec.workspace, folder=spec.workspace.folder / f"{PREFIX}{secrets.token_hex(6)}")
    return SinkSpec(connection, workspace, Component("rows", _PLACE))


def remove_spools(spec: SinkSpec) -> None:
    """Remove the folders that a killed process has left. Nothing may be comparing."""
    for folder in spec.workspace.folder.glob(f"{PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
