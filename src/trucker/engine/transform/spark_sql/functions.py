"""Registers the functions of a truck's functions.py for its Spark SQL.

A function without `_` before its name becomes a function in Spark SQL; its type is its return annotation. Functions
made with pyspark's `udf` are registered as they are. Functions are pickled by value, so that executors need no file.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import sys
import traceback
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trucker.errors import ConfigError, Place
from trucker.file_errors import reason_and_remedy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE: Final = "functions.py"
CODE: Final = "TRK154"
_TYPES: Final[dict[Any, str]] = {
    str: "string",
    int: "bigint",
    float: "double",
    bool: "boolean",
    bytes: "binary",
    datetime.date: "date",
    datetime.datetime: "timestamp",
    decimal.Decimal: "decimal(38,18)",
}
_KNOWN: Final = "str, int, float, bool, bytes, date, datetime, Decimal, list[…], or one of these | None"


@dataclass(frozen=True)
class Function:
    """A function for Spark SQL; `gives` is Spark's type, empty where pyspark has made it one already."""

    name: str
    function: Any
    gives: str = ""


def load_functions(folder: Path) -> list[Function]:
    """The functions of a truck's folder; none where it has no functions.py. Runs the file."""
    path = folder / FILE
    if not path.exists() and not path.is_symlink():
        return []
    label = _label(folder)
    module = _run(path, label)
    functions = []
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if hasattr(value, "returnType") and hasattr(value, "evalType"):
            functions.append(Function(name, value))
        elif inspect.isfunction(value) and value.__module__ == module.__name__:
            functions.append(Function(name, value, _return_type(value, label)))
    return functions


def register_functions(session: SparkSession, functions: list[Function], folder: Path) -> None:
    """Let the session's SQL call them. A built-in function would take precedence, so its name is refused."""
    from pyspark.sql.functions import udf

    for each in functions:
        if session.catalog.functionExists(each.name):
            code = getattr(each.function, "__code__", None)
            raise ConfigError(
                f"{each.name} is a built-in function of Spark",
                place=Place(_label(folder), code.co_firstlineno if code else 0),
                remedy="rename it",
                code=CODE,
            )
        function = udf(each.function, each.gives, useArrow=False) if each.gives else each.function
        session.udf.register(each.name, function)


def _label(folder: Path) -> str:
    return str(Path(folder.parent.name) / folder.name / FILE)


def _run(path: Path, label: str) -> types.ModuleType:
    """Run the file as a module. It is in `sys.modules` only meanwhile, so that its functions are pickled by value."""
    try:
        source = path.read_bytes()
    except OSError as error:
        reason, remedy = reason_and_remedy(error, path)
        raise ConfigError(
            f"the file cannot be read: {reason}", place=Place(label), remedy=remedy, code="TRK101"
        ) from None
    module = types.ModuleType(f"functions_of_{path.parent.name}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except SyntaxError as error:
        raise _error(f"{error.msg}", label, error.lineno or 0) from None
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == str(path)), 0)
        raise _error(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}", label, line) from None
    finally:
        sys.modules.pop(module.__name__, None)
    return module


def _return_type(function: types.FunctionType, label: str) -> str:
    line = function.__code__.co_firstlineno
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise _error(f"the annotations of {function.__name__} fail: {type(error).__name__}", label, line) from None
    if "return" not in hints:
        raise _error(f"{function.__name__} has no return annotation", label, line)
    spark_type = _spark_type(hints["return"])
    if spark_type is None:
        raise _error(f"{function.__name__} returns a type that Spark SQL does not have", label, line)
    return spark_type


def _spark_type(hint: Any) -> str | None:
    if hint in _TYPES:
        return _TYPES[hint]
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in inside if each is not types.NoneType]
        return _spark_type(rest[0]) if len(rest) == 1 else None
    if origin is list and len(inside) == 1:
        element = _spark_type(inside[0])
        return f"array<{element}>" if element else None
    return None


def _error(message: str, label: str, line: int) -> ConfigError:
    remedy = f"annotate its result with {_KNOWN}; a name that begins with _ is not registered in Spark"
    return ConfigError(
        message,
        place=Place(label, line),
        remedy=remedy if " gives" in message or " give" in message else "correct it",
        code=CODE,
    )
