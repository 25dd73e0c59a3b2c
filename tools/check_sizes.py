"""Report how long modules and functions are; fail on a module over the limit that gives no reason in its docstring.

The reason is a paragraph of the module's docstring that begins with `Size:`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600
AIM = 400
REASON = "Size:"


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def functions(file: Path) -> list[tuple[int, str]]:
    """Each function's lines, its docstring not counted, and where it is."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    sizes = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            size = node.end_lineno - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) and first.end_lineno is not None:
                size -= first.end_lineno - first.lineno + 1
            sizes.append((size, f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return sizes


def excused(file: Path) -> bool:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return any(paragraph.startswith(REASON) for paragraph in docstring.split("\n\n"))


def summary(what: str, sizes: Sequence[int]) -> str:
    ordered = sorted(sizes)
    at = {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * share))]
        for name, share in (("median", 0.5), ("p90", 0.9))
    }
    return f"{what}: {len(ordered)}, median {at['median']}, p90 {at['p90']}, max {ordered[-1]} lines"


def main(root: Path = ROOT / "src") -> int:
    modules = [(lines(file), file) for file in sorted(root.rglob("*.py"))]
    bodies = [entry for _, file in modules for entry in functions(file)]
    print(summary("modules", [size for size, _ in modules]))  # noqa: T201
    print(summary("functions", [size for size, _ in bodies]))  # noqa: T201
    for size, file in sorted(modules, reverse=True):
        if size > AIM:
            print(f"  over {AIM}: {file.relative_to(ROOT)} {size}")  # noqa: T201
    for size, where in sorted(bodies, reverse=True)[:5]:
        print(f"  longest functions: {where} {size}")  # noqa: T201
    too_long = [(size, file) for size, file in modules if size > LIMIT and not excused(file)]
    for size, file in too_long:
        reason = f"over {LIMIT} and no paragraph `{REASON} …` in the docstring says why"
        print(f"{file.relative_to(ROOT)}:1: {size} lines: {reason}")  # noqa: T201
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
