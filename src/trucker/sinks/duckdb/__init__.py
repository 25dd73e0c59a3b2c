"""DuckDB as a destination."""

from __future__ import annotations

import duckdb as _driver  # noqa: F401  (first, so that an error names it where it is not installed)

from trucker.sinks.duckdb.sink import DuckDBSink

__all__ = ["DuckDBSink"]
