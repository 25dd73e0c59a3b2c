"""The events of unfinished deliveries that a stream has already, by the ids that are the same when they come again.

An event that tells a change, or marks a transaction, has such an id: it is made of the commit's LSN and the change's
ordinal. A bit for each change of a transaction tells what is there, so that of a transaction of any size little is in
memory (I9). Rows of a copy that begins anew, and rows that SQL returned, have other ids when they come again:
`is_stable` tells them apart.
"""

from __future__ import annotations

import re
from typing import Final

from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.ledger import Ledger

_CHANGE: Final = re.compile(r"([0-9A-F]+/[0-9A-F]+)/([0-9]+)(?:/(insert|delete|tombstone))?")
_MARK: Final = re.compile(r"([0-9A-F]+/[0-9A-F]+)/(?:begin|end)(?:/.*)?", re.DOTALL)
_FORMS: Final = {None: 0, "insert": 1, "delete": 2, "tombstone": 3}


def is_stable(event_id: str, *, snapshot: bool) -> bool:
    """Whether the event has the same id when it comes again, however batches are cut then."""
    return not snapshot and (_CHANGE.fullmatch(event_id) is not None or _MARK.fullmatch(event_id) is not None)


class TailEvents:
    """The events with stable ids that were read back."""

    def __init__(self) -> None:
        self._changes: dict[str, dict[str, bytearray]] = {}
        self._marks: dict[str, set[str]] = {}
        self._newest: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._newest)

    @property
    def trucks(self) -> frozenset[str]:
        """The trucks that have events here."""
        return frozenset(self._newest)

    def add(self, truck: str, event_id: str) -> None:
        if (change := _CHANGE.fullmatch(event_id)) is not None:
            byte, bit = _place(change)
            bits = self._changes.setdefault(truck, {}).setdefault(change[1], bytearray())
            bits.extend(bytes(max(0, byte + 1 - len(bits))))
            bits[byte] |= bit
            lsn = change[1]
        else:
            mark = _MARK.fullmatch(event_id)
            assert mark is not None, "an id that is not stable"
            self._marks.setdefault(truck, set()).add(event_id)
            lsn = mark[1]
        self._newest[truck] = max(self._newest.get(truck, 0), Lsn.parse(lsn))

    def has(self, truck: str, event_id: str) -> bool:
        if truck not in self._newest:
            return False
        change = _CHANGE.fullmatch(event_id)
        if change is None:
            return event_id in self._marks.get(truck, ())
        byte, bit = _place(change)
        bits = self._changes.get(truck, {}).get(change[1], b"")
        return byte < len(bits) and bool(bits[byte] & bit)

    def settle(self, ledger: Ledger) -> None:
        """Forget the trucks of which nothing here can come again: their positions are past it."""
        for truck, newest in list(self._newest.items()):
            behind = [
                entry.lsn
                for (name, _), entry in ledger.entries.items()
                if name == truck and entry.phase is Phase.CATCHING_UP
            ]
            if min([ledger.positions.get(truck, Lsn(0)), *behind]) > newest:
                del self._newest[truck]
                self._changes.pop(truck, None)
                self._marks.pop(truck, None)


def _place(change: re.Match[str]) -> tuple[int, int]:
    number = int(change[2]) * len(_FORMS) + _FORMS[change[3]]
    return number >> 3, 1 << (number & 7)
