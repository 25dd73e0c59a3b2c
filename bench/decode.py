"""How fast the columnar decoder and compaction are on synthetic frames, per core and without a server.

python bench/decode.py [--rows 1000000] [--seconds 1.0]
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from figure import at_least
from trucker.change import Changes, Frames, TableId
from trucker.engine.transform.compact import compact
from trucker.pgoutput import decode

if TYPE_CHECKING:
    from harness import Bench

BLOCK_ROWS = 16_384
TABLE = TableId("public", "orders")
COLUMNS = [("id", 23), ("customer", 23), ("amount", 20), ("status", 21), ("price", 701), ("weight", 701),
           ("name", 25), ("address", 25), ("note", 25), ("paid", 16)]  # fmt: skip


def relation(oid: int = 16_384, table: TableId = TABLE) -> bytes:
    """The Relation message of the ten-column table."""
    head = b"R" + struct.pack(">I", oid) + f"{table.schema}\0{table.name}\0d".encode() + struct.pack(">H", len(COLUMNS))
    return head + b"".join(
        bytes([name == "id"]) + name.encode() + b"\0" + struct.pack(">Ii", type_oid, -1) for name, type_oid in COLUMNS
    )


def rows(keys: np.ndarray, seed: int = 7) -> Iterator[list[bytes]]:
    """The cells of one row per key."""
    random = np.random.default_rng(seed)
    count = len(keys)
    customer, amount, status = (random.integers(0, high, count) for high in (100_000, 10_000_000, 9))
    price, weight, paid = random.random(count) * 1000, random.random(count), random.integers(0, 2, count)
    for i in range(count):
        yield [
            b"%d" % keys[i], b"%d" % customer[i], b"%d" % amount[i], b"%d" % status[i],
            b"%.4f" % price[i], b"%.9f" % weight[i],
            b"customer %d" % customer[i], b"%d Long Street, Springfield" % amount[i], b"note", b"ft"[paid[i] :][:1],
        ]  # fmt: skip


def message(kind: bytes, cells: list[bytes], oid: int = 16_384) -> bytes:
    body = b"".join(b"t" + struct.pack(">I", len(cell)) + cell for cell in cells)
    return kind + struct.pack(">I", oid) + b"N" + struct.pack(">H", len(cells)) + body


def frames_of(messages: list[bytes], relations: dict[int, bytes]) -> Frames:
    starts = np.concatenate([[0], np.cumsum([len(each) for each in messages])])
    return Frames(np.frombuffer(b"".join(messages), np.uint8), starts, relations)


def block(kind: bytes, keys: np.ndarray, lsn: int) -> Frames:
    begin = b"B" + struct.pack(">QqI", lsn, 0, 700)
    commit = b"C" + struct.pack(">BQQq", 0, lsn, lsn + 48, 0)
    return frames_of([begin, *(message(kind, cells) for cells in rows(keys)), commit], {16_384: relation()})


def timed(work: Callable[[], int], seconds: float) -> float:
    """Rows per second of processor time, best of the repetitions that fit into `seconds`."""
    best, until = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < until or not best:
        begun = time.process_time()
        count = work()
        best = max(best, count / (time.process_time() - begun))
    return best


def measure(bench: Bench) -> None:
    """Rows per second and core of the decoder alone, inserts and updates."""
    keys = {TABLE: ("id",)}
    seconds = 0.5 if bench.quick else 1.0
    for kind, name in ((b"I", "inserts"), (b"U", "updates")):
        figure = bench.figure(f"decode alone, {name}, per core", "rows/s", at_least(1_500_000))
        frames = block(kind, np.arange(BLOCK_ROWS), 1000)
        for _ in bench.rounds():
            figure.trucker.append(timed(lambda frames=frames: bool(decode(frames, keys)) and BLOCK_ROWS, seconds))
        bench.say(f"{figure.name}: {figure.trucker[-1]:,.0f} rows/s")


def report(name: str, value: float, unit: str = "rows/s") -> None:
    sys.stdout.write(f"{name:<52}{value:>14,.0f} {unit}\n")


def many_tables(count: int) -> Frames:
    oids = range(20_000, 20_000 + count)
    cells = next(rows(np.array([1])))
    messages = [b"B" + struct.pack(">QqI", 1000, 0, 700), *(message(b"I", cells, oid) for oid in oids)]
    return frames_of(messages, {oid: relation(oid, TableId("public", f"t{oid}")) for oid in oids})


def bench_decode(seconds: float) -> None:
    keys = {TABLE: ("id",)}
    frames = block(b"I", np.arange(BLOCK_ROWS), 1000)
    updates = block(b"U", np.arange(BLOCK_ROWS), 1000)

    def all_rows(source: Frames) -> int:
        decode(source, keys)
        return BLOCK_ROWS

    report("decode inserts, 10 columns", timed(lambda: all_rows(frames), seconds))
    report("decode updates, 10 columns", timed(lambda: all_rows(updates), seconds))
    one = block(b"I", np.arange(1), 1000)
    report("decode one row", 1e6 / timed(lambda: len(decode(one, keys)), seconds), "µs")
    tables = many_tables(500)
    names = {TableId("public", f"t{oid}"): ("id",) for oid in tables.relations}
    report("decode 500 tables, one row each", 1e3 / timed(lambda: bool(decode(tables, names)), seconds), "ms")


def bench_compact(total: int, seconds: float) -> None:
    keys = {TABLE: ("id",)}

    def parts(kind: bytes, each: np.ndarray) -> list[Changes]:
        return [
            changes
            for at in range(0, total, BLOCK_ROWS)
            for changes in decode(block(kind, each[at : at + BLOCK_ROWS], 1000 + at), keys)
        ]

    inserts = parts(b"I", np.arange(total))
    report(f"compact {total:,} distinct inserts", timed(lambda: bool(compact(inserts)) and total, seconds))
    inserts.clear()
    updates = parts(b"U", np.random.default_rng(3).integers(0, 10_000, total))
    report(f"compact {total:,} updates of 10,000 keys", timed(lambda: bool(compact(updates)) and total, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    bench_decode(options.seconds)
    bench_compact(options.rows, options.seconds)


if __name__ == "__main__":
    main()
