"""Move changes out of PostgreSQL: streaming pipelines made of YAML and SQL, on Spark, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trucker.project import Project

__all__ = ["Project", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Project` is loaded when it is first asked for, so that `trucker --help` need not wait for it."""
    if name == "Project":
        from trucker.project import Project

        return Project
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
