"""The contract of adapters: an adapter is all that trucker knows of one kind of store.

    class ShelfConnection(Connection):
        adapter: Literal["shelf"] = Field(description="The kind of store.")
        path: ProjectPath = Field(description="The folder of the shelf.")

    SHELF = Adapter(name="shelf", connection=ShelfConnection, sink="trucker_shelf.sink:ShelfSink")

A package offers an adapter as an entry point whose name is the adapter's (`trucker.config.registry` finds it):

    [project.entry-points."trucker.adapters"]
    shelf = "trucker_shelf:SHELF"

The module of an adapter is imported whenever a project names the adapter, by every command. It must be light: what
needs the store's driver is in the classes that the adapter refers to as `module:Class`, which are imported when they
are used.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

from pydantic import Field, PrivateAttr, SecretStr

from trucker.abilities import Abilities
from trucker.config.model import Model, Name
from trucker.errors import ConfigError
from trucker.types import TypeForms

BROKEN: Final = "TRK116"


class HandlerCode(Protocol):
    """A class of the user's that takes the changes of a truck; `batches` says that it takes net changes."""

    @property
    def label(self) -> str:
        """What errors call it."""

    @property
    def batches(self) -> bool: ...


class Connection(Model):
    """A store that a project names in trucker.yml: the base of every adapter's configuration model.

    A subclass narrows `adapter` to a `Literal` of its adapter's name and adds the store's settings. Each key can also
    be given as `<key>_path`, the path of a file that holds the value. Connections are pickled on their way to
    executors, so the class must be importable there.
    """

    name: Name = Field(description="The name that trucks use.")
    adapter: str = Field(description="The kind of store.")
    _secret_files: dict[str, Path | None] = PrivateAttr(default_factory=dict)

    @property
    def inline_adapter(self) -> Adapter | None:
        """The adapter of a connection that brings its own; None where `adapter` names an installed one."""
        return None

    @property
    def sink_module(self) -> str:
        """The module of a sink class that the connection brings; executors import it by this name."""
        return ""

    def with_handlers(self, handlers: Mapping[str, HandlerCode]) -> Connection:
        """The connection with the handlers of the trucks that write to it, by truck (`Adapter.takes_handlers`)."""
        return self

    def carried(self) -> Mapping[str, object]:
        """What it has of its trucks' folders, by what errors call each: a running instance cannot take up changes of
        it."""
        return {}

    @classmethod
    def secret_keys(cls) -> dict[str, str]:
        """The keys of secrets, as written in YAML, with the names of their fields."""
        return {
            str(field.validation_alias or name): name
            for name, field in cls.model_fields.items()
            if SecretStr in (field.annotation, *typing.get_args(field.annotation))
        }

    def secrets_in(self, files: Mapping[str, Path]) -> None:
        """Note the files that keys such as `pass_path` name: `refreshed` reads those of secrets again."""
        secrets = self.secret_keys()
        self._secret_files = {key: file for key, file in files.items() if key in secrets}

    def refreshed(self) -> Self:
        """The connection with its secrets as their files hold them now. A file that cannot be read changes nothing: an
        executor on another machine need not have it."""
        fields, secrets = self.secret_keys(), {}
        for key, file in self._secret_files.items():
            text = read_secret(file) if file is not None else None
            held = getattr(self, fields[key])
            if text is not None and (held is None or held.get_secret_value() != text):
                secrets[fields[key]] = SecretStr(text)
        return self.model_copy(update=secrets) if secrets else self


def read_secret(file: Path) -> str | None:
    """What a secret's file holds, without the blanks around it; None where it cannot be read."""
    try:
        return file.read_bytes().decode().strip()
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Component:
    """A class that belongs to an adapter, by its place `module:Class`; imported when it is used. Small, and pickles: an
    executor finds the class with it, without looking for adapters."""

    adapter: str
    place: str
    driver: str = ""
    install: str = ""

    def load(self) -> Any:
        """The class. Raises `ConfigError` where the driver is not installed (TRK114), or it cannot be imported."""
        module, _, name = self.place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and self.driver == (error.name or "").partition(".")[0]:
                raise ConfigError(
                    f"the driver of adapter {self.adapter} is not installed", remedy=self.install, code="TRK114"
                ) from None
            raise ConfigError(
                f"adapter {self.adapter}: {self.place} cannot be imported: {type(error).__name__}: {error}",
                remedy=f"install the package of adapter {self.adapter} again, or tell its author",
                code=BROKEN,
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One kind of store. What it offers decides where a truck may name it.

    `connection` is the model of its settings. A class is given by its place, `module:Class`:

    - `sink` (a `trucker.sinks.base.Sink`, made with the connection and a workspace): it can be a destination;
    - `lookup` (a `trucker.lookup.Lookup`, made with the connection): its tables can be looked up;
    - `source` (a `trucker.source.base.Source`, made with the connection and the project's `unique_id`): changes can be
      read from it.

    What its destinations do, for those who must know before there is a sink:

    - `abilities`: what their tables or streams can do (`trucker.abilities`);
    - `uses_folder`: rows are handed from executors to the driver through files of the workspace, so that on a cluster
      the state folder must be one that all machines share;
    - `uses_stdout`: they write to standard output, so that nothing else may;
    - `takes_handlers`: changes are given to the handler.py that each truck then has in its folder.

    `driver` is the module that its sink needs and not everybody has, and `install` the command that installs it.
    `types` says what becomes of PostgreSQL's types there.
    """

    name: str
    connection: type[Connection]
    sink: str = ""
    lookup: str = ""
    source: str = ""
    abilities: Abilities = field(default_factory=Abilities)
    uses_folder: bool = True
    uses_stdout: bool = False
    takes_handlers: bool = False
    driver: str = ""
    install: str = ""
    types: TypeForms | None = None

    def __post_init__(self) -> None:
        if not issubclass(self.connection, Connection):
            raise TypeError(f"adapter {self.name}: connection must be a subclass of trucker.adapters.Connection")
        if typing.get_args(self.connection.model_fields["adapter"].annotation) != (self.name,):
            raise TypeError(
                f'adapter {self.name}: {self.connection.__name__} must declare adapter: Literal["{self.name}"]'
            )
        for place in filter(None, (self.sink, self.lookup, self.source)):
            if not all(place.partition(":")):
                raise TypeError(f"adapter {self.name}: {place!r} is not of the form module:Class")

    @property
    def sink_component(self) -> Component:
        """Where its sink is."""
        return self._component(self.sink)

    @property
    def lookup_component(self) -> Component:
        """Where its lookup is."""
        return self._component(self.lookup)

    @property
    def source_component(self) -> Component:
        """Where its source is."""
        return self._component(self.source)

    def _component(self, place: str) -> Component:
        return Component(self.name, place, self.driver, self.install)
