"""Many tuples of one relation, read column by column.

A cell's place depends on the lengths of the cells before it, so one pass per column steps all tuples forward together.
Bounds are not checked at each step: places only grow, so a tuple that ends where its message ends never left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from trucker.change import Mask
from trucker.errors import SourceError
from trucker.pgoutput.wire import NULL, TEXT, UNCHANGED, ByteArray, Offsets, bytes_at, uint16_at, uint32_at

# Rows decoded at once: few enough that their bytes stay in the processor's cache from column to column.
CHUNK_ROWS: Final = 8192
# Rows up to which a loop in Python is quicker.
_FEW: Final = 8
_EVEN: Final = pa.array(np.arange(0, 2 * CHUNK_ROWS, 2, dtype=np.int32))

Blame = Callable[[int, str], SourceError]
"""The error for a message of the run, by its number."""


@dataclass(slots=True)
class TupleCells:
    """One column of many tuples: where each text lies, and its kind byte. Where `plain`, all are text."""

    kinds: ByteArray
    starts: Offsets
    ends: Offsets
    plain: bool = False

    @property
    def null(self) -> Mask:
        null: Mask = self.kinds != TEXT
        return null

    @property
    def unsent(self) -> Mask | None:
        """Which were not sent because they did not change; None where there are none."""
        if self.plain:
            return None
        unsent: Mask = self.kinds == UNCHANGED
        return unsent if unsent.any() else None

    def take(self, rows: Offsets) -> TupleCells:
        return TupleCells(self.kinds[rows], self.starts[rows], self.ends[rows], self.plain)

    def put(self, rows: Offsets, other: TupleCells) -> None:
        self.kinds[rows], self.starts[rows], self.ends[rows] = other.kinds, other.starts, other.ends
        self.plain = False

    @classmethod
    def empty(cls, count: int) -> TupleCells:
        return cls(np.full(count, NULL, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))


class Tuples:
    """The tuples that begin at `places` of `buffer`, in messages that end at `ends`, in rising order.

    `cells` grows as columns are read. `fill_with` sets the tuples whose cells replace unchanged ones: `origin[i]` is
    the old tuple of tuple i's message, or -1. NULL there means "not sent": a value that is not in the new tuple is
    stored out of line (TOAST), and is not NULL.
    """

    def __init__(
        self, buffer: ByteArray, places: Offsets, ends: Offsets, messages: Offsets, width: int, blame: Blame
    ) -> None:
        self.buffer, self.places, self.ends, self.messages = buffer, places, ends, messages
        self.width, self.blame = width, blame
        self.cells: list[TupleCells] = []
        self._donor: Tuples | None = None
        self._origin: Offsets = np.empty(0, np.int64)
        self._require(
            uint16_at(buffer, places) == width, f"the tuple does not have the {width} columns of its relation"
        )
        self.places = places + 2

    def __len__(self) -> int:
        return len(self.places)

    def fill_with(self, donor: Tuples, origin: Offsets) -> None:
        self._donor, self._origin = donor, origin

    def read(self, count: int) -> None:
        """Read columns until there are `count`."""
        if not len(self):
            self.cells += [TupleCells.empty(0)] * (count - len(self.cells))
            return
        for column in range(len(self.cells), count):
            cells = self._step()
            if self._donor is not None and not cells.plain:
                self._fill(cells, self._donor.cells[column])
            self.cells.append(cells)
        self._require(self.places <= self.ends, "a column exceeds the message")

    def _step(self) -> TupleCells:
        places = self.places
        kinds = bytes_at(self.buffer, places)
        text = kinds == TEXT
        lengths = uint32_at(self.buffer, places + 1).astype(np.int64)
        plain = bool(text.all())
        if plain:
            starts = places + 5
        else:
            self._require(
                text | (kinds == NULL) | (kinds == UNCHANGED), "a column is neither text nor NULL nor unchanged"
            )
            lengths *= text
            starts = places + np.where(text, 5, 1)
        self.places = starts + lengths
        return TupleCells(kinds, starts, self.places, plain)

    def _fill(self, cells: TupleCells, donor: TupleCells) -> None:
        unsent = np.flatnonzero((cells.kinds == UNCHANGED) & (self._origin >= 0))
        if not len(unsent):
            return
        origin = self._origin[unsent]
        sent = donor.kinds[origin] == TEXT
        cells.ends = cells.ends.copy()  # the array is shared: it holds the next column's places, too
        cells.put(unsent[sent], donor.take(origin[sent]))

    def finish(self) -> None:
        """All columns are read; the messages must end here."""
        self._require(self.places == self.ends, "the message does not end with its last column")

    def text(self, column: int, at: Offsets | None, count: int) -> pa.Array:
        """One column as `count` strings: row i is tuple `at[i]`'s (-1: NULL), or tuple i's where `at` is None.

        In the buffer, texts and headers alternate. An Arrow array over both, with headers as every second element,
        needs no copy except that of `take`.
        """
        cells, size = self.cells[column], len(self)
        if not size:
            return pa.nulls(count, pa.string())
        if count <= _FEW:
            return self._few(cells, range(size) if at is None else at.tolist())
        offsets = np.empty(2 * size, np.int32)
        offsets[0::2], offsets[1::2] = cells.starts, cells.ends
        alternating = pa.Array.from_buffers(
            pa.string(), 2 * size - 1, [None, pa.py_buffer(offsets), pa.py_buffer(self.buffer)]
        )
        array = alternating.take(_indices(cells, at))
        self._check_utf8(array, cells)
        return array

    def _few(self, cells: TupleCells, at: Iterable[int]) -> pa.Array:
        """The same for few rows, where the calls into Arrow would cost more than a loop."""
        kinds, starts, ends = cells.kinds.tolist(), cells.starts.tolist(), cells.ends.tolist()
        buffer = self.buffer
        try:
            return pa.array(
                [buffer[starts[i] : ends[i]].tobytes().decode() if i >= 0 and kinds[i] == TEXT else None for i in at],
                pa.string(),
            )
        except UnicodeDecodeError:
            raise self._not_utf8(cells) from None

    def _check_utf8(self, array: pa.Array, cells: TupleCells) -> None:
        # Most text is ASCII, which a maximum shows faster than a validation.
        data = array.buffers()[2]
        if data is None or not data.size or np.frombuffer(data, np.uint8).max() < 128:
            return
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            raise self._not_utf8(cells) from None

    def _not_utf8(self, cells: TupleCells) -> SourceError:
        """The error, which names the first message at fault."""
        texts = (self.buffer[a:b].tobytes() for a, b in zip(cells.starts, cells.ends, strict=True))
        wrong = [_is_utf8(text) for text in texts].index(False)
        return self.blame(int(self.messages[wrong]), "a column is not UTF-8 (is the source's encoding SQL_ASCII?)")

    def _require(self, right: Mask, what: str) -> None:
        if not right.all():
            raise self.blame(int(self.messages[right.argmin()]), what)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _indices(cells: TupleCells, at: Offsets | None) -> pa.Array:
    """Where, in the alternating array, the text of each row is; null where there is none."""
    if at is None:
        count = len(cells.kinds)
        if cells.plain and count <= CHUNK_ROWS:
            return _EVEN.slice(0, count)
        return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=cells.null)
    none = (at < 0) | cells.null[at]
    return pa.array((2 * np.where(none, 0, at)).astype(np.int32), mask=none)
