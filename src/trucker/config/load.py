"""From a project's folder to its `ProjectConfig`: find the files, render, parse, check, and say all that is wrong."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from trucker.config.adapter import Adapter, Connection
from trucker.config.document import Item, read_document
from trucker.config.model import NAME, Model
from trucker.config.models import ProjectConfig, ProjectFile, TruckConfig, TruckFile
from trucker.config.problems import explain, keys_of, nearest, raise_if_any, unknown_key
from trucker.config.registry import DEFAULT, installed
from trucker.config.sql_files import OUTPUT, SqlFile, sql_files
from trucker.config.sql_template import SqlTemplate
from trucker.config.template import MissingValueError, read_value
from trucker.errors import ConfigError, Place
from trucker.file_errors import explaining, reason_and_remedy

PROJECT_FILE: Final = "trucker.yml"
TRUCK_FILE: Final = "truck.yml"
TRUCKS_FOLDER: Final = "trucks"
_OF_THE_FILE_SYSTEM: Final = "lost+found"


def load_project(folder: Path) -> ProjectConfig:
    """Read a project. Raises a `ConfigError`, or `ConfigErrors` where several things are wrong; touches nothing."""
    return _Loading(Path(folder)).load()


class _Loading:
    """One reading of a project. `errors` collects what is wrong, so that one run shows everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = {"folder": folder.absolute()}
        self.errors: list[ConfigError] = []
        self.adapters: dict[str, Adapter | None] | None = None
        """The connections' adapters by the connection's name, also of those that are wrong otherwise. The adapter is
        None where it cannot be used; all is None where not all names are known."""

    def load(self) -> ProjectConfig:
        with explaining("reading", self.folder, ConfigError, code="TRK101"):
            return self._load()

    def _load(self) -> ProjectConfig:
        path = self.folder / PROJECT_FILE
        if not path.is_file() and not path.is_symlink():
            raise _no_project(self.folder)
        document = self._document(path)
        project = self._project(document) if document else None
        trucks = list(self._trucks())
        raise_if_any(self.errors)
        assert project is not None
        name = self.folder.resolve().name or "trucker"
        values = dict(project) | {
            "unique_id": project.unique_id or name,
            "folder": self.folder.absolute(),
            "trucks": tuple(trucks),
        }
        return ProjectConfig.model_validate(values, context=self.context)

    def _document(self, path: Path) -> Item | None:
        try:
            return read_document(path, self.folder)
        except ConfigError as error:
            self.errors.append(error)
            return None

    def _check(self, model: type[Model], item: Item, values: Mapping[str, Any]) -> Any:
        """The model made of the values, or None with the reasons collected."""
        try:
            return model.model_validate(values, context=self.context, by_alias=True, by_name=False)
        except ValidationError as error:
            self.errors.extend(explain(error, item, model))
            return None

    # trucker.yml

    def _project(self, document: Item) -> ProjectFile | None:
        before = len(self.errors)
        connections = self._connections(document)
        values = document.plain() | {"connections": connections or (_PLACEHOLDER,)}
        project: ProjectFile | None = self._check(ProjectFile, document, values)
        return project if len(self.errors) == before else None

    def _connections(self, document: Item) -> tuple[Connection, ...]:
        item = document.entries.get("connections")
        if item is None or not isinstance(item.value, tuple) or not item.value:
            self._error(
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
        made = [
            self._connection(whole, part, adapter)
            for whole, part, adapter in zip(item.value, entries, adapters, strict=True)
            if adapter is not None
        ]
        return tuple(connection for connection in made if connection is not None)

    def _adapter_of(self, item: Item, entries: Mapping[str, Item]) -> Adapter | None:
        """The adapter that a connection names; None, with the reason collected, where it cannot be used."""
        entry = entries.get("adapter")
        if entry is _UNREADABLE or entries.get("name") is _UNREADABLE:
            return None
        name = entry.value if entry else DEFAULT
        try:
            return installed()[name if isinstance(name, str) else ""]
        except ConfigError as error:
            self._error(error.message, entry.place if entry else item.place, error.remedy, error.code)
            return None

    def _connection(self, item: Item, entries: Mapping[str, Item], adapter: Adapter) -> Connection | None:
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
            if key.endswith("_path") and isinstance(entry.value, str)
        }

    def _with_files(self, item: Item, entries: Mapping[str, Item], known: Collection[str]) -> dict[str, Item]:
        """A connection's entries with every `<key>_path` of a known key replaced by the `<key>` its file holds."""
        if not isinstance(item.value, Mapping):
            self._error("a connection must contain keys and values", item.place, "write - name: …", "TRK105")
            return {"name": _UNREADABLE}
        found: dict[str, Item] = {}
        for key, entry in entries.items():
            stem = key.removesuffix("_path")
            if stem == key or stem not in known:
                found.setdefault(key, entry)
            elif stem in entries:
                self._error(
                    f'the connection has both "{stem}" and "{key}"', entry.key_place, "remove one of them", "TRK105"
                )
            else:
                found[stem] = self._from_file(key, entry)
        return found

    def _from_file(self, key: str, entry: Item) -> Item:
        if not isinstance(entry.value, str):
            self._error(f'"{key}" must be a path', entry.place, "write the path of a file", "TRK105")
            return _UNREADABLE
        try:
            return replace(entry, value=read_value(self.folder, entry.value))
        except MissingValueError as error:
            self._error(str(error), entry.place, error.remedy, "TRK101")
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
                self._error(
                    f'another connection has the name "{name}"',
                    place,
                    f"the first is in line {first.line}; give one of them another name",
                    "TRK108",
                )

    # truck.yml

    def _trucks(self) -> Iterator[TruckConfig]:
        found = list(self._folders())
        if not found and not self.errors:
            self._error(
                f"the project has no truck: no file {TRUCKS_FOLDER}/<name>/{TRUCK_FILE}",
                Place(str(self.folder / TRUCKS_FOLDER)),
                f"create {TRUCKS_FOLDER}/<name>/{TRUCK_FILE}; `trucker init` writes a starter truck",
                "TRK111",
            )
        seen: dict[str, Path] = {}
        for folder in found:
            first = seen.setdefault(folder.name.casefold(), folder)
            if first is not folder:
                self._error(
                    f'another truck has the name "{folder.name}"',
                    Place(str(folder / TRUCK_FILE)),
                    f"the first is {first / TRUCK_FILE}; rename one of the folders",
                    "TRK108",
                )
            truck = self._truck(folder)
            if truck is not None:
                yield truck

    def _folders(self) -> Iterator[Path]:
        """The trucks' folders: all in trucks/, and those directly under the root that hold a truck.yml."""
        inside = self.folder / TRUCKS_FOLDER
        for folder in sorted(inside.iterdir()) if inside.is_dir() else ():
            if not (folder.is_dir() or folder.is_symlink()) or folder.name.startswith("."):
                continue
            if (folder / TRUCK_FILE).is_file() or (folder / TRUCK_FILE).is_symlink():
                yield folder
            elif not folder.exists():
                reason, remedy = reason_and_remedy(FileNotFoundError(errno.ENOENT, ""), folder)
                self._error(f"the truck cannot be read: {reason}", Place(str(folder)), remedy, "TRK101")
            elif folder.is_dir():
                self._error(
                    f"the folder has no {TRUCK_FILE}",
                    Place(str(folder)),
                    f"write {folder / TRUCK_FILE}, or move the folder out of {TRUCKS_FOLDER}/",
                    "TRK101",
                )
        for folder in sorted(self.folder.iterdir()):
            if folder.name.startswith(".") or folder.name in (TRUCKS_FOLDER, _OF_THE_FILE_SYSTEM):
                continue
            if (folder / TRUCK_FILE).is_file():
                yield folder

    def _truck(self, folder: Path) -> TruckConfig | None:
        before = len(self.errors)
        files = tuple(file for path in sql_files(folder) if (file := self._sql_file(path)))
        if not re.fullmatch(NAME, folder.name):
            self._error(
                f'the truck\'s name "{folder.name}" cannot be used',
                Place(str(folder / TRUCK_FILE)),
                "rename the folder: at most 63 letters, digits, _, - and ., not beginning with - or .",
                "TRK105",
            )
        document = self._document(folder / TRUCK_FILE)
        if document is None:
            return None
        document = self._with_rule_keys(document)
        for key in ("name", "folder", "files"):
            if key in document.entries:
                self.errors.append(unknown_key(document.entries[key], key, keys_of(TruckFile)))
        self._references(document)
        self._looked_up(document)
        self._policies(document)
        self._output_sql(document, files)
        if len(self.errors) > before:
            self._check(TruckFile, document, _without(document.plain(), "name", "folder", "files"))
            return None
        values = document.plain() | {"name": folder.name, "folder": folder.absolute(), "files": files}
        truck: TruckConfig | None = self._check(TruckConfig, document, values)
        if truck is not None:
            for index, rule in enumerate(truck.rules):
                rule.placed(document.at(("rules", index)))
        return truck

    def _with_rule_keys(self, document: Item) -> Item:
        """The document with every rule's `key_path` replaced by the `key` that its file holds."""
        rules = document.entries.get("rules")
        if rules is None or not isinstance(rules.value, tuple):
            return document
        made = replace(rules, value=tuple(self._with_rule_key(rule) for rule in rules.value))
        return replace(document, value={**document.entries, "rules": made})

    def _with_rule_key(self, rule: Item) -> Item:
        hashing = rule.entries.get("hash")
        path = hashing.entries.get("key_path") if hashing else None
        if hashing is None or path is None:
            return rule
        rest = {key: entry for key, entry in hashing.entries.items() if key != "key_path"}
        if "key" in rest:
            self._error('the rule has both "key" and "key_path"', path.key_place, "remove one of them", "TRK105")
        else:
            found = self._from_file("key_path", path)
            rest["key"] = replace(path, value="?") if found is _UNREADABLE else found
        return replace(rule, value={**rule.entries, "hash": replace(hashing, value=rest)})

    def _sql_file(self, path: Path) -> SqlFile | None:
        label = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        try:
            file = SqlFile(path.name.lower(), label, path.read_bytes().decode(), self.folder)
            SqlTemplate(file)
        except OSError as error:
            reason, remedy = reason_and_remedy(error, path)
            self._error(f"the file cannot be read: {reason}", Place(label), remedy, "TRK101")
            return None
        except ValueError:
            self._error("the file is not UTF-8 text", Place(label), "save it as UTF-8", "TRK101")
            return None
        except ConfigError as error:
            self.errors.append(error)
            return None
        return file

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
        self._error(
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
            self._error(
                f'there is no connection "{item.value}"',
                item.place,
                (f'did you mean "{meant}"? ' if meant else "")
                + f"the connections in {PROJECT_FILE} are {', '.join(adapters) or 'none'}",
                "TRK107",
            )
            return item, None
        return item, adapters[item.value]

    def _refuse_letters(self, document: Item, adapter: Adapter) -> None:
        item = document.entries.get("on_error")
        if item is not None and item.value == "dead_letter":
            self._error(
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
            self._error(
                f"{OUTPUT} needs a destination that runs SQL, and {item.value} is a {adapter.name} connection",
                Place(file.label),
                f"remove the file, or name a connection with the adapter {able} in the truck's output",
                "TRK118",
            )
        letters = document.entries.get("on_error")
        if letters is not None and letters.value == "dead_letter":
            self._error(
                f"the truck has an {OUTPUT}, which writes many rows with one statement: trucker cannot tell "
                "which row was refused, so there are no dead letters",
                letters.place,
                f"remove on_error: dead_letter, or remove {file.label}",
                "TRK119",
            )

    def _policies(self, document: Item) -> None:
        """`unfit: null` is a policy; an `unfit:` that somebody forgot to finish is not."""
        for column in document.at(("output", "columns")).entries.values():
            item = column.entries.get("unfit")
            if item is not None and item.blank:
                self._error('"unfit" has no value', item.key_place, "write error, null or text", "TRK105")

    def _error(self, message: str, place: Place, remedy: str, code: str) -> None:
        self.errors.append(ConfigError(message, place=place, remedy=remedy, code=code))


_PLACEHOLDER: Final = Connection(name="placeholder", adapter="placeholder")
"""Stands in for connections that are wrong, so that the rest of the file can be checked."""

_UNREADABLE: Final = Item(None, Place(""), Place(""))
"""Stands in for a value whose file could not be read; the connection is not looked at further."""


def _text(entries: Mapping[str, Item], key: str, default: str) -> str:
    """An entry's text, or the default where there is none."""
    value = entries[key].value if key in entries else default
    return value if isinstance(value, str) else ""


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _no_project(folder: Path) -> ConfigError:
    if not folder.is_dir():
        return ConfigError(
            "the folder does not exist",
            place=Place(str(folder)),
            remedy=f"create a project with `trucker init {folder}`",
            code="TRK101",
        )
    other = folder / "trucker.yaml"
    return ConfigError(
        f"the folder is not a project: it has no {PROJECT_FILE}",
        place=Place(str(folder / PROJECT_FILE)),
        remedy=f"rename {other} to {PROJECT_FILE}"
        if other.is_file()
        else f"create a project with `trucker init {folder}`, or name the folder of one",
        code="TRK101",
    )
