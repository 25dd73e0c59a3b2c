"""A run of pgoutput messages in one buffer, as capture passes it from the socket to the change log.

Many messages cost as many calls as one, and a search for a kind of message needs no loop over all of
them. Neither Arrow nor anything of trucker's is imported: capture is a small process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

BEGIN: Final = b"B"
COMMIT: Final = b"C"
RELATION: Final = b"R"
TYPE: Final = b"Y"
MESSAGE: Final = b"M"
TRUNCATE: Final = b"T"

Buffer = bytes | bytearray | memoryview

_DESCRIBING: Final = re.compile(rb"[RY]")
_ROWS: Final = b"IUD"
_ROW: Final = np.zeros(256, np.bool_)
_ROW[list(_ROWS)] = True
# Messages up to which a loop in Python is quicker.
_FEW: Final = 32


@dataclass(frozen=True, slots=True)
class Messages:
    """Message i is `payload[starts[i]:starts[i + 1]]`, and its first byte is `kinds[i]`; none is empty.

    Kinds are bytes: searching and counting in those costs next to nothing, for few messages and for many.
    """

    payload: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    kinds: bytes

    @classmethod
    def of(cls, messages: Sequence[Buffer], lengths: npt.NDArray[np.int64] | None = None) -> Messages:
        """These messages, copied; with their lengths where those are at hand."""
        payload = np.frombuffer(b"".join(messages), np.uint8)
        starts = np.zeros(len(messages) + 1, np.int64)
        if lengths is None:
            lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        np.cumsum(lengths, out=starts[1:])
        return cls(payload, starts, payload[starts[:-1]].tobytes())

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """One run from several, in the given order."""
        if len(parts) == 1:
            return parts[0]
        starts = np.zeros(sum(map(len, parts)) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(part.starts) for part in parts]), out=starts[1:])
        return cls(np.concatenate([part.payload for part in parts]), starts, b"".join([part.kinds for part in parts]))

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[bytes]:
        return map(self.message, range(len(self)))

    @property
    def size(self) -> int:
        """Bytes of all messages together."""
        return len(self.payload)

    @property
    def lengths(self) -> npt.NDArray[np.uint32]:
        """How long each message is; little-endian, as they lie in the log."""
        return np.diff(self.starts).astype("<u4")

    def message(self, index: int) -> bytes:
        return self.payload[self.starts[index] : self.starts[index + 1]].tobytes()

    def part(self, start: int, end: int) -> Messages:
        """The messages from `start` to before `end`; their bytes are not copied."""
        if start == 0 and end >= len(self):
            return self
        starts = self.starts[start : end + 1]
        return Messages(self.payload[starts[0] : starts[-1]], starts - starts[0], self.kinds[start:end])

    def without(self, indices: Sequence[int]) -> Messages:
        """All but a few, which are given in rising order."""
        bounds = [-1, *indices, len(self)]
        return Messages.joined([self.part(a + 1, b) for a, b in pairwise(bounds)])

    def until(self, size: int) -> int:
        """How many messages, from the first on, come to `size` bytes or more; all of them where they do not."""
        return len(self) if self.size < size else int(self.starts[1:].searchsorted(size)) + 1

    # -- what is among them ---------------------------------------------------------------------------------------

    def places(self, kind: bytes) -> list[int]:
        """The numbers of the messages of a kind."""
        numbers, at = [], self.kinds.find(kind)
        while at >= 0:
            numbers.append(at)
            at = self.kinds.find(kind, at + 1)
        return numbers

    def descriptions(self) -> list[int]:
        """The numbers of the Relation and Type messages."""
        return [each.start() for each in _DESCRIBING.finditer(self.kinds)]

    def changes(self, since: int = 0) -> int:
        """How many changes there are from message number `since` on."""
        return sum(self.kinds.count(kind, since) for kind in (b"I", b"U", b"D", TRUNCATE))

    def relations(self) -> set[bytes]:
        """The oids, as four bytes, of the relations whose rows are among them; those of truncates too."""
        if len(self) <= _FEW:
            used = {self.message(at)[1:5] for at, kind in enumerate(self.kinds) if kind in _ROWS}
        else:
            used = self._relations_of_rows()
        for index in self.places(TRUNCATE):
            message = self.message(index)
            used.update(message[at : at + 4] for at in range(6, len(message), 4))
        return used

    def _relations_of_rows(self) -> set[bytes]:
        places = self.starts[:-1][_ROW[np.frombuffer(self.kinds, np.uint8)]] + 1
        if not len(places):
            return set()
        everywhere: npt.NDArray[np.uint32] = np.ndarray((self.size - 3,), "=u4", self.payload, strides=(1,))
        oids = everywhere[places]
        # Consecutive rows are mostly of one relation: without repeats only a few oids are left to sort.
        first = np.concatenate([oids[:1], oids[1:][oids[1:] != oids[:-1]]])
        return {each.tobytes() for each in np.unique(first)}

    def finished(self) -> int:
        """How many messages there are up to the last that ends a transaction, or is a non-transactional message."""
        last = self.kinds.rfind(COMMIT) + 1
        at = self.kinds.rfind(MESSAGE, last)
        while at >= 0:
            if not self.payload[self.starts[at] + 1] & 1:  # not transactional
                return at + 1
            at = self.kinds.rfind(MESSAGE, last, at)
        return last
