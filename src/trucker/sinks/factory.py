"""From a connection to its sink."""

from __future__ import annotations

from collections.abc import Callable

from trucker.config.adapter import Component, Connection
from trucker.config.registry import adapter_of
from trucker.sinks.base import Sink, Workspace


def make_sink(connection: Connection, workspace: Workspace, component: Component | None = None) -> Sink:
    """The sink for a connection, not opened. Raises `ConfigError` where its driver is not installed (TRK114).

    `component` says where its class is; without it the adapter is looked for, which an executor cannot do.
    """
    sink: Callable[[Connection, Workspace], Sink] = (component or adapter_of(connection).sink_component).load()
    return sink(connection, workspace)
