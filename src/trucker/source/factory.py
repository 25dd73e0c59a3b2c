"""From a connection to its source."""

from __future__ import annotations

from collections.abc import Callable

from trucker.config.adapter import Connection
from trucker.config.registry import adapter_of
from trucker.source.base import Source


def make_source(connection: Connection, unique_id: str) -> Source:
    """The source for a connection of a project. Nothing is connected to."""
    source: Callable[[Connection, str], Source] = adapter_of(connection).source_component.load()
    return source(connection, unique_id)
