"""Positions in PostgreSQL's write-ahead log; a separate module because capture must not load Arrow for them."""

from __future__ import annotations

from typing import Final


class Lsn(int):
    """A position in the write-ahead log; `str()` gives PostgreSQL's own form, `16/B374D848`."""

    @classmethod
    def parse(cls, text: str) -> Lsn:
        high, low = text.split("/")
        return cls((int(high, 16) << 32) | int(low, 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


ZERO: Final = Lsn(0)
