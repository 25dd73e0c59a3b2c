"""Have a pgbouncer for the tests that need one: the one that is installed, or one unpacked from the system's packages.

No package index for Python has pgbouncer. Where apt is, its packages can be downloaded and unpacked by any user: into
trucker's cache folder, where the tests find them (`tests/fixtures/pooler.py`). Nothing is installed, and nothing is
written outside that folder. Where there is no apt, or no network, this says how to get pgbouncer and ends well: the
tests that need it are then skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fixtures.pooler import find_pgbouncer, unpacked_pgbouncer

HELP = """pgbouncer is not to be had here, so the tests of the pooler are skipped. To run them, install it:
    apt-get install pgbouncer        (Debian, Ubuntu; as root)
    dnf install pgbouncer            (Fedora)
    brew install pgbouncer           (Homebrew)
or put one that you have on PATH. Then run the tests again."""
SECONDS = 120


class Missing(Exception):
    """It cannot be had by these means."""


def run(*command: str, where: Path) -> str:
    try:
        ended = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=SECONDS, check=True)
    except FileNotFoundError as error:
        raise Missing(f"there is no {command[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{command[0]} took too long") from error
    except subprocess.CalledProcessError as error:
        raise Missing((error.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]) from error
    return ended.stdout


class Packages:
    """apt with folders of its own for what root's apt keeps in /var."""

    def __init__(self, place: Path) -> None:
        self._place = place
        for name in ("state/lists/partial", "cache/archives/partial", "packages"):
            (place / name).mkdir(parents=True)
        self._options = (
            f"-oDir::State={place / 'state'}",
            "-oDir::State::status=/var/lib/dpkg/status",
            f"-oDir::Cache={place / 'cache'}",
            "-oAPT::Sandbox::User=",
            "-oAcquire::Retries=1",
            "-oAcquire::http::Timeout=20",
        )
        self._apt("apt-get", "update")

    def _apt(self, program: str, *arguments: str) -> str:
        return run(program, *self._options, "-qq", *arguments, where=self._place / "packages")

    def dependencies(self, package: str) -> list[str]:
        """The libraries it depends on, without the C library: that one goes with the system's loader."""
        lines = self._apt("apt-cache", "depends", "--important", package).splitlines()
        names = [line.split()[-1] for line in lines if line.strip().startswith("Depends:")]
        return [name for name in names if name.startswith("lib") and not name.startswith("libc6")]

    def unpack(self, packages: Sequence[str], into: Path) -> None:
        self._apt("apt-get", "download", *packages)
        for file in (self._place / "packages").glob("*.deb"):
            run("dpkg", "-x", str(file), str(into), where=self._place)
            file.unlink()


def wrap(program: Path, root: Path, final: Path) -> None:
    """Write the command that runs the program with the libraries that came with it."""
    libraries = sorted({str(final / path.parent.relative_to(root)) for path in root.rglob("*.so.*")})
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexport LD_LIBRARY_PATH="{":".join(libraries)}"\nexec "{final}/usr/sbin/pgbouncer" "$@"\n'
    )
    program.chmod(0o755)


def fetch(target: Path) -> str:
    """Download and unpack it; the program."""
    new = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        packages = Packages(new / "apt")
        packages.unpack(["pgbouncer", *packages.dependencies("pgbouncer")], new)
        shutil.rmtree(new / "apt")
        wrap(new / "bin" / "pgbouncer", new, target)
        for path in (new, *new.rglob("*")):
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044), follow_symlinks=True)
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)
        program = target / "bin" / "pgbouncer"
        run(str(program), "--version", where=target)
    except (Missing, OSError):
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return str(program)


def main() -> int:
    program = find_pgbouncer()
    if program is None:
        try:
            program = fetch(unpacked_pgbouncer())
        except (Missing, OSError) as error:
            print(f"{error}\n{HELP}")  # noqa: T201
            return 0
    print(f"pgbouncer: {program}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
