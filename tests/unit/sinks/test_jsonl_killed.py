"""kill -9 while lines are written: none lost, none doubled, none half (I4)."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures.killed import KEEPS, kill_repeatedly
from trucker.adapters.jsonl import JsonLinesConnection
from trucker.sinks.base import Workspace
from trucker.sinks.lines.jsonl import JsonLinesSink


def make_sink(folder: Path) -> JsonLinesSink:
    connection = JsonLinesConnection(name="l", adapter="jsonl", path=folder / "lines", rotate_bytes=50_000)
    return JsonLinesSink(connection, Workspace("p", folder / "work"))


def test_killed(tmp_path: Path) -> None:
    def check(committed: int) -> None:
        position = make_sink(tmp_path).open().states()["main"].lsn
        last = position // 10 - 1
        assert last >= committed
        files = sorted((tmp_path / "lines" / "main").iterdir())
        text = b"".join(file.read_bytes() for file in files)
        found = [(line["operation"], line["key"]["id"]) for line in map(json.loads, text.splitlines())]
        expected = [("insert", 0)]
        for number in range(1, last + 1):
            expected += [("insert", number), ("update", 0)]
            expected += [("delete", number - KEEPS)] if number > KEEPS else []
        assert found == expected

    kill_repeatedly("unit.sinks.test_jsonl_killed", tmp_path, check, 2)
