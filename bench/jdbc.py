"""Spark's own way: a table read over JDBC in two partitions and written over JDBC in batches.

Run as a program it is the Spark application: it reads requests from its standard input, a JSON object a line, and
answers each with the seconds it took. Its driver for PostgreSQL Spark fetches by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from harness import Bench

DRIVER = "org.postgresql:postgresql:42.7.8"
BATCH = 10_000


class JdbcCopier:
    """A Spark session in a process of its own that copies the table `bench` into a database of the target."""

    def __init__(self, bench: Bench, source: str) -> None:
        self._bench = bench
        self._source = source
        self._errors = (bench.folder / "jdbc.log").open("w+b")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        if self._answer().get("ready") is not True:
            raise RuntimeError("the session did not start")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def copy(self, database: str, rows: int = 0) -> float:
        """Seconds for the whole table, or for its first `rows`, into a table with its key."""
        from harness import TABLE

        with self._bench.target.connect(database) as target:
            target.execute(TABLE.format(name="bench").encode())
        with self._bench.source.connect(self._source) as source:
            (most,) = source.execute("select max(id) from bench").fetchone() or (0,)
        entries = {
            "source": self._bench.source.connection("source", self._source),
            "target": self._bench.target.connection("target", database),
        }
        request: dict[str, Any] = {
            name: {
                "url": f"jdbc:postgresql://{each.host}:{each.port}/{each.database}",
                "user": each.user,
                "password": each.password.get_secret_value(),
            }
            for name, each in entries.items()
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**request, "most": min(rows, most) if rows else most}).encode() + b"\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(words[-1] if words else "it ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """Serve requests until the standard input closes."""
    from trucker.engine.spark.java import cache_folder, find_java

    os.environ["JAVA_HOME"] = str(find_java(cache_folder()).home)
    from pyspark.sql import SparkSession

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", DRIVER)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        _copy(spark, request["source"], request["target"], request["most"])
        print(json.dumps({"seconds": time.perf_counter() - began}), file=answers, flush=True)
    spark.stop()


def _copy(spark: Any, source: dict[str, str], target: dict[str, str], most: int) -> None:
    rows = (
        spark.read.format("jdbc")
        .options(**source, driver="org.postgresql.Driver", fetchsize=BATCH)
        .options(dbtable=f"(select * from bench where id <= {most}) b")
        .options(partitionColumn="id", lowerBound=1, upperBound=most, numPartitions=2)
        .load()
    )
    # The driver's option makes many rows of one INSERT, without which it is several times slower.
    url = f"{target['url']}?reWriteBatchedInserts=true"
    options = {**target, "url": url, "driver": "org.postgresql.Driver", "dbtable": "bench", "batchsize": BATCH}
    rows.write.format("jdbc").options(**options).mode("append").save()


if __name__ == "__main__":
    main()
