"""The features of a server, by its version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from trucker.errors import SourceError

OLDEST = 14

_SINCE = {
    "row_filters": (15, "row filters in publications (`where`)"),
    "column_lists": (15, "column lists in publications"),
    "standby_decoding": (16, "logical decoding on a standby"),
    "failover_slots": (17, "replication slots that survive a failover"),
    "generated_columns": (18, "publishing generated columns"),
    "idle_slot_timeout": (18, "invalidating replication slots that are idle"),
}


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """A server's abilities. `version` is `server_version_num`, as in 180004."""

    version: int

    @classmethod
    def of(cls, connection: psycopg.Connection[Any]) -> ServerFeatures:
        """Those of the server at the other end; `SourceError` for one that is too old."""
        features = cls(connection.info.server_version)
        if features.major < OLDEST:
            raise SourceError(
                f"the server is PostgreSQL {features}; {OLDEST} or newer is needed",
                remedy=f"upgrade the server to PostgreSQL {OLDEST} or newer",
                code="TRK206",
            )
        return features

    def __str__(self) -> str:
        return f"{self.major}.{self.version % 10000}"

    @property
    def major(self) -> int:
        return self.version // 10000

    @property
    def row_filters(self) -> bool:
        return self.has("row_filters")

    @property
    def column_lists(self) -> bool:
        return self.has("column_lists")

    @property
    def standby_decoding(self) -> bool:
        return self.has("standby_decoding")

    @property
    def failover_slots(self) -> bool:
        return self.has("failover_slots")

    @property
    def generated_columns(self) -> bool:
        return self.has("generated_columns")

    @property
    def idle_slot_timeout(self) -> bool:
        return self.has("idle_slot_timeout")

    @property
    def messages(self) -> bool:
        """Messages of `pg_logical_emit_message` come in the stream; every supported server has it."""
        return self.major >= OLDEST

    def has(self, ability: str) -> bool:
        return self.major >= _SINCE[ability][0]

    def explain(self, ability: str) -> str:
        """What is found and what is needed, in one sentence."""
        since, what = _SINCE[ability]
        verb = "has" if self.has(ability) else "lacks"
        return f"PostgreSQL {self} {verb} {what}, which came with {since}"

    def require(self, ability: str, where: str, remedy: str) -> None:
        """`SourceError` with both versions where the server cannot do it."""
        if not self.has(ability):
            raise SourceError(f"{where}: {self.explain(ability)}", remedy=remedy, code="TRK206")
