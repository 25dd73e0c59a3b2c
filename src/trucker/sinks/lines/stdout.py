"""The driver's standard output: events as lines of JSON, in commit order truck by truck."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from trucker import private
from trucker.abilities import Abilities
from trucker.adapters.stdout import STDOUT, StdoutConnection
from trucker.errors import SinkError, SinkUnavailable, TruckerError
from trucker.finding import Finding, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Workspace
from trucker.sinks.batch import TruckState
from trucker.sinks.envelope.json_text import block
from trucker.sinks.event import Events
from trucker.sinks.events import EventSink
from trucker.sinks.ledger import Ledger


class StdoutSink(EventSink):
    """Guarantee: at least once, in commit order; a crash between printing and storing the position prints again."""

    name: ClassVar[str] = "stdout"
    abilities: ClassVar[Abilities] = STDOUT.abilities
    line_feed: ClassVar[bool] = True

    def __init__(self, connection: StdoutConnection, workspace: Workspace) -> None:
        super().__init__(connection, workspace)
        self._connection = connection
        self._folder = workspace.folder

    @property
    def _positions(self) -> Path:
        return self._folder / f"{self._connection.name}.positions.json"

    def check(self) -> list[Finding]:
        """Whether the positions can be read. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            self.read_ledger()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, "lines go to standard output, at least once")]

    def stored(self) -> Mapping[str, TruckState]:
        return self.read_ledger().states()

    def read_ledger(self) -> Ledger:
        content = ledger_file.load(self._positions, self._project)
        return ledger_file.ledger_from_json(content) if content else Ledger()

    def append(self, truck: str, events: Iterator[Events]) -> None:
        out = sys.stdout.buffer
        try:
            for piece in events:
                out.write(block(piece.value))
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

    def store(self, ledger: Ledger) -> None:
        try:
            private.make_folder(self._folder)
            ledger_file.save(self._positions, self._project, ledger, opener=private.open_file)
        except OSError as error:
            raise SinkUnavailable(
                f"writing the position to {self._positions} failed: {error.strerror or error}",
                remedy="free disk space for, or give trucker access to, the project's state folder",
                code="TRK456",
            ) from error


def _silence_stdout() -> None:
    """Discard the buffered output: Python would fail again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)
