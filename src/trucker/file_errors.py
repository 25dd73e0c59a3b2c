"""Translates an `OSError` of a file or a folder to an error of trucker: the path, the reason in words, and a remedy.

This is the one place that knows what the operating system's error numbers mean to a user. Code that touches files
says what it does with which path, and of which class and code its failure is:

    with explaining("reading", path, ConfigError, code="TRK100"):
        text = path.read_text()

An `OSError` that was not translated there is translated in `Project` and the command line, as TRK604.
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

_OF_FILES: Final = FULL | {errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE}


@contextmanager
def explaining(
    doing: str,
    path: Path,
    kind: type[TruckerError] = FileError,
    *,
    code: str | None = None,
    full: type[TruckerError] | None = None,
    setting: str = "",
) -> Iterator[None]:
    """Raise an `OSError` as `file_error` gives it."""
    try:
        yield
    except OSError as error:
        raise file_error(error, doing, path, kind, code=code, full=full, setting=setting) from error


def file_error(
    error: OSError,
    doing: str,
    path: Path,
    kind: type[TruckerError] = FileError,
    *,
    code: str | None = None,
    full: type[TruckerError] | None = None,
    setting: str = "",
) -> TruckerError:
    """The error for `doing` something with `path`, with the reason and a remedy that can be typed.

    It is of class `kind` with this `code`; where the disk is full, of class `full`, if given, with that class's code.
    `setting` is the setting that names the path in the project's files, if there is one.
    """
    reason, remedy = reason_and_remedy(error, path)
    if setting:
        remedy = f"{remedy}, or name another path with `{setting}`"
    message = f"{doing} {path} failed: {reason}"
    return full(message, remedy=remedy) if full and error.errno in FULL else kind(message, remedy=remedy, code=code)


def folder_trouble(folder: Path) -> OSError | None:
    """The error that writing in a folder, or creating it, would raise; None where it would succeed. Changes nothing."""
    place = folder.absolute()
    missing: list[str] = []
    try:
        while not _exists(place):
            missing.append(place.name)
            place = place.parent
    except OSError as error:
        return error
    if not place.is_dir():
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if any(len(os.fsencode(name)) > os.pathconf(place, "PC_NAME_MAX") for name in missing):
        return OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder.absolute()))
    return None if _may(place, os.R_OK | os.W_OK | os.X_OK) else _refused(place)


def file_trouble(path: Path) -> OSError | None:
    """The error that reading and writing a file, or creating it, would raise; None where it would succeed. Changes
    nothing."""
    try:
        if not _exists(path):
            return folder_trouble(path.parent)
        if path.is_symlink() and not path.exists():  # opening it would create the file that the link names
            return folder_trouble((path.parent / path.readlink()).parent)
    except OSError as error:
        return error
    if path.is_dir():
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.is_file():
        return OSError(errno.EINVAL, "it is not a regular file", str(path))
    return None if _may(path, os.R_OK | os.W_OK) else _refused(path)


def _exists(path: Path) -> bool:
    """Whether the path exists, also as a symbolic link to nothing."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # the caller reports the part of the path that is not a folder
        return False
    if path.is_symlink():
        try:
            path.stat()
        except FileNotFoundError:
            return True
    return True


def _refused(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@contextmanager
def all_explained() -> Iterator[None]:
    """For the outermost calls: translates errors about files that were not translated where they happened."""
    try:
        yield
    except OSError as error:
        if (explained := unexplained(error)) is None:
            raise
        raise explained from error


def unexplained(error: OSError) -> TruckerError | None:
    """An error that no code has translated, where it is about a file: TRK604."""
    if isinstance(error.filename, str | bytes) and error.filename:
        return file_error(error, "using", Path(os.fsdecode(error.filename)))
    if error.errno in _OF_FILES:
        reason, remedy = reason_and_remedy(error, Path())
        return FileError(f"writing a file failed: {reason}", remedy=remedy)
    return None


def reason_and_remedy(error: OSError, path: Path) -> tuple[str, str]:
    """The reason of an error, in words, and a remedy. A path that the error itself names takes precedence."""
    if isinstance(error.filename, str | bytes) and Path(os.fsdecode(error.filename)).is_absolute():
        path = Path(os.fsdecode(error.filename))
    path = path.absolute()
    try:
        return _in_words(error, path)
    except OSError:  # the path cannot be inspected either
        return error.strerror or type(error).__name__, f"check {path} and the folders above it"


def _in_words(error: OSError, path: Path) -> tuple[str, str]:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return _denied(Path(os.path.realpath(path)))
        case errno.ENOENT | errno.ENOTDIR | errno.EEXIST | errno.EISDIR | errno.ELOOP:
            return _misplaced(path, error)
        case errno.EROFS:
            return "the file system is read-only", "mount it for writing"
        case errno.ENOSPC:
            return "No space left on device", f"free space on the disk of {_existing(path)}"
        case errno.EDQUOT:
            return "Disk quota exceeded", f"free space on the disk of {_existing(path)}, or raise the quota"
        case errno.EFBIG:
            return "the file would be larger than allowed", "raise the file size limit (ulimit -f)"
        case errno.ENAMETOOLONG:
            return "the name is too long", "use a shorter name"
        case errno.EMFILE | errno.ENFILE:
            return "too many files are open", "raise the open file limit (ulimit -n)"
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
            place = place.parent  # it would be created there
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
    """A part of the path does not exist, or is a file instead of a folder, or the reverse."""
    for place in (*reversed(path.parents), path):
        quoted = shlex.quote(str(place))
        if place.is_symlink() and not place.exists():
            target = place.readlink()
            if error.errno == errno.ELOOP or _loops(place):
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


def _loops(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


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
