"""Events that mark where a transaction begins and ends, put between a truck's events by the driver.

Only the driver sees the events of all tables, in commit order. A transaction is whole in what is published at once; of
a table that catches up by itself the marks are about its events alone. The end of a transaction counts the truck's
events in it. In Debezium's envelope each event is told its place in the transaction as well.

    trucker   {"operation":"begin","commit_lsn":"0/16B3748","commit_time":"…","xid":741}
              {"operation":"end", … ,"events":2,"tables":[{"schema":"public","table":"orders","events":2}]}
    flat      {"_operation":"begin","_lsn":"0/16B3748","_commit_time":"…","_xid":741}
              {"_operation":"end", … ,"_events":2}
    debezium  {"status":"BEGIN","id":"741:23803720","event_count":null,"data_collections":null,"ts_ms":…}
              {"status":"END","id":"741:23803720","event_count":2,
               "data_collections":[{"data_collection":"public.orders","event_count":2}],"ts_ms":…}

Rows that a truck's SQL returns are of no transaction: those that are published at one LSN are marked as one, whose xid
is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Mask
from trucker.config.events import EventFormat
from trucker.sinks.envelope.envelope import EnvelopeSettings
from trucker.sinks.envelope.json_text import JsonTemplate, lsn_text, quoted, time_text
from trucker.sinks.envelope.row_shapes import Indices
from trucker.sinks.event import BEGIN, END, TOMBSTONE
from trucker.table import TableId

_LARGE: Final = pa.large_string()


@dataclass(slots=True)
class _Open:
    """The transaction that the last piece ended in: its place and the events so far, by table."""

    lsn: int
    xid: int
    time: int
    ordinal: int
    counts: Indices = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class TransactionMarks:
    """`tables` are the names that numbers in the pieces stand for; marks have the number behind the last one.
    `suffix` ends the ids of marks that are about some of a truck's tables alone."""

    settings: EnvelopeSettings
    tables: Sequence[TableId]
    suffix: str = ""

    def between(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The pieces with the marks. They come with, and lose, the columns `xid`, `commit_time` and `tail`."""
        last: _Open | None = None
        for piece in pieces:
            if piece.num_rows:
                last, marked = self._mark(piece, last)
                yield marked
        if last is not None:
            ends = self._ends([last.lsn], [last.xid], [last.time], [last.ordinal], last.counts[None, :])
            yield _alike(ends, marked.schema)

    def _mark(self, piece: pa.RecordBatch, last: _Open | None) -> tuple[_Open, pa.RecordBatch]:
        lsn, ordinal = piece.column("commit_lsn").to_numpy(), piece.column("ordinal").to_numpy()
        xid, time = piece.column("xid").to_numpy(), piece.column("commit_time").to_numpy()
        new = np.ones(len(lsn), np.bool_)
        new[1:] = lsn[1:] != lsn[:-1]
        new[0] = last is None or int(lsn[0]) != last.lsn
        begun = np.flatnonzero(new)
        # Transactions by number: 0 is the one that was open, whether it goes on here or not.
        number: Indices = np.cumsum(new)
        before = np.zeros((1, len(self.tables)), np.int64) if last is None else last.counts[None, :]
        counted: Mask = piece.column("operation").to_numpy() != TOMBSTONE
        table = piece.column("table").to_numpy()
        counts = np.zeros((int(number[-1]) + 1, len(self.tables)), np.int64)
        np.add.at(counts, (number[counted], table[counted]), 1)
        counts[0] += before[0]
        events = self._placed(piece, number, table, counted, before[0]) if "tail" in piece.schema.names else piece
        events = events.select([name for name in events.schema.names if name not in ("xid", "commit_time", "tail")])
        ended = begun if last is not None else begun[1:]
        parts = [events, self._begins(lsn[begun], xid[begun], time[begun])]
        keys = [np.arange(len(lsn)) * 3 + 2, begun * 3 + 1]
        if len(ended):
            places = self._ended(lsn, xid, time, ordinal, ended, last)
            first = 0 if last is not None else 1
            parts.append(self._ends(*places, counts[first : first + len(ended)]))
            keys.append(ended * 3)
        whole = pa.concat_batches([_alike(part, events.schema) for part in parts])
        order = np.argsort(np.concatenate(keys), kind="stable")
        is_open = _Open(int(lsn[-1]), int(xid[-1]), int(time[-1]), int(ordinal[-1]), counts[-1])
        return is_open, whole.take(pa.array(order))

    def _ended(
        self,
        lsn: npt.NDArray[Any],
        xid: npt.NDArray[Any],
        time: npt.NDArray[Any],
        ordinal: npt.NDArray[Any],
        ended: Indices,
        last: _Open | None,
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """The places of the transactions whose end is before these events."""
        rows = ended - 1
        columns = [column[rows].tolist() for column in (lsn, xid, time, ordinal)]
        if last is not None and ended[0] == 0:
            for column, value in zip(columns, (last.lsn, last.xid, last.time, last.ordinal), strict=True):
                column[0] = value
        return columns[0], columns[1], columns[2], columns[3]

    def _placed(
        self, piece: pa.RecordBatch, number: Indices, table: Indices, counted: Mask, before: Indices
    ) -> pa.RecordBatch:
        """Debezium's events with their places in the transaction, of all tables and of their own."""
        total = _running(number, counted, int(before.sum()))
        group = number * len(self.tables) + table
        order = np.argsort(group, kind="stable")
        own = np.empty(len(group), np.int64)
        own[order] = _running(group[order], counted[order], 0)
        own += np.where(number == 0, before[table], 0)
        line = JsonTemplate()
        line.cells(piece.column("value"))
        line.constant(',"transaction":{"id":"')
        line.cells(piece.column("xid").cast(_LARGE))
        line.constant(":")
        line.cells(piece.column("commit_lsn").cast(_LARGE))
        line.constant('","total_order":')
        line.cells(pa.array(total).cast(_LARGE))
        line.constant(',"data_collection_order":')
        line.cells(pa.array(own).cast(_LARGE))
        line.constant("}")
        line.cells(piece.column("tail"))
        value = pc.if_else(pc.is_valid(piece.column("value")), line.join(piece.num_rows), None)
        return piece.set_column(piece.schema.get_field_index("value"), "value", value)

    # -- the marks themselves -----------------------------------------------------------------------------------------

    def _begins(self, lsn: npt.NDArray[Any], xid: npt.NDArray[Any], time: npt.NDArray[Any]) -> pa.RecordBatch:
        return self._marks(BEGIN, lsn, xid, time, np.full(len(lsn), -1, np.int64), None)

    def _ends(
        self, lsn: Sequence[int], xid: Sequence[int], time: Sequence[int], ordinal: Sequence[int], counts: Indices
    ) -> pa.RecordBatch:
        places = np.array(lsn, np.uint64), np.array(xid, np.uint32), np.array(time, np.int64)
        return self._marks(END, *places, np.array(ordinal, np.int64) + 1, counts)

    def _marks(
        self,
        mark: int,
        lsn: npt.NDArray[Any],
        xid: npt.NDArray[Any],
        time: npt.NDArray[Any],
        ordinal: npt.NDArray[Any],
        counts: Indices | None,
    ) -> pa.RecordBatch:
        count = len(lsn)
        name = "end" if mark == END else "begin"
        value, key = self._values(name, lsn, xid, time, counts)
        ids = _text(lsn_text(lsn), f"/{name}{self.suffix}")
        nothing = pa.nulls(count, _LARGE)
        return pa.RecordBatch.from_pydict(
            {
                "commit_lsn": pa.array(lsn, pa.uint64()),
                "ordinal": pa.array(ordinal, pa.int64()),
                "operation": pa.array(np.full(count, mark, np.uint8)),
                "value": value,
                "key": nothing if key is None else key,
                "id": ids,
                "table": pa.array(np.full(count, len(self.tables), np.int32)),
            }
        )

    def _values(
        self, name: str, lsn: npt.NDArray[Any], xid: npt.NDArray[Any], time: npt.NDArray[Any], counts: Indices | None
    ) -> tuple[pa.LargeStringArray, pa.LargeStringArray | None]:
        line, end, key = JsonTemplate(), "\n" if self.settings.lines else "", None
        if self.settings.format is EventFormat.DEBEZIUM:
            names = _text(pa.array(xid).cast(_LARGE), ":", pa.array(lsn).cast(_LARGE))
            key = _text('{"id":"', names, '"}')
            line.constant(f'{{"status":"{name.upper()}","id":"')
            line.cells(names)
            line.constant('","event_count":')
            if counts is None:
                line.constant('null,"data_collections":null')
            else:
                starts = [f'{{"data_collection":{quoted(str(table))},"event_count":' for table in self.tables]
                self._counts(line, counts, ',"data_collections":', starts)
            line.constant(',"ts_ms":')
            line.cells(pa.array(time // 1000).cast(_LARGE))
        else:
            flat = "_" if self.settings.format is EventFormat.FLAT else ""
            line.constant(f'{{"{flat}operation":"{name}","{flat or "commit_"}lsn":"')
            line.cells(lsn_text(lsn))
            line.constant(f'","{flat}commit_time":"')
            line.cells(time_text(time))
            line.constant(f'","{flat}xid":')
            line.cells(pa.array(xid).cast(_LARGE))
            if counts is not None:
                line.constant(f',"{flat}events":')
                starts = [f'{{"schema":{quoted(s)},"table":{quoted(name)},"events":' for s, name in self.tables]
                self._counts(line, counts, "" if flat else ',"tables":', starts)
        line.constant("}" + end)
        return line.join(len(lsn)), key

    def _counts(self, line: JsonTemplate, counts: Indices, label: str, starts: Sequence[str]) -> None:
        """The number of events, and behind `label`, if there is one, a list of those of each table: the table's start
        and the number."""
        line.cells(pa.array(counts.sum(axis=1)).cast(_LARGE))
        if not label:
            return
        by_name = np.array(sorted(range(len(self.tables)), key=lambda number: str(self.tables[number])))
        row, place = np.nonzero(counts[:, by_name])
        table = by_name[place]
        items = _text(pa.array(starts, _LARGE).take(pa.array(table)), pa.array(counts[row, table]).cast(_LARGE), "}")
        offsets = pa.array(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(counts)))]).astype(np.int32))
        line.constant(f"{label}[")
        line.cells(pc.binary_join(pa.ListArray.from_arrays(offsets, items.cast(pa.string())), ",").cast(_LARGE))
        line.constant("]")


def _running(group: Indices, counted: Mask, before: int) -> Indices:
    """The number of counted rows of the same group up to each row; groups follow one another. The group 0 has so many
    `before`."""
    total = np.cumsum(counted)
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    sizes = np.diff(np.append(first, len(group)))
    offset = np.concatenate([[0], total])[first]
    if group[0] == 0:
        offset[0] -= before
    running: Indices = total - np.repeat(offset, sizes)
    return running


def _alike(part: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return part.select(schema.names).cast(schema)


def _text(*parts: str | pa.Array) -> pa.LargeStringArray:
    pieces = [pa.scalar(part, _LARGE) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*pieces, pa.scalar("", _LARGE))
