"""The handler.py of a truck: read as text, so that no command runs it that does not need it.

What can be told from the text is checked here, with its line; `sinks.python.handler_class` imports it and checks the
rest.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from trucker.config.problems import nearest
from trucker.config.sql.sql_files import HANDLER as HANDLER
from trucker.errors import ConfigError, Place
from trucker.handlers import BATCHES, EVENTS, Batcher, Handler

MISSING: Final = "TRK740"
UNUSABLE: Final = "TRK741"
METHODS: Final = "TRK742"
_BASES: Final = {Handler.__name__: False, Batcher.__name__: True}
_WRITE: Final = (
    f"define a class with {', '.join(EVENTS[1:4])} or others of these methods, or with upsert and delete; "
    "or inherit trucker.Handler or trucker.Batcher"
)


@dataclass(frozen=True, slots=True)
class HandlerText:
    """A handler.py as it was read. `label` is what errors call it."""

    label: str
    path: Path
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class HandlerFile:
    """A truck's handler.py. `name` is the class in it, `batches` whether that is a batcher, and `settings` what the
    class is called with."""

    file: HandlerText
    name: str
    batches: bool
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        return self.file.label


@dataclass(frozen=True, slots=True)
class HandlerClass:
    """A class of a program, and what it is called with."""

    kind: type
    arguments: tuple[Any, ...] = field(default=(), repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__}"

    @property
    def batches(self) -> bool:
        return issubclass(self.kind, Batcher)


HandlerFactory = Callable[..., Handler | Batcher]
"""A subclass of `Handler` or `Batcher`, or a `functools.partial` of one that needs nothing more."""


def handler_class(value: object) -> HandlerClass | None:
    """A subclass of `Handler` or `Batcher`, or a `functools.partial` of one; None for anything else."""
    call = value if isinstance(value, partial) else partial(value) if isinstance(value, type) else None
    if call is None or not isinstance(call.func, type) or not issubclass(call.func, Handler | Batcher):
        return None
    return HandlerClass(call.func, call.args, call.keywords)


def read_handler(file: HandlerText, settings: Mapping[str, Any]) -> tuple[HandlerFile | None, list[ConfigError]]:
    """The handler in a file, or what is wrong with it."""
    label, text = file.label, file.text
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:  # the latter for a null byte
        line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        return None, [_error(f"it is not Python: {reason}", label, line, "correct it", UNUSABLE)]
    classes = _Classes(tree)
    chosen = classes.chosen()
    if not chosen:
        return None, [_error("it defines no handler", label, 1, _WRITE, UNUSABLE)]
    if len(chosen) > 1:
        names = ", ".join(each.name for each in chosen)
        remedy = "keep one, or let the names of the others begin with _"
        return None, [_error(f"it defines several handlers: {names}", label, chosen[1].lineno, remedy, UNUSABLE)]
    errors = list(_method_errors(classes, chosen[0], label))
    if errors:
        return None, errors
    batches = classes.kinds(chosen[0]) == {True}
    return HandlerFile(file, chosen[0].name, batches, settings), []


class _Classes:
    """The classes of a file by name, with what each has of those in the same file that it inherits from."""

    def __init__(self, tree: ast.Module) -> None:
        self._classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def chosen(self) -> list[ast.ClassDef]:
        """The handlers that no other one of the file inherits from."""
        handlers = [each for each in self._classes.values() if self.kinds(each)]
        bases = {name for each in handlers for name in _base_names(each)}
        return [each for each in handlers if not each.name.startswith("_") and each.name not in bases]

    def kinds(self, node: ast.ClassDef) -> set[bool]:
        """What it is by its bases and its methods: a batcher (True), a handler (False), both, or nothing."""
        found: set[bool] = set()
        for each in self._lineage(node):
            found |= {_BASES[name] for name in _base_names(each) if name in _BASES and name not in self._classes}
        for method in self.methods(node):
            if method.name in BATCHES[:2]:
                found.add(True)
            elif method.name.startswith("on_"):
                found.add(False)
        return found

    def methods(self, node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [
            each
            for owner in self._lineage(node)
            for each in owner.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    def _lineage(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        lineage, due = [], [node]
        while due:
            each = due.pop()
            if each not in lineage:
                lineage.append(each)
                due += [self._classes[name] for name in _base_names(each) if name in self._classes]
        return lineage


def _base_names(node: ast.ClassDef) -> list[str]:
    """The last part of each base's name."""
    parts = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [
        base.id if isinstance(base, ast.Name) else base.attr
        for base in parts
        if isinstance(base, ast.Name | ast.Attribute)
    ]


def _method_errors(classes: _Classes, node: ast.ClassDef, label: str) -> Iterator[ConfigError]:
    if len(classes.kinds(node)) > 1:
        message = f"{node.name} is a handler (on_…) and a batcher (upsert, delete) at once"
        yield _error(message, label, node.lineno, "make two trucks of it, with a class each", METHODS)
        return
    for method in classes.methods(node):
        if method.name.startswith("on_") and method.name not in EVENTS:
            meant = nearest(method.name, EVENTS)
            remedy = (f"did you mean {meant}? " if meant else "") + f"the methods are {', '.join(EVENTS)}"
            yield _error(f"{node.name}.{method.name} is no event of trucker's", label, method.lineno, remedy, METHODS)


def _error(message: str, label: str, line: int, remedy: str, code: str) -> ConfigError:
    return ConfigError(message, place=Place(label, line), remedy=remedy, code=code)
