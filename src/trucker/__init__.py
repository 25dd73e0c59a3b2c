"""Move changes out of PostgreSQL: streaming pipelines made of YAML and SQL, on Spark, exactly once."""

from __future__ import annotations

__version__ = "0.1.0"
