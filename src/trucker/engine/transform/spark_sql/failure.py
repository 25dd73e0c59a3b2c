"""Translates Spark's errors about a truck's files: file and line as written, Spark's reason, no values (I10).

Spark's messages about failures on rows quote values. Of these only the error condition and the fragment of the query
are shown; of failures before any row is read, the message.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from trucker.config.sql.sql_lexer import Statement
from trucker.config.sql.sql_template import RenderedSql
from trucker.errors import ConfigError, EngineError, JobFailed, TruckerError

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException

log = logging.getLogger("trucker.spark_sql")

UNRESOLVED: Final = "TRK150"
NOT_ONE: Final = "TRK151"
FAILED: Final = "TRK544"

_LINE: Final = re.compile(r"line (\d+),? pos (\d+)")
_OURS: Final = re.compile(r"\[(TRK\d{3})\] ([^\n]*)(?:\n\s+next: ([^\n]*))?")
_FRAME: Final = re.compile(r'File "[^"]*functions\.py", line (\d+), in (\w+)')
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Warning|Exit|Interrupt|Iteration))\b", re.MULTILINE)
_NO_MODULE: Final = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_NOISE: Final = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+|\s*\(line \d+, pos \d+\)|; line \d+ pos \d+")
_INSTEAD: Final = {
    "CAST_INVALID_INPUT": "use try_cast, which returns NULL instead",
    "DIVIDE_BY_ZERO": "use try_divide or nullif",
    "ARITHMETIC_OVERFLOW": "use a wider type, or try_add and similar functions",
    "NUMERIC_VALUE_OUT_OF_RANGE": "use a wider type",
}


def be_quiet() -> None:
    """pyspark logs every failure of a query with its message, values included."""
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger("DataFrameQueryContextLogger").disabled = True


def unresolved(error: AnalysisException, rendered: RenderedSql, statement: Statement) -> ConfigError:
    """The error for a query that Spark's parser or analyzer refuses, before any row is read."""
    message = _message(error)
    proposal = _parameters(error).get("proposal", "")
    suggestion = re.match(r"`(?:[^`]|``)+`(?:\.`(?:[^`]|``)+`)*", proposal)
    return ConfigError(
        message,
        place=rendered.place(statement.offset + _offset(error, statement.text)),
        remedy=f"did you mean {suggestion[0]}?" if suggestion else "correct the query",
        code=UNRESOLVED,
    )


def not_one(rendered: RenderedSql, statements: Sequence[Statement]) -> ConfigError:
    """A file with nothing in it, or with more than one statement."""
    return ConfigError(
        "a Spark SQL file must be one query" + (", but this one is empty" if not statements else ""),
        place=rendered.place(statements[1].offset if statements else 0),
        remedy="write one select; write earlier steps in a with clause",
        code=NOT_ONE,
    )


def no_query(rendered: RenderedSql, statement: Statement) -> ConfigError:
    """A statement that does something."""
    return ConfigError(
        "a Spark SQL file must be a query, not a command",
        place=rendered.place(statement.offset),
        remedy="write a select that returns the rows; write statements that change data in output.sql",
        code=NOT_ONE,
    )


def explained(error: Exception, truck: str, rendered: Sequence[RenderedSql]) -> TruckerError:
    """The error for a query that failed as it ran; transient where the truck's files are not the cause."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException, PythonException

    if isinstance(error, TruckerError):
        return error
    if isinstance(error, PythonException):
        return _of_python(str(error), truck, rendered)
    if isinstance(error, PySparkException):
        condition = error.getCondition()
        if condition:
            return _of_query(condition, error, truck, rendered)
    condition = _condition(getattr(error, "java_exception", None))
    if condition:
        return _failed(truck, _first(rendered), condition, "")
    if isinstance(error, Py4JError | PySparkException | OSError | EOFError):
        return JobFailed(
            f"truck {truck}: a Spark query failed: {type(error).__name__}",
            remedy="read spark.log in the project's state folder",
        )
    # The place of the exception, not its message, which may hold a row's data (I10).
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    log.error("Spark SQL failed unexpectedly", extra={"truck": truck, "error": type(error).__name__, "frames": frames})
    return EngineError(
        f"truck {truck}: Spark SQL failed unexpectedly: {type(error).__name__}", remedy="read the log", code="TRK599"
    )


def _of_query(condition: str, error: Any, truck: str, rendered: Sequence[RenderedSql]) -> EngineError:
    for context in _contexts(error):
        fragment, start = context.fragment(), context.startIndex()
        for each in rendered:
            for statement in each.statements():
                if fragment and statement.text[start : start + len(fragment)] == fragment:
                    return _failed(truck, str(each.place(statement.offset + start)), condition, fragment)
    return _failed(truck, _first(rendered), condition, "")


def _failed(truck: str, place: str, condition: str, fragment: str) -> EngineError:
    at = f" at {' '.join(fragment.split())[:120]}" if fragment else ""
    remedy = _INSTEAD.get(condition.partition(".")[0], "correct the query for the rows that it fails on")
    return EngineError(f"truck {truck}: {place}: Spark failed with {condition}{at}", remedy=remedy, code=FAILED)


def _of_python(text: str, truck: str, rendered: Sequence[RenderedSql]) -> TruckerError:
    """The error for an exception in a Python worker: in a function of the truck, or in trucker."""
    own_error = _OURS.search(text)
    if own_error:
        return EngineError(f"truck {truck}: {own_error[2]}", remedy=own_error[3] or "", code=own_error[1])
    frames = _FRAME.findall(text)
    raised = _RAISED.findall(text)
    kind = raised[-1] if raised else "an exception"
    place = f"functions.py:{frames[-1][0]}: {frames[-1][1]} raised" if frames else f"{_first(rendered)}: Python raised"
    remedy = "make the function accept every value, including NULL"
    if missing := _NO_MODULE.findall(text):
        kind, remedy = f"{kind}: no module named {missing[-1]}", "install the module where Spark's workers run"
    return EngineError(f"truck {truck}: {place} {kind}", remedy=remedy, code=FAILED)


def _first(rendered: Sequence[RenderedSql]) -> str:
    return ", ".join(dict.fromkeys(each.file.label for each in rendered))


def _condition(error: Any) -> str:
    """The error condition of a JVM exception or of one of its causes; empty where there is none."""
    depth = 0
    while error is not None and depth < 10:
        try:
            name = error.getCondition()
        except Exception:
            name = None
        if name and not str(name).startswith(("_LEGACY", "INTERNAL_ERROR")):
            return str(name)
        try:
            error = error.getCause()
        except Exception:
            return ""
        depth += 1
    return ""


def _contexts(error: Any) -> list[Any]:
    """The places in SQL texts that an error names."""
    from pyspark.errors import QueryContextType

    return [context for context in error.getQueryContext() if context.contextType() == QueryContextType.SQL]


def _parameters(error: AnalysisException) -> dict[str, str]:
    return dict(error.getMessageParameters() or {})


def _message(error: AnalysisException) -> str:
    """The message's first lines as one, without its code, its state and the query it repeats."""
    text = str(error).strip().partition("== SQL")[0]
    text = text.partition(";\n")[0]
    return " ".join(_NOISE.sub("", text).split())[:400] or type(error).__name__


def _offset(error: AnalysisException, text: str) -> int:
    """The offset of the error in the statement, in characters."""
    for context in _contexts(error):
        if context.startIndex() >= 0:
            return int(context.startIndex())
    match = _LINE.search(str(error))
    if not match:
        return 0
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: int(match[1]) - 1]) + int(match[2])
