"""A ledger as a JSON file, for destinations that have no tables to keep it in.

The file is replaced as a whole: written to a temporary file, fsynced, renamed, and the folder fsynced, so that
after any crash there is either the old one or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from trucker.errors import SinkError
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.ledger import Entry, Ledger
from trucker.table import TableId

FORMAT: Final = 1


def load(path: Path, project: str) -> dict[str, Any] | None:
    """The file's content, None where there is none. Raises `SinkError` if it is damaged or another project's."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parsed(data, path, project)


def parsed(data: bytes, path: object, project: str) -> dict[str, Any]:
    """The content of what was stored at `path`; raises as `load` does."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise SinkError(
            f"{path} is damaged: it is not JSON",
            remedy="restore it from a backup, or delete the folder and run `trucker reset`",
            code="TRK452",
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SinkError(
            f"{path} was not written by this version of trucker",
            remedy="use the version that wrote it, or another folder",
            code="TRK453",
        )
    if content.get("project") != project:
        raise SinkError(
            f"{path} belongs to project {content.get('project')!r}, not to {project!r}",
            remedy="use a separate folder for each project, or set unique_id back",
            code="TRK454",
        )
    return content


def written(project: str, ledger: Ledger, **more: Any) -> bytes:
    """The content of the file."""
    content = {"format": FORMAT, "project": project, **ledger_to_json(ledger), **more}
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def save(
    path: Path, project: str, ledger: Ledger, *, opener: Callable[[str, int], int] | None = None, **more: Any
) -> None:
    """Replace the file; durable when this returns. `opener` is that of `open`, where the umask does not decide."""
    content = written(project, ledger, **more)
    temporary = path.with_name(f"{path.name}.new")
    reach("sink.position.before")
    with open(temporary, "wb", opener=opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    reach("sink.position.after")
    reach("sink.commit.before")
    temporary.replace(path)
    sync_folder(path.parent)
    reach("sink.commit.after")


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable, where the system can."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def ledger_to_json(ledger: Ledger) -> dict[str, Any]:
    return {
        "positions": {truck: str(lsn) for truck, lsn in sorted(ledger.positions.items())},
        "tables": [
            {
                "truck": truck,
                "schema": table.schema,
                "table": table.name,
                "phase": entry.phase.value,
                "lsn": str(entry.lsn),
                "target": [entry.target.schema, entry.target.name] if entry.target else None,
                "snapshot": entry.snapshot,
            }
            for (truck, table), entry in sorted(ledger.entries.items(), key=lambda item: item[0])
        ],
    }


def ledger_from_json(content: Mapping[str, Any]) -> Ledger:
    return Ledger(
        {truck: Lsn.parse(text) for truck, text in content["positions"].items()},
        {
            (row["truck"], TableId(row["schema"], row["table"])): Entry(
                Phase(row["phase"]),
                Lsn.parse(row["lsn"]),
                TableId(*row["target"]) if row["target"] else None,
                row["snapshot"],
            )
            for row in content["tables"]
        },
    )
