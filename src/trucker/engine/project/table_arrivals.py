"""Notices tables that begin to match a pattern of a truck while its source runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trucker.config.models import TruckConfig
from trucker.config.patterns import is_pattern, select_tables
from trucker.engine.truck.resolve import OWN_SCHEMA, ResolvedSource
from trucker.source.base import SourceTables
from trucker.table import TableId


class TableArrivals:
    """The tables that the trucks of one source would take now, and did not when it was resolved."""

    def __init__(self, trucks: Sequence[TruckConfig], resolved: ResolvedSource) -> None:
        tables = {truck.name: frozenset(truck.tables) for truck in resolved.trucks}
        self._patterns: Mapping[str, Sequence[str]] = {
            truck.name: truck.input.tables
            for truck in trucks
            if truck.name in tables and any(map(is_pattern, truck.input.tables))
        }
        self._tables = tables

    def look(self, session: SourceTables) -> frozenset[TableId]:
        """The new tables; asks nothing where no truck has a pattern."""
        if not self._patterns:
            return frozenset()
        available = [table for table in session.list_tables() if table.schema != OWN_SCHEMA]
        return frozenset(
            table
            for name, patterns in self._patterns.items()
            for table in select_tables(patterns, available)
            if table not in self._tables[name]
        )
