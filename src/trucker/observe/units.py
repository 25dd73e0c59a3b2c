"""How numbers are written for people: durations, sizes, rates and per cent, the same everywhere."""

from __future__ import annotations

from datetime import UTC, datetime


def duration(seconds: float) -> str:
    """`250 ms`, `1.5 s`, `5 min`, `10 h`, `4 d`."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"


def size(count: float) -> str:
    """Bytes in powers of 1000: `0 B`, `1.5 kB`, `2.0 MB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def rate(rows_per_second: float) -> str:
    return f"{rows_per_second:,.0f} rows/s"


def counted(number: int, noun: str) -> str:
    """`1 row`, `1,234 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def moment(seconds: float) -> str:
    """A time as the log writes it, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def lag_text(seconds: float | None, size_behind: int | None) -> str:
    """How far behind: time, and bytes of the source's WAL. A time that is not known is `unknown`."""
    parts = ["unknown" if seconds is None else duration(seconds)]
    if size_behind is not None:
        parts.append(size(size_behind))
    return ", ".join(parts)
