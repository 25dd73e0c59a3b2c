"""The location of a change log: a folder, or objects in a bucket.

A folder is its `Path` and needs no class of its own. Objects are an `ObjectLocation`; capture, the driver and every
executor get it and make what they need of it. Nothing here loads a client for object storage, or the configuration:
capture is a small process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from trucker.config.models import ProjectConfig


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A log of objects below `uri`.

    `folder` is a local folder of the machine where capture and the driver run: there they tell each other how far the
    log goes, and keep copies of its newest objects. It holds nothing that is needed after a restart. None for those
    who look from elsewhere, and to see what is really there. `access` has the client's settings,
    secrets as `SecretStr` or as text; it is never shown.
    """

    uri: str
    folder: Path | None = None
    access: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.uri

    def elsewhere(self) -> ObjectLocation:
        """The same log, looked at without what this machine knows of it."""
        return replace(self, folder=None)

    def revealed(self) -> dict[str, str]:
        """The client's settings, secrets as text."""
        return {key: getattr(value, "get_secret_value", lambda v=value: v)() for key, value in self.access.items()}

    def sibling(self, name: str) -> str:
        """The URI of something beside the log's own objects."""
        return f"{self.uri}/{name}"


LogLocation: TypeAlias = Path | ObjectLocation


def location_of(config: ProjectConfig, source: str) -> LogLocation:
    """Where the log of a source is."""
    local = config.state_folder / "log" / source
    location = config.log.location
    if location is None:
        return local
    if isinstance(location, Path):
        return location / source
    access = config.log.s3.access() if config.log.s3 is not None else {}
    return ObjectLocation(f"{location.rstrip('/')}/{source}", local, access)


def truth_of(location: LogLocation) -> LogLocation:
    """The location without the local folder: what is in the storage, not what this machine's capture published."""
    return location.elsewhere() if isinstance(location, ObjectLocation) else location


def to_json(location: LogLocation) -> Sequence[Any]:
    """For the capture process, which gets it through a pipe."""
    if isinstance(location, Path):
        return [str(location)]
    return [location.uri, str(location.folder) if location.folder else None, location.revealed()]


def from_json(raw: Sequence[Any]) -> LogLocation:
    if len(raw) == 1:
        return Path(raw[0])
    uri, folder, access = raw
    return ObjectLocation(uri, Path(folder) if folder else None, access)
