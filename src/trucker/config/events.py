"""Settings that the connections of all event sinks share: the envelope of events."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from trucker.config.adapter import Connection
from trucker.config.model import Model, Text


class EventFormat(StrEnum):
    """The envelope of events (`trucker.sinks.envelope`)."""

    TRUCKER = "trucker"
    DEBEZIUM = "debezium"
    FLAT = "flat"


class UnsentValues(StrEnum):
    """What becomes of a large value that PostgreSQL did not send again because it did not change."""

    MARK = "mark"
    READ = "read"


class DebeziumConfig(Model):
    """What Debezium's envelope says of the source."""

    name: Text | None = Field(
        default=None,
        description="`source.name`, which is `topic.prefix` in Debezium; the default is the project's unique_id.",
    )
    database: str = Field(default="", description="`source.db`: the name of the source database.")
    unavailable_value: Text = Field(
        default="__debezium_unavailable_value",
        description="What stands for a value that was not sent, with `unsent: mark`; it is "
        "`unavailable.value.placeholder` in Debezium.",
    )


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
        "`mark` leaves it out and names the column (in Debezium's envelope: Debezium's own mark), `read` reads it at "
        "the source.",
    )
    debezium: DebeziumConfig = Field(default=DebeziumConfig(), description="Settings of `format: debezium`.")
