"""The change log for people to look at: every change of a project's tables as a JSON line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from trucker.change import Changes, Frames, Lsn, TableId
from trucker.changelog.identity import log_exists
from trucker.changelog.location import LogLocation
from trucker.changelog.reader import LogReader
from trucker.config.patterns import select_tables
from trucker.errors import ChangeLogError
from trucker.pgoutput import decode, parse_relation
from trucker.sinks.envelope.json_lines import lines

POLL_SECONDS = 0.5
BATCH_BYTES = 4 << 20


def peek(
    logs: Mapping[str, tuple[LogLocation, Sequence[str]]], *, limit: int | None = None, follow: bool = False
) -> Iterator[str]:
    """The lines of the sources' changes that the patterns choose: the last `limit` (all without), then with `follow`
    those to come. Reads beside a running project, and needs neither Spark nor the source."""
    readers = []
    for source, (location, patterns) in logs.items():
        if not log_exists(location):
            raise ChangeLogError(f"there is no change log of {source} yet", remedy="run: trucker run", code="TRK308")
        readers.append((LogReader(location), patterns))
    return _lines(readers, limit, follow=follow)


def _lines(readers: Sequence[tuple[LogReader, Sequence[str]]], limit: int | None, *, follow: bool) -> Iterator[str]:
    positions = [reader.oldest() for reader, _ in readers]
    past: deque[str] = deque(maxlen=limit)
    for number, (reader, patterns) in enumerate(readers):
        end = reader.durable().commit_lsn
        past.extend(_between(reader, patterns, positions[number], end))
        positions[number] = end
    yield from past
    while follow:
        for number, (reader, patterns) in enumerate(readers):
            end = reader.wait(positions[number], POLL_SECONDS / len(readers)).commit_lsn
            yield from _between(reader, patterns, positions[number], end)
            positions[number] = end


def _between(reader: LogReader, patterns: Sequence[str], start: Lsn, end: Lsn) -> Iterator[str]:
    for ref in reader.blocks(start, end):
        frames = reader.read(ref)
        parts = decode(frames, _keys(frames, patterns))
        yield from _in_order([part for part in (_within(p, start, end) for p in parts) if len(part)])


def _keys(frames: Frames, patterns: Sequence[str]) -> dict[TableId, tuple[str, ...]]:
    """The selected tables, with the key columns that their Relation messages name."""
    relations = [parse_relation(message) for message in frames.relations.values()]
    relations += [
        parse_relation(frames.payload[frames.starts[i] : frames.starts[i + 1]].tobytes())
        for i in np.flatnonzero(frames.payload[frames.starts[:-1]] == ord("R"))
    ]
    selected = frozenset(select_tables(patterns, [relation.table for relation in relations]))
    return {relation.table: relation.key_columns for relation in relations if relation.table in selected}


def _within(changes: Changes, start: Lsn, end: Lsn) -> Changes:
    inside = (changes.commit_lsn >= np.uint64(start)) & (changes.commit_lsn < np.uint64(end))
    return changes if inside.all() else changes.take(inside)


def _in_order(parts: Sequence[Changes]) -> Iterator[str]:
    if not parts:
        return
    text = pa.chunked_array([lines(part) for part in parts])
    commits = np.concatenate([part.commit_lsn for part in parts])
    ordinals = np.concatenate([part.ordinal for part in parts])
    for line in text.take(pa.array(np.lexsort((ordinals, commits)))):
        yield line.as_py().rstrip("\n")
