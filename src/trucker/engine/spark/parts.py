"""Runs the function of a job on each part of a Spark partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trucker.engine.spark.secret_pickle import unseal


def run_parts(what: bytes, secrets: Sequence[str], sealed: Iterator[bytes]) -> Iterator[Any]:
    """Run the sealed function `what` on each part of a Spark partition, one after the other."""
    function = unseal(what, secrets)
    for part in sealed:
        yield function(unseal(part, secrets))


def do_nothing(_: object) -> None:
    """The function of a job that only starts its workers."""
