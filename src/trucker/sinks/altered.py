"""The log of a destination's tables that follow the source's: what was altered, for whom, and how."""

from __future__ import annotations

import logging
import re
from typing import Final

from trucker.sinks.target import Target

log = logging.getLogger("trucker.schema")

_MESSAGES: Final = (
    (re.compile(r"ADD COLUMN", re.IGNORECASE), "column added"),
    (re.compile(r"RENAME COLUMN", re.IGNORECASE), "column renamed"),
    (re.compile(r"ALTER COLUMN .* TYPE ", re.IGNORECASE), "column type changed"),
    (re.compile(r"ALTER TYPE .* ADD VALUE", re.IGNORECASE), "value added to an enum type"),
    (re.compile(r"ALTER COLUMN .* DROP NOT NULL", re.IGNORECASE), "column is now nullable"),
)
_VALUE: Final = re.compile(r" DEFAULT .*", re.IGNORECASE | re.DOTALL)


def log_altered(target: Target, action: str) -> None:
    """Log one action of an `ALTER` that was run, without the value that it may give to rows that are there (I10)."""
    shown = _VALUE.sub("", action)
    message = next((words for pattern, words in _MESSAGES if pattern.match(shown)), "")
    if message:
        facts = {"truck": target.truck, "table": str(target.table), "source_table": str(target.source.table)}
        log.info(message, extra={**facts, "statement": shown})
