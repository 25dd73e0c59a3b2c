"""Logging for the command line: lines on standard error, as text or as JSON. Nothing happens on import.

Without `debug` an exception that is logged shows its kind only, and a `TruckerError` its message: another
exception's own words may hold a row's data (I10).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, TextIO

from trucker.errors import TruckerError


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_PLAIN: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at that moment, so that a live display may stand in front of it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Standard error is the only stream."""


class _Formatter(logging.Formatter):
    """What both forms share: the time, and discretion about exceptions."""

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


class TextFormatter(_Formatter):
    """`2026-01-31T12:00:00.000Z info    trucker.engine: batch done`"""

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        line = f"{self.formatTime(record)} {level:<7} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(_Formatter):
    """One object per line: time, level, logger, message, and what the call gave as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _PLAIN and name not in entry}
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
