"""Spark SQL for trucks: transform.sql, insert.sql, update.sql and delete.sql, Python functions and lookups."""
