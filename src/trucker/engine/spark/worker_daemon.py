"""The process that Spark forks its Python workers from; it has imported everything that a task needs.

The variable `MODULES` names what tasks need of the project's sources: no module of the engine names a source.

Spark ends workers that were idle for a minute. A worker that imports the modules itself delays the next batch by a
third of a second, and does not share their memory with the others.

A worker collects garbage after every task. Imported modules are never garbage: with `gc.freeze` the collector skips
them, which saves 45 ms of CPU per task and keeps their pages shared.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from typing import Final

# Spark starts a daemon for each kind of worker; those that plan queries need none of trucker's modules.
_WORKS: Final = "pyspark.worker"

MODULES: Final = "TRUCKER_WORKER_MODULES"
"""The names of modules that tasks of this project import, with commas between them."""

if __name__ == "__main__":
    if _WORKS in sys.argv[1:]:
        from trucker.observe.logs import set_up

        set_up()  # standard error is an executor's log: exceptions there must not show a row's data (I10)
        with contextlib.suppress(ImportError):  # the first task reports what is missing (`executor_entry`)
            import trucker.engine.snapshot.snapshot_task  # noqa: F401

            for module in filter(None, os.environ.get(MODULES, "").split(",")):
                importlib.import_module(module)
    from pyspark.daemon import manager

    gc.collect()
    gc.freeze()
    manager()
