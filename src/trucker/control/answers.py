"""What commands answer: values for the command line, for programs, and for whatever else gives commands later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from trucker.finding import Finding, Level
from trucker.table import Key


@dataclass(frozen=True, slots=True)
class TruckPause:
    """What `pause` or `resume` has done with a truck.

    `paused` is what holds from now on, `changed` whether that is new. While an instance runs: `phase` is the truck's,
    `position` where it is, `kept_bytes` what the change log keeps for it, `copying` the tables whose copy in progress
    is finished first, and `busy` whether a batch of it was still in progress when the answer was given.
    """

    truck: str
    paused: bool
    changed: bool
    running: bool
    phase: str = ""
    position: str | None = None
    kept_bytes: int | None = None
    copying: tuple[str, ...] = ()
    busy: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "copying": tuple(fields.get("copying", ()))})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What `reload` has done. Where it `refused`, nothing was changed, and `findings` say why.

    Trucks by name: `added`, `removed`, `changed`; of the changed, `new_sql` go on with other SQL or rules. `sources`
    are those that were started anew. Without `refused`, an error among the findings is one for which a source could not
    be started: its trucks say so, too.
    """

    refused: bool = False
    findings: tuple[Finding, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    new_sql: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level is Level.ERROR and not finding.waits)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        findings = (Finding(**{**entry, "level": Level(entry["level"])}) for entry in fields.get("findings", ()))
        names = {name: tuple(fields.get(name, ())) for name in ("added", "removed", "changed", "new_sql", "sources")}
        return cls(bool(fields["refused"]), tuple(findings), seconds=float(fields["seconds"]), **names)


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The instance that was asked to stop; `ended` where its end was waited for."""

    pid: int
    host: str
    ended: bool


class RefreshState(StrEnum):
    """What has become of a refresh. Those that are queued or running are taken up again after a restart."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Refresh:
    """Rows of a table that are read again at the source: all of them, those that meet the condition `where`, or those
    of `keys` keys.

    `total` is how many keys there are to read, None while that is not known and for a whole table; `done` how many have
    been read, and `deleted` how many of these the source no longer has. `reason` says why it has failed, or what it
    waits for. Times are in seconds since 1970.
    """

    id: int
    truck: str
    table: str
    queued: float
    where: str | None = None
    keys: int | None = None
    state: RefreshState = RefreshState.QUEUED
    total: int | None = None
    done: int = 0
    deleted: int = 0
    reason: str = ""
    ended: float | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in (RefreshState.QUEUED, RefreshState.RUNNING)

    @property
    def whole(self) -> bool:
        """Whether the whole table is copied again."""
        return self.where is None and self.keys is None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "state": RefreshState(fields["state"])})


@dataclass(frozen=True, slots=True)
class Verification:
    """What a comparison of a table with its table at the destination has found, both as they were at `position`.

    Keys of rows that differ: `missing` at the destination, `extra` there, `different` in their values. Of a table
    without a key there are numbers. Unless it is `complete`, there are more differences. `keeps_rows` says that rows
    which the source no longer has are rightly there, and not extra. `repaired` is how many rows were refreshed before
    this comparison. A table that was not compared has an `error`, or, where nothing is to be
    compared, a reason why it was `skipped`.
    """

    truck: str
    table: str
    position: str = ""
    source_rows: int = 0
    destination_rows: int = 0
    missing: tuple[Key, ...] = ()
    extra: tuple[Key, ...] = ()
    different: tuple[Key, ...] = ()
    keyless_missing: int = 0
    keyless_extra: int = 0
    complete: bool = True
    keeps_rows: bool = False
    repaired: int = 0
    seconds: float = 0.0
    error: str = ""
    skipped: str = ""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all rows that differ."""
        return (*self.missing, *self.extra, *self.different)

    @property
    def differing(self) -> int:
        """How many rows differ, as far as they were looked at."""
        return len(self.keys) + self.keyless_missing + self.keyless_extra

    @property
    def equal(self) -> bool:
        """Whether it was compared and nothing differs."""
        return not (self.error or self.skipped or self.differing) and self.complete

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal, "differing": self.differing}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        values = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        keys = {kind: tuple(map(tuple, values.get(kind, ()))) for kind in ("missing", "extra", "different")}
        return cls(**{**values, **keys})


@dataclass(frozen=True, slots=True)
class Replay:
    """What `replay` has done: the changes of `truck` after `start` up to `end`, written to `into`, `rows` rows of them.

    For a destination that keeps every change `truck` is the name of the series there. `end_time` is when the last
    transaction was committed. `complete` is false where it was stopped before.
    """

    truck: str
    into: str
    start: str
    end: str
    end_time: str | None
    rows: int
    complete: bool
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
