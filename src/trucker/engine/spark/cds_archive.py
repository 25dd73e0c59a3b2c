"""`python -m trucker.engine.spark.cds_archive`: make the class-data archive now, so that the next start is a quick one.

Any run that ends well leaves an archive; this is for those who cannot wait for one: tests, the demo, an image being
built. It does what a run does to Spark, on nothing: micro-batches of a Python source, jobs of Python tasks, the end.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from trucker.engine.spark.java import cache_folder, find_java
from trucker.engine.spark.launch import archive_missing
from trucker.engine.spark.session import INTERPRETED, start_session, stop_session

_BATCHES = 3
_EXIT_SECONDS = 180.0


class _Nothing(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trucker_nothing"

    def schema(self) -> str:
        return "block string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _NothingReader()


class _NothingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """As many offsets as batches, and no rows."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"lsn": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"lsn": min(start["lsn"] + 1, _BATCHES)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Any:
        return iter(())


def warm_up() -> bool:
    """Make the archive where it is missing; whether there is one now."""
    cache = cache_folder()
    java = find_java(cache)
    if not archive_missing(java, cache):
        return True
    with tempfile.TemporaryDirectory(prefix="trk-") as folder:
        spark = start_session("warm", state=Path(folder))
        _exercise(spark, Path(folder) / "checkpoint")
        stop_session(spark, wait=_EXIT_SECONDS)
    return not archive_missing(java, cache)


def _exercise(spark: SparkSession, checkpoint: Path) -> None:
    def batch(_: DataFrame, number: int) -> None:
        tasks = spark.sparkContext.parallelize([number, number], 2)
        tasks.mapPartitions(list).collect()

    spark.dataSource.register(_Nothing)
    stream = spark.readStream.format(_Nothing.name()).load().writeStream.foreachBatch(batch)
    for trigger in ({"availableNow": True}, {"processingTime": "0 seconds"}):
        folder = checkpoint / next(iter(trigger))
        for name, value in INTERPRETED.items() if "processingTime" in trigger else ():
            spark.conf.set(name, value)
        query = stream.trigger(**trigger).option("checkpointLocation", str(folder)).start()
        query.processAllAvailable() if "processingTime" in trigger else query.awaitTermination()
        query.stop()


if __name__ == "__main__":
    sys.exit(0 if warm_up() else 1)
