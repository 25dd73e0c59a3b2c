"""Numbers as PostgreSQL writes them: a unique text for each, and their order.

`numeric` has no bound, so its texts are compared: without trailing zeros equal numbers have equal texts, and of two
positive ones the one with more digits before the point is greater, else the text that sorts later. A floating-point
number becomes an integer of the same order; NaN is the greatest, as in PostgreSQL.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]
Signs = npt.NDArray[np.int8]

NAN: Final = np.iinfo(np.int64).max
_NUMERIC: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+))?")
_WORDS: Final = {
    "nan": "NaN",
    "infinity": "Infinity",
    "+infinity": "Infinity",
    "inf": "Infinity",
    "+inf": "Infinity",
    "-infinity": "-Infinity",
    "-inf": "-Infinity",
}
# PostgreSQL's limit of digits after the point of a numeric.
_MOST_DIGITS: Final = 16_383
_RANKS: Final = {"-Infinity": -2, "Infinity": 2, "NaN": 3}


def numeric_text(text: str) -> str | None:
    """A numeric as PostgreSQL would write it; None where it is none."""
    text = text.strip()
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    match = _NUMERIC.fullmatch(text)
    if match is None or (match[1] and abs(int(match[1])) > _MOST_DIGITS):
        return None
    plain = f"{Decimal(text):f}"
    return plain.removeprefix("-") if not Decimal(text) else plain


def trimmed(cells: pa.Array) -> pa.Array:
    """Numerics without the zeros at the end of their fractions: equal numbers are equal texts."""
    fraction = pc.match_substring(cells, ".")
    if not pc.any(fraction).as_py():
        return cells
    return pc.if_else(fraction, pc.utf8_rtrim(pc.utf8_rtrim(cells, "0"), "."), cells)


def compare_numerics(cells: pa.Array, literal: str) -> Signs:
    """-1, 0 or 1 for each (trimmed, no NULL among them) as it is less than, equal to or greater than the literal."""
    rank = _rank(cells)
    literal_rank = _rank(pa.array([literal], pa.string()))[0]
    signs: Signs = np.sign(rank - literal_rank).astype(np.int8)
    if abs(literal_rank) != 1:
        return signs
    alike = np.flatnonzero(rank == literal_rank)
    signs[alike] = literal_rank * _compare_digits(cells.take(pa.array(alike)), literal)
    return signs


def _rank(cells: pa.Array) -> Signs:
    """-2 for -Infinity, the sign for a number, 2 for Infinity, 3 for NaN."""
    negative = np.asarray(pc.starts_with(cells, "-"))
    rank: Signs = np.where(negative, -1, 1).astype(np.int8)
    rank[np.asarray(pc.equal(cells, "0"))] = 0
    for word, value in _RANKS.items():
        rank[np.asarray(pc.equal(cells, word))] = value
    return rank


def _compare_digits(cells: pa.Array, literal: str) -> Signs:
    """The same for numbers of the literal's sign, by their absolute values."""
    plain = pc.utf8_ltrim(cells, "-")
    digits = literal.lstrip("-")
    whole = np.asarray(_whole_digits(plain))
    signs: Signs = np.sign(whole - len(digits.partition(".")[0])).astype(np.int8)
    same = signs == 0
    later = np.asarray(pc.greater(plain, digits)).astype(np.int8) - np.asarray(pc.less(plain, digits)).astype(np.int8)
    signs[same] = later[same]
    return signs


def _whole_digits(plain: pa.Array) -> pa.Array:
    point = pc.find_substring(plain, ".")
    return pc.if_else(pc.less(point, 0), pc.binary_length(plain), point)


# -- floating point ---------------------------------------------------------------------------------------------------


def float_order(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """An int64 for each number (NULL for NULL): the same order, equal where they are equal."""
    return _order(cells.cast(kind).cast(pa.float64()))


def float_literal(text: str, kind: pa.DataType) -> int | None:
    """The same for a literal; None where it is none, or out of the type's range."""
    number = parse_float(text, kind)
    return None if number is None else int(_order(pa.array([number], pa.float64()))[0].as_py())


def parse_float(text: str, kind: pa.DataType) -> float | None:
    """A number as PostgreSQL's type would hold it."""
    text = text.strip()
    word = _WORDS.get(text.lower())
    if word is not None:
        return float(word)
    if _NUMERIC.fullmatch(text) is None:
        return None
    with np.errstate(all="ignore"):
        number = float(np.float32(text)) if pa.types.is_float32(kind) else float(text)
    underflow = number == 0 and re.search("[1-9]", re.split("[eE]", text)[0])
    return None if math.isinf(number) or underflow else number


def _order(numbers: pa.Array) -> pa.Array:
    missing = np.asarray(pc.is_null(numbers))
    values = np.asarray(pc.fill_null(numbers, 0.0)) + 0.0  # -0 and 0 are equal
    bits = values.view(np.int64)
    # IEEE 754: read as integers, the bits of positive numbers have the numbers' order, of negative ones its reverse.
    order = np.where(bits < 0, np.int64(np.iinfo(np.int64).min) - bits, bits)
    order[np.isnan(values)] = NAN
    return pa.array(order, mask=missing)


def float_text(number: float, kind: pa.DataType) -> str:
    """As PostgreSQL writes it with all its digits: with an exponent below 0.0001, and from 1e15 (real: 1e6) on."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    single = pa.types.is_float32(kind)
    shortest = str(np.float32(number)) if single else repr(number)
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    if number == 0:
        return "-0" if math.copysign(1, number) < 0 else "0"
    text = "".join(map(str, digits))
    power = len(text) + int(exponent) - 1
    minus = "-" if sign else ""
    if -4 <= power < (6 if single else 15):
        return f"{minus}{Decimal((0, digits, int(exponent))):f}"
    point = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
    return f"{minus}{point}e{power:+03d}"
