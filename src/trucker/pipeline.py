"""A pipeline: one source, one sink, some tables; a project with one truck, built in code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from trucker.config.adapter import Connection
from trucker.config.document import Item
from trucker.config.handler_file import HandlerFactory, handler_class
from trucker.config.project_build import Settings, assemble, item_of
from trucker.config.registry import installed
from trucker.errors import Place
from trucker.project import Project

if TYPE_CHECKING:
    from trucker.sinks.custom import SinkFactory

_PIPELINE: Final = Item({}, Place("pipeline"), Place("pipeline"))


class Pipeline(Project):
    """A project with one truck, which has the pipeline's name. All methods of `Project` work."""

    def __init__(
        self,
        source: Settings | Connection,
        sink: Settings | Connection | SinkFactory | HandlerFactory,
        *,
        name: str,
        tables: str | Sequence[str],
        state: str | Path,
        input: Settings | None = None,  # noqa: A002 - the key of truck.yml
        output: Settings | None = None,
        project: Settings | None = None,
        **options: object,
    ) -> None:
        """Raises ConfigError, which names the key that is wrong (`source.port`); connects to nothing.

        `source` and `sink` are connections: the keys that trucker.yml has, or a model; their names are `source` and
        `sink` unless they have others. A sink may also be a class that inherits `Sink`, or a `functools.partial` of
        one: it is called with a workspace, and workers must be able to import the class (TRK127). Or it is a class
        that inherits `Handler` or `Batcher`, or a partial of one: it runs in this process.
        `tables` are names and patterns. `input` and `output` are further keys of these sections of truck.yml,
        `options` its other keys, `sql` and `functions`; `project` other keys of trucker.yml. `name` and `state` are
        those of `Project.build`.
        """
        handler = handler_class(sink)
        first, second = _connection(source, "source"), _connection(_settings_of(sink), "sink")
        if handler is not None:
            options["handler_class"] = sink
        truck = {
            "name": item_of(name, "name"),
            "input": _section(input, "input", {"connection": _name(first), "tables": item_of(tables, "tables")}),
            "output": _section(output, "output", {"connection": _name(second)}),
            **{key: item_of(value, key) for key, value in options.items()},
        }
        config = assemble(
            item_of(name, "name"),
            item_of(state, "state"),
            replace(_PIPELINE, value=(first, second)),
            replace(_PIPELINE, value=(replace(_PIPELINE, value=truck),)),
            {key: item_of(value, f"project.{key}") for key, value in (project or {}).items()},
        )
        super().__init__(config)


def _settings_of(sink: Settings | Connection | SinkFactory | HandlerFactory) -> Settings | Connection:
    """What describes the sink; a class becomes a connection of its own."""
    if isinstance(sink, Mapping | Connection):
        return sink
    if handler_class(sink) is not None:
        return {"adapter": installed().offering(lambda adapter: adapter.takes_handlers)[0]}
    from trucker.sinks.custom import SinkConnection

    return SinkConnection(name="sink", sink=cast("SinkFactory", sink))


def _connection(settings: Settings | Connection, role: str) -> Item:
    """A connection, with the name of its role where it has none."""
    item = item_of(settings, role)
    if not isinstance(item.value, Mapping) or "name" in item.value:
        return item
    return replace(item, value={"name": item_of(role, f"{role}.name"), **item.entries})


def _name(connection: Item) -> Item:
    if isinstance(connection.value, Connection):
        return replace(connection, value=connection.value.name)
    return connection.entries.get("name", connection)


def _section(settings: Settings | None, key: str, defaults: Mapping[str, Item]) -> Item:
    """A section of the truck; what it does not say comes from `defaults`."""
    item = item_of(settings or {}, key)
    return replace(item, value={**defaults, **item.entries}) if isinstance(item.value, Mapping) else item
