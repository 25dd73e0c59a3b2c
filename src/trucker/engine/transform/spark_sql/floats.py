"""Floating-point numbers as PostgreSQL writes them: the shortest text that reads back as the same number.

Arrow writes the same digits, except in one case: PostgreSQL does not use a text that lies exactly in the middle between
two numbers, although it would be read as the right one; only whole numbers beyond the mantissa can have such a text.
Exponents differ, too: Arrow writes them from 1e+10 on and below 0.000001, PostgreSQL from 1e+15 on (`real`: 1e+06) and
below 0.0001, with at least two digits.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_ARROW_FIXED_BELOW: Final = 1e10
_FIXED_FROM: Final = 1e-4
_FIXED_BELOW: Final = {pa.float32(): 1e6, pa.float64(): 1e15}
_EXACT_BELOW: Final = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}
_MIDDLES_BELOW: Final = 1e40
_BITS: Final = {pa.float32(): (np.float32, np.uint32), pa.float64(): (np.float64, np.uint64)}
_MOST_DIGITS: Final = 17


def float_text(values: pa.Array) -> pa.Array:
    """The numbers' texts; nulls stay."""
    text = pc.cast(values, pa.string())
    numbers = np.abs(values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64))
    top = _FIXED_BELOW[values.type]
    text = _replace(text, ~np.isfinite(numbers), _names)
    text = _replace(text, (numbers > 0) & (numbers < _FIXED_FROM), _small)
    text = _replace(text, (numbers >= top) & (numbers < _ARROW_FIXED_BELOW), _with_exponent)
    wide = (numbers >= _ARROW_FIXED_BELOW) & (numbers < top)
    if wide.any():
        # Python's own form has the same digits, and exponents only from 1e+16 on.
        plain = list(map(repr, values.filter(pa.array(wide)).to_pylist()))
        text = _replaced(text, wide, pc.replace_substring_regex(pa.array(plain), r"\.0$", ""))
    return _without_middles(text, values, numbers)


def _without_middles(text: pa.Array, values: pa.Array, numbers: npt.NDArray[np.float64]) -> pa.Array:
    """More digits for a text in the middle between two numbers, which is read as the one with an even mantissa."""
    kind, bits = _BITS[values.type]
    rows = (numbers >= _EXACT_BELOW[values.type]) & (numbers < _MIDDLES_BELOW)
    if not rows.any():
        return text
    exact = values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind)
    rows &= exact.view(bits) % 2 == 0
    places = np.flatnonzero(rows)
    pairs = zip(exact[places], text.take(pa.array(places)).to_pylist(), strict=True)
    new = [_strictly_inside(value, short) for value, short in pairs]
    return _replaced(text, rows, pa.array(new, pa.string()))


def _strictly_inside(value: np.floating[Any], short: str) -> str:
    top, low = (int(np.nextafter(value, type(value)(end))) for end in ("inf", "-inf"))
    middles = (int(value) + top, int(value) + low)
    if 2 * int(Decimal(short)) not in middles:
        return short
    for digits in range(len(short.strip("-").replace(".", "").partition("e")[0]), _MOST_DIGITS):
        longer = f"{float(value):.{digits}e}"
        if 2 * int(Decimal(longer)) not in middles and type(value)(longer) == value:
            return longer
    return short


def _replace(text: pa.Array, rows: npt.NDArray[np.bool_], change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    if not rows.any():
        return text
    return _replaced(text, rows, change(text.filter(pa.array(rows))))


def _replaced(text: pa.Array, rows: npt.NDArray[np.bool_], new: pa.Array) -> pa.Array:
    return pc.replace_with_mask(text, pa.array(rows), new)


def _names(text: pa.Array) -> pa.Array:
    return pc.replace_substring(pc.replace_substring(text, "inf", "Infinity"), "nan", "NaN")


def _small(text: pa.Array) -> pa.Array:
    """`0.000012` as `1.2e-05`, `1e-7` as `1e-07`."""
    for zeros in (4, 5):
        text = pc.replace_substring_regex(text, rf"^(-?)0\.0{{{zeros}}}([1-9])(\d*)$", rf"\1\2.\3e-0{zeros + 1}")
    return pc.replace_substring_regex(pc.replace_substring(text, ".e", "e"), r"e-(\d)$", r"e-0\1")


def _with_exponent(text: pa.Array) -> pa.Array:
    """`1234000` as `1.234e+06`."""
    whole = pc.replace_substring_regex(text, r"^-|\..*$", "")
    exponent = pc.cast(pc.subtract(pc.utf8_length(whole), 1), pa.string())
    mantissa = pc.replace_substring_regex(text, r"^(-?\d)(\d*)\.?(\d*)$", r"\1.\2\3")
    mantissa = pc.replace_substring_regex(mantissa, r"\.?0*$", "")
    return pc.binary_join_element_wise(mantissa, exponent, "e+0")
