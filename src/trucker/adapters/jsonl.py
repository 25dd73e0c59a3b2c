"""A folder of JSON-lines files as a destination."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from trucker.abilities import Abilities
from trucker.adapters.json_types import TYPES
from trucker.config.adapter import Adapter
from trucker.config.events import EventConnection
from trucker.config.model import MIB
from trucker.config.values import Bytes, ProjectPath


class JsonLinesConnection(EventConnection):
    """A folder of JSON-lines files as a destination: one line per change."""

    adapter: Literal["jsonl"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The folder; relative to the project's folder.")
    rotate_bytes: Bytes = Field(default=128 * MIB, gt=0, description="The size after which a new file is started.")


JSONL: Final = Adapter(
    name="jsonl",
    connection=JsonLinesConnection,
    sink="trucker.sinks.lines.jsonl:JsonLinesSink",
    abilities=Abilities(
        every_change=True, guarantee="exactly once: after a crash, lines beyond those in the manifest are removed"
    ),
    types=TYPES,
)
