"""The end of a stream behind what its ledger counts: what unfinished deliveries have written there.

Of these events those that come again with the same id are noted, and not published a second time. The others, rows of
a copy that begins anew and rows that SQL returned, are removed: their delivery comes again with other ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trucker.errors import SinkError, SinkUnavailable
from trucker.sinks.ledger import Ledger
from trucker.sinks.nats.header_reader import StoredHeaders
from trucker.sinks.nats.nats_ledger import Range, StreamLedger
from trucker.sinks.nats.nats_session import NatsSession
from trucker.sinks.nats.tail_events import TailEvents, is_stable

log = logging.getLogger("trucker.sink")

ID = "trucker-id"
TRUCK = "trucker-truck"
COPIED = "trucker-copied"
REDRIVEN = "trucker-redriven"


class StreamTail:
    """What was read of a stream since its ledger `stored` was written, as the value of that `revision`."""

    def __init__(self, stored: StreamLedger, revision: int) -> None:
        self.revision = revision
        self._created = stored.created
        self._sent = TailEvents()
        self._ranges: dict[Range, frozenset[str]] = {}
        self._due = list(stored.unfinished)
        self._read_to = stored.last
        self._replace: Callable[[int], int] | None = None

    def continues(self, stored: StreamLedger, revision: int) -> bool:
        """Whether what was read is still the end of that stream."""
        return self.revision == revision and self._created == stored.created

    def read(self, session: NatsSession, first: int, last: int, replace: Callable[[int], int]) -> None:
        """Read what was not read yet of a stream that has messages from `first` to `last`.

        Before messages are removed, `replace` stores the same ledger again in the place of a revision: an earlier
        process may have sent one that counts these messages, and which from then on is refused.
        """
        self._replace = replace
        due, self._due = [*self._due, (self._read_to + 1, last)], []
        self._read_to = max(last, self._read_to)
        try:
            for start, end in due:
                if start <= end and first <= end:
                    self._read_range(session, max(start, first), end)
                if start < min(first, end + 1):
                    log.warning(
                        "messages of an interrupted delivery are gone: they may come again",
                        extra={"sequences": f"{start} to {min(end, first - 1)}"},
                    )
        except BaseException:
            self._due, self._read_to = due[:-1], due[-1][0] - 1
            raise

    def has(self, truck: str, event_id: str) -> bool:
        """Whether the stream has the event already."""
        return bool(self._sent) and self._sent.has(truck, event_id)

    def settle(self, ledger: Ledger) -> tuple[Range, ...]:
        """The ranges with events that may come again after `ledger` was stored."""
        self._sent.settle(ledger)
        waiting = self._sent.trucks
        self._ranges = {each: trucks for each, trucks in self._ranges.items() if trucks & waiting}
        return tuple(self._ranges)

    def stored(self, last: int, revision: int) -> None:
        """All up to `last` counts, by the ledger of this revision."""
        self._read_to, self.revision = last, revision

    def _read_range(self, session: NatsSession, first: int, last: int) -> None:
        trucks: set[str] = set()
        for piece in session.headers(first, last):
            void = [message.sequence for message in piece if not self._note(message, trucks)]
            if void and self._replace is not None:
                self.revision, self._replace = self._replace(self.revision), None
            if void:
                _remove(session, void)
        if trucks:
            self._ranges[first, last] = frozenset(trucks)

    def _note(self, message: StoredHeaders, trucks: set[str]) -> bool:
        """Whether the message stays."""
        event_id, truck = message.headers.get(ID), message.headers.get(TRUCK)
        if event_id is None or truck is None or REDRIVEN in message.headers:
            return True
        if not is_stable(event_id, snapshot=COPIED in message.headers):
            return False
        self._sent.add(truck, event_id)
        trucks.add(truck)
        return True


def _remove(session: NatsSession, sequences: Sequence[int]) -> None:
    facts = {"messages": len(sequences), "first_sequence": sequences[0]}
    try:
        session.delete(sequences)
    except SinkUnavailable:
        raise
    except SinkError as error:
        log.warning("rows of an interrupted copy stay in the stream: they come again", extra={**facts, **error.facts()})
    else:
        log.info("removed the rows of an interrupted copy", extra=facts)
