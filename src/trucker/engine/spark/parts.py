"""What a task does with a Spark partition: the function of its job, once for each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trucker.engine.spark.secret_pickle import unseal


def run_parts(what: bytes, secrets: Sequence[str], sealed: Iterator[bytes]) -> Iterator[Any]:
    """A Spark partition's worth of parts, one after the other; `what` is to be done with each."""
    function = unseal(what, secrets)
    for part in sealed:
        yield function(unseal(part, secrets))


def do_nothing(_: object) -> None:
    """The work of a job that is only to have its workers there."""
