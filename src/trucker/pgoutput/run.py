"""A run of messages: their kinds, transactions and relations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trucker.change import DELETE, INSERT, TRUNCATE, UPDATE, Frames, OpenTransaction
from trucker.errors import SourceError
from trucker.pgoutput.relation import Relation, parse_relation, relation_of_run
from trucker.pgoutput.wire import (
    BEGIN,
    COMMIT,
    EPOCH,
    KNOWN,
    RELATION,
    ByteArray,
    Offsets,
    bytes_at,
    int64_at,
    malformed,
    uint32_at,
    uint64_at,
)

_SHORTEST_ROW = 8  # kind, oid, marker, number of columns


@dataclass(frozen=True)
class Transactions:
    """The run's transactions, one element each; `first` is the number of the first change within the run."""

    commit_lsn: npt.NDArray[np.uint64]
    commit_time: npt.NDArray[np.int64]
    xid: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int64]


class MessageRun:
    """A validated run. An *entry* is one change of one relation: a message, or one of a Truncate's relations.

    `entries[i]` is the number of the message that holds entry i.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.payload = frames.payload
        self.starts: Offsets = np.ascontiguousarray(frames.starts, np.int64)
        self._check_starts()
        self.kinds: ByteArray = self.payload[self.starts[:-1]]
        self._require(KNOWN[self.kinds], "the message is not of protocol version 1")
        kinds = self.kinds
        self.is_row = (kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE)
        self.is_truncate = kinds == TRUNCATE
        lengths = np.diff(self.starts)
        self._require(~self.is_row | (lengths >= _SHORTEST_ROW), "the message is truncated")
        self.entries, self._oids = self._find_entries()

    def __len__(self) -> int:
        return len(self.kinds)

    def blame(self, index: int, what: str) -> SourceError:
        """The error for message number `index`."""
        return malformed(index, int(self.kinds[index]), what)

    def _require(self, right: npt.NDArray[np.bool_], what: str) -> None:
        if not right.all():
            raise self.blame(int(right.argmin()), what)

    def _check_starts(self) -> None:
        starts = self.starts
        if len(starts) and (starts[0] < 0 or starts[-1] > len(self.payload)):
            raise malformed(len(starts) - 1, None, "the run's messages lie outside its bytes")
        empty = np.diff(starts) <= 0
        if empty.any():
            raise malformed(int(empty.argmax()), None, "the message is empty")

    # entries

    def _find_entries(self) -> tuple[Offsets, npt.NDArray[np.uint32]]:
        messages = np.flatnonzero(self.is_row)
        oids = uint32_at(self.payload, self.starts[messages] + 1).astype(np.uint32)
        truncates = np.flatnonzero(self.is_truncate)
        if not len(truncates):
            return messages, oids
        truncated = [self._truncated(int(message)) for message in truncates]
        messages = np.concatenate([messages, np.repeat(truncates, [len(each) for each in truncated])])
        oids = np.concatenate([oids, *truncated])
        order = np.argsort(messages, kind="stable")
        return messages[order], oids[order]

    def _truncated(self, message: int) -> npt.NDArray[np.uint32]:
        body = self.payload[self.starts[message] : self.starts[message + 1]]
        count = int.from_bytes(body[1:5].tobytes(), "big")
        if len(body) != 6 + 4 * count:
            raise self.blame(message, "the message does not have the number of relations that it announces")
        return np.frombuffer(body[6:].tobytes(), ">u4").astype(np.uint32)

    def by_relation(self) -> Iterator[tuple[Relation, Offsets]]:
        """The entries of each relation, in order; a relation that changed its shape comes once per shape."""
        if not len(self.entries):
            return
        described = self._described()
        order = np.argsort(self._oids, kind="stable")
        oids = self._oids[order]
        cuts = np.flatnonzero(np.diff(oids)) + 1
        for entries in np.split(order, cuts):
            yield from self._by_shape(entries, described.get(int(self._oids[entries[0]]), []))

    def _described(self) -> dict[int, list[tuple[int, Relation]]]:
        """By oid, its Relation messages and from which message on each holds."""
        described: dict[int, list[tuple[int, Relation]]] = {}
        for oid, message in self.frames.relations.items():
            described[oid] = [(-1, parse_relation(bytes(message)))]
        for index in np.flatnonzero(self.kinds == RELATION):
            message = self.payload[self.starts[index] : self.starts[index + 1]].tobytes()
            relation = relation_of_run(message, int(index))
            versions = described.setdefault(relation.oid, [])
            if not versions or versions[-1][1] != relation:
                versions.append((int(index), relation))
        return described

    def _by_shape(self, entries: Offsets, versions: list[tuple[int, Relation]]) -> Iterator[tuple[Relation, Offsets]]:
        messages = self.entries[entries]
        begins = np.searchsorted(messages, [index for index, _ in versions])
        if not versions or begins[0] > 0:
            raise self.blame(int(messages[0]), "no Relation message describes its relation")
        for (_, relation), part in zip(versions, np.split(entries, begins[1:]), strict=True):
            if len(part):
                yield relation, part

    # transactions

    def transactions(self) -> tuple[Transactions, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The run's transactions; for every message its transaction's number, and its number among the changes."""
        begins = np.flatnonzero(self.kinds == BEGIN)
        self._check_nesting()
        self._require_length(begins, 21)
        at = self.starts[begins]
        is_change = self.is_row | self.is_truncate
        number = np.cumsum(is_change) - is_change
        of_message = np.cumsum(self.kinds == BEGIN) - 1
        complete = Transactions(
            uint64_at(self.payload, at + 1),
            int64_at(self.payload, at + 9) + EPOCH,
            uint32_at(self.payload, at + 17).astype(np.uint32),
            number[begins],
        )
        if self.frames.transaction is None:
            return complete, of_message, number
        return _continued(self.frames.transaction, complete), of_message + 1, number

    def _check_nesting(self) -> None:
        """Begin and Commit alternate, and changes lie between them."""
        edges = np.flatnonzero((self.kinds == BEGIN) | (self.kinds == COMMIT))
        edge_kinds = self.kinds[edges]
        previous = np.concatenate([[BEGIN if self.frames.transaction else COMMIT], edge_kinds])
        wrong = previous[1:] == previous[:-1]
        if wrong.any():
            raise self.blame(int(edges[wrong.argmax()]), "Begin and Commit do not alternate")
        changes = np.flatnonzero(self.is_row | self.is_truncate)
        outside = previous[np.searchsorted(edges, changes)] != BEGIN
        if outside.any():
            raise self.blame(int(changes[outside.argmax()]), "the message is outside any transaction")

    def _require_length(self, messages: Offsets, length: int) -> None:
        wrong = self.starts[messages + 1] - self.starts[messages] != length
        if wrong.any():
            raise self.blame(int(messages[wrong.argmax()]), f"the message is not {length} bytes long")

    def markers(self, messages: Offsets) -> ByteArray:
        """The byte after the oid: which tuple comes first (N, K or O)."""
        return bytes_at(self.payload, self.starts[messages] + 5)


def _continued(started: OpenTransaction, complete: Transactions) -> Transactions:
    """The transactions of a run, the one it begins inside of first."""
    return Transactions(
        np.insert(complete.commit_lsn, 0, np.uint64(started.commit_lsn)),
        np.insert(complete.commit_time, 0, started.commit_time),
        np.insert(complete.xid, 0, np.uint32(started.xid)),
        np.insert(complete.first, 0, -started.ordinal),
    )
