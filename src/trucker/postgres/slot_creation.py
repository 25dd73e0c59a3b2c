"""Creates a replication slot, or waits until an existing one is free; gives up when the project is stopped.

PostgreSQL waits for every transaction that is open to end before a new slot has its consistent point, which can take
as long as somebody's forgotten session stays open.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import TruckerError
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import connect
from trucker.postgres.replication.protocol import SLOT_SECONDS
from trucker.postgres.slot import create_slot, find_slot, in_use
from trucker.process.stopping import Stopped
from trucker.source.slot import SlotInfo
from trucker.source.snapshot import ExportedSnapshot

log = logging.getLogger("trucker.source")

LOOK_SECONDS = 0.2


def new_slot(
    config: PostgresConnection, name: str, stop: threading.Event, *, temporary: bool, failover: bool = False
) -> ExportedSnapshot:
    """A new slot with its snapshot; `Stopped` when `stop` is set before the server is ready to make one."""
    try:
        with _cancelling(config, name, stop):
            return create_slot(config, name, temporary=temporary, failover=failover, stop=stop)
    except TruckerError:
        if stop.is_set():
            raise Stopped from None
        raise


def new_snapshot(config: PostgresConnection, slot: str, stop: threading.Event) -> ExportedSnapshot:
    """A snapshot by a temporary slot with a random name: the slot of a try that died may exist for a while."""
    return new_slot(config, f"{slot[:54]}_{uuid.uuid4().hex[:8]}", stop, temporary=True)


def await_slot(database: PgConnection, name: str, source: str, stop: threading.Event) -> SlotInfo | None:
    """The slot, once it is not in use: an instance of the project that was killed just now holds it for a short time.

    Refuses a slot that stays in use: another instance, from another folder or machine, would lose its publication and
    its tables to this one.
    """
    began, warned = time.monotonic(), False
    while (slot := find_slot(database, name)) is not None and slot.active_pid is not None:
        waited = time.monotonic() - began
        if waited > 1 and not warned:
            warned = True
            holder = in_use(database, name, source)
            log.warning("waiting for the slot", extra={"source": source, "slot": name, **holder.facts()})
        if waited > SLOT_SECONDS:
            raise in_use(database, name, source)
        if stop.wait(LOOK_SECONDS):
            raise Stopped
    return slot


@contextmanager
def _cancelling(config: PostgresConnection, name: str, stop: threading.Event) -> Iterator[None]:
    """Cancels the creation of a slot from a second connection when `stop` is set: the first one is blocked in it."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(LOOK_SECONDS):
            if stop.is_set():
                _cancel(config, name)

    watcher = threading.Thread(target=watch, name=f"slot {name}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _cancel(config: PostgresConnection, name: str) -> None:
    with suppress(TruckerError), connect(config.replica or config, application="trucker stop") as connection:
        slot = find_slot(connection, name)
        if slot is not None and slot.active_pid is not None:
            connection.execute("select pg_cancel_backend(%s)", [slot.active_pid])
