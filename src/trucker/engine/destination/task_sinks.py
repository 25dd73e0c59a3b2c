"""The sinks of a process that runs tasks: one for each destination and thread, kept from batch to batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from trucker.change import Changes, CopiedRows
from trucker.config.adapter import Component, Connection
from trucker.failpoint import reach
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.committer import stage_part
from trucker.sinks.factory import make_sink


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """How to build a destination's sink in any process. `component` is where its class is, for executors."""

    connection: Connection
    workspace: Workspace
    component: Component | None = None


class _Sinks(threading.local):
    """Spark keeps its Python workers, so a sink (and what it holds, connections above all) lives from batch to batch.

    In the driver several threads may be at work, each with sinks of its own.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, tuple[SinkSpec, Sink]] = {}


_sinks = _Sinks()


def sink_for(spec: SinkSpec) -> Sink:
    """This thread's sink for a destination, built once."""
    name = spec.connection.name
    cached = _sinks.by_name.get(name)
    if cached and (cached[0] is spec or cached[0] == spec):
        return cached[1]
    if cached:
        cached[1].close()
    sink = make_sink(spec.connection, spec.workspace, spec.component)
    _sinks.by_name[name] = (spec, sink)
    return sink


def staged(spec: SinkSpec, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
    """Have this process's sink stage one part."""
    reach("worker.stage.before")
    receipt = stage_part(sink_for(spec), work, changes)
    reach("worker.stage.after")
    return receipt
