"""What of a delivery has been taken, for as long as the delivery is tried again in this process.

A receiver that pauses in the middle of a large batch must not get its first half again and again, and a truck that
fails must not have the events of the others sent twice. Memory is bounded (I9): a digest for each finished piece of
some thousands of events, and ids of the piece in hand alone. A digest is of the ids of a piece, so that nothing is left
out that was not taken, however a batch is cut when it comes again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trucker.errors import DataError


@dataclass(frozen=True, slots=True)
class SentPiece:
    """A piece all of whose events were taken, but for those refused, by id."""

    digest: bytes
    refused: Mapping[str, DataError]


@dataclass(slots=True)
class _OfTruck:
    pieces: list[SentPiece] = field(default_factory=list)
    at: int = 0
    taken: set[str] = field(default_factory=set)


class SentEvents:
    """The events of each truck that were taken since the last ledger was stored."""

    def __init__(self) -> None:
        self._trucks: dict[str, _OfTruck] = defaultdict(_OfTruck)
        self._begun: set[str] = set()

    def start(self) -> None:
        """A delivery begins, or comes again, perhaps without a truck that failed."""
        self._begun.clear()

    def begin(self, truck: str) -> None:
        """The truck's events come, from the first on."""
        self._begun.add(truck)
        self._trucks[truck].at = 0

    def piece(self, truck: str, ids: Sequence[str]) -> SentPiece | None:
        """The next piece of a truck, if it was finished before; `finish` is then not to be called."""
        sent = self._trucks[truck]
        if sent.at < len(sent.pieces):
            known = sent.pieces[sent.at]
            if known.digest == _digest(ids):
                sent.at += 1
                return known
            del sent.pieces[sent.at :]
        return None

    def taken(self, truck: str) -> Collection[str]:
        """The ids of the piece in hand, or of one cut otherwise, that were taken."""
        return self._trucks[truck].taken

    def take(self, truck: str, ids: Collection[str]) -> None:
        """These of the piece in hand were taken, whatever becomes of the others."""
        self._trucks[truck].taken |= set(ids)

    def finish(self, truck: str, ids: Sequence[str], refused: Mapping[str, DataError]) -> None:
        """Each of these was taken or refused."""
        sent = self._trucks[truck]
        sent.pieces.append(SentPiece(_digest(ids), refused))
        sent.at += 1
        sent.taken.clear()

    def finish_all(self) -> None:
        """The ledger is stored that passes the events of the delivery."""
        for truck in self._begun:
            self.forget(truck)

    def forget(self, truck: str) -> None:
        """The truck begins anew, or is done: what comes is to be sent."""
        self._trucks.pop(truck, None)


def _digest(ids: Sequence[str]) -> bytes:
    return hashlib.blake2b("\0".join(ids).encode(), digest_size=16).digest()
