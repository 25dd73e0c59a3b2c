"""Dates and times between PostgreSQL's text and integers of the same order.

A date counts days and a timestamp microseconds from 2000-01-01, as PostgreSQL does, so that every value fits. Infinity
is the greatest and the least integer. Years of four digits go through Arrow; others, before Christ or after 9999, are
parsed by a regular expression.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.engine.transform.rules.numbers import Int64s

LATEST: Final = np.iinfo(np.int64).max
EARLIEST: Final = np.iinfo(np.int64).min
DAY: Final = 86_400_000_000
_EPOCH_DAYS: Final = 10_957  # 2000-01-01, counted from 1970
_USUAL: Final = r"^\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?(?:\+00)?)?$"
_ODD: Final = (
    r"^(?P<year>\d+)-(?P<month>\d\d)-(?P<day>\d\d)(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:\.(?P<fraction>\d{1,6}))?(?:\+00)?)?(?P<era> BC)?$"
)
_WRITTEN: Final = re.compile(
    r"(\d{4,7})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?"
    r"\s*(Z|[+-]\d\d(?::?\d\d)?)?(\s*BC)?",
    re.IGNORECASE,
)
_FIRST_DAY: Final = -2_451_545  # 4714-11-24 BC
_LAST_YEAR: Final = 294_276
_LAST_YEAR_OF_DATES: Final = 5_874_897
_CYCLE: Final = 146_097  # days in 400 years


def dates(cells: pa.Array) -> pa.Array:
    """The day of each date that PostgreSQL wrote, NULL for NULL."""
    return _counted(cells, clock=False)


def moments(cells: pa.Array) -> pa.Array:
    """The microsecond of each timestamp that PostgreSQL wrote, NULL for NULL."""
    return _counted(cells, clock=True)


def _counted(cells: pa.Array, *, clock: bool) -> pa.Array:
    missing = np.asarray(pc.is_null(cells))
    counts = np.zeros(len(cells), np.int64)
    usual = np.asarray(pc.fill_null(pc.match_substring_regex(cells, _USUAL), False))
    if usual.any():
        counts[usual] = _usual(cells if usual.all() else cells.take(pa.array(np.flatnonzero(usual)))) // (
            1 if clock else DAY
        )
    rest = np.flatnonzero(~usual & ~missing)
    if len(rest):
        counts[rest] = _unusual(cells.take(pa.array(rest)), clock=clock)
    return pa.array(counts, mask=missing)


def _usual(cells: pa.Array) -> Int64s:
    plain = pc.replace_substring(cells, "+00", "") if pc.any(pc.ends_with(cells, "+00")).as_py() else cells
    return np.asarray(plain.cast(pa.timestamp("us")).cast(pa.int64())) - _EPOCH_DAYS * DAY


def _unusual(cells: pa.Array, *, clock: bool) -> Int64s:
    endless = np.asarray(pc.match_substring(cells, "infinity"))
    below = np.asarray(pc.starts_with(cells, "-"))
    parts = pc.extract_regex(cells, pattern=_ODD)
    if (np.asarray(pc.is_null(parts)) & ~endless).any():
        raise ValueError("a date or timestamp that PostgreSQL did not write")

    def part(name: str) -> Int64s:
        text = parts.field(name)
        return np.asarray(pc.fill_null(pc.if_else(pc.equal(text, ""), "0", text), "0").cast(pa.int64()))

    year = part("year")
    bc = np.asarray(pc.fill_null(pc.equal(parts.field("era"), " BC"), False))
    fraction = pc.utf8_rpad(pc.fill_null(parts.field("fraction"), ""), 6, "0").cast(pa.int64())
    days = days_of(np.where(bc, 1 - year, year), part("month"), part("day"))
    seconds = (part("hour") * 60 + part("minute")) * 60 + part("second")
    counts = days * DAY + seconds * 1_000_000 + np.asarray(fraction) if clock else days
    return np.where(endless, np.where(below, EARLIEST, LATEST), counts)


def beyond_timestamps(cells: pa.Array) -> npt.NDArray[np.bool_]:
    """Which dates no timestamp reaches."""
    days = np.asarray(pc.fill_null(dates(cells), 0))
    last = days_of(np.array([_LAST_YEAR + 1]), np.array([1]), np.array([1]))[0]
    return np.asarray((days >= last) & (days != LATEST))


def days_of(year: Int64s, month: Int64s, day: Int64s) -> Int64s:
    """Days from 2000-01-01 in the proleptic Gregorian calendar, where year 0 is 1 BC.

    Counts years from March, so that the leap day is the last day of a year.
    """
    early = month <= 2
    y = year - early
    era = np.floor_divide(y, 400)
    of_era = y - era * 400
    of_year = (153 * (month + np.where(early, 9, -3)) + 2) // 5 + day - 1
    days = era * _CYCLE + of_era * 365 + of_era // 4 - of_era // 100 + of_year
    return np.asarray(days - 730_425, np.int64)  # 0000-03-01 to 2000-01-01


def moment_text(text: str, *, zone: bool, clock: bool) -> str | None:
    """A literal as PostgreSQL would write it in UTC; None where it is no date (or timestamp, with `clock`).

    Without an offset a timestamp with time zone is taken as UTC; others must have none.
    """
    word = text.strip().lower()
    if word in ("infinity", "-infinity"):
        return word
    match = _WRITTEN.fullmatch(text.strip())
    if match is None or (match[8] and not zone) or (match[4] and not clock):
        return None
    year, era = int(match[1]), match[9]
    month, day, hour, minute, second = (int(part or 0) for part in match.groups()[1:6])
    # Python's datetime ends at year 9999; the calendar repeats every 400 years.
    stand_in = (1 - year if era else year) % 400 + 2000
    try:
        at = datetime(stand_in, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    shifted = at - _offset(match[8])
    utc_year = (1 - year if era else year) + shifted.year - stand_in
    if year == 0 or not _within(utc_year, shifted, clock=clock):
        return None
    return _written(utc_year, shifted, match[7] or "", zone, clock)


def _within(year: int, at: datetime, *, clock: bool) -> bool:
    """Whether PostgreSQL's type has this day."""
    first = days_of(np.array([year]), np.array([at.month]), np.array([at.day]))[0] >= _FIRST_DAY
    return bool(first) and year <= (_LAST_YEAR if clock else _LAST_YEAR_OF_DATES)


def _offset(text: str | None) -> timedelta:
    if not text or text in "zZ":
        return timedelta()
    digits = text[1:].replace(":", "").ljust(4, "0")
    amount = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -amount if text[0] == "-" else amount


def _written(year: int, at: datetime, fraction: str, zone: bool, clock: bool) -> str:
    date = f"{year if year > 0 else 1 - year:04d}-{at.month:02d}-{at.day:02d}"
    era = "" if year > 0 else " BC"
    if not clock:
        return date + era
    digits = fraction.rstrip("0")
    return f"{date} {at:%H:%M:%S}{'.' + digits if digits else ''}{'+00' if zone else ''}{era}"
