"""Check that a name means one thing: no class or type alias of one name in two modules; `file:line` for each that is.

Looked at are classes and type aliases at the top level of the package's modules. Names that begin with an underscore
count as well: a reader who searches for `_Attempt` finds one. `ALLOWED` has the names that may repeat, with the reason.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Name → why several modules may define it.
_SINKS = "each sink has its own"
ALLOWED: dict[str, str] = dict.fromkeys(("Cells", "Describe", "Indices", "Session"), _SINKS)


def names(file: Path) -> Iterator[tuple[str, int]]:
    """The classes and type aliases of a module, and the lines they are on."""
    for node in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_alias(node.annotation):
            yield node.target.id, node.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_type(node.value):
            yield node.targets[0].id, node.lineno


def _is_alias(annotation: ast.expr) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "TypeAlias"


def _is_type(value: ast.expr) -> bool:
    """Whether an assigned expression is a type: `tuple[int, ...]`, `Callable[[int], str]`, `A | B`."""
    if isinstance(value, ast.Subscript):
        return _is_type_name(value.value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return all(_is_type(side) or _is_type_name(side) for side in (value.left, value.right))
    return False


def _is_type_name(value: ast.expr) -> bool:
    """Whether it is the name of a type and not a constant: `Mapping`, `npt.NDArray`, `tuple`; `TABLE` is none."""
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    return name in _GENERICS or (name[:1].isupper() and not name.isupper())


_GENERICS = frozenset({"tuple", "list", "dict", "set", "frozenset", "type"})


def main(root: Path = ROOT / "src") -> int:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        for name, line in names(file):
            places[name].append(f"{file.relative_to(root.parent)}:{line}")
    twice = {name: lines for name, lines in sorted(places.items()) if len(lines) > 1 and name not in ALLOWED}
    for name, lines in twice.items():
        for place in lines:
            print(f"{place}: {name} is defined in {len(lines)} modules")  # noqa: T201
    idle = sorted(name for name in ALLOWED if len(places[name]) < 2)
    for name in idle:
        print(f"tools/check_names.py: {name} is allowed to repeat, and does not")  # noqa: T201
    print(f"names: {len(places)} classes and type aliases, {len(twice)} defined twice")  # noqa: T201
    return 1 if twice or idle else 0


if __name__ == "__main__":
    sys.exit(main())
