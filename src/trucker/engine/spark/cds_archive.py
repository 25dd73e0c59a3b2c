"""Creates the class-data archive that shortens JVM starts: `python -m trucker.engine.spark.cds_archive`.

Any run that ends without error leaves an archive; this is for tests, the demo and images, which need one before the
first run. It uses Spark as a run does, without data: jobs of Python tasks, Spark SQL, a regular end.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from trucker.engine.spark.java import cache_folder, find_java
from trucker.engine.spark.launch import archive_missing
from trucker.engine.spark.session import start_session, stop_session

_EXIT_SECONDS = 180.0


def warm_up() -> bool:
    """Create the archive where it is missing. Returns whether there is one now."""
    cache = cache_folder()
    java = find_java(cache)
    if not archive_missing(java, cache):
        return True
    with tempfile.TemporaryDirectory(prefix="trk-") as folder:
        spark = start_session("warm", state=Path(folder))
        _exercise(spark)
        stop_session(spark, wait=_EXIT_SECONDS)
    return not archive_missing(java, cache)


def _exercise(spark: SparkSession) -> None:
    spark.sparkContext.parallelize([1, 2], 2).mapPartitions(list).collect()
    rows = spark.createDataFrame(pa.table({"id": [1, 2], "word": ["a", "b"]}))
    rows.createOrReplaceTempView("rows")
    spark.sql("select word, count(*) as n from rows where id > 0 group by word").toArrow()


if __name__ == "__main__":
    sys.exit(0 if warm_up() else 1)
