"""The process that Spark forks its Python workers from; it has imported everything that a task needs.

What tasks need of the project's sources it is told by the variable `MODULES`: no module of the engine names a source.

Spark ends workers that were idle for a minute. A worker that has to import for itself keeps the next batch waiting for
a third of a second, and holds for itself alone what it could share with the others.

A worker collects garbage after every task. What was imported never becomes any: taken out of the collector's sight, a
task costs its worker 45 ms of CPU less, and the pages stay shared.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from typing import Final

# Spark starts a daemon for each kind of worker; those that plan need nothing of ours.
_WORKS: Final = "pyspark.worker"

MODULES: Final = "TRUCKER_WORKER_MODULES"
"""The names of modules that tasks of this project import, with commas between them."""

if __name__ == "__main__":
    if _WORKS in sys.argv[1:]:
        from trucker.observe.logs import set_up

        set_up()  # standard error is an executor's log: what an exception quotes of a row is not for it (I10)
        with contextlib.suppress(ImportError):  # a task says better what is missing, and where (`executor_entry`)
            import trucker.engine.snapshot.snapshot_task  # noqa: F401

            for module in filter(None, os.environ.get(MODULES, "").split(",")):
                importlib.import_module(module)
    from pyspark.daemon import manager

    gc.collect()
    gc.freeze()
    manager()
