"""Log lines about tables that change their phase. What happens to trucks is logged from their status (`Narrator`)."""

from __future__ import annotations

import logging

from trucker.engine.truck.life import LifeEvent, TableChanged, TableStep

log = logging.getLogger("trucker.truck")
query_log = logging.getLogger("trucker.query")


def log_life(event: LifeEvent) -> None:
    """A listener of `TruckRun`."""
    if not isinstance(event, TableChanged):
        return
    facts = {"truck": event.truck, "table": str(event.table)}
    if event.step is TableStep.SET_ASIDE and event.error is not None:
        log.warning("table failed; the truck's other tables continue", extra={**facts, **event.error.facts()})
    elif event.step is TableStep.AWAIT_COPY and event.reason:
        query_log.warning("table is copied again", extra={**facts, "reason": event.reason})
    elif event.recovered:
        log.info("table continues after a failure", extra=facts)
