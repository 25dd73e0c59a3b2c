"""Settings that the connections of all event sinks share: the envelope of events."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from trucker.config.adapter import Connection


class EventFormat(StrEnum):
    """The envelope of events (`trucker.sinks.envelope`)."""

    TRUCKER = "trucker"
    DEBEZIUM = "debezium"
    FLAT = "flat"


class UnsentValues(StrEnum):
    """What becomes of a large value that PostgreSQL did not send again because it did not change."""

    MARK = "mark"
    READ = "read"


class EventConnection(Connection):
    """A destination that is a stream of events: the base of such adapters' configuration models."""

    format: EventFormat = Field(
        default=EventFormat.TRUCKER,
        description="The envelope: `trucker` has the row before and after and the transaction, `debezium` is "
        "Debezium's, `flat` has the row's columns and a few more that begin with an underscore.",
    )
    transactions: bool = Field(
        default=False, description="Write an event where a transaction begins and one where it ends."
    )
    unsent: UnsentValues = Field(
        default=UnsentValues.MARK,
        description="What to do with a large value that PostgreSQL did not send again because it did not change: "
        "`mark` leaves it out and names the column, `read` reads it at the source.",
    )
