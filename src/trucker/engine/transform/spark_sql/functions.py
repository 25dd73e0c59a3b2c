"""Registers the Python functions of a truck for its Spark SQL: those of its functions.py, or those given in code.

A function without `_` before its name becomes a function of Spark's; the type it gives is its return annotation's. What
pyspark's `udf` and its kin made is taken as it is. Functions of a functions.py travel to executors by value, so that
these need no file; those given in code travel as Spark sends functions: by value from the program itself, by name from
modules that it imports.
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

from trucker.config.models import TruckConfig
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
_ANNOTATE: Final = (
    "annotate its result with str, int, float, bool, bytes, date, datetime, Decimal, list[…], or one of these | None; "
    "a name that begins with _ is not registered in Spark"
)


@dataclass(frozen=True)
class Function:
    """A function for Spark SQL; `gives` is Spark's type, empty where pyspark has made it one already. `label` is what
    errors call the place that it is from."""

    name: str
    function: Any
    label: str
    gives: str = ""


def functions_of(truck: TruckConfig) -> list[Function]:
    """The functions of a truck."""
    if truck.folder is not None:
        return load_functions(truck.folder)
    return [_given(function, truck.label) for function in truck.functions]


def _given(function: Any, label: str) -> Function:
    """A function that is given in code; `label` is used where no file is known."""
    if _is_udf(function):
        return Function(function.__name__, function, label)
    return Function(function.__name__, function, label, _return_type(function, function.__code__.co_filename))


def _is_udf(value: Any) -> bool:
    """Whether pyspark has made it a function of Spark's."""
    return hasattr(value, "returnType") and hasattr(value, "evalType")


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
        if _is_udf(value):
            functions.append(Function(name, value, label))
        elif inspect.isfunction(value) and value.__module__ == module.__name__:
            functions.append(Function(name, value, label, _return_type(value, label)))
    return functions


def register_functions(session: SparkSession, functions: list[Function]) -> None:
    """Let the session's SQL call them. Spark's own functions win over others of their names: such a name is refused."""
    from pyspark.sql.functions import udf

    for each in functions:
        if session.catalog.functionExists(each.name):
            code = getattr(each.function, "__code__", None)
            raise ConfigError(
                f"{each.name} is a built-in function of Spark",
                place=Place(each.label, code.co_firstlineno if code else 0),
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
        raise _error(f"{function.__name__} has no return annotation", label, line, _ANNOTATE)
    kind = _spark_type(hints["return"])
    if kind is None:
        raise _error(f"{function.__name__} returns a type that Spark SQL does not have", label, line, _ANNOTATE)
    return kind


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


def _error(message: str, label: str, line: int, remedy: str = "correct it") -> ConfigError:
    return ConfigError(message, place=Place(label, line), remedy=remedy, code=CODE)
