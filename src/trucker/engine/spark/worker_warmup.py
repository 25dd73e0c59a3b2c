"""Starts Spark's Python workers before a job needs them, which takes a second or two."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from trucker.engine.spark.cluster import cores
from trucker.engine.spark.job import run_job
from trucker.engine.spark.parts import do_nothing

if TYPE_CHECKING:
    from pyspark import SparkContext

    from trucker.engine.spark.application import Spark

_up: weakref.WeakKeyDictionary[SparkContext, threading.Event] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def bring_up_workers(spark: Spark) -> threading.Event:
    """Make Spark start its workers, once per context; the event is set when they run, or could not be started."""
    with _lock:
        running = _up.get(spark.sparkContext)
        if running is not None:
            return running
        up = _up[spark.sparkContext] = threading.Event()

    def touch() -> None:
        # Spark may be stopped meanwhile, or its workers killed: the next job reports it.
        with suppress(Exception):
            run_job(spark, do_nothing, range(cores(spark)))
        up.set()

    threading.Thread(target=touch, name="workers", daemon=True).start()
    return up
