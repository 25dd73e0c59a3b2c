"""The classes of handler.py files as destinations."""

from __future__ import annotations

from typing import ClassVar

from trucker.adapters.python import PythonConnection
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.python.handler_sinks import BatcherSink, EventHandlerSink


class PythonSinks:
    """Makes the sink that a connection's handlers need."""

    name: ClassVar[str] = "python"

    def __call__(self, connection: PythonConnection, workspace: Workspace) -> Sink:
        return (BatcherSink if connection.batches else EventHandlerSink)(connection, workspace)


python_sink = PythonSinks()
