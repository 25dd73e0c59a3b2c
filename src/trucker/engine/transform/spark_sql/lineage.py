"""Reads from Spark's plan of a query which columns it passes on unchanged, and which it uses at all.

Spark gives every expression of a plan an id; an id of the rows that reaches the top is a column passed on unchanged.
Only a union gives two expressions one id, that of its first branch.
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
    """For each column of the result, the column of `rows` that it passes on unchanged, or an empty text."""
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
    """The columns that the query needs, after Spark's pruning, of the relation with exactly the columns `rows`.

    An id is needed if a node above refers to it or if it reaches the top. Where branches are combined by position (a
    union, or any other node with several children except a join), all of their columns are needed.
    """
    plan = _Plan(query)
    columns: dict[int, str] = {}
    used = _numbers(plan.optimized.output())
    for node in plan.nodes(plan.optimized):
        kind = node.getClass().getSimpleName()
        if kind == "LogicalRDD":
            node_columns = plan.columns(node)
            if [name for _, name in node_columns] == list(rows):
                columns.update(node_columns)
            continue
        used |= _numbers(node.references())
        children = plan.listed(node.children())
        merged = children if len(children) > 1 and kind != "Join" else []
        for below in (*merged, *plan.listed(node.subqueries())):
            used |= _numbers(below.output())
    return frozenset(name for number, name in columns.items() if number in used)


def _numbers(attributes: Any) -> set[int]:
    """The ids of attributes, from their text: one call over Py4J for all. A column name that contains `#1` only adds an
    id, so that a column more is read."""
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
