"""Reads numbers from a run's bytes at many places at once; the error for bytes that are not pgoutput."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trucker.errors import SourceError

ByteArray = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
RELATION: Final = ord("R")
NEW_TUPLE: Final = ord("N")
NULL: Final = ord("n")
UNCHANGED: Final = ord("u")
TEXT: Final = ord("t")

KNOWN: Final = np.zeros(256, np.bool_)
KNOWN[list(b"BCORYIUDTM")] = True

NAMES: Final = {
    ord(letter): name
    for letter, name in {
        "B": "Begin", "C": "Commit", "O": "Origin", "R": "Relation", "Y": "Type",
        "I": "Insert", "U": "Update", "D": "Delete", "T": "Truncate", "M": "Message",
    }.items()
}  # fmt: skip

# PostgreSQL counts from 2000-01-01, everything else from 1970-01-01.
EPOCH: Final = 946_684_800_000_000


def malformed(index: int | None, kind: int | None, what: str) -> SourceError:
    """The error for message number `index` of a run (None: the relation in force before it)."""
    name = NAMES.get(kind, "of an unknown kind") if kind is not None else "Relation"
    where = f"message {index} ({name})" if index is not None else f"{name} message in force before the run"
    return SourceError(
        f"pgoutput: {where}: {what}",
        remedy="the change log is damaged, or the slot does not send pgoutput version 1 with text tuples; if "
        "this error occurs again, run `trucker reset --truck NAME`, then `trucker run`, which copies the "
        "tables again",
        code="TRK250",
    )


def _numbers(buffer: ByteArray, places: Offsets, dtype: str) -> npt.NDArray[Any]:
    """The number of type `dtype` at each place; a place too near the end yields an arbitrary number, never an error.

    Not every step needs a check: a read past a message's end is detected at the end of its tuple.
    """
    size = np.dtype(dtype).itemsize
    count = len(buffer) - size + 1
    if count <= 0:
        return np.zeros(len(places), dtype)
    # A view with a stride of one byte: element i is the number at byte i, aligned or not.
    everywhere: npt.NDArray[Any] = np.ndarray((count,), dtype, buffer, strides=(1,))
    return everywhere[np.minimum(places, count - 1)]


def bytes_at(buffer: ByteArray, places: Offsets) -> ByteArray:
    return buffer.take(places, mode="clip")


def uint16_at(buffer: ByteArray, places: Offsets) -> npt.NDArray[np.uint16]:
    return _numbers(buffer, places, ">u2")


def uint32_at(buffer: ByteArray, places: Offsets) -> npt.NDArray[np.uint32]:
    return _numbers(buffer, places, ">u4")


def uint64_at(buffer: ByteArray, places: Offsets) -> npt.NDArray[np.uint64]:
    return _numbers(buffer, places, ">u8").astype(np.uint64)


def int64_at(buffer: ByteArray, places: Offsets) -> npt.NDArray[np.int64]:
    return _numbers(buffer, places, ">i8").astype(np.int64)
