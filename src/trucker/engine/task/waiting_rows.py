"""Rows of tasks that wait for Spark SQL: the driver runs it when the tasks have ended, and stages the results."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from trucker.engine.task.payload import CopyBatch, Failure, Outcome, StreamBatch, WaitingRows
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.errors import EngineError, TruckerError
from trucker.sinks.batch import Work

log = logging.getLogger("trucker.recipe")


def finish(recipes: Recipes, outcomes: list[Outcome], batch: StreamBatch | CopyBatch) -> list[Outcome]:
    """Run Spark SQL for the waiting rows, several parts at once. Returns the outcomes with those of the results."""
    failed = {failure.truck for outcome in outcomes for failure in outcome.failures}
    waiting = [each for outcome in outcomes for each in outcome.waiting]
    if not waiting:
        return outcomes
    with ThreadPoolExecutor(recipes.parts_at_once, "spark sql") as pool:
        runnable = (each for each in waiting if each.assignment.target.truck not in failed)
        finished = list(pool.map(partial(_finished, recipes, batch), runnable))
    for each in waiting:
        each.rows.discard()
    return [*outcomes, *finished]


def _finished(recipes: Recipes, batch: StreamBatch | CopyBatch, waiting: WaitingRows) -> Outcome:
    assignment = waiting.assignment
    destination, target, recipe = assignment.destination, assignment.target, assignment.recipe
    assert recipe is not None
    assert recipe.spark is not None
    work = Work(batch.batches[destination], target, waiting.part, batch.room)
    try:
        receipt = recipes.stage(recipe.spark, waiting.rows, work, batch.sinks[destination])
    except TruckerError as error:
        return Outcome(failures=[Failure(target.truck, error, target.source.table)])
    except Exception as error:  # a bug stops only the truck that it concerns (I8)
        log.exception("Spark SQL failed unexpectedly", extra={"truck": target.truck, "table": str(target.source.table)})
        message = f"Spark SQL of truck {target.truck} failed unexpectedly: {type(error).__name__}"
        reason = EngineError(message, remedy="read the log", code="TRK599")
        return Outcome(failures=[Failure(target.truck, reason, target.source.table)])
    return Outcome({destination: [receipt]} if receipt else {})
