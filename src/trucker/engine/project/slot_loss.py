"""A lost slot: dropped, or invalidated by the server. The changes that it had not sent yet are gone.

`on_slot_loss: stop`, the default, leaves it at that. With `resnapshot` everything of the source begins anew, by itself:
the destinations forget the trucks' positions (their rows stay, and stay readable until the new copies count), then what
is left of the slot goes, then the change log, whose history ends in nothing. Cut short anywhere, the next start finds
the slot as lost as before and does it again.

A publication that was dropped is the same: what was written meanwhile is in no stream, and before PostgreSQL 18 the
slot cannot even get past it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from trucker.changelog.location import LogLocation
from trucker.changelog.log_creation import delete_log
from trucker.engine.destination.destination import Destination
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck import Truck
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, TruckState

log = logging.getLogger("trucker.source")

PUBLICATION_GONE: Final = "TRK240"
_SLOT_GONE: Final = frozenset({"TRK230", "TRK232"})


def is_lost(resolved: ResolvedSource, failure: TruckerError) -> bool:
    """Whether capture failed because the slot, or what it streams, is lost. The server is asked: it may be away.

    Raises the server's error where it cannot be asked.
    """
    if failure.code == PUBLICATION_GONE:
        return resolved.source.manages_publication
    if failure.code not in _SLOT_GONE:
        return False
    with resolved.source.reading_session("setup") as session:
        slot = session.find_slot()
    return slot is None or slot.lost


def begin_anew(
    resolved: ResolvedSource,
    location: LogLocation,
    destinations: Mapping[str, Destination],
    states: Mapping[str, TruckState],
) -> dict[str, TruckState]:
    """Forget all there is of the source but its rows at the destinations; the states that are left."""
    log.warning(
        "slot lost: all tables of the source are copied again",
        extra={"source": resolved.name, "slot": resolved.slot},
    )
    _forget(resolved.trucks, destinations, states)
    resolved.source.drop_slot()
    delete_log(location)
    return {name: state for name, state in states.items() if name not in {truck.name for truck in resolved.trucks}}


def _forget(trucks: Sequence[Truck], destinations: Mapping[str, Destination], states: Mapping[str, TruckState]) -> None:
    stored: dict[str, list[str]] = defaultdict(list)
    for truck in trucks:
        if truck.name in states:
            stored[truck.destination].append(truck.name)
    for name, forget in stored.items():
        failures = destinations[name].commit(Batch(Lsn(0), Lsn(0), forget=tuple(sorted(forget))), ())
        for error in failures.values():
            raise error
