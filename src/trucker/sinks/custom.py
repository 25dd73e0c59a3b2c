"""A destination that is a `Sink` class of a program, without an adapter and an entry point.

    SinkConnection(name="queue", sink=QueueSink)
    SinkConnection(name="queue", sink=functools.partial(QueueSink, "/var/queue"))

A sink is made in every process that stages rows: the class is imported there by its name, and called with the arguments
of the `partial` and, after them, a workspace. So it must be a class of a module that can be imported, and its arguments
must pickle. A secret among them should be pydantic's `SecretStr`: then Spark writes it to no file (I10).
"""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from uuid import uuid4

from pydantic import Field, field_validator

from trucker.config.adapter import Adapter, Connection
from trucker.errors import ConfigError
from trucker.sinks.base import Sink, Workspace

CODE: Final = "TRK127"

SinkFactory = Callable[[Workspace], Sink]
"""A sink class, or a `functools.partial` of one that needs nothing more than a workspace."""


@dataclass(frozen=True)
class BoundSink:
    """A sink class with its arguments.

    Its copies in other processes are equal to it, whatever the arguments are: a process keeps its sink from batch to
    batch as long as the connection is equal.
    """

    sink: type[Sink]
    arguments: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    identity: str = field(default_factory=lambda: uuid4().hex, repr=False)

    def __call__(self, workspace: Workspace) -> Sink:
        make: Callable[..., Sink] = self.sink
        return make(*self.arguments, workspace, **self.keywords)


class SinkConnection(Connection):
    """A destination whose sink is a class of the program."""

    adapter: Literal["custom"] = Field(default="custom", description="The kind of store.")
    sink: SinkFactory = Field(description="The class, or a partial of it.")

    @field_validator("sink", mode="before")
    @classmethod
    def _checked(cls, sink: object) -> BoundSink:
        return bound_sink(sink)

    @property
    def inline_adapter(self) -> Adapter:
        return Adapter(
            name="custom",
            connection=SinkConnection,
            sink=f"{__name__}:{custom_sink.__name__}",
            abilities=bound_sink(self.sink).sink.abilities,
        )

    @property
    def sink_module(self) -> str:
        return bound_sink(self.sink).sink.__module__


def custom_sink(connection: SinkConnection, workspace: Workspace) -> Sink:
    """The sink of the connection."""
    return connection.sink(workspace)


def bound_sink(sink: object) -> BoundSink:
    """What is given as a sink, checked: `ConfigError` (TRK127) for what executors cannot import or make."""
    if isinstance(sink, BoundSink):
        return sink
    call = sink if isinstance(sink, partial) else partial(_class(sink))
    bound = BoundSink(_class(call.func), call.args, call.keywords)
    _check_class(bound.sink)
    _check_importable(bound.sink)
    _check_arguments(bound)
    return bound


def _class(sink: object) -> type[Sink]:
    if isinstance(sink, Sink):
        name = type(sink).__name__
        raise _error(
            f"the sink is an object of class {name}, which cannot be sent to Spark's workers",
            f"give the class, sink={name}, or functools.partial({name}, …) with its arguments save the workspace",
        )
    if not isinstance(sink, type) or not issubclass(sink, Sink):
        raise _error(
            "the sink is neither a connection nor a subclass of trucker.Sink",
            "give the keys of a connection, a class that inherits trucker.Sink, or functools.partial of one",
        )
    return sink


def _check_class(sink: type[Sink]) -> None:
    if inspect.isabstract(sink):
        missing = ", ".join(sorted(sink.__abstractmethods__))
        raise _error(f"the sink {sink.__name__} does not implement {missing}", f"add to the class: {missing}")
    if not isinstance(getattr(sink, "name", None), str):
        raise _error(f"the sink {sink.__name__} has no name", 'add to the class: name = "…"')


def _check_importable(sink: type[Sink]) -> None:
    if _imported(sink) is not sink:
        raise _error(
            f"Spark's workers cannot import the sink {sink.__module__}.{sink.__qualname__}",
            f"define {sink.__name__} in a module, not inside a function, and import it from there; the program that is "
            "run, or a notebook, is no such module",
        )


def _imported(sink: type[Sink]) -> object:
    """What another process finds under the class's name; None where that is nothing."""
    if sink.__module__ == "__main__":
        return None
    try:
        attribute: object = importlib.import_module(sink.__module__)
        for name in sink.__qualname__.split("."):
            attribute = getattr(attribute, name)
    except (ImportError, AttributeError):
        return None
    return attribute


def _check_arguments(bound: BoundSink) -> None:
    name = bound.sink.__name__
    try:
        inspect.signature(bound.sink).bind(*bound.arguments, None, **bound.keywords)
    except TypeError as error:
        raise _error(
            f"the sink {name} cannot be made with a workspace: {error}",
            f"give its other arguments with functools.partial({name}, …); the workspace comes after them",
        ) from None
    try:
        pickle.dumps(bound)
    except Exception as error:  # an argument's own code may raise anything
        raise _error(
            f"the arguments of the sink {name} cannot be sent to Spark's workers: {type(error).__name__}",
            "give texts, numbers, paths or models, and connect in the methods of the sink",
        ) from None


def _error(message: str, remedy: str) -> ConfigError:
    return ConfigError(message, remedy=remedy, code=CODE)
