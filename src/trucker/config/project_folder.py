"""From a project's folder to its `ProjectConfig`: find the files, render, parse, and say all that is wrong."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trucker.config.document import Item, read_document
from trucker.config.handler_file import HANDLER, HandlerText
from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.project_check import ProjectCheck, is_name
from trucker.config.sql.sql_files import SqlFile, sql_files
from trucker.errors import ConfigError, Place
from trucker.file_errors import explaining, reason_and_remedy

PROJECT_FILE: Final = "trucker.yml"
TRUCK_FILE: Final = "truck.yml"
TRUCKS_FOLDER: Final = "trucks"
_OF_THE_FILE_SYSTEM: Final = "lost+found"


def load_project(folder: Path) -> ProjectConfig:
    """Read a project. Raises a `ConfigError`, or `ConfigErrors` where several things are wrong; touches nothing."""
    with explaining("reading", Path(folder), ConfigError, code="TRK101"):
        return _Loading(Path(folder)).load()


class _Loading:
    """One reading of a project's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.check = ProjectCheck(folder)

    def load(self) -> ProjectConfig:
        path = self.folder / PROJECT_FILE
        if not path.is_file() and not path.is_symlink():
            raise _no_project(self.folder)
        document = self._document(path)
        settings = self.check.settings(document) if document else None
        trucks = list(self._trucks())
        return self.check.project(settings, trucks, self.folder.resolve().name or "trucker")

    def _document(self, path: Path) -> Item | None:
        try:
            return read_document(path, self.folder)
        except ConfigError as error:
            self.check.errors.append(error)
            return None

    def _trucks(self) -> Iterator[TruckConfig]:
        folders = list(self._folders())
        if not folders and not self.check.errors:
            self.check.error(
                f"the project has no truck: no file {TRUCKS_FOLDER}/<name>/{TRUCK_FILE}",
                Place(str(self.folder / TRUCKS_FOLDER)),
                f"create {TRUCKS_FOLDER}/<name>/{TRUCK_FILE}; `trucker init` writes a starter truck",
                "TRK111",
            )
        seen: dict[str, Path] = {}
        for folder in folders:
            first = seen.setdefault(folder.name.casefold(), folder)
            if first is not folder:
                self.check.error(
                    f'another truck has the name "{folder.name}"',
                    Place(str(folder / TRUCK_FILE)),
                    f"the first is {first / TRUCK_FILE}; rename one of the folders",
                    "TRK108",
                )
            truck = self._truck(folder)
            if truck is not None:
                yield truck

    def _folders(self) -> Iterator[Path]:
        """The trucks' folders: all in trucks/, and those directly under the root that hold a truck.yml."""
        inside = self.folder / TRUCKS_FOLDER
        for folder in sorted(inside.iterdir()) if inside.is_dir() else ():
            if not (folder.is_dir() or folder.is_symlink()) or folder.name.startswith("."):
                continue
            if (folder / TRUCK_FILE).is_file() or (folder / TRUCK_FILE).is_symlink():
                yield folder
            elif not folder.exists():
                reason, remedy = reason_and_remedy(FileNotFoundError(errno.ENOENT, ""), folder)
                self.check.error(f"the truck cannot be read: {reason}", Place(str(folder)), remedy, "TRK101")
            elif folder.is_dir():
                self.check.error(
                    f"the folder has no {TRUCK_FILE}",
                    Place(str(folder)),
                    f"write {folder / TRUCK_FILE}, or move the folder out of {TRUCKS_FOLDER}/",
                    "TRK101",
                )
        for folder in sorted(self.folder.iterdir()):
            if folder.name.startswith(".") or folder.name in (TRUCKS_FOLDER, _OF_THE_FILE_SYSTEM):
                continue
            if (folder / TRUCK_FILE).is_file():
                yield folder

    def _truck(self, folder: Path) -> TruckConfig | None:
        files = [file for path in sql_files(folder) if (file := self._sql_file(path))]
        if not is_name(folder.name):
            self.check.error(
                f'the truck\'s name "{folder.name}" cannot be used',
                Place(str(folder / TRUCK_FILE)),
                "rename the folder: at most 63 letters, digits, _, - and ., not beginning with - or .",
                "TRK105",
            )
        document = self._document(folder / TRUCK_FILE)
        if document is None:
            return None
        handler = self._handler(folder / HANDLER)
        return self.check.truck(folder.name, document, files, folder=folder.absolute(), handler=handler)

    def _handler(self, path: Path) -> HandlerText | None:
        if not path.exists() and not path.is_symlink():
            return None
        label = self._label(path)
        text = self._text(path, label)
        return None if text is None else HandlerText(label, path.absolute(), text)

    def _sql_file(self, path: Path) -> SqlFile | None:
        label = self._label(path)
        text = self._text(path, label)
        return None if text is None else self.check.sql_file(path.name.lower(), label, text)

    def _label(self, path: Path) -> str:
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)

    def _text(self, path: Path, label: str) -> str | None:
        """What a file of a truck holds; None, with the reason collected, where it cannot be read."""
        try:
            return path.read_bytes().decode()
        except OSError as error:
            reason, remedy = reason_and_remedy(error, path)
            self.check.error(f"the file cannot be read: {reason}", Place(label), remedy, "TRK101")
            return None
        except ValueError:
            self.check.error("the file is not UTF-8 text", Place(label), "save it as UTF-8", "TRK101")
            return None


def _no_project(folder: Path) -> ConfigError:
    if not folder.is_dir():
        return ConfigError(
            "the folder does not exist",
            place=Place(str(folder)),
            remedy=f"create a project with `trucker init {folder}`",
            code="TRK101",
        )
    other = folder / "trucker.yaml"
    return ConfigError(
        f"the folder is not a project: it has no {PROJECT_FILE}",
        place=Place(str(folder / PROJECT_FILE)),
        remedy=f"rename {other} to {PROJECT_FILE}"
        if other.is_file()
        else f"create a project with `trucker init {folder}`, or name the folder of one",
        code="TRK101",
    )
