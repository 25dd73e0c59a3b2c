"""DuckDB as a destination."""

from __future__ import annotations

from trucker.sinks.duckdb.sink import DuckDBSink

__all__ = ["DuckDBSink"]
