"""Reads the change log. Any number of readers, in any process, read up to the durable end.

A position is a commit's end LSN (I1). A transaction belongs to the range `(start, end]` exactly when its commit LSN
`c` satisfies `start <= c < end`, which is the predicate `change.Changes` gives for "applied", so any LSN will do as a
position.
"""

from __future__ import annotations

import time
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trucker.change import Frames, OpenTransaction
from trucker.changelog.durable_end import EndWatch, end_reader
from trucker.changelog.format.block import (
    ENDS_OPEN,
    STARTS_OPEN,
    DamagedError,
    Head,
    RelationEntry,
    check_body,
    decode_head,
)
from trucker.changelog.format.durable import Durable
from trucker.changelog.format.index import SegmentIndex
from trucker.changelog.format.log_range import LogRange
from trucker.changelog.format.reference import RUN_BYTES, runs
from trucker.changelog.format.reference import BlockRef as BlockRef
from trucker.changelog.format.scan import DamagedBlockError, damaged, heads
from trucker.changelog.format.segment import Content, Segment, SegmentId
from trucker.changelog.location import LogLocation
from trucker.changelog.open_storage import check_whole, open_storage
from trucker.errors import ChangeLogError
from trucker.lsn import Lsn
from trucker.pg.messages import BEGIN, TRUNCATE

_INDEXES: Final = 32
_FILES: Final = 16
_RELATIONS: Final = 4096


class LogReader:
    """See the module. Cheap to make; pickles as its location. For one thread."""

    def __init__(self, location: LogLocation) -> None:
        self.location = location
        self._storage = open_storage(location)
        self._end = end_reader(location)
        self._contents: OrderedDict[SegmentId, Content] = OrderedDict()
        self._indexes: OrderedDict[SegmentId, SegmentIndex] = OrderedDict()
        self._relations: OrderedDict[tuple[SegmentId, int], bytes] = OrderedDict()
        self._listed: list[Segment] = []
        self._head: tuple[SegmentId, Lsn] | None = None
        self._stamp: int | None = None
        self._durable: Durable | None = None

    def __reduce__(self) -> tuple[type[LogReader], tuple[LogLocation]]:
        return LogReader, (self.location,)

    # -- how far --------------------------------------------------------------------------------------------------

    def durable(self) -> Durable:
        """How far the log goes at this moment."""
        self._durable = self._end.read()
        return self._durable

    def _covering(self, end: Lsn) -> Durable:
        """A durable end that is not before `end`, if there is one. The end only moves forward, so an earlier reading
        will do: a batch asks many times, and each reading is one of a file or an object."""
        before = self._durable
        return before if before is not None and end <= before.commit_lsn else self.durable()

    def wait(self, after: Lsn, timeout: float, watch: EndWatch | None = None) -> Durable:
        """Sleep until a commit ends after `after`, for at most `timeout` seconds. Returns the durable end.

        One that waits often gives the `watch`, so that none is made each time.
        """
        durable = self.durable()
        if durable.commit_lsn > after:
            return durable
        deadline = time.monotonic() + timeout
        if watch is not None:
            return self._sleep(after, deadline, watch)
        with self.watch() as new:
            # Read again after the watch is in place: a write between the first read and the watch wakes nobody.
            durable = self.durable()
            return durable if durable.commit_lsn > after else self._sleep(after, deadline, new)

    def _sleep(self, after: Lsn, deadline: float, watch: EndWatch) -> Durable:
        while True:
            watch.wait(deadline)
            durable = self.durable()
            if durable.commit_lsn > after or time.monotonic() >= deadline:
                return durable

    def watch(self) -> EndWatch:
        """What to wait with for the end to move."""
        return self._end.watch()

    def oldest(self) -> Lsn:
        """Positions below this cannot be served any more."""
        return self._oldest(self.durable())

    def _oldest(self, durable: Durable) -> Lsn:
        while True:
            segments = self._list(durable)
            if not segments:
                return durable.commit_lsn
            try:
                return self._begins(segments[0])
            except FileNotFoundError:
                # Pruned between the listing and the read: list again.
                self._stamp = None

    def next_range(
        self, start: Lsn, max_bytes: int, limit: Lsn | None = None, durable: Durable | None = None
    ) -> LogRange:
        """From `start` to the furthest commit after it within `max_bytes` of log, but at least one whole transaction.

        Never beyond the durable end or `limit`; it ends at `start` where there is no such commit. `durable` is the
        durable end as the caller has just read it.
        """
        durable = durable or self.durable()
        top = durable.commit_lsn if limit is None else min(durable.commit_lsn, limit)
        blocks: list[tuple[SegmentIndex, int]] = []
        total, batch_end, taken = 0, start, 0
        for index, at in self._blocks(start, top, durable):
            total += index.length[at]
            if total > max_bytes and batch_end > start:
                break
            blocks.append((index, at))
            if index.commits[at] and index.end[at] > start:
                batch_end, taken = Lsn(min(index.end[at], top)), len(blocks)
                if total >= max_bytes:
                    break
        return LogRange(start, batch_end, blocks[:taken])

    def next_end(self, start: Lsn, max_bytes: int, limit: Lsn | None = None) -> Lsn:
        """Where `next_range` ends."""
        return self.next_range(start, max_bytes, limit).end

    # -- what -----------------------------------------------------------------------------------------------------

    def range(self, start: Lsn, end: Lsn) -> LogRange:
        """All that is committed in `(start, end]`, as far as it is durable."""
        durable = self._covering(end)
        top = min(end, durable.commit_lsn)
        return LogRange(start, top, list(self._blocks(start, top, durable)))

    def blocks(self, start: Lsn, end: Lsn, run_bytes: int = RUN_BYTES) -> list[BlockRef]:
        """References to all that is committed in `(start, end]`, in order; small blocks together up to `run_bytes`."""
        durable = self._covering(end)
        top = min(end, durable.commit_lsn)
        return runs(self._blocks(start, top, durable), top, run_bytes)

    def read(self, ref: BlockRef) -> Frames:
        """The messages of a reference, their checksums verified."""
        data = memoryview(self._pread(ref.segment, ref.offset, ref.bytes))
        parsed: list[Head] = []
        bodies: list[memoryview] = []
        entries: dict[int, RelationEntry] = {}
        offset = 0
        while offset < ref.bytes:
            head, body = self._block(ref, data, offset)
            for entry in head.relations:
                entries.setdefault(entry.oid, entry)
            parsed.append(head)
            bodies.append(body)
            offset += head.bytes
        lengths = np.concatenate([_lengths(h, b) for h, b in zip(parsed, bodies, strict=True)])
        payloads = [np.frombuffer(b, np.uint8, offset=4 * h.messages) for h, b in zip(parsed, bodies, strict=True)]
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        payload = payloads[0] if len(payloads) == 1 else np.concatenate(payloads)
        if ref.until is not None:
            starts = _clipped(payload, starts, ref.until)
            payload = payload[: starts[-1]]
        started = parsed[0].open
        return Frames(
            payload,
            starts,
            {oid: self._relation(ref.segment, entry) for oid, entry in entries.items()},
            started and OpenTransaction(started.xid, Lsn(started.commit_lsn), started.commit_time, started.ordinal),
        )

    def shape_bounds(self, whole: LogRange) -> list[Lsn]:
        """Where to cut a range so that a relation is described anew only in the first transaction of a piece.

        Each is a commit's end inside the range, in order; none where no relation has two descriptions in it.
        """
        if len(whole.blocks) < 2:
            return []
        described: set[int] = set()
        bounds: list[Lsn] = []
        for end, oid, _ in self.descriptions(whole):
            if oid in described and whole.start < end < whole.end and end not in bounds:
                bounds.append(end)
            described.add(oid)
        return bounds

    def descriptions(self, whole: LogRange) -> Iterator[tuple[Lsn, int, bytes]]:
        """The Relation messages of a range in log order, each with the end of the commit before its block, and the
        relation's oid; one that says the same as the one before is left out."""
        # The messages are compared, not the entries: a new segment repeats a description that has not changed.
        newest: dict[int, bytes] = {}
        last_end = whole.start
        for index, at in whole.blocks:
            for entry in index.relations[at]:
                message = self._relation(index.id, entry)
                if newest.get(entry.oid) != message:
                    newest[entry.oid] = message
                    yield last_end, entry.oid, message
            last_end = max(last_end, Lsn(index.end[at]))

    def first_transaction(self, refs: Sequence[BlockRef], start: Lsn) -> int | None:
        """The xid of the first transaction in these blocks that commits at `start` or after; None where none does."""
        for ref in refs:
            frames = self.read(ref)
            if frames.transaction is not None and frames.transaction.commit_lsn >= start:
                return frames.transaction.xid
            begins = np.flatnonzero(frames.payload[frames.starts[:-1]] == BEGIN[0])
            for offset in frames.starts[begins]:
                head = frames.payload[offset : offset + 21].tobytes()
                if int.from_bytes(head[1:9], "big") >= start:
                    return int.from_bytes(head[17:21], "big")
        return None

    def transactions(self, refs: Sequence[BlockRef]) -> frozenset[int]:
        """The xids of all transactions in these blocks. Reads all of them."""
        xids: set[int] = set()
        for ref in refs:
            frames = self.read(ref)
            if frames.transaction is not None:
                xids.add(frames.transaction.xid)
            begins = frames.starts[:-1][frames.payload[frames.starts[:-1]] == BEGIN[0]]
            if len(begins):
                cells = frames.payload[begins[:, None] + np.arange(17, 21)]
                xids.update(np.ascontiguousarray(cells).view(">u4").ravel().tolist())
        return frozenset(xids)

    def retained_transactions(self, end: Lsn) -> frozenset[int]:
        """The xids of all transactions that the log still has up to `end`. Reads all of them."""
        while True:
            oldest = self.oldest()
            try:
                return self.transactions(self.blocks(oldest, end)) if oldest < end else frozenset()
            except ChangeLogError:
                if self.oldest() == oldest:
                    raise  # it was not pruned meanwhile

    def truncations(self, refs: Sequence[BlockRef], oid: int) -> list[int]:
        """The xids of the transactions that truncate a relation, in these blocks, in log order. Reads all of them."""
        xids = []
        for ref in refs:
            frames = self.read(ref)
            xid = frames.transaction.xid if frames.transaction is not None else 0
            kinds = frames.payload[frames.starts[:-1]]
            for start in frames.starts[:-1][(kinds == BEGIN[0]) | (kinds == TRUNCATE[0])]:
                if frames.payload[start] == BEGIN[0]:
                    xid = int.from_bytes(frames.payload[start + 17 : start + 21].tobytes(), "big")
                    continue
                count = int.from_bytes(frames.payload[start + 1 : start + 5].tobytes(), "big")
                oids = np.frombuffer(frames.payload[start + 6 : start + 6 + 4 * count].tobytes(), ">u4")
                xids += [xid] if oid in oids else []
        return xids

    def relations(self, refs: Sequence[BlockRef]) -> list[bytes]:
        """The Relation messages by which the rows of these blocks are to be read, in log order.

        A relation that was described anew in between comes several times, the newest last.
        """
        messages: list[bytes] = []
        newest: dict[int, bytes] = {}
        for ref in refs:
            for entry in self._entries(ref):
                message = self._relation(ref.segment, entry)
                if newest.get(entry.oid) != message:
                    newest[entry.oid] = message
                    messages.append(message)
        return messages

    def close(self) -> None:
        """Give back descriptors; the reader can be used again."""
        while self._contents:
            self._contents.popitem()[1].close()
        self._end.close()

    def __del__(self) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _blocks(self, start: Lsn, end: Lsn, durable: Durable) -> Iterator[tuple[SegmentIndex, int]]:
        """The blocks that hold changes of `(start, end]`, each as its index and its number there.

        A transaction is returned whole or not at all: a log of objects may hold one that never finished.
        """
        transaction: list[tuple[SegmentIndex, int]] = []
        for index, at in self._all_blocks(start, end, durable):
            # The next block does not continue the open transaction: the stream was interrupted, and sent it again.
            if transaction and not index.flags[at] & STARTS_OPEN:
                transaction.clear()
            transaction.append((index, at))
            if not index.flags[at] & ENDS_OPEN:
                yield from transaction
                transaction.clear()

    def _all_blocks(self, start: Lsn, end: Lsn, durable: Durable) -> Iterator[tuple[SegmentIndex, int]]:
        if start >= end:
            return
        oldest = self._oldest(durable)
        if start < oldest:
            raise self._pruned(start, oldest)
        segments = self._listed  # as `_oldest` has just listed them
        for segment in segments[self._storage.begin(segments, start) :]:
            if segment.last is not None and segment.last <= start:
                continue
            if segment.id.base >= end or segment.id > durable.segment:
                return
            try:
                index = self._index(segment, durable)
            except FileNotFoundError:
                self._stamp = None
                raise self._pruned(start, self.oldest()) from None
            for at in range(bisect_left(index.last, start), len(index)):
                if index.first[at] >= end:
                    return
                yield index, at

    def _list(self, durable: Durable) -> list[Segment]:
        """The segments, listed anew when the folder has changed."""
        stamp = self._storage.stamp()
        covered = self._listed and self._listed[-1].id >= durable.segment
        if stamp != self._stamp or not covered:
            self._listed = self._storage.segments(durable.segment if durable.offset else None)
            self._stamp = stamp
            check_whole(self.location, self._listed, durable)
        return self._listed

    def _begins(self, segment: Segment) -> Lsn:
        """The position from which a log that begins with this segment can be served."""
        if self._head is None or self._head[0] != segment.id:
            started = None
            try:
                content = self._open(segment.id)
                for _, head in heads(content, 0, segment.bytes or content.size()):
                    started = head.open
                    break
            except DamagedBlockError as damage:
                raise damaged(self._storage.where(segment.id), damage.offset, str(damage)) from None
            # A segment that begins inside a transaction serves only readers that have applied it: its start is pruned.
            self._head = segment.id, Lsn(started.commit_lsn + 1 if started else segment.id.base)
        return self._head[1]

    def _index(self, segment: Segment, durable: Durable) -> SegmentIndex:
        """The segment's index up to the durable end. The indexes of the last used segments are cached."""
        index = self._indexes.get(segment.id)
        if index is None:
            index = self._indexes[segment.id] = SegmentIndex(segment.id)
            if len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(segment.id)
        content = self._open(segment.id)
        limit = durable.offset if segment.id == durable.segment else segment.bytes or content.size()
        if segment.id <= durable.segment and index.size < limit:
            try:
                index.extend(content, limit)
            except DamagedError as damage:
                raise damaged(self._storage.where(segment.id), index.size, str(damage)) from None
        return index

    def _entries(self, ref: BlockRef) -> Iterator[RelationEntry]:
        """The relations of a reference's blocks, in order; from the index where it is cached, else from the blocks."""
        index = self._indexes.get(ref.segment)
        if index is not None and index.size >= ref.offset + ref.bytes:
            at = bisect_left(index.offset, ref.offset)
            while at < len(index) and index.offset[at] < ref.offset + ref.bytes:
                yield from index.relations[at]
                at += 1
            return
        data = memoryview(self._pread(ref.segment, ref.offset, ref.bytes))
        offset = 0
        while offset < ref.bytes:
            head, _ = self._block(ref, data, offset)
            yield from head.relations
            offset += head.bytes

    def _block(self, ref: BlockRef, data: memoryview, offset: int) -> tuple[Head, memoryview]:
        try:
            head = decode_head(data[offset:])
            body = data[offset + head.head_bytes : offset + head.bytes]
            check_body(head, body)
        except DamagedError as damage:
            raise damaged(self._storage.where(ref.segment), ref.offset + offset, str(damage)) from None
        return head, body

    def _relation(self, segment: SegmentId, entry: RelationEntry) -> bytes:
        key = (segment, entry.offset)
        message = self._relations.get(key)
        if message is None:
            message = self._pread(segment, entry.offset, entry.length)
            if zlib.crc32(message) != entry.crc:
                raise damaged(self._storage.where(segment), entry.offset, "the checksum of a relation is wrong")
            self._relations[key] = message
            if len(self._relations) > _RELATIONS:
                self._relations.popitem(last=False)
        return message

    def _pread(self, segment: SegmentId, offset: int, length: int) -> bytes:
        try:
            data = self._open(segment).read(offset, length)
        except FileNotFoundError:
            raise ChangeLogError(
                f"{self._storage.where(segment)} was deleted while a truck needed it",
                code="TRK307",
                remedy="run `trucker reset --truck NAME` for the truck that lags, then `trucker run`, which "
                "copies its tables again",
            ) from None
        if len(data) < length:
            raise damaged(self._storage.where(segment), offset + len(data), "the file ends inside a block")
        return data

    def _open(self, key: SegmentId) -> Content:
        content = self._contents.get(key)
        if content is None:
            content = self._contents[key] = self._storage.open(key)
            if len(self._contents) > _FILES:
                self._contents.popitem(last=False)[1].close()
        self._contents.move_to_end(key)
        return content

    def _pruned(self, start: Lsn, oldest: Lsn) -> ChangeLogError:
        return ChangeLogError(
            f"the change log in {self.location} begins at {oldest}, after position {start}",
            code="TRK307",
            remedy="run `trucker reset --truck NAME` for the truck that lags, then `trucker run`, which copies "
            "its tables again",
        )


def _lengths(head: Head, body: memoryview) -> npt.NDArray[np.uint32]:
    return np.frombuffer(body, "<u4", head.messages)


def _clipped(payload: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], until: Lsn) -> npt.NDArray[np.int64]:
    """Only the messages before the first transaction whose commit LSN is `until` or more."""
    begins = np.flatnonzero(payload[starts[:-1]] == BEGIN[0])
    offsets = starts[begins][:, None] + np.arange(1, 9)
    commits = payload[offsets].view(">u8").ravel()
    beyond = np.flatnonzero(commits >= until)
    return starts[: begins[beyond[0]] + 1] if len(beyond) else starts
