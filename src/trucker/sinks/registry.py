"""Sinks by adapter name: trucker's own, and those other packages offer.

A package offers one as an entry point, and its class takes `(connection, workspace)` like trucker's own:

    [project.entry-points."trucker.sinks"]
    myadapter = "my_package.sink:MySink"

A sink is imported when it is first made, so that a driver is needed only by those who use it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from trucker.config.models import Connection
from trucker.errors import ConfigError
from trucker.sinks.base import Sink, Workspace

GROUP: Final = "trucker.sinks"


class BuiltIn(NamedTuple):
    """Where a sink of trucker's own is; `driver` is the module, if any, that the extra of the same name brings."""

    module: str
    kind: str
    driver: str = ""


BUILT_IN: Final = {
    "postgres": BuiltIn("trucker.sinks.postgres", "PostgresSink"),
    "duckdb": BuiltIn("trucker.sinks.duckdb", "DuckDBSink", driver="duckdb"),
    "jsonl": BuiltIn("trucker.sinks.jsonl", "JsonLinesSink"),
    "stdout": BuiltIn("trucker.sinks.stdout", "StdoutSink"),
}


def make_sink(connection: Connection, workspace: Workspace) -> Sink:
    """The sink for a connection, not opened. Raises `ConfigError` for an adapter that is not known or not installed."""
    return sink_class(connection.adapter)(connection, workspace)


def sink_class(adapter: str) -> Callable[[Any, Workspace], Sink]:
    """The class of an adapter's sinks."""
    if adapter in BUILT_IN:
        return _built_in(adapter)
    found = {point.name: point for point in entry_points(group=GROUP)}
    if adapter not in found:
        known = ", ".join(sorted({*BUILT_IN, *found}))
        raise ConfigError(
            f"there is no sink for adapter {adapter!r}",
            remedy=f"use one of {known}, or install the package that brings it",
            code="TRK113",
        )
    loaded: Callable[[Any, Workspace], Sink] = found[adapter].load()
    return loaded


def _built_in(adapter: str) -> Callable[[Any, Workspace], Sink]:
    built_in = BUILT_IN[adapter]
    try:
        module = importlib.import_module(built_in.module)
    except ModuleNotFoundError as error:
        if not built_in.driver or (error.name or "").partition(".")[0] != built_in.driver:
            raise
        raise ConfigError(
            f"the driver of adapter {adapter} is not installed",
            remedy=f'pip install "trucker[{adapter}]"',
            code="TRK114",
        ) from None
    kind: Callable[[Any, Workspace], Sink] = getattr(module, built_in.kind)
    return kind
