"""Envelopes of events through a project: copies, changes, transactions, and values that PostgreSQL does not send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder
from fixtures.waiting import wait_until

pytestmark = pytest.mark.spark

LONG = "x" * 3000


def events(folder: Path, name: str) -> list[Any]:
    files = sorted((folder / name).glob("*/changes-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def deleted(folder: Path, name: str) -> bool:
    """Whether the last change, a delete, is being written."""
    text = "".join(file.read_text() for file in (folder / name).glob("*/changes-*.jsonl"))
    return 'operation":"delete"' in text or '"op":"d"' in text


def test_envelopes_of_one_source(project: ProjectFolder, database: Database, tmp_path: Path, spark: Any) -> None:
    """I7: a value that was not sent is marked, or read at the source as it is now, where the row is still there."""
    database.execute(
        "create table t (id int primary key, n numeric, doc text)",
        "alter table t alter doc set storage external",
        f"insert into t values (1, 1.50, '{LONG}'), (2, 2, '{LONG}')",
    )
    settings: dict[str, dict[str, Any]] = {
        "own": {},
        "read": {"unsent": "read", "transactions": True},
        "flat": {"format": "flat"},
        "debezium": {"format": "debezium", "transactions": True, "debezium": {"name": "shop"}},
        "ruled": {"unsent": "read"},
    }
    for name, more in settings.items():
        project.connect({"name": name, "adapter": "jsonl", "path": str(tmp_path / name), **more})
        rules = {"rules": [{"rename": {"n": "m"}}]} if name == "ruled" else {}
        project.truck(name, ["public.t"], {"connection": name}).sql(name, {}, **rules)
    with InThread(project, spark) as run:
        run.wait_streaming(120)
        database.execute(
            "begin; update t set n = 3 where id = 1; update t set n = 4 where id = 2; delete from t where id = 2;"
            " commit"
        )
        wait_until(lambda: run.check() or all(deleted(tmp_path, name) for name in settings), timeout=60)
    own = events(tmp_path, "own")
    assert [(e["operation"], e.get("snapshot"), e.get("unchanged")) for e in own] == [
        ("insert", True, None),
        ("insert", True, None),
        ("update", None, ["doc"]),
        ("update", None, ["doc"]),
        ("delete", None, None),
    ]
    read = events(tmp_path, "read")
    assert [(e["operation"], e.get("unchanged"), (e.get("new") or {}).get("doc")) for e in read] == [
        ("insert", None, LONG),
        ("insert", None, LONG),
        ("begin", None, None),
        ("update", None, LONG),
        ("update", ["doc"], None),  # its row is gone
        ("delete", None, None),
        ("end", None, None),
    ]
    assert read[-1]["tables"] == [{"schema": "public", "table": "t", "events": 3}]
    assert [e["ordinal"] for e in read[3:6]] == [0, 1, 2]
    flat = events(tmp_path, "flat")
    assert [(e["_operation"], e["id"], e.get("n"), e.get("_unsent")) for e in flat] == [
        ("insert", 1, 1.5, None),
        ("insert", 2, 2, None),
        ("update", 1, 3, ["doc"]),
        ("update", 2, 4, ["doc"]),
        ("delete", 2, None, None),
    ]
    debezium = events(tmp_path, "debezium")
    assert [e.get("op", e.get("status")) for e in debezium] == ["r", "r", "BEGIN", "u", "u", "d", "END"]
    assert debezium[0]["after"] == {"id": 1, "n": "1.50", "doc": LONG}
    assert debezium[3]["after"] == {"id": 1, "n": "3", "doc": "__debezium_unavailable_value"}
    assert debezium[5]["before"] == {"id": 2, "n": None, "doc": None}
    assert {e["source"]["name"] for e in debezium if "source" in e} == {"shop"}
    assert debezium[-1]["event_count"] == 3
    ruled = events(tmp_path, "ruled")
    assert ruled[2]["new"] == {"id": 1, "m": 3, "doc": LONG}
    assert [e["operation"] for e in ruled][:3] == ["insert", "insert", "update"]
