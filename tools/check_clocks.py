"""Find the zero of a monotonic clock used as "never" or "long ago".

That zero is the machine's boot, or whatever the system chose: within an hour of it, `now - last >= 3600` with `last`
zero at first is false, on all other machines it is true. So what holds an instant of such a clock begins as None, as
`-math.inf`, or as an instant, never as a number.

An attribute or variable is taken to hold an instant if it is assigned one somewhere: a call of `monotonic` or
`perf_counter`, a name that was assigned such a call, `now`, or one of these plus something. Private attributes and
variables are followed in their module and function, other attributes everywhere.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "tools")
CLOCKS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "_clock"})
NOW = "now"

Key = tuple[str, str]  # where the name is valid, and the name
Place = tuple[Path, int]


@dataclass
class Uses:
    """Where each name is assigned a number, and which names are assigned an instant."""

    numbers: dict[Key, list[Place]] = field(default_factory=dict)
    instants: set[Key] = field(default_factory=set)
    falsy: list[Place] = field(default_factory=list)


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with their values, tuples taken apart."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from pairs(one, other)
    else:
        yield target, value


def is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


class Reader(ast.NodeVisitor):
    """Reads one module."""

    def __init__(self, file: Path, uses: Uses) -> None:
        self._file = file
        self._uses = uses
        self._scope: str | None = str(file)  # None in a class's body, where names are attributes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._scope = self._scope, None
        self.generic_visit(node)
        self._scope = outer

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._scope = self._scope, f"{self._file}:{node.lineno}"
        self.generic_visit(node)
        self._scope = outer

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if isinstance(node.op, ast.Or) and self._is_instant(node.values[-1]):
            self._uses.falsy.append((self._file, node.lineno))
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for target, value in assignments(node):
            key = self._key(target)
            if key is None:
                continue
            if self._is_instant(value):
                self._uses.instants.add(key)
            elif is_number(value):
                self._uses.numbers.setdefault(key, []).append((self._file, target.lineno))
        super().generic_visit(node)

    def _key(self, target: ast.expr) -> Key | None:
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", None)
        if name is None:
            return None
        if isinstance(target, ast.Attribute) or self._scope is None:
            return (str(self._file) if name.startswith("_") else "", name)
        return (self._scope, name)

    def _is_instant(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            called = value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            return name in CLOCKS
        if isinstance(value, ast.Name):
            return value.id == NOW or self._key(value) in self._uses.instants
        if isinstance(value, ast.IfExp):
            return self._is_instant(value.body) or self._is_instant(value.orelse)
        return (
            isinstance(value, ast.BinOp)
            and isinstance(value.op, ast.Add)
            and (self._is_instant(value.left) or self._is_instant(value.right))
        )


def main(root: Path = ROOT, folders: Sequence[str] = FOLDERS) -> int:
    uses = Uses()
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            Reader(file, uses).visit(ast.parse(file.read_text(encoding="utf-8"), str(file)))
    wrong = [(place, key[1]) for key, places in uses.numbers.items() if key in uses.instants for place in places]
    for (file, line), name in sorted(wrong):
        reason = f"{name} holds an instant of a clock, whose zero may be a moment ago; begin with None or -math.inf"
        print(f"{file.relative_to(root)}:{line}: {reason}")  # noqa: T201
    for file, line in uses.falsy:
        print(f"{file.relative_to(root)}:{line}: zero is an instant of a clock too; compare with None")  # noqa: T201
    return 1 if wrong or uses.falsy else 0


if __name__ == "__main__":
    sys.exit(main())
