"""`input.sql`: a truck's query on the source, for rows that changed and for rows that are copied.

The driver prepares it (`prepare_query`): PostgreSQL parses and plans the statement and returns its result's columns;
nothing is run. The prepared query is pickled, and executors run it (`run_query`, `query_chunk`) on their own
connections, opened with `connect(…, own_sql=True)`: tables are found by the role's search path, and nothing can be
written.

`{{ rows }}` is a subselect of one array parameter per column (`types`): values are data however many there are, no
temporary table is needed, so that it works on a standby, and the planner knows the number of rows. For a chunk of a
snapshot it is the chunk itself, read where it lies.
"""

from __future__ import annotations

from trucker.postgres.source_query.check import check_input, check_old_values, old_values_problem
from trucker.postgres.source_query.prepare import prepare_query
from trucker.postgres.source_query.query import PostgresQuery
from trucker.postgres.source_query.reselect import reselect
from trucker.postgres.source_query.run import query_chunk, run_query

__all__ = [
    "PostgresQuery",
    "check_input",
    "check_old_values",
    "old_values_problem",
    "prepare_query",
    "query_chunk",
    "reselect",
    "run_query",
]
