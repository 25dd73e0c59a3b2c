"""What a kind of destination can do.

An adapter states the abilities of its sinks. Each of them decides three things: what `trucker check` refuses or warns
of, what the framework does in the sink's place, and which tests of the conformance suite apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Visible(StrEnum):
    """How much of a delivery readers see at once."""

    EVERYTHING = "everything"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a sink.

    `visible`: a delivery shows all tables of all trucks at once, so that a source transaction is never seen in part
    (I5); or one table after the other, and then `publish` must be idempotent for each table.
    `keyless`: it keeps tables without a key; otherwise trucker refuses such tables.
    `partial_rows`: it applies an update of which some cells were not sent (I7), the others being in its table;
    otherwise trucker reads these cells again from the source.
    `every_change`: it takes every change in commit order; otherwise, of each part, the net change per key.
    `output_sql`: it runs a truck's output.sql.
    `dead_letters`: it sets rows aside that it refuses (`sinks.letters`).
    `exactly_once`: positions are stored with the data, or publishing again changes nothing.
    `guarantee`: the promise to users in one sentence.
    """

    visible: Visible = Visible.EVERYTHING
    keyless: bool = True
    partial_rows: bool = True
    every_change: bool = False
    output_sql: bool = False
    dead_letters: bool = False
    exactly_once: bool = True
    guarantee: str = ""
