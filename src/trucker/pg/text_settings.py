"""Session settings with which a value has one text, the same at the source and at a destination, whatever the
database's or the role's defaults are. Timeouts that are meant for an application are off, and row-level security fails
rather than hides rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXT_SETTINGS: Final[Mapping[str, str]] = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
