"""From a connection to its sink."""

from __future__ import annotations

from collections.abc import Callable

from trucker.config.adapter import Connection, Part
from trucker.config.registry import adapter_of
from trucker.sinks.base import Sink, Workspace


def make_sink(connection: Connection, workspace: Workspace, part: Part | None = None) -> Sink:
    """The sink for a connection, not opened. Raises `ConfigError` where its driver is not installed (TRK114).

    `part` says where its class is; without it the adapter is looked for, which an executor cannot do.
    """
    sink: Callable[[Connection, Workspace], Sink] = (part or adapter_of(connection).sink_part).load()
    return sink(connection, workspace)
