"""The type of an open connection to PostgreSQL, whatever its rows are made of."""

from __future__ import annotations

from typing import Any

import psycopg

PgConnection = psycopg.Connection[Any]
