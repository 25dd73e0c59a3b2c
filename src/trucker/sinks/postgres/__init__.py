"""PostgreSQL as a destination.

sink        the contract's five methods
session     connections, kept per process
failure     SQLSTATEs as trucker's errors
own_tables  positions, tables and copied chunks in schema `trucker`
table       the destination's tables: described, created, widened
stage       changes as rows to stage, and where they are staged
apply       the statements that bring staged rows into a table
copy        snapshot rows
check       what `trucker check` asks
"""

from __future__ import annotations

from trucker.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
