"""The change log in a bucket, against the same in a local folder: what a PUT costs, and what that costs.

The bucket is on a server on this machine (SeaweedFS), which takes its share of the processor and answers in a few
milliseconds; a storage across a network costs no processor here, and takes longer.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from capture import PUBLICATION, drain
from figure import percentile
from harness import TABLE, Bench, fill, flushed
from trucker.changelog.bucket import Bucket
from trucker.testing.object_storage import ObjectStorage

PUTS = 10
_SIZES = {"1 kB": 1_000, "4 MiB": 4 << 20}
_places = itertools.count()


def measure(bench: Bench) -> None:
    """A PUT, and capture."""
    storage = ObjectStorage(bench.folder / "storage")
    puts = {name: bench.figure(f"a PUT of {name}", "ms") for name in _SIZES}
    rate = bench.figure("capture into a bucket", "rows/s", None, "into a local folder", bench.rows)
    storage.start()
    bench.callback(storage.kill)
    storage.make_bucket("bench")
    bucket = Bucket(storage.location("s3://bench/puts"))
    for _ in bench.rounds():
        for name, size in _SIZES.items():
            puts[name].trucker.append(percentile([_put(bucket, size) for _ in range(PUTS)], 0.5))
            bench.say(f"{puts[name].name}: {puts[name].trucker[-1]:.1f} ms")
    _capture(bench, storage, rate)


def _put(bucket: Bucket, size: int) -> float:
    name = f"put-{next(_places)}"
    data = bytes(size)
    began = time.perf_counter()
    bucket.put_new(name, data)
    seconds = time.perf_counter() - began
    bucket.delete([name])
    return seconds * 1000


def _capture(bench: Bench, storage: ObjectStorage, figure: Any) -> None:
    source = bench.database(
        bench.source, "storage", TABLE.format(name="bench"), f"create publication {PUBLICATION} for table bench"
    )
    source.execute("select pg_create_logical_replication_slot('storage_origin', 'pgoutput')")
    for number, side in itertools.product(bench.rounds(), ("bucket", "folder")):
        source.execute("select pg_copy_logical_replication_slot('storage_origin', %s)", [f"storage_{side}_{number}"])
    fill(source, "bench", 1, bench.rows, 1_000)
    end = flushed(source)
    bench.settle()
    local = bench.figure("capture into a local folder", "rows/s", rows=bench.rows)
    for number in bench.rounds():
        place = storage.location(f"s3://bench/log{next(_places)}", bench.folder / "hints")

        def into_bucket(number: int = number, place: Any = place) -> None:
            drain(bench, source, figure, f"storage_bucket_{number}", place, end)

        def into_folder(number: int = number) -> None:
            rate = drain(bench, source, local, f"storage_folder_{number}", bench.folder / "log", end)
            figure.reference.append(rate)

        bench.alternate(number, into_bucket, into_folder)
        bench.say(f"{figure.name}: {figure.ratios[-1]:.2f} of a local folder")
    for (slot,) in source.execute("select slot_name from pg_replication_slots").fetchall():
        source.execute("select pg_drop_replication_slot(%s)", [slot])
