"""Checks which other accounts can read the state folder and the change logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trucker import private
from trucker.changelog.location import location_of
from trucker.config.models import ProjectConfig
from trucker.engine.spark.cluster import is_local
from trucker.errors import FileError


def secure_state(config: ProjectConfig) -> None:
    """Make the state folder where it is missing, and keep other accounts out of it and out of the change logs.

    Raises TRK603 where that cannot be done. On a cluster the group of a folder keeps its access: executors may run
    under another account.
    """
    shared = not is_local(config.spark.master)
    private.secure(config.state_folder, group=shared)
    for folder in _log_folders(config):
        private.secure(folder, group=shared, setting="log.location")


def exposed(config: ProjectConfig) -> Iterator[tuple[Path, FileError]]:
    """The folders for which `secure_state` would raise, and what; nothing is changed."""
    shared = not is_local(config.spark.master)
    folders = [(config.state_folder, "state"), *((folder, "log.location") for folder in _log_folders(config))]
    for folder, setting in folders:
        if (error := private.exposure(folder, group=shared, setting=setting)) is not None:
            yield folder, error


def _log_folders(config: ProjectConfig) -> Iterator[Path]:
    """The folders of change logs that are not in the state folder, those that exist."""
    if not isinstance(config.log.location, Path):
        return
    for connection in config.sources:
        location = location_of(config, connection.name)
        with suppress(OSError):  # another condition reports a folder that cannot be reached
            if isinstance(location, Path) and location.is_dir():
                yield location
