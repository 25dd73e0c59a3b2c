"""The checks of a project's settings, whether files or a program give them; all that is wrong is collected.

`project_folder` reads the files of a folder, `project_build` takes values of a program. Both hand over items, which
know the place that an error names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from trucker.config.adapter import Adapter, Connection
from trucker.config.document import Item
from trucker.config.handler_file import (
    HANDLER,
    METHODS,
    MISSING,
    HandlerClass,
    HandlerFile,
    HandlerText,
    read_handler,
)
from trucker.config.model import NAME, Model
from trucker.config.models import ProjectConfig, ProjectFile, TruckConfig, TruckFile
from trucker.config.problems import explain, keys_of, nearest, raise_if_any
from trucker.config.registry import DEFAULT, adapter_of, installed
from trucker.config.sql.sql_files import OUTPUT, SqlFile
from trucker.config.sql.sql_template import SqlTemplate
from trucker.config.template import MissingValueError, read_value
from trucker.errors import ConfigError, Place


class ProjectCheck:
    """One check of a project: call `settings`, then `truck` for each truck, then `project`.

    `folder` is what relative paths are seen from. `errors` collects what is wrong, so that one run shows everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = {"folder": folder.absolute()}
        self.errors: list[ConfigError] = []
        self.adapters: dict[str, Adapter | None] | None = None
        """The connections' adapters by the connection's name, also of those that are wrong otherwise. The adapter is
        None where it cannot be used; all is None where not all names are known."""

    def project(self, settings: ProjectFile | None, trucks: Sequence[TruckConfig], unique_id: str) -> ProjectConfig:
        """The whole project. Raises a `ConfigError`, or `ConfigErrors` where several things are wrong.

        `unique_id` is used where the settings have none.
        """
        self._refuse_mixed(trucks)
        raise_if_any(self.errors)
        assert settings is not None
        values = dict(settings) | {
            "unique_id": settings.unique_id or unique_id,
            "folder": self.folder.absolute(),
            "trucks": tuple(trucks),
            "connections": tuple(self._with_handlers(each, trucks) for each in settings.connections),
        }
        return ProjectConfig.model_validate(values, context=self.context)

    def _with_handlers(self, connection: Connection, trucks: Sequence[TruckConfig]) -> Connection:
        """The connection with the handlers of the trucks that write to it, if it takes any."""
        handlers = {t.name: t.code for t in trucks if t.code is not None and t.output.connection == connection.name}
        return connection.with_handlers(handlers) if handlers else connection

    def error(self, message: str, place: Place, remedy: str, code: str) -> None:
        """Note what is wrong."""
        self.errors.append(ConfigError(message, place=place, remedy=remedy, code=code))

    def _check(self, model: type[Model], item: Item, values: Mapping[str, Any]) -> Any:
        """The model made of the values, or None with the reasons collected."""
        try:
            return model.model_validate(values, context=self.context, by_alias=True, by_name=False)
        except ValidationError as error:
            self.errors.extend(explain(error, item, model))
            return None

    # trucker.yml

    def settings(self, document: Item) -> ProjectFile | None:
        """The settings of trucker.yml; None, with the reasons collected, where they are wrong."""
        before = len(self.errors)
        connections = self._connections(document)
        values = document.plain() | {"connections": connections or (_PLACEHOLDER,)}
        project: ProjectFile | None = self._check(ProjectFile, document, values)
        return project if len(self.errors) == before else None

    def _connections(self, document: Item) -> tuple[Connection, ...]:
        item = document.entries.get("connections")
        if item is None or not isinstance(item.value, tuple) or not item.value:
            self.error(
                '"connections" is missing' if item is None else '"connections" must be a list, and not empty',
                document.place if item is None else item.key_place,
                "write connections: and under it one - name: … per store",
                "TRK106" if item is None else "TRK105",
            )
            return ()
        entries = [self._with_files(entry, entry.entries, keys_of(Connection)) for entry in item.value]
        self._refuse_doubles(entries)
        adapters = [self._adapter_of(whole, part) for whole, part in zip(item.value, entries, strict=True)]
        names = [_text(entry, "name", "") for entry in entries]
        self.adapters = dict(zip(names, adapters, strict=True)) if all(names) else None
        connections = [
            self._connection(whole, part, adapter)
            for whole, part, adapter in zip(item.value, entries, adapters, strict=True)
            if adapter is not None
        ]
        return tuple(connection for connection in connections if connection is not None)

    def _adapter_of(self, item: Item, entries: Mapping[str, Item]) -> Adapter | None:
        """The adapter that a connection names; None, with the reason collected, where it cannot be used."""
        if isinstance(item.value, Connection):
            return adapter_of(item.value)
        entry = entries.get("adapter")
        if entry is _UNREADABLE or entries.get("name") is _UNREADABLE:
            return None
        name = entry.value if entry else DEFAULT
        try:
            return installed()[name if isinstance(name, str) else ""]
        except ConfigError as error:
            self.error(error.message, entry.place if entry else item.place, error.remedy, error.code)
            return None

    def _connection(self, item: Item, entries: Mapping[str, Item], adapter: Adapter) -> Connection | None:
        if isinstance(item.value, Connection):
            return item.value
        entries = self._with_files(item, entries, keys_of(adapter.connection))
        if any(entry is _UNREADABLE for entry in entries.values()):
            return None
        whole = replace(item, value=entries)
        connection: Connection | None = self._check(
            adapter.connection, whole, {"adapter": adapter.name} | whole.plain()
        )
        if connection is not None:
            connection.secrets_in(self._value_files(item))
        return connection

    def _value_files(self, item: Item) -> dict[str, Path]:
        """The files that a connection's `<key>_path` entries name, by key."""
        return {
            key.removesuffix("_path"): self.folder / Path(entry.value).expanduser()
            for key, entry in (item.entries.items() if isinstance(item.value, Mapping) else ())
            if key.endswith("_path") and isinstance(entry.value, str | Path)
        }

    def _with_files(self, item: Item, entries: Mapping[str, Item], keys: Collection[str]) -> dict[str, Item]:
        """A connection's entries with every `<key>_path` of these `keys` replaced by the `<key>` its file holds."""
        if isinstance(item.value, Connection):
            return {"name": replace(item, value=item.value.name)}
        if not isinstance(item.value, Mapping):
            self.error(
                "a connection must contain keys and values", item.place, "write its keys, such as name: …", "TRK105"
            )
            return {"name": _UNREADABLE}
        items: dict[str, Item] = {}
        for key, entry in entries.items():
            stem = key.removesuffix("_path")
            if stem == key or stem not in keys:
                items.setdefault(key, entry)
            elif stem in entries:
                self.error(
                    f'the connection has both "{stem}" and "{key}"', entry.key_place, "remove one of them", "TRK105"
                )
            else:
                items[stem] = self._from_file(key, entry)
        return items

    def _from_file(self, key: str, entry: Item) -> Item:
        if not isinstance(entry.value, str | Path):
            self.error(f'"{key}" must be a path', entry.place, "write the path of a file", "TRK105")
            return _UNREADABLE
        try:
            return replace(entry, value=read_value(self.folder, str(entry.value)))
        except MissingValueError as error:
            self.error(str(error), entry.place, error.remedy, "TRK101")
            return _UNREADABLE

    def _refuse_doubles(self, connections: Sequence[Mapping[str, Item]]) -> None:
        """Names differ in more than case: they name folders, and some file systems do not tell the case apart."""
        seen: dict[str, Place] = {}
        for entries in connections:
            name = _text(entries, "name", "")
            if not name:
                continue
            place = entries["name"].place
            first = seen.setdefault(name.casefold(), place)
            if first is not place:
                self.error(
                    f'another connection has the name "{name}"',
                    place,
                    f"the first is {_location(first)}; give one of them another name",
                    "TRK108",
                )

    # truck.yml

    def truck(
        self,
        name: str,
        document: Item,
        files: Sequence[SqlFile],
        *,
        folder: Path | None = None,
        functions: Sequence[Callable[..., Any]] = (),
        handler: HandlerText | HandlerClass | None = None,
    ) -> TruckConfig | None:
        """The truck with the settings of truck.yml in `document`; None, with the reasons collected, where they are
        wrong. A `name` that cannot be used is for the caller to report."""
        document = self._with_rule_keys(document)
        self._references(document)
        self._looked_up(document)
        self._policies(document)
        self._output_sql(document, files)
        settings: TruckFile | None = self._check(TruckFile, document, document.plain())
        code = self._handler(document, handler, settings.handler if settings is not None else {})
        if settings is None or not is_name(name):
            return None
        more = {"name": name, "folder": folder, "files": tuple(files), "functions": tuple(functions), "code": code}
        truck = TruckConfig.model_validate(dict(settings) | more, context=self.context)
        for index, rule in enumerate(truck.rules):
            rule.placed(document.at(("rules", index)))
        return truck

    def sql_file(self, name: str, label: str, text: str) -> SqlFile | None:
        """A SQL file of a truck, which errors call `label`; None, with the reason collected, where its template is
        wrong."""
        file = SqlFile(name, label, text, self.folder)
        try:
            SqlTemplate(file)
        except ConfigError as error:
            self.errors.append(error)
            return None
        return file

    def _with_rule_keys(self, document: Item) -> Item:
        """The document with every rule's `key_path` replaced by the `key` that its file holds."""
        rules = document.entries.get("rules")
        if rules is None or not isinstance(rules.value, tuple):
            return document
        keyed = replace(rules, value=tuple(self._with_rule_key(rule) for rule in rules.value))
        return replace(document, value={**document.entries, "rules": keyed})

    def _with_rule_key(self, rule: Item) -> Item:
        hashing = rule.entries.get("hash")
        path = hashing.entries.get("key_path") if hashing else None
        if hashing is None or path is None:
            return rule
        rest = {key: entry for key, entry in hashing.entries.items() if key != "key_path"}
        if "key" in rest:
            self.error('the rule has both "key" and "key_path"', path.key_place, "remove one of them", "TRK105")
        else:
            content = self._from_file("key_path", path)
            rest["key"] = replace(path, value="?") if content is _UNREADABLE else content
        return replace(rule, value={**rule.entries, "hash": replace(hashing, value=rest)})

    def _references(self, document: Item) -> None:
        """The connections a truck names must exist, its input must be a source and its output a destination."""
        item, adapter = self._named(document.entries.get("input"))
        if item is not None and adapter is not None and not adapter.source:
            self._cannot(item, adapter, "which cannot be an input", lambda other: other.source)
        item, adapter = self._named(document.entries.get("output"))
        if item is not None and adapter is not None:
            if not adapter.sink:
                self._cannot(item, adapter, "which cannot be an output", lambda other: other.sink)
            elif not adapter.abilities.dead_letters:
                self._refuse_letters(document, adapter)

    def _looked_up(self, document: Item) -> None:
        """A lookup's connection must be one whose tables trucker can read."""
        for section in document.at(("lookups",)).entries.values() if "lookups" in document.entries else ():
            item, adapter = self._named(section)
            if item is not None and adapter is not None and not adapter.lookup:
                self._cannot(item, adapter, "whose tables cannot be looked up", lambda other: other.lookup)

    def _cannot(self, item: Item, adapter: Adapter, what: str, can: Callable[[Adapter], object]) -> None:
        self.error(
            f'"{item.value}" is a {adapter.name} connection, {what}',
            item.place,
            f"name a connection with the adapter {' or '.join(installed().offering(can))}",
            "TRK109",
        )

    def _named(self, section: Item | None) -> tuple[Item | None, Adapter | None]:
        """The connection that a section names, and its adapter; one that does not exist is an error."""
        adapters = self.adapters
        item = section.entries.get("connection") if section else None
        if adapters is None or item is None or not isinstance(item.value, str) or not item.value:
            return None, None
        if item.value not in adapters:
            meant = nearest(item.value, adapters)
            self.error(
                f'there is no connection "{item.value}"',
                item.place,
                (f'did you mean "{meant}"? ' if meant else "") + f"the connections are {', '.join(adapters) or 'none'}",
                "TRK107",
            )
            return item, None
        return item, adapters[item.value]

    def _refuse_letters(self, document: Item, adapter: Adapter) -> None:
        item = document.entries.get("on_error")
        if item is not None and item.value == "dead_letter":
            self.error(
                f"a {adapter.name} destination keeps no dead letters",
                item.place,
                "remove on_error: dead_letter",
                "TRK115",
            )

    def _output_sql(self, document: Item, files: Sequence[SqlFile]) -> None:
        """A file that writes needs a destination that runs SQL, and no row of it can be set aside."""
        file = next((file for file in files if file.name == OUTPUT), None)
        item = document.at(("output", "connection"))
        adapter = (self.adapters or {}).get(item.value) if isinstance(item.value, str) else None
        if file is None:
            return
        if adapter is not None and adapter.sink and not adapter.abilities.output_sql:
            able = " or ".join(installed().offering(lambda other: other.abilities.output_sql))
            self.error(
                f"{OUTPUT} needs a destination that runs SQL, and {item.value} is a {adapter.name} connection",
                Place(file.label),
                f"remove the file, or name a connection with the adapter {able} in the truck's output",
                "TRK118",
            )
        letters = document.entries.get("on_error")
        if letters is not None and letters.value == "dead_letter":
            self.error(
                f"the truck has an {OUTPUT}, which writes many rows with one statement: trucker cannot tell "
                "which row was refused, so there are no dead letters",
                letters.place,
                f"remove on_error: dead_letter, or remove {file.label}",
                "TRK119",
            )

    def _handler(
        self, document: Item, handler: HandlerText | HandlerClass | None, settings: Mapping[str, Any]
    ) -> HandlerFile | HandlerClass | None:
        """The truck's handler, checked: a destination that takes one needs it, and any other has no use for it."""
        item, adapter = document.at(("output", "connection")), None
        if self.adapters is not None and isinstance(item.value, str):
            adapter = self.adapters.get(item.value)
        if adapter is None:
            return None
        if handler is None:
            if adapter.takes_handlers:
                remedy = f"write {HANDLER} beside truck.yml; docs/howto/python_handlers.md shows how"
                message = f'"{item.value}" is a {adapter.name} connection, and the truck has no {HANDLER}'
                self.error(message, item.place, remedy, MISSING)
            elif settings:
                place = document.entries["handler"].key_place
                self.error(f'"handler" is for a {HANDLER}, which the truck does not have', place, "remove it", MISSING)
            return None
        if not adapter.takes_handlers:
            able = " or ".join(installed().offering(lambda other: other.takes_handlers))
            self.error(
                f"the truck has a {HANDLER}, and {item.value} is a {adapter.name} connection, which takes none",
                Place(handler.label),
                f"remove the file, or name a connection with the adapter {able} in the truck's output",
                MISSING,
            )
            return None
        if isinstance(handler, HandlerClass):
            return handler
        code, errors = read_handler(handler, settings)
        self.errors.extend(errors)
        return code

    def _refuse_mixed(self, trucks: Sequence[TruckConfig]) -> None:
        """A destination keeps every change or net changes, so that its trucks' handlers are all of one kind."""
        kinds: dict[str, TruckConfig] = {}
        for truck in trucks:
            if truck.code is None:
                continue
            first = kinds.setdefault(truck.output.connection, truck)
            if first.code is not None and first.code.batches != truck.code.batches:
                self.error(
                    f"truck {first.name} writes to {truck.output.connection}, too, and one of the two has a batcher, "
                    "the other a handler of every change",
                    Place(truck.code.label),
                    f"add a connection to trucker.yml for {truck.name} alone, and name it in its output",
                    METHODS,
                )

    def _policies(self, document: Item) -> None:
        """`unfit: null` is a policy; an `unfit:` that somebody forgot to finish is not."""
        for column in document.at(("output", "columns")).entries.values():
            item = column.entries.get("unfit")
            if item is not None and item.blank:
                self.error('"unfit" has no value', item.key_place, "write error, null or text", "TRK105")


_PLACEHOLDER: Final = Connection(name="placeholder", adapter="placeholder")
"""Stands in for connections that are wrong, so that the rest of the file can be checked."""

_UNREADABLE: Final = Item(None, Place(""), Place(""))
"""Stands in for a value whose file could not be read; the connection is not looked at further."""


def _text(entries: Mapping[str, Item], key: str, default: str) -> str:
    """An entry's text, or the default where there is none."""
    value = entries[key].value if key in entries else default
    return value if isinstance(value, str) else ""


def _location(place: Place) -> str:
    return f"in line {place.line}" if place.line else str(place)


def is_name(text: str) -> bool:
    """Whether a truck may have this name."""
    return re.fullmatch(NAME, text) is not None
