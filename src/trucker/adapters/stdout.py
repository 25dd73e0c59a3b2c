"""The driver's standard output as a destination."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from trucker.abilities import Abilities
from trucker.adapters.json_types import TYPES
from trucker.config.adapter import Adapter
from trucker.config.events import EventConnection


class StdoutConnection(EventConnection):
    """Standard output as a destination: one JSON line per change, at least once."""

    adapter: Literal["stdout"] = Field(description="The kind of store.")


STDOUT: Final = Adapter(
    name="stdout",
    connection=StdoutConnection,
    sink="trucker.sinks.lines.stdout:StdoutSink",
    abilities=Abilities(
        every_change=True,
        exactly_once=False,
        guarantee="at least once: a batch may be printed again after a crash",
    ),
    uses_stdout=True,
    types=TYPES,
)
