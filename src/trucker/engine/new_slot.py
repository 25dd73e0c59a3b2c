"""Making a slot, and giving up when the project is to stop.

PostgreSQL waits for every transaction that is open to end before a new slot has its consistent point, which can take
as long as somebody's forgotten session stays open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trucker.config.models import PostgresConnection
from trucker.engine.stopping import Stopped as Stopped
from trucker.errors import TruckerError
from trucker.postgres.connect import connect
from trucker.postgres.slot import ExportedSnapshot, create_slot, find_slot

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


@contextmanager
def _cancelling(config: PostgresConnection, name: str, stop: threading.Event) -> Iterator[None]:
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_SECONDS):
            if stop.is_set():
                _cancel(config, name)

    watcher = threading.Thread(target=watch, name=f"slot {name}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _cancel(config: PostgresConnection, name: str) -> None:
    with suppress(TruckerError), connect(config.replica or config, application="trucker stop") as connection:
        slot = find_slot(connection, name)
        if slot is not None and slot.active_pid is not None:
            connection.execute("select pg_cancel_backend(%s)", [slot.active_pid])
