"""Files and folders that other accounts of the machine must not read: the state folder and the change log.

They hold rows as the source sent them, before any rule has masked a value. Folders are created with mode 0700 and files
with 0600, whatever the umask of this process, which may be a user's program (`Project.run`) whose umask trucker must
not set. Processes that trucker starts get `UMASK`, which covers what their libraries write.

On a cluster, executors may run under another account than the driver. They share the folders through a group: in a
folder with the setgid bit and group permissions (mode 2770) new files have the same group permissions. Others never get
any permissions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import stat
from pathlib import Path
from typing import Final

from trucker.errors import FileError
from trucker.file_errors import explaining

log = logging.getLogger("trucker.state")

UMASK: Final = 0o077
_FOLDER: Final = 0o700
_FILE: Final = 0o600
# A folder that has one of these is trucker's: the state folder, the folder of a source's log.
_MARKS: Final = ("lock", "status.json", "source.json", "durable")


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; one that exists stays as it is."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_folder(path.parent)
    try:
        path.mkdir(_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if group := _group_of(path.parent):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | group)


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """As `os.open`, and an `opener` for `open`: a file that this creates can be read by its owner only."""
    file = os.open(path, flags | os.O_CLOEXEC, _FILE)
    if flags & os.O_CREAT and (group := _group_of(Path(path).parent) & 0o060):
        with contextlib.suppress(PermissionError):  # it existed, and belongs to another account of the group
            os.fchmod(file, _FILE | group)
    return file


def create(path: Path) -> None:
    """Make an empty file, for libraries that write to a path and know no modes."""
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file."""
    with open(path, "w", encoding="utf-8", opener=open_file) as file:
        file.write(text)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of a file."""
    with open(path, "wb", opener=open_file) as file:
        file.write(data)


def secure(folder: Path, *, group: bool = False, setting: str = "state") -> None:
    """Create `folder` where it is missing, and remove the permissions of other accounts.

    With `group` its group keeps the permissions it has. Raises TRK603 where this cannot be done; `setting` is the
    setting that names the folder in trucker.yml.
    """
    with explaining("making", folder, code="TRK603", setting=setting):
        is_new = not folder.is_dir()
        make_folder(folder)
        if is_new and not group:
            folder.chmod(_FOLDER)
        if not _excess(folder, group=group):
            return
        if not _correctable(folder):
            raise _exposed(folder, group=group, setting=setting)
        try:
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~_forbidden(group=group))
        except PermissionError:
            raise _exposed(folder, group=group, setting=setting) from None
    if _excess(folder, group=group):  # a file system without permissions
        raise _exposed(folder, group=group, setting=setting)
    log.info("other accounts no longer have access to the folder", extra={"folder": str(folder)})


def exposure(folder: Path, *, group: bool = False, setting: str = "state") -> FileError | None:
    """The error that `secure` would raise for an existing folder, without changing anything."""
    if not folder.is_dir() or not _excess(folder, group=group):
        return None
    owned = folder.stat().st_uid == os.geteuid() or os.geteuid() == 0
    return None if owned and _correctable(folder) else _exposed(folder, group=group, setting=setting)


def _forbidden(*, group: bool) -> int:
    return stat.S_IRWXO if group else stat.S_IRWXO | stat.S_IRWXG


def _excess(folder: Path, *, group: bool) -> int:
    """The permissions that other accounts have and should not."""
    return folder.stat().st_mode & _forbidden(group=group)


def _correctable(folder: Path) -> bool:
    """Whether the folder is used by trucker only: the permissions of /tmp, for example, are not changed."""
    if folder.stat().st_mode & stat.S_ISVTX:
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or not names.isdisjoint(_MARKS)


def _exposed(folder: Path, *, group: bool, setting: str) -> FileError:
    mode = stat.S_IMODE(folder.stat().st_mode)
    change = "o-rwx" if group else "go-rwx"
    return FileError(
        f"other accounts can read {folder} (mode {mode:04o}), which holds rows as the source sent them",
        remedy=f"run as its owner: chmod {change} {shlex.quote(str(folder))}; or name another folder with `{setting}`, "
        "which trucker then creates",
        code="TRK603",
    )


def _group_of(folder: Path) -> int:
    """The group permissions that new files in the folder get."""
    mode = folder.stat().st_mode
    return mode & stat.S_IRWXG if mode & stat.S_ISGID else 0
