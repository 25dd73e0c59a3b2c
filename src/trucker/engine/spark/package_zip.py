"""Packs trucker into a zip that Spark sends to executors, so that they run the driver's version.

A zip of the package, compiled, in the cache folder under a name with its digest. A worker's Python needs trucker's
dependencies but not trucker; an installed trucker is not used. The zip has the sources, too, for a worker whose Python
cannot read the compiled modules.
"""

from __future__ import annotations

import marshal
import secrets
import sys
import zipfile
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Final

import trucker
from trucker.engine.spark.executor_entry import digest_of

_KEPT: Final = 3
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
# Of a compiled module: that a hash identifies it, and that the source need not be checked.
_UNCHECKED: Final = (1).to_bytes(4, "little")


def shipped(cache: Path) -> Path:
    """The zip of this trucker; made where it is missing."""
    package = Path(trucker.__file__).parent
    folder = cache / "shipped"
    path = folder / f"trucker-{digest_of(package)}-{sys.implementation.cache_tag}.zip"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        _write(package, partial)
        partial.replace(path)
        _tidy(folder)
    return path


def _write(package: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            name, source = file.relative_to(package.parent).as_posix(), file.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), source, zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(f"{name}c", _EPOCH), _compiled(source, name), zipfile.ZIP_DEFLATED)


def _compiled(source: bytes, name: str) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True)
    return MAGIC_NUMBER + _UNCHECKED + source_hash(source) + marshal.dumps(code)


def _tidy(folder: Path) -> None:
    """Delete the oldest; a running driver has already passed its own to Spark."""
    zips = sorted(folder.glob("trucker-*.zip*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in zips[_KEPT:]:
        path.unlink(missing_ok=True)
