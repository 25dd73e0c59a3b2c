"""From values of a program to a `ProjectConfig`: the keys of trucker.yml and truck.yml, checked as those of files are.

Errors name the key: `connections[0].port`, `trucks[0].input.table`. Values are taken as they are; only SQL is a
template. Relative paths are seen from the working folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from trucker.config.adapter import Connection
from trucker.config.document import Item
from trucker.config.handler_file import UNUSABLE, HandlerClass, handler_class
from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.problems import key_of, unknown_key
from trucker.config.project_check import ProjectCheck, is_name
from trucker.config.registry import installed
from trucker.config.sql.sql_files import NAMES, SqlFile
from trucker.errors import Place

Settings = Mapping[str, object]
"""Keys and values as trucker.yml or truck.yml has them; a section may be its model."""

_ARGUMENTS: Final = {"unique_id": "name", "state": "state", "connections": "connections"}
"""Keys of trucker.yml that are arguments of their own, with the arguments' names."""

_TRUCK_NAME: Final = "use at most 63 letters, digits, _, - and ., not beginning with - or ."


def build_project(
    name: str,
    state: str | Path,
    connections: Sequence[Settings | Connection],
    trucks: Sequence[Settings],
    settings: Settings,
) -> ProjectConfig:
    """A project of these parts. Raises a `ConfigError`, or `ConfigErrors` where several things are wrong.

    `settings` are the other keys of trucker.yml. A truck has the keys of truck.yml, `name`, and where it needs them
    `sql` (a mapping of file names to texts) and `functions` (Python functions for its Spark SQL)
    and `handler_class` (a `Handler` or `Batcher`, in place of a handler.py).
    """
    return assemble(
        item_of(name, "name"),
        item_of(state, "state"),
        item_of(connections, "connections"),
        item_of(trucks, "trucks"),
        {key: item_of(value, key) for key, value in settings.items()},
    )


def assemble(name: Item, state: Item, connections: Item, trucks: Item, settings: Mapping[str, Item]) -> ProjectConfig:
    """As `build_project`, of items: their places are those that errors name."""
    check = ProjectCheck(Path.cwd())
    for key in settings.keys() & _ARGUMENTS.keys():
        place = settings[key].place
        check.error(f'"{key}" is not a setting here', place, f"give it as the argument {_ARGUMENTS[key]}", "TRK104")
    arguments = {"unique_id": name, "state": state, "connections": connections}
    document = Item({**settings, **arguments}, Place("project"), Place("project"))
    project = check.settings(document)
    for connection in project.connections if project else ():
        if connection.inline_adapter is not None:
            installed().use_module(connection.sink_module)
    return check.project(project, list(_trucks(check, trucks)), "")


def item_of(value: object, path: str) -> Item:
    """A value of a program as an item whose place is its `path`."""
    if isinstance(value, BaseModel) and not (isinstance(value, Connection) and value.inline_adapter):
        value = _keys_of(value)
    if isinstance(value, Mapping):
        value = {str(key): item_of(entry, f"{path}.{key}") for key, entry in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = tuple(item_of(entry, f"{path}[{index}]") for index, entry in enumerate(value))
    return Item(value, Place(path), Place(path))


def _keys_of(model: BaseModel) -> dict[str, object]:
    """What is set in a model, by the keys of YAML; of a connection its adapter, too, which may be a default."""
    given = model.model_fields_set | ({"adapter"} if isinstance(model, Connection) else set())
    fields = type(model).model_fields
    return {key_of(name, fields[name]): getattr(model, name) for name in fields if name in given}


def _trucks(check: ProjectCheck, item: Item) -> Iterator[TruckConfig]:
    if not isinstance(item.value, tuple) or not item.value:
        check.error("the project has no truck", item.place, "list at least one truck", "TRK111")
        return
    seen: dict[str, Place] = {}
    for entry in item.value:
        name = _truck_name(check, entry)
        first = seen.setdefault(name.casefold(), entry.place)
        if name and first is not entry.place:
            remedy = f"the first is {first}; give one of them another name"
            check.error(f'another truck has the name "{name}"', entry.place, remedy, "TRK108")
        truck = _truck(check, entry, name)
        if truck is not None:
            yield truck


def _truck_name(check: ProjectCheck, item: Item) -> str:
    """The name of a truck; empty, with the reason collected, where it has none that can be used."""
    entry = item.entries.get("name")
    if entry is None:
        check.error('"name" is missing', item.place, "add name (the name of the truck)", "TRK106")
        return ""
    if not isinstance(entry.value, str) or not is_name(entry.value):
        check.error("the truck's name cannot be used", entry.place, _TRUCK_NAME, "TRK105")
        return ""
    return entry.value


def _truck(check: ProjectCheck, item: Item, name: str) -> TruckConfig | None:
    if not isinstance(item.value, Mapping):
        check.error("a truck must contain keys and values", item.place, "give it name, input and output", "TRK105")
        return None
    entries = dict(item.entries)
    entries.pop("name", None)
    files = list(_sql_files(check, entries.pop("sql", None), name))
    functions = list(_functions(check, entries.pop("functions", None)))
    handler = _handler(check, entries.pop("handler_class", None))
    return check.truck(name, replace(item, value=entries), files, functions=functions, handler=handler)


def _handler(check: ProjectCheck, item: Item | None) -> HandlerClass | None:
    if item is None:
        return None
    if (handler := handler_class(item.value)) is None:
        remedy = "give a class that inherits trucker.Handler or trucker.Batcher, or functools.partial of one"
        check.error("this is not a handler", item.place, remedy, UNUSABLE)
    return handler


def _sql_files(check: ProjectCheck, item: Item | None, truck: str) -> Iterator[SqlFile]:
    if item is None:
        return
    if not isinstance(item.value, Mapping):
        remedy = 'give a mapping, such as {"input.sql": "select …"}'
        check.error('"sql" must be a mapping of file names to texts', item.place, remedy, "TRK105")
    for name, entry in item.entries.items():
        if name not in NAMES:
            check.errors.append(unknown_key(entry, name, NAMES))
        elif not isinstance(entry.value, str):
            check.error("the SQL must be text", entry.place, "give the text of the file", "TRK105")
        elif file := check.sql_file(name, f"{truck}/{name}", entry.value):
            yield file


def _functions(check: ProjectCheck, item: Item | None) -> Iterator[Callable[..., Any]]:
    """The functions that can be registered: they have a name, and are written in Python or made by pyspark's `udf`."""
    if item is None:
        return
    if not isinstance(item.value, tuple):
        check.error('"functions" must be a list', item.place, "give a list of Python functions", "TRK105")
        return
    for entry in item.value:
        function: Any = entry.value
        if (inspect.isfunction(function) or hasattr(function, "evalType")) and function.__name__.isidentifier():
            yield function
        else:
            check.error("this is not a Python function with a name", entry.place, "write it with def", "TRK105")
