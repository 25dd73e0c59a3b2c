"""Conditions on how slot, change log and stored positions fit together."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.changelog.identity import SourceIdentity, log_exists
from trucker.changelog.inspection import refuse_damaged
from trucker.changelog.location import ObjectLocation, location_of, truth_of
from trucker.changelog.reader import LogReader
from trucker.engine.project.conditions.condition import failure, fine
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.continuity import StreamHistory, needed_from, refuse_gap, refuse_pruned
from trucker.engine.truck.resolve import ResolvedSource
from trucker.errors import TruckerError
from trucker.finding import Finding
from trucker.source.slot import SlotInfo


def storage(situation: Situation) -> Iterator[Finding]:
    """The storage of a log of objects can be asked; whether it takes what it is given shows at the start."""
    for connection in situation.config.sources:
        location = location_of(situation.config, connection.name)
        if not isinstance(location, ObjectLocation):
            continue
        try:
            log_exists(location)
            yield fine(str(location), "the change log's storage answers")
        except TruckerError as error:
            yield failure(str(location), error)


def continuous(situation: Situation) -> Iterator[Finding]:
    """Slot, log and stored positions continue each other: no change between them is lost.

    Of a slot that something else reads from nothing can be said: a run waits for it, and verifies this then.
    """
    for source in situation.sources.values():
        try:
            slot = situation.session(source.source).find_slot()
            used = slot is not None and slot.active_pid is not None and situation.instance is None
            if not used and not _lost(source, slot):
                yield from _continuous(situation, source, slot)
        except TruckerError as error:
            yield failure(source.name, error)


def _lost(source: ResolvedSource, slot: SlotInfo | None) -> bool:
    """Whether the slot is lost and all begins anew for it, so that nothing has to be continued."""
    return source.source.resnapshots and (slot is None or slot.lost)


def _continuous(situation: Situation, source: ResolvedSource, slot: SlotInfo | None) -> Iterator[Finding]:
    session = situation.session(source.source)
    system = session.identify()
    identity = SourceIdentity(system.system_identifier, system.database, source.slot, source.publication)
    location = location_of(situation.config, source.name)
    needed = needed_from(source.trucks, {**situation.noted(source), **situation.states(source)})
    refuse_gap(StreamHistory(source.name, location, identity, slot, session.current_lsn), needed)
    if log_exists(location):
        again = situation.incomplete(source)
        refuse_pruned(LogReader(truth_of(location)), needed_from(source.trucks, situation.states(source), again))
        yield fine(source.name, f"slot, change log and the positions of {len(needed)} trucks are consistent")


def whole(situation: Situation) -> Iterator[Finding]:
    """The log is whole, as far as it is needed."""
    for source in situation.sources.values():
        location = location_of(situation.config, source.name)
        needed = needed_from(source.trucks, situation.states(source))
        try:
            if log_exists(location):
                refuse_damaged(location, min(needed.values(), default=None), writing=situation.instance is not None)
                yield fine(source.name, f"the change log {location} is complete")
        except TruckerError as error:
            yield failure(source.name, error)
