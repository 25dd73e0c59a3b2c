from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.adapters.jsonl import JsonLinesConnection
from trucker.change import Changes, Lsn, TableId
from trucker.errors import SinkError, SinkUnavailable
from trucker.finding import Checkable, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.committer import Committer
from trucker.sinks.envelope.envelope import EnvelopeSettings
from trucker.sinks.envelope.staged_events import stage_events, staged_events
from trucker.sinks.lines.jsonl import JsonLinesSink
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.testing.handmade import changes_of, insert, schema_of

TABLES = [schema_of(TableId("public", name), {"n": "integer"}, ["n"]) for name in ("a", "b", "c")]
A = Target("main", TABLES[0], TABLES[0].table)


def make_sink(folder: Path, *, rotate_bytes: int = 1 << 20) -> JsonLinesSink:
    connection = JsonLinesConnection(name="l", adapter="jsonl", path=folder / "lines", rotate_bytes=rotate_bytes)
    return JsonLinesSink(connection, Workspace("p", folder / "work"))


def make(folder: Path, *, rotate_bytes: int = 1 << 20) -> Committer:
    return Committer(make_sink(folder, rotate_bytes=rotate_bytes))


def commit(sink: Committer, step: int, count: int = 1, target: Target = A) -> None:
    batch = Batch(Lsn(step), Lsn(step + 1), {target.truck: Lsn(step + 1)}, targets=(target,))
    rows = [insert({"n": str(step * 1000 + n)}) for n in range(count)]
    values = changes_of(target.source, rows, lsn=Lsn(step))
    sink.commit(batch, [sink.write(Work(batch, target, 0), iter([values]))])


def numbers(folder: Path, truck: str = "main") -> list[int]:
    files = sorted((folder / "lines" / truck).glob("*.jsonl"))
    return [json.loads(line)["new"]["n"] for file in files for line in file.read_text().splitlines()]


def test_lines_behind_the_manifest_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: a crash between appending and replacing the manifest."""
    sink = make(tmp_path, rotate_bytes=200)
    sink.open()
    commit(sink, 1)

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            commit(sink, 2, 10)
    assert len(numbers(tmp_path)) == 11
    again = make(tmp_path, rotate_bytes=200)
    assert again.open()["main"].lsn == 2
    assert numbers(tmp_path) == [1000]
    commit(again, 2, 2)
    assert numbers(tmp_path) == [1000, 2000, 2001]


def test_an_attempt_that_failed_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same process goes on after an error, without opening again."""
    sink = make(tmp_path, rotate_bytes=200)
    sink.open()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "save", full)
        with pytest.raises(SinkUnavailable, match="No space left"):
            commit(sink, 1, 10)
    commit(sink, 1, 3)
    assert numbers(tmp_path) == [1000, 1001, 1002]


def test_a_truck_of_which_nothing_was_committed(tmp_path: Path) -> None:
    make(tmp_path).open()
    (tmp_path / "lines" / "main").mkdir()
    (tmp_path / "lines" / "main" / "changes-000001.jsonl").write_text("{half a li")
    make(tmp_path).open()
    assert list((tmp_path / "lines" / "main").iterdir()) == []


def test_rotation_at_whole_lines(tmp_path: Path) -> None:
    sink = make(tmp_path, rotate_bytes=1000)
    sink.open()
    for step in range(1, 6):
        commit(sink, step, 7)
    sizes = [file.stat().st_size for file in sorted((tmp_path / "lines" / "main").iterdir())]
    assert len(sizes) > 4
    assert all(1000 <= size < 1300 for size in sizes[:-1])
    assert numbers(tmp_path) == [step * 1000 + n for step in range(1, 6) for n in range(7)]


def test_lost_bytes_are_noticed(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open()
    commit(sink, 1, 3)
    os.truncate(tmp_path / "lines" / "main" / "changes-000001.jsonl", 10)
    with pytest.raises(SinkError, match="lines are missing"):
        make(tmp_path).open()


def test_lost_files_are_noticed(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open()
    commit(sink, 1, 3)
    (tmp_path / "lines" / "main" / "changes-000001.jsonl").unlink()
    (tmp_path / "lines" / "main").rmdir()
    with pytest.raises(SinkError, match="lines are missing"):
        make(tmp_path).open()


def test_files_of_others_stay(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open()
    commit(sink, 1)
    for place in ("notes.txt", "main/notes.txt", "main/changes-1.jsonl"):
        (tmp_path / "lines" / place).write_text("mine")
    make(tmp_path).open()
    for place in ("notes.txt", "main/notes.txt", "main/changes-1.jsonl"):
        assert (tmp_path / "lines" / place).read_text() == "mine"


def test_lines_without_a_manifest_are_refused(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open()
    commit(sink, 1)
    (tmp_path / "lines" / "manifest.json").unlink()
    with pytest.raises(SinkError, match=r"no manifest\.json"):
        make(tmp_path).open()
    assert numbers(tmp_path) == [1000]


@pytest.mark.parametrize(("text", "code"), [("{", "TRK452"), ("[]", "TRK453"), ('{"format": 99}', "TRK453")])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str, code: str) -> None:
    make(tmp_path).open()
    (tmp_path / "lines" / "manifest.json").write_text(text)
    with pytest.raises(SinkError, match=code):
        make(tmp_path).open()
    (finding,) = make_sink(tmp_path).check()
    assert (finding.level, finding.code) == (Level.ERROR, code)


def test_odd_truck_names(tmp_path: Path) -> None:
    names = ["..", ".x", "a/b", "with space", "é"]
    sink = make(tmp_path)
    sink.open()
    for name in names:
        commit(sink, 1, 2, replace(A, truck=name))
    assert len(list((tmp_path / "lines").glob("*/changes-000001.jsonl"))) == len(names)
    assert set(make(tmp_path).open()) == set(names)


def test_check_creates_nothing(tmp_path: Path) -> None:
    sink = make_sink(tmp_path)
    assert isinstance(sink, Checkable)
    (finding,) = sink.check()
    assert finding.level is Level.OK
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lines").touch()
    (finding,) = sink.check()
    assert finding.level is Level.ERROR


def place(changes: Changes, lsn: Sequence[int], ordinal: Sequence[int]) -> Changes:
    return replace(changes, commit_lsn=np.array(lsn, np.uint64), ordinal=np.array(ordinal, np.int64))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_tables_are_interleaved_in_commit_order(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, int]], parts: int, piece: int
) -> None:
    """However the changes of several tables are cut into parts and values, the lines come in commit order."""
    made.sort()
    spool = Spool(tmp_path_factory.mktemp("spool"), inline_bytes=500)
    batch = Batch(Lsn(1), Lsn(9), {"main": Lsn(9)})
    receipts: list[Receipt] = []
    for table, schema in enumerate(TABLES):
        target = Target("main", schema, schema.table)
        for part in range(parts):
            bounds = slice(len(made) * part // parts, len(made) * (part + 1) // parts)
            own = [n for n in range(len(made))[bounds] if made[n][1] == table]
            values = [
                place(
                    changes_of(schema, [insert({"n": str(n)}) for n in own[start : start + piece]]),
                    [made[n][0] for n in own[start : start + piece]],
                    own[start : start + piece],
                )
                for start in range(0, len(own), piece)
            ]
            receipts.append(stage_events(spool, EnvelopeSettings(), Work(batch, target, part), iter(values)))
    found = [
        json.loads(line)["new"]["n"]
        for events in staged_events(
            spool, EnvelopeSettings(), batch, receipts[::-1], {schema.table: schema.table for schema in TABLES}
        )
        for line in events.value.to_pylist()
    ]
    assert found == list(range(len(made)))
