"""What the engine needs of Spark: a context to run jobs in. A session is needed for Spark SQL only.

A session costs the JVM more than a second of CPU at the start: all settings of Spark SQL, its catalogue, its functions.
A project that has no SQL for Spark does without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class Spark(Protocol):
    """A Spark application: a SparkSession, or a context alone."""

    @property
    def sparkContext(self) -> SparkContext: ...  # noqa: N802

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ContextAlone:
    """An application without a session."""

    sparkContext: SparkContext  # noqa: N815

    def stop(self) -> None:
        self.sparkContext.stop()


def session_of(spark: Spark) -> SparkSession:
    """The application's session; created where it has none."""
    from pyspark.sql import SparkSession

    return spark if isinstance(spark, SparkSession) else SparkSession(spark.sparkContext)
