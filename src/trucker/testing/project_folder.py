"""Project folders written by a program: the demo's, the benchmarks', a test's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trucker.adapters.postgres import PostgresConnection


def postgres_entry(connection: PostgresConnection) -> dict[str, Any]:
    """What trucker.yml says of a database; the password is in it."""
    return {
        "name": connection.name,
        "adapter": "postgres",
        "host": connection.host,
        "port": connection.port,
        "database": connection.database,
        "user": connection.user,
        "pass": connection.password.get_secret_value(),
    }


def write_project(folder: Path, settings: Mapping[str, Any], trucks: Mapping[str, Mapping[str, Any]]) -> None:
    """Write trucker.yml, and truck.yml for each truck by its name."""
    _write(folder / "trucker.yml", settings)
    for name, truck in trucks.items():
        _write(folder / "trucks" / name / "truck.yml", truck)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False), encoding="utf-8")
