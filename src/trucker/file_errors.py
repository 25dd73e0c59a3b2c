"""An `OSError` of a file or a folder as an error of trucker's: the path, the reason in words, and what to do.

This is the one place that knows what the operating system's error numbers mean to a user. Code that touches files
says what it does with which path, and of which class and code its failure is:

    with explaining("reading", path, ConfigError, code="TRK100"):
        text = path.read_text()

What nobody translated is translated by the command line, as TRK604.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trucker.errors import FileError, TruckerError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full, or a quota is used up: it passes when there is room again."""


@contextmanager
def explaining(
    doing: str, path: Path, kind: type[TruckerError] = FileError, *, code: str | None = None, setting: str = ""
) -> Iterator[None]:
    """Raise an `OSError` as `kind`. `setting` is what names the path in the project's files, if anything does."""
    try:
        yield
    except OSError as error:
        raise file_error(error, doing, path, kind, code=code, setting=setting) from error


def file_error(
    error: OSError,
    doing: str,
    path: Path,
    kind: type[TruckerError] = FileError,
    *,
    code: str | None = None,
    setting: str = "",
) -> TruckerError:
    """What failed while `doing` something with `path`, with the reason and a remedy that can be carried out."""
    if isinstance(error.filename, str | bytes) and error.filename:
        named = Path(os.fsdecode(error.filename))
        path = named if named.is_absolute() else path
    reason, remedy = _explained(error, path.absolute())
    if setting:
        remedy = f"{remedy}, or name another path with `{setting}`"
    return kind(f"{doing} {path} failed: {reason}", remedy=remedy, code=code)


def _explained(error: OSError, path: Path) -> tuple[str, str]:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return _denied(path)
        case errno.ENOENT | errno.ENOTDIR | errno.EEXIST | errno.EISDIR | errno.ELOOP:
            return _misplaced(path, error)
        case errno.EROFS:
            return "the file system is read-only", "mount it for writing"
        case errno.ENOSPC:
            return "no space is left on the disk", f"make room on the disk of {_existing(path)}"
        case errno.EDQUOT:
            return "the disk quota is used up", f"make room on the disk of {_existing(path)}, or raise the quota"
        case errno.EFBIG:
            return "the file would be larger than allowed", "raise the limit of file sizes (ulimit -f)"
        case errno.ENAMETOOLONG:
            return "the name is too long", "use a shorter name"
        case errno.EMFILE | errno.ENFILE:
            return "too many files are open", "raise the limit of open files (ulimit -n)"
        case errno.ETXTBSY | errno.EBUSY:
            return "another process uses it", "stop that process"
        case _:
            return error.strerror or type(error).__name__, f"check the disk of {_existing(path)}"


def _denied(path: Path) -> tuple[str, str]:
    """Which part of the path refuses this account, and the command that changes it."""
    account = _account(os.geteuid())
    for place in (*reversed(path.parents), path):
        needed = os.X_OK if place != path else 0
        try:
            status = place.stat()
        except PermissionError:
            continue  # the folder that refuses it has been returned before
        except OSError:
            place = place.parent  # it would be made there
            needed, status = os.W_OK | os.X_OK, place.stat()
        if needed and not _may(place, needed):
            return _denial(place, status, account)
        if place != path and needed & os.W_OK:
            break
    else:
        for place in (path, path.parent):
            if not _may(place, os.R_OK | os.W_OK):
                return _denial(place, place.stat(), account)
    return f"account {account} may not do this", f"check the permissions of {path} and of the folders above it"


def _denial(place: Path, status: os.stat_result, account: str) -> tuple[str, str]:
    owner = _account(status.st_uid)
    folder = place.is_dir()
    reason = f"account {account} may not {'use' if folder else 'open'} {place} (mode {status.st_mode & 0o7777:04o})"
    quoted, rights = shlex.quote(str(place)), "rwx" if folder else "rw"
    if status.st_uid == os.geteuid():
        return reason, f"chmod u+{rights} {quoted}"
    return f"{reason}, which belongs to {owner}", f"sudo chown {account} {quoted}"


def _misplaced(path: Path, error: OSError) -> tuple[str, str]:
    """A part of the path is not there, or is of another kind than it should be."""
    for place in (*reversed(path.parents), path):
        quoted = shlex.quote(str(place))
        if place.is_symlink() and not place.exists():
            target = place.readlink()
            if error.errno == errno.ELOOP:
                return f"{place} is a symbolic link that leads to itself", f"remove the link: rm {quoted}"
            return (
                f"{place} is a symbolic link to {target}, which does not exist",
                f"create {target}, or remove the link: rm {quoted}",
            )
        if not place.exists():
            kind = "file" if place == path else "folder"
            return f"the {kind} {place} does not exist", f"create {place}"
        if not place.is_dir() and (place != path or error.errno != errno.EISDIR):
            return f"{place} is a file where a folder is needed", f"move that file away: mv {quoted} {quoted}.old"
    if path.is_dir():
        return f"{path} is a folder where a file is needed", f"move that folder away, or name the file inside {path}"
    return error.strerror or type(error).__name__, f"check {path}"


def _existing(path: Path) -> Path:
    """The path, or the folder above it that exists."""
    for place in (path, *path.parents):
        try:
            if place.exists():
                return place
        except OSError:
            continue
    return path


def _may(place: Path, needed: int) -> bool:
    return os.access(place, needed, effective_ids=os.access in os.supports_effective_ids)


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
