"""Move changes out of PostgreSQL: streaming pipelines made of YAML and SQL, on Spark, exactly once.

What a program needs is here; `docs/reference/library.md` has examples.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trucker.abilities import Abilities, Visible
    from trucker.change import Changes
    from trucker.config.adapter import Adapter, Connection
    from trucker.config.problems import ConfigErrors
    from trucker.control.answers import Refresh, RefreshState, Reloaded, Replay, StopRequest, TruckPause, Verification
    from trucker.errors import (
        ChangeLogError,
        CheckFailed,
        ConfigError,
        ControlError,
        DataError,
        EngineError,
        FileError,
        LockedError,
        SinkError,
        SinkUnavailable,
        SourceError,
        SourceUnavailable,
        TruckerError,
        TruckFailed,
    )
    from trucker.finding import Finding, Level
    from trucker.handlers import Batcher, Handler, RowRefused, SourceTransaction
    from trucker.observe.status import ProjectStatus, TruckPhase, TruckStatus
    from trucker.pipeline import Pipeline
    from trucker.project import Project
    from trucker.row_changes import RowChange, row_changes
    from trucker.sinks.base import Sink, Workspace
    from trucker.sinks.custom import SinkConnection
    from trucker.table import TableId, TableSchema

__version__ = "0.1.0"

_HOMES: Final = {
    "Abilities": "abilities",
    "Adapter": "config.adapter",
    "Batcher": "handlers",
    "ChangeLogError": "errors",
    "Changes": "change",
    "CheckFailed": "errors",
    "ConfigError": "errors",
    "ConfigErrors": "config.problems",
    "Connection": "config.adapter",
    "ControlError": "errors",
    "DataError": "errors",
    "EngineError": "errors",
    "FileError": "errors",
    "Finding": "finding",
    "Handler": "handlers",
    "Level": "finding",
    "LockedError": "errors",
    "Pipeline": "pipeline",
    "Project": "project",
    "ProjectStatus": "observe.status",
    "Refresh": "control.answers",
    "RefreshState": "control.answers",
    "Reloaded": "control.answers",
    "Replay": "control.answers",
    "RowChange": "row_changes",
    "RowRefused": "handlers",
    "Sink": "sinks.base",
    "SinkConnection": "sinks.custom",
    "SinkError": "errors",
    "SinkUnavailable": "errors",
    "SourceError": "errors",
    "SourceTransaction": "handlers",
    "SourceUnavailable": "errors",
    "StopRequest": "control.answers",
    "TableId": "table",
    "TableSchema": "table",
    "TruckFailed": "errors",
    "TruckPause": "control.answers",
    "TruckPhase": "observe.status",
    "TruckStatus": "observe.status",
    "TruckerError": "errors",
    "Verification": "control.answers",
    "Visible": "abilities",
    "Workspace": "sinks.base",
    "row_changes": "row_changes",
}

__all__ = [
    "Abilities",
    "Adapter",
    "Batcher",
    "ChangeLogError",
    "Changes",
    "CheckFailed",
    "ConfigError",
    "ConfigErrors",
    "Connection",
    "ControlError",
    "DataError",
    "EngineError",
    "FileError",
    "Finding",
    "Handler",
    "Level",
    "LockedError",
    "Pipeline",
    "Project",
    "ProjectStatus",
    "Refresh",
    "RefreshState",
    "Reloaded",
    "Replay",
    "RowChange",
    "RowRefused",
    "Sink",
    "SinkConnection",
    "SinkError",
    "SinkUnavailable",
    "SourceError",
    "SourceTransaction",
    "SourceUnavailable",
    "StopRequest",
    "TableId",
    "TableSchema",
    "TruckFailed",
    "TruckPause",
    "TruckPhase",
    "TruckStatus",
    "TruckerError",
    "Verification",
    "Visible",
    "Workspace",
    "__version__",
    "row_changes",
]


def __getattr__(name: str) -> Any:
    """A name is imported when it is first asked for, so that `trucker --help` need not wait for all of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
