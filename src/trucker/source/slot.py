"""The slot of a source, and the database that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from trucker.lsn import Lsn


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A row of pg_replication_slots. `invalidation` says why the slot cannot be used any more, if that is so.

    One that is `synced` is a standby's copy of the primary's slot, which cannot be read from there.
    """

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    restart_lsn: Lsn | None
    wal_status: str | None
    safe_wal_size: int | None
    invalidation: str | None
    failover: bool
    synced: bool = False

    @property
    def lost(self) -> bool:
        """Whether the server has thrown away what the slot would still need."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Which database this is, wherever it is reached: a restored or another server has another identifier."""

    system_identifier: str
    timeline: int
    database: str
