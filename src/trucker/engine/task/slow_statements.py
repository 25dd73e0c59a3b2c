"""Slow statements of tasks: collected where they run, and logged by the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec

from trucker.engine.task.payload import Outcome
from trucker.slow_sql import collected

P = ParamSpec("P")


def noting_slow(task: Callable[P, Outcome]) -> Callable[P, Outcome]:
    """The task, whose outcome has the statements of it that were slow."""

    @wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> Outcome:
        with collected() as slow:
            outcome = task(*args, **kwargs)
        return replace(outcome, slow=tuple(slow)) if slow else outcome

    return run


def log_slow(outcomes: Iterable[Outcome]) -> None:
    """Log the slow statements of the tasks."""
    for statement in (statement for outcome in outcomes for statement in outcome.slow):
        statement.log()
