from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trucker.adapters.stdout import StdoutConnection
from trucker.change import Lsn, TableId
from trucker.errors import SinkError
from trucker.finding import Checkable, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.committer import Committer
from trucker.sinks.lines.stdout import StdoutSink
from trucker.sinks.target import Target
from trucker.testing.handmade import changes_of, insert, schema_of

SCHEMA = schema_of(TableId("public", "t"), {"n": "integer"}, ["n"])
TARGET = Target("main", SCHEMA, SCHEMA.table)


def make_sink(folder: Path) -> StdoutSink:
    return StdoutSink(StdoutConnection(name="out", adapter="stdout"), Workspace("p", folder))


def make(folder: Path) -> Committer:
    return Committer(make_sink(folder))


def staged(sink: Committer, count: int = 3) -> tuple[Batch, list[Receipt]]:
    batch = Batch(Lsn(1), Lsn(2), {"main": Lsn(2)}, targets=(TARGET,))
    values = changes_of(SCHEMA, [insert({"n": str(n)}) for n in range(count)])
    return batch, [sink.write(Work(batch, TARGET, 0), iter([values]))]


def test_lines_and_position(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = make(tmp_path)
    sink.open()
    sink.commit(*staged(sink))
    assert [json.loads(line)["new"]["n"] for line in capfdbinary.readouterr().out.splitlines()] == [0, 1, 2]
    assert make(tmp_path).open()["main"].lsn == 2


def test_a_crash_before_the_position_prints_again(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    sink = make(tmp_path)
    sink.open()
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(*staged(sink))
    again = make(tmp_path)
    again.open()
    again.commit(*staged(again))
    assert len(capfdbinary.readouterr().out.splitlines()) == 6


def test_a_closed_pipe_stops_the_truck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = make(tmp_path)
    sink.open()
    batch, receipts = staged(sink, 5000)
    with os.fdopen(writing, "wb") as raw:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw))
        with pytest.raises(SinkError, match="closed by its reader") as failed:
            sink.commit(batch, receipts)
        assert not failed.value.transient
        sys.stdout.flush()
    assert dict(make(tmp_path).open()) == {}


def test_a_closed_pipe_leaves_the_exit_clean(tmp_path: Path) -> None:
    """Nothing is left over that would fail again when Python ends."""
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from unit.sinks.test_stdout import make, staged\n"
        "from trucker.errors import SinkError\n"
        "sink = make(Path(sys.argv[1])); sink.open()\n"
        "try: sink.commit(*staged(sink, 5000))\n"
        "except SinkError: sys.exit(7)\n"
    )
    tests = str(Path(__file__).parents[2])
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), tests], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (7, b"")


def test_check(tmp_path: Path) -> None:
    sink = make_sink(tmp_path / "work")
    assert isinstance(sink, Checkable)
    assert [finding.level for finding in sink.check()] == [Level.OK]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "out.positions.json").write_text("{")
    assert [finding.level for finding in sink.check()] == [Level.ERROR]
