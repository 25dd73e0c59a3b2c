"""Dates, times and timestamps in PostgreSQL's text as numbers, made by column.

Numbers are texts of digits, and what is infinite becomes what the caller says, perhaps null.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trucker.sinks.envelope.text_conversion import converted

DAY: Final = 86_400_000_000
"""The microseconds of a day."""

MOMENT: Final = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?(?:\+00)?( BC)?")
"""A date, or a timestamp of either kind, in UTC."""

_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
_LARGE: Final = pa.large_string()


def date_days(text: pa.Array, infinite: Mapping[str, str | None]) -> pa.Array:
    """Dates as days since 1970."""

    def convert(some: pa.Array) -> pa.Array:
        return some.cast(pa.date32()).cast(pa.int32()).cast(_LARGE)

    def one(value: str) -> str | None:
        return infinite[value] if value in infinite else str(_moment(value)[0])

    return converted(text, r"^\d{4}-\d\d-\d\d$", convert, one)


def timestamp_micros(text: pa.Array, infinite: Mapping[str, str | None], divisor: int = 1) -> pa.Array:
    """Timestamps of either kind as microseconds since 1970, divided."""

    def convert(some: pa.Array) -> pa.Array:
        plain = pc.replace_substring(some, "+00", "")
        return _divided(plain.cast(pa.timestamp("us")).cast(pa.int64()), divisor)

    def one(value: str) -> str | None:
        if value in infinite:
            number = infinite[value]
            return None if number is None else str(int(number) // divisor)
        days, clock = _moment(value)
        return str((days * DAY + clock) // divisor)

    return converted(text, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(\+00)?$", convert, one)


def time_micros(text: pa.Array, midnight: str | None, divisor: int = 1) -> pa.Array:
    """Times as microseconds since midnight, divided; `midnight` is what 24:00:00 becomes."""

    def convert(some: pa.Array) -> pa.Array:
        moments = pc.binary_join_element_wise(pa.scalar("1970-01-01", _LARGE), some, pa.scalar(" ", _LARGE))
        return _divided(moments.cast(pa.timestamp("us")).cast(pa.int64()), divisor)

    return converted(text, r"^([01]\d|2[0-3]):", convert, lambda value: midnight)


def clock_micros(hours: str | None, minutes: str | None, seconds: str | None, fraction: str | None) -> int:
    """The microseconds of a time of day in parts."""
    whole = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    return whole * 1_000_000 + int((fraction or "0").ljust(6, "0"))


def _moment(text: str) -> tuple[int, int]:
    """The days since 1970, and the microseconds of the day, of a date or a timestamp."""
    match = MOMENT.fullmatch(text)
    if match is None:
        raise ValueError("not a moment as PostgreSQL writes it")
    year = 1 - int(match[1]) if match[8] else int(match[1])
    return _days(year, int(match[2]), int(match[3])), clock_micros(match[4], match[5], match[6], match[7])


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date of the Gregorian calendar, whatever its year."""
    cycles, within = divmod(year - 1, 400)
    return datetime.date(within + 1, month, day).toordinal() + cycles * 146_097 - _EPOCH


def _divided(numbers: pa.Array, divisor: int) -> pa.Array:
    # Digits that the precision does not have are zeros: nothing is rounded.
    return (numbers if divisor == 1 else pc.divide(numbers, divisor)).cast(_LARGE)
