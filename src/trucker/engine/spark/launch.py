"""Starts the driver's JVM directly, without Spark's scripts, which take longer.

pyspark starts `$SPARK_HOME/bin/spark-submit`. Trucker's SPARK_HOME is a folder in the cache with links to pyspark's
files, but

- its `bin/spark-submit` starts the driver with arguments from a file, where Spark's script starts another JVM that
  computes them;
- its `python/lib` is empty, so that Python workers import the pyspark that is installed, which is compiled,
  and not `pyspark.zip`, which is not and costs each of them most of a second.

**The class-data archive.** Most of a JVM's start is loading some ten thousand classes. An archive of them, made when a
JVM ends, halves the start of the next. It belongs to one runtime and one set of jars, so both are in its name. A start
without an archive records one, which gets its name only when the JVM has ended without error, so that a file with the
name is complete. A JVM that cannot use an archive continues without it.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from trucker.engine.spark.java import Java, put
from trucker.errors import EngineError
from trucker.private import UMASK

log = logging.getLogger("trucker.java")

_FORMAT = 3
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_ARCHIVES_KEPT = 3
_STALE_SECONDS = 3600.0

# JVM and workers write to a file, not to the terminal. `exec` where the script has nothing to do afterwards.
_SUBMIT = f"""\
#!/bin/sh
# Written by trucker: starts the driver without a JVM to find out how.
umask {UMASK:03o}
exec >"$TRUCKER_JVM_OUTPUT" 2>&1
[ -z "$TRUCKER_JVM_FOLDER" ] || cd "$TRUCKER_JVM_FOLDER" || exit 1
if [ -z "$TRUCKER_JVM_RECORDING" ]; then
    exec "$JAVA_HOME/bin/java" "@$TRUCKER_JVM_ARGUMENTS" {_MAIN} "$@"
fi
"$JAVA_HOME/bin/java" "@$TRUCKER_JVM_ARGUMENTS" {_MAIN} "$@"
code=$?
# The archive has classes only, and may be shared by accounts.
[ "$code" -eq 0 ] && chmod a+r "$TRUCKER_JVM_RECORDING" && mv -f "$TRUCKER_JVM_RECORDING" "$TRUCKER_JVM_ARCHIVE"
rm -f "$TRUCKER_JVM_RECORDING" "$TRUCKER_JVM_RECORDING.config"
exit "$code"
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """The environment of the driver, and the file for the output of its JVM."""

    environment: Mapping[str, str]
    output: Path
    archive: Path | None

    @property
    def recording(self) -> bool:
        """Whether this run will leave an archive for the next one."""
        return bool(self.environment.get("TRUCKER_JVM_RECORDING"))


def prepare_launch(
    java: Java,
    cache: Path,
    state: Path,
    options: Iterable[str],
    settings: Mapping[str, str],
    *,
    memory: str,
    record: bool = True,
) -> Launch:
    """Write the arguments of the driver's JVM. `settings` are the user's for Spark, of which some concern the JVM.

    `options` are trucker's JVM options, `memory` the heap's size where the settings have none. Where there is no
    archive yet, this run creates one if `record` is set.
    """
    overlay = spark_home(cache, java)
    jars = sorted((overlay / "jars").glob("*.jar"))
    added = _extra_classpath(settings)
    archive, recording = _use_or_record(None if added else _archive(java, cache, jars), record=record)
    arguments = [
        "-cp",
        os.pathsep.join([*added, *map(str, jars)]),
        *options,
        *_archive_options(archive, recording),
        *(overlay / "options").read_text(encoding="utf-8").splitlines(),
        f"-Xmx{settings.get('spark.driver.memory', memory)}",
        *shlex.split(settings.get("spark.driver.extraJavaOptions", "")),
    ]
    listing = state / "java.arguments"
    put(listing, "".join(f"{_quoted(argument)}\n" for argument in arguments), mode=0o600)
    if archive is not None:
        _tidy(archive)
    return Launch(
        {
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(overlay),
            "SPARK_SCALA_VERSION": scala_version(overlay),
            "TRUCKER_JVM_ARGUMENTS": str(listing),
            "TRUCKER_JVM_OUTPUT": str(state / "spark.out"),
            "TRUCKER_JVM_RECORDING": str(recording or ""),
            "TRUCKER_JVM_ARCHIVE": str(archive or ""),
        },
        state / "spark.out",
        archive,
    )


def archive_missing(java: Java, cache: Path) -> bool:
    """Whether a start on this runtime would find no archive although it could use one."""
    archive = _archive(java, cache, sorted((spark_home(cache, java) / "jars").glob("*.jar")))
    return archive is not None and not archive.exists()


def spark_home(cache: Path, java: Java) -> Path:
    """Trucker's SPARK_HOME for the installed pyspark; created where it is missing."""
    package = _pyspark()
    name = _digest([str(_FORMAT), _SUBMIT, str(package), version("pyspark"), str(java.major)])
    overlay = cache / "spark" / name
    if not overlay.exists():
        partial = overlay.with_name(f"{name}.{secrets.token_hex(4)}")
        (partial / "python" / "lib").mkdir(parents=True)
        (partial / "bin").mkdir()
        for entry in package.iterdir():
            if entry.name not in ("python", "bin"):
                (partial / entry.name).symlink_to(entry)
        for entry in (package / "bin").iterdir():
            if entry.name != "spark-submit":
                (partial / "bin" / entry.name).symlink_to(entry)
        put(partial / "bin" / "spark-submit", _SUBMIT, mode=0o755)
        put(partial / "options", "".join(f"{option}\n" for option in _module_options(package, java)))
        _rename_or_drop(partial, overlay)
    return overlay


def _pyspark() -> Path:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError("pyspark is not installed", remedy="run: pip install trucker", code="TRK503")
    return Path(spec.submodule_search_locations[0])


def _module_options(package: Path, java: Java) -> list[str]:
    """The JVM options of this version of Spark, from its launcher.

    Without `--add-modules`: it names a module for linear algebra, which not every runtime has.
    """
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "SPARK_HOME": str(package),
        "SPARK_SCALA_VERSION": scala_version(package),
    }
    try:
        launcher = subprocess.run(
            [java.binary, "-Xmx128m", "-cp", f"{package}/jars/*", "org.apache.spark.launcher.Main", _MAIN, "x"],
            env={**environment, "PATH": os.environ.get("PATH", "")},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        command = [part.strip("\n") for part in launcher.stdout.split("\0")]
        arguments = command[command.index("-cp") + 2 : command.index(_MAIN)]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EngineError(
            f"Spark's launcher failed with Java {java.version} in {java.runtime}",
            remedy="check this Java, or unset JAVA_HOME so that trucker uses its own",
            code="TRK504",
        ) from error
    return [argument for argument in arguments if not argument.startswith(("-Xmx", "--add-modules"))]


def scala_version(home: Path) -> str:
    """The Scala version, which Spark's scripts pass to its launcher."""
    core = next((home / "jars").glob("spark-core_*.jar"))
    return core.name.removeprefix("spark-core_").partition("-")[0]


def _extra_classpath(settings: Mapping[str, str]) -> list[str]:
    """The user's entries before Spark's jars. A JVM with folders in its class path cannot use an archive."""
    named = [os.environ.get(name, "") for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    added = [*settings.get("spark.driver.extraClassPath", "").split(os.pathsep), *named]
    return [entry for entry in added if entry]


def _archive(java: Java, cache: Path, jars: Iterable[Path]) -> Path | None:
    """Where this runtime's archive for these jars is or will be; None where it can have none."""
    suffix = "aot" if java.major >= 25 else "jsa" if java.has_base_archive else None
    if suffix is None:
        return None
    library = java.runtime / "lib" / "server" / "libjvm.so"
    files = [library, *jars] if library.exists() else list(jars)
    stamps = [f"{file}:{status.st_size}:{status.st_mtime_ns}" for file in files for status in [file.stat()]]
    folder = cache / "archive"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{_digest([str(_FORMAT), java.version, str(java.runtime), *stamps])}.{suffix}"


def _use_or_record(archive: Path | None, *, record: bool) -> tuple[Path | None, Path | None]:
    """The archive to use or to create, and in the latter case its name until it is complete."""
    if archive is None or archive.exists():
        return archive, None
    return (archive, archive.with_name(f"{archive.name}.{secrets.token_hex(4)}.tmp")) if record else (None, None)


def _archive_options(archive: Path | None, recording: Path | None) -> list[str]:
    """Options that use the archive, or record it; the JVM ignores an archive that does not match."""
    if archive is None:
        return []
    if archive.suffix == ".aot":
        return [f"-XX:AOTCacheOutput={recording}"] if recording else [f"-XX:AOTCache={archive}", "-XX:AOTMode=auto"]
    return [
        f"-XX:ArchiveClassesAtExit={recording}" if recording else f"-XX:SharedArchiveFile={archive}",
        "-Xshare:auto",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]


def _tidy(archive: Path) -> None:
    """Mark the archive as used; delete leftovers of killed recordings and the archives used longest ago."""
    if archive.exists():
        os.utime(archive)
    now = time.time()
    archives: list[tuple[float, Path]] = []
    for path in archive.parent.iterdir():
        try:
            touched = path.stat().st_mtime
            if path.suffix in (".aot", ".jsa"):
                archives.append((touched, path))
            elif now - touched > _STALE_SECONDS:
                path.unlink()
        except FileNotFoundError:
            continue
    for _, path in sorted(archives, reverse=True)[_ARCHIVES_KEPT:]:
        path.unlink(missing_ok=True)


def _quoted(argument: str) -> str:
    """An argument as Java's argument files want it."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _digest(parts: Iterable[str]) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def _rename_or_drop(partial: Path, target: Path) -> None:
    """Give a complete folder its name; if another process did so first, use that one."""
    try:
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            raise
