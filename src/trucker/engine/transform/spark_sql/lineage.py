"""What Spark's plan of a query tells of its columns: which it passes on untouched, and which it looks at at all.

Spark numbers every value that a plan makes; a number that reaches the top from the rows is a column as it was. Only a
union gives two values one number, its first branch's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNIONS: Final = frozenset({"Union", "UnionLoop"})
_NAMING: Final = frozenset({"Project", "Aggregate"})
_NUMBER: Final = re.compile(r"#(\d+)")


def origins(query: DataFrame, rows: Sequence[DataFrame]) -> list[str]:
    """For each column of the result, the column of one of `rows` that it is, or nothing."""
    plan = _Plan(query)
    sources = {number: name for frame in rows for number, name in _Plan(frame).output()}
    same: dict[int, int] = {}
    unions = []
    for node in plan.nodes(plan.analyzed):
        kind = node.getClass().getSimpleName()
        if kind in _UNIONS:
            unions.append(node)
        for each in plan.listed(node.expressions()) if kind in _NAMING else ():
            if each.getClass().getSimpleName() == "Alias":
                child = each.child()
                if child.getClass().getSimpleName() == "AttributeReference":
                    same[each.exprId().id()] = child.exprId().id()
    mixed: set[int] = set()

    def origin(number: int) -> str:
        while number in same and number not in mixed:
            number = same[number]
        return "" if number in mixed else sources.get(number, "")

    for union in reversed(unions):
        branches = [[origin(number) for number, _ in plan.columns(child)] for child in plan.listed(union.children())]
        for position, (number, _) in enumerate(plan.columns(union)):
            if len({branch[position] for branch in branches}) > 1:
                mixed.add(number)
    return [origin(number) for number, _ in plan.output()]


def needed(query: DataFrame, rows: Sequence[str]) -> frozenset[str]:
    """Which columns of the relation that has just these columns the query has need of, once Spark has pruned it.

    A number in use is named by a node above, or reaches the top. Where branches meet by position (a union, and
    whatever else is no join) all of their columns are in use.
    """
    plan = _Plan(query)
    found: dict[int, str] = {}
    used = _numbers(plan.optimized.output())
    for node in plan.nodes(plan.optimized):
        kind = node.getClass().getSimpleName()
        if kind == "LogicalRDD":
            own = plan.columns(node)
            if [name for _, name in own] == list(rows):
                found.update(own)
            continue
        used |= _numbers(node.references())
        children = plan.listed(node.children())
        met = children if len(children) > 1 and kind != "Join" else []
        for below in (*met, *plan.listed(node.subqueries())):
            used |= _numbers(below.output())
    return frozenset(name for number, name in found.items() if number in used)


def _numbers(attributes: Any) -> set[int]:
    """In one call for all of them. A name that has such a number in it makes no less of what is needed."""
    return set(map(int, _NUMBER.findall(attributes.toString())))


class _Plan:
    """A data frame's plans, through Py4J."""

    def __init__(self, frame: DataFrame) -> None:
        execution = frame._jdf.queryExecution()
        self.analyzed = execution.analyzed()
        self._execution = execution
        self._convert = frame.sparkSession._jvm.scala.jdk.javaapi.CollectionConverters

    @property
    def optimized(self) -> Any:
        return self._execution.optimizedPlan()

    def output(self) -> list[tuple[int, str]]:
        """The numbers and names of the result's columns."""
        return self.columns(self.analyzed)

    def columns(self, node: Any) -> list[tuple[int, str]]:
        return [(each.exprId().id(), each.name()) for each in self.listed(node.output())]

    def listed(self, sequence: Any) -> list[Any]:
        return list(self._convert.asJava(sequence))

    def nodes(self, node: Any) -> Iterator[Any]:
        """The node and all below it, those of subqueries too."""
        yield node
        for below in (*self.listed(node.children()), *self.listed(node.subqueries())):
            yield from self.nodes(below)
