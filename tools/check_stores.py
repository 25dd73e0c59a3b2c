"""Check that what is true of one store is said by its adapter and its sink alone; `file:line` for each place elsewhere.

A module names a store where it imports a module of the store's (`trucker.adapters.x`, `trucker.sinks.x`, `trucker.x`),
or has a text that holds the name of its adapter as a word. Docstrings are not looked at: they may give examples. The
stores are those of `[project.entry-points."trucker.adapters"]` in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "trucker"

# Who may import modules of a store, by prefix, with the reason.
IMPORTS: dict[str, dict[str, str]] = {
    "postgres": {
        "trucker.capture.process": "the stream that it captures is PostgreSQL's",
    }
}

# Which modules may have texts with the name of a store, with the reason.
_EXAMPLE = "the project that `trucker init` writes is an example"
_COPY = "COPY … TO stdout is SQL"
_FILE = "changes.jsonl is the name of a file in an example"
TEXTS: dict[str, dict[str, str]] = {
    "postgres": {
        "trucker.config.registry": "DEFAULT: a connection that names no adapter is the source",
        "trucker.config.starter": _EXAMPLE,
        "trucker.pg.text_settings": "a style of intervals has this name",
    },
    "duckdb": {"trucker.config.starter": _EXAMPLE},
    "jsonl": {
        "trucker.config.starter": _EXAMPLE,
        "trucker.project": _FILE,
        "trucker.cli.output": _FILE,
        "trucker.sinks.files": "the ending of a file's name",
    },
    "python": {"trucker.engine.spark": "the interpreter of Spark's workers, and Spark's settings for it"},
    "stdout": {
        "trucker.config.starter": _EXAMPLE,
        "trucker.pg.digest_sql": _COPY,
        "trucker.postgres.snapshot": _COPY,
        "trucker.postgres.row_keys": _COPY,
        "trucker.sinks.postgres.check": _COPY,
    },
}

# Names that are ordinary words: a text with one says nothing about a store. Imports are looked at all the same.
WORDS = frozenset({"files"})

# Tools for tests of trucker's own stores, and the demo, which is written for two of them.
TESTING = "trucker.testing."


def stores(root: Path = ROOT) -> list[str]:
    """The names of trucker's own adapters."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["entry-points"]["trucker.adapters"])


def homes(store: str) -> tuple[str, ...]:
    """The modules that are the store's own: its adapter, its sink, and the source where it is one. Sinks that write
    lines share a room."""
    return tuple(f"{PACKAGE}.{room}{store}" for room in ("adapters.", "sinks.", "sinks.lines.", ""))


def belongs(module: str, home: str) -> bool:
    """Whether a module is at home there: `trucker.sinks.x`, modules in it, and those called `x_…` beside it."""
    return module == home or module.startswith((f"{home}.", f"{home}_"))


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every imported name, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text that is no docstring, with its line."""
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in statements}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def faults(file: Path, root: Path, stores_named: list[str]) -> Iterator[tuple[int, str]]:
    """The lines of a file that name a store which is not its own."""
    module = module_name(file, root)
    if module.startswith(TESTING):
        return
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    for read, exceptions in ((imports, IMPORTS), (texts, TEXTS)):
        for store in stores_named:
            if read is texts and store in WORDS:
                continue
            if any(belongs(module, home) for home in (*homes(store), *exceptions.get(store, {}))):
                continue
            lines = {line for line, name in read(tree) if re.search(rf"(?<!\w){store}(?!\w)", name)}
            yield from ((line, store) for line in sorted(lines))


def main(root: Path = ROOT / "src", known: list[str] | None = None) -> int:
    known = known or stores()
    files = sorted(root.rglob("*.py"))
    wrong = [(file, line, store) for file in files for line, store in faults(file, root, known)]
    for file, line, store in wrong:
        print(f"{file.relative_to(root.parent)}:{line}: names {store}; its adapter should say it")  # noqa: T201
    print(f"stores: {len(files)} modules, {len(wrong)} that name a store which is not theirs")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
