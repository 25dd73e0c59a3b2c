"""Logging for the command line: lines on standard error, as text or as JSON. Nothing happens on import.

A message is static; what it is about is in `extra`, and both forms show all of it. The text form has one line for each
event, in the order in which a person reads it: the message, its subject (`truck`, `table`, `source`, …), further facts,
then `code`, `reason` and `remedy`:

    2026-01-31T12:00:00.000Z error   trucker.run: truck failed: truck=orders: [TRK406] value too long; next: widen it

Without `debug` an exception that is logged shows its kind only, and a `TruckerError` its message: another
exception's own words may hold a row's data (I10).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, TextIO

from trucker.errors import TruckerError


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_PLAIN: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})

_SUBJECT: Final = ("truck", "trucks", "table", "tables", "source", "destination", "slot", "column")
_CAUSE: Final = ("code", "reason", "remedy")

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`: a live display replaces it, so that log lines pass above the table."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Standard error is the only stream."""


class _Formatter(logging.Formatter):
    """What both forms share: the time, and exceptions without their messages (I10)."""

    def __init__(self, *, debug: bool) -> None:
        super().__init__()
        self.debug = debug

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 -- logging's name
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 -- logging's name
        if self.debug:
            return super().formatException(ei)
        error = ei[1]
        return str(error) if isinstance(error, TruckerError) else type(error).__name__


def _facts(record: logging.LogRecord, *, debug: bool) -> dict[str, Any]:
    """What the call gave as `extra`; of a `TruckerError` that it gave as exception, code, reason and remedy."""
    facts = {name: value for name, value in vars(record).items() if name not in _PLAIN}
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, TruckerError) and not debug:
        facts = {**facts, **error.facts()}
    return facts


class TextFormatter(_Formatter):
    """`2026-01-31T12:00:00.000Z info    trucker.copy: table copied: truck=orders table=public.orders rows=1000`"""

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        facts = _facts(record, debug=self.debug)
        pieces = [record.getMessage(), " ".join(_pairs(facts)), _cause(facts)]
        line = f"{self.formatTime(record)} {level:<7} {record.name}: {': '.join(piece for piece in pieces if piece)}"
        if not record.exc_info or record.exc_info[1] is None:
            return line
        if self.debug:
            return f"{line}\n{self.formatException(record.exc_info)}"
        return line if isinstance(record.exc_info[1], TruckerError) else f"{line}: {type(record.exc_info[1]).__name__}"


def _pairs(facts: Mapping[str, Any]) -> Iterator[str]:
    """`name=value` of the subject, then of the other facts."""
    names = [*(name for name in _SUBJECT if name in facts), *(name for name in facts if name not in _SUBJECT)]
    for name in names:
        if name not in _CAUSE:
            yield f"{name}={_value(facts[name])}"


def _value(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple | set | frozenset):
        value = ", ".join(map(str, value))
    text = _one_line(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text


def _cause(facts: Mapping[str, Any]) -> str:
    code, reason, remedy = (_one_line(facts.get(name) or "") for name in _CAUSE)
    text = " ".join(part for part in (f"[{code}]" if code else "", reason) if part)
    return "; ".join(part for part in (text, f"next: {remedy}" if remedy else "") if part)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


class JsonFormatter(_Formatter):
    """One object per line: time, level, logger, message, and what the call gave as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = _facts(record, debug=self.debug)
        entry |= {name: value for name, value in facts.items() if name not in entry}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def set_up(level: int = logging.WARNING, form: LogFormat = LogFormat.TEXT, *, debug: bool = False) -> None:
    """Send trucker's log from `level` on, and other libraries' warnings, to standard error. May be repeated."""
    handler = _StandardError()
    handler.setFormatter(JsonFormatter(debug=debug) if form is LogFormat.JSON else TextFormatter(debug=debug))
    root = logging.getLogger()
    for other in [other for other in root.handlers if isinstance(other, _StandardError)]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("trucker").setLevel(level)
