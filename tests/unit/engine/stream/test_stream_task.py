"""What a task does: one truck's trouble is its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import wal
from fixtures.fake_source import FakeSource
from trucker.abilities import Abilities
from trucker.change import Changes, Column, CopiedRows, Lsn, TableId, TableSchema
from trucker.changelog.folder.writer import LogWriter
from trucker.changelog.format.reference import RUN_BYTES
from trucker.changelog.log_creation import create_log
from trucker.changelog.reader import LogReader
from trucker.engine.destination import task_sinks
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.snapshot import snapshot_task
from trucker.engine.stream import stream_task
from trucker.engine.task.partition import consecutive, copy_shares, joined
from trucker.engine.task.payload import CopyBatch, CopyPart, StreamBatch
from trucker.engine.transform import fold_accumulator
from trucker.engine.transform.assignment import Assignment
from trucker.errors import SinkError, SinkUnavailable, SourceUnavailable
from trucker.sinks.base import Sink
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.target import Target

TABLES = ("a", "b")


class Notebook(Sink):
    """Notes what it is given; or fails as told."""

    name = "notebook"

    def __init__(self, error: Exception | None = None, *, keeps: bool = False) -> None:
        self.given: list[tuple[Work, list[Changes | CopiedRows]]] = []
        self.error = error
        self.abilities = Abilities(every_change=keeps)  # type: ignore[misc]

    def open(self) -> Ledger:
        return Ledger()

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        taken = list(changes)
        if self.error is not None:
            raise self.error
        self.given.append((work, taken))
        return work.receipt(sum(map(_rows, taken)))

    def publish(self, delivery: Delivery) -> None:
        raise AssertionError("an executor never publishes")


def _rows(value: Changes | CopiedRows) -> int:
    return value.rows if isinstance(value, CopiedRows) else len(value)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Six transactions at 100, 200, …: a row for each table, the same key in all of them."""
    folder = tmp_path / "log"
    create_log(folder, wal.SOURCE, Lsn(50))
    with LogWriter(folder, wal.SOURCE, block_bytes=200) as writer:
        for number in range(1, 7):
            body = []
            for oid, name in enumerate(TABLES, 1):
                body += [wal.relation(oid, name, ("id", "v")), wal.insert(oid, str(number % 2), f"{name}{number}")]
            for message in wal.Transaction(number * 100, number * 100 + 10, body).messages:
                writer.append(message)
            writer.flush()
    return folder


def schema(table: str, *names: str, key: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(TableId("public", table), tuple(Column(name, 25) for name in names or ("id", "v")), key)


def assignment(truck: str, table: str, after: int = 0, **more: Any) -> Assignment:
    return Assignment(truck, Target(truck, schema(table, **more), TableId(truck, table)), Lsn(after))


def stream(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    sinks: dict[str, Notebook],
    *given: Assignment,
    count: int = 1,
    left: float = 1.0,
) -> Any:
    _lend(monkeypatch, sinks)
    blocks = LogReader(log).blocks(Lsn(50), Lsn(1000), 1 if count > 1 else RUN_BYTES)
    batch = Batch(Lsn(50), Lsn(1000))
    specs = {name: SinkSpec(SimpleNamespace(name=name), SimpleNamespace()) for name in sinks}  # type: ignore[arg-type]
    shared = StreamBatch(LogReader(log), dict.fromkeys(sinks, batch), specs, given)
    parts = consecutive(blocks, -(-sum(block.bytes for block in blocks) // count))
    assert len(parts) == count
    return [stream_task.stream_part(shared, part) for part in joined(parts, left)]


def _lend(monkeypatch: pytest.MonkeyPatch, sinks: dict[str, Notebook]) -> None:
    monkeypatch.setattr(task_sinks, "sink_for", lambda spec: sinks[spec.connection.name])


def _values(sink: Notebook) -> list[str]:
    return [v for _, taken in sink.given for value in taken for v in value.new.column("v").to_pylist()]  # type: ignore[union-attr]


def test_each_truck_gets_what_it_has_not_applied(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = {"x": Notebook(), "y": Notebook()}
    outcome = stream(
        log, monkeypatch, sinks, assignment("x", "a", 310), assignment("y", "a"), assignment("y", "b", 600)
    )[0]
    assert sorted(_values(sinks["x"])) == ["a4", "a5", "a6"]
    assert sorted(_values(sinks["y"])) == ["a1", "a2", "a3", "a4", "a5", "a6", "b6"]
    assert not outcome.failures
    assert {name: sum(r.rows for r in kept) for name, kept in outcome.receipts.items()} == {"x": 3, "y": 7}


def test_each_part_is_folded_separately_and_parts_stay_in_order(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = Notebook(), Notebook()
    stream(log, monkeypatch, {"x": whole}, assignment("x", "a", key=("id",)))
    stream(log, monkeypatch, {"x": cut}, assignment("x", "a", key=("id",)), count=2)
    assert _values(whole) == ["a5", "a6"], "the last of each key"
    assert [work.part for work, _ in cut.given] == [0, 1]
    assert _values(cut) == ["a2", "a3", "a5", "a6"], "the last of each key in each part"


def test_pieces_of_a_part_are_folded_together_while_little_is_left(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece has three changes: of two keys, which is too much to wait for the next piece, or of one."""
    two, one = Notebook(), Notebook()
    (outcome,) = stream(log, monkeypatch, {"x": two}, assignment("x", "a", key=("id",)), count=2, left=0.1)
    assert [work.part for work, _ in two.given] == [0, 1]
    assert _values(two) == ["a2", "a3", "a5", "a6"]
    assert (outcome.read, outcome.left) == (6, 4)
    monkeypatch.setattr(fold_accumulator, "SMALL", 1.5)
    (outcome,) = stream(log, monkeypatch, {"x": one}, assignment("x", "a", key=("id",)), count=2, left=0.1)
    assert [work.part for work, _ in one.given] == [0]
    assert _values(one) == ["a5", "a6"], "the last of each key"
    assert (outcome.read, outcome.left) == (6, 2)


def test_what_waits_keeps_the_number_of_its_first_piece(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table that comes later has a number of its own: none of its changes is before that piece."""
    monkeypatch.setattr(fold_accumulator, "SMALL", 1.0)
    sink = Notebook()
    given = assignment("x", "a", key=("id",)), assignment("x", "b", 410, key=("id",))
    stream(log, monkeypatch, {"x": sink}, *given, count=3, left=0.1)
    assert [(work.target.source.table.name, work.part) for work, _ in sink.given] == [
        ("a", 0),
        ("b", 2),
    ]
    assert _values(sink) == ["a5", "a6", "b5", "b6"]


def test_a_truck_that_fails_in_one_piece_is_given_no_other(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = {"x": Notebook(SinkUnavailable("away"), keeps=True), "y": Notebook(keeps=True)}
    (outcome,) = stream(log, monkeypatch, sinks, assignment("x", "a"), assignment("y", "a"), count=3, left=0.1)
    assert [failure.truck for failure in outcome.failures] == ["x"]
    assert [work.part for work, _ in sinks["y"].given] == [0, 1, 2]
    assert _values(sinks["y"]) == ["a1", "a2", "a3", "a4", "a5", "a6"]


def test_a_sink_that_keeps_changes_gets_all_of_them_in_order(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Notebook(keeps=True)
    stream(log, monkeypatch, {"x": sink}, assignment("x", "a", key=("id",)), count=3)
    assert _values(sink) == ["a1", "a2", "a3", "a4", "a5", "a6"]


@pytest.mark.parametrize("error", [SinkUnavailable("away"), ValueError("a row with 4711 in it")])
def test_a_sink_that_fails_fails_its_own_truck(log: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    sinks = {"x": Notebook(error), "y": Notebook()}
    (outcome,) = stream(log, monkeypatch, sinks, assignment("x", "a"), assignment("y", "a"))
    assert [failure.truck for failure in outcome.failures] == ["x"]
    assert "4711" not in str(outcome.failures[0].error)
    assert len(_values(sinks["y"])) == 6


def test_a_bug_in_folding_fails_the_truck_it_hits(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fold_accumulator.compact

    def compact(values: list[Changes]) -> Any:
        if values[0].schema.table.name == "a":
            raise IndexError("a row with 4711 in it")
        return real(values)

    monkeypatch.setattr(fold_accumulator, "compact", compact)
    sinks = {"x": Notebook(), "y": Notebook()}
    (outcome,) = stream(log, monkeypatch, sinks, assignment("x", "a"), assignment("y", "b"))
    assert [(f.truck, f.error.code, f.error.transient) for f in outcome.failures] == [("x", "TRK599", False)]
    assert "4711" not in str(outcome.failures[0].error)
    assert len(_values(sinks["y"])) == 6


def test_a_log_that_cannot_be_read_fails_everybody_and_raises_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = LogReader(log).blocks(Lsn(50), Lsn(1000))
    path = next(path for path in log.iterdir() if path.name.startswith("0"))
    data = bytearray(path.read_bytes())
    data[blocks[0].offset + 150] ^= 0xFF
    path.write_bytes(data)
    sinks = {"x": Notebook(), "y": Notebook(keeps=True)}
    (outcome,) = stream(log, monkeypatch, sinks, assignment("x", "a"), assignment("y", "a"))
    assert {failure.truck for failure in outcome.failures} == {"x", "y"}
    assert all(failure.error.code.startswith("TRK3") for failure in outcome.failures)


# -- copies ----------------------------------------------------------------------------------------------------


def copy(
    monkeypatch: pytest.MonkeyPatch,
    sinks: dict[str, Notebook],
    *given: Assignment,
    error: Exception | None = None,
    parts: Sequence[tuple[int, str]] = ((4, "a"),),
) -> Any:
    """A share of one chunk of `a`, or of `parts`; reading `a` fails with the `error`."""

    def read(chunk: Any, lsn: Lsn) -> Iterator[CopiedRows]:
        yield CopiedRows(chunk.schema, b'"1","one"\n"2","two"\n', 2, lsn)
        if error is not None and chunk.leaf.name == "a":
            raise error
        yield CopiedRows(chunk.schema, b'"3",\n', 1, lsn)

    _lend(monkeypatch, sinks)
    batch = Batch(Lsn(9), Lsn(9), snapshot="copy")
    specs = {name: SinkSpec(SimpleNamespace(name=name), SimpleNamespace()) for name in sinks}  # type: ignore[arg-type]
    share = []
    for index, table in parts:
        chunk: Any = SimpleNamespace(schema=schema(table), leaf=TableId("public", table))
        own = [each for each in given if each.target.source.table.name == table]
        share.append(CopyPart(index, chunk, own))
    return snapshot_task.copy_share(
        CopyBatch(FakeSource(read), "snapshot", Lsn(9), dict.fromkeys(sinks, batch), specs), tuple(share)
    )


def test_a_chunk_is_read_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = {"x": Notebook(), "y": Notebook()}
    narrow = Assignment("y", Target("y", schema("a", "id"), TableId("y", "a")), Lsn(9))
    outcome = copy(monkeypatch, sinks, assignment("x", "a"), narrow)
    assert [_rows(value) for _, taken in sinks["x"].given for value in taken] == [2, 1]
    assert all(isinstance(value, CopiedRows) for _, taken in sinks["x"].given for value in taken)
    only = [value for _, taken in sinks["y"].given for value in taken]
    assert [value.new.to_pydict() for value in only] == [{"id": ["1", "2"]}, {"id": ["3"]}]  # type: ignore[union-attr]
    assert {name: [(r.part, r.rows) for r in kept] for name, kept in outcome.receipts.items()} == {
        "x": [(4, 3)],
        "y": [(4, 3)],
    }


@pytest.mark.parametrize("error", [SourceUnavailable("the snapshot is gone"), RuntimeError("4711")])
def test_a_chunk_that_cannot_be_read_leaves_no_receipt(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    sinks = {"x": Notebook(), "y": Notebook()}
    for given in ([assignment("x", "a")], [assignment("x", "a"), assignment("y", "a")]):
        outcome = copy(monkeypatch, sinks, *given, error=error)
        assert not any(outcome.receipts.values())
        assert {failure.truck for failure in outcome.failures} == {found.destination for found in given}
        assert {failure.table for failure in outcome.failures} == {TableId("public", "a")}
        assert all("4711" not in str(failure.error) for failure in outcome.failures)


def test_a_table_that_cannot_be_read_now_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its later chunks are not even tried: the whole of it is copied again."""
    sinks = {"x": Notebook()}
    given = [assignment("x", "a"), assignment("x", "b")]
    parts = [(0, "a"), (1, "a"), (2, "b")]
    outcome = copy(monkeypatch, sinks, *given, error=SourceUnavailable("rewritten"), parts=parts)
    assert [receipt.part for receipt in outcome.receipts["x"]] == [2]
    assert [failure.table for failure in outcome.failures] == [TableId("public", "a")] * 2


def test_a_truck_that_fails_for_good_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = {"x": Notebook(SinkError("no")), "y": Notebook()}
    given = [assignment(name, table) for name in sinks for table in TABLES]
    outcome = copy(monkeypatch, sinks, *given, parts=[(0, "a"), (1, "b")])
    assert [receipt.part for receipt in outcome.receipts["y"]] == [0, 1]
    assert [(failure.truck, failure.table) for failure in outcome.failures] == [
        ("x", TableId("public", "a")),
        ("x", TableId("public", "b")),
    ]


def test_shares_are_cut_by_what_they_cost() -> None:
    def parts(*sizes: int) -> list[CopyPart]:
        chunks: list[Any] = [SimpleNamespace(bytes=size) for size in sizes]
        return [CopyPart(index, chunk, ()) for index, chunk in enumerate(chunks)]

    large, small = 16 << 20, 8 << 10
    assert [len(share) for share in copy_shares(parts(*[large] * 8), 4)] == [2, 2, 2, 2]
    assert {len(share) for share in copy_shares(parts(*[small] * 500), 16)} == {31, 32}
    assert [len(share) for share in copy_shares(parts(*[small] * 50, large, large), 3)] == [50, 1, 1]
    assert [[part.index for part in share] for share in copy_shares(parts(small, large), 8)] == [[0], [1]]
    assert copy_shares([], 8) == []


def test_a_sink_is_built_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Notebook] = []

    def make(*_: object) -> Sink:
        made.append(Notebook())
        return made[-1]

    monkeypatch.setattr(task_sinks, "make_sink", make)
    monkeypatch.setattr(task_sinks, "_sinks", task_sinks._Sinks())
    one: Any = SinkSpec(SimpleNamespace(name="x"), SimpleNamespace(folder=1))  # type: ignore[arg-type]
    other: Any = SinkSpec(SimpleNamespace(name="x"), SimpleNamespace(folder=2))  # type: ignore[arg-type]
    assert task_sinks.sink_for(one) is task_sinks.sink_for(one)
    assert task_sinks.sink_for(other) is not made[0]
    assert len(made) == 2


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """One transaction in which the key of a table is renamed, and a row of another one."""
    folder = tmp_path / "renamed"
    create_log(folder, wal.SOURCE, Lsn(50))
    body = [
        wal.relation(1, "a", ("id", "v")),
        wal.insert(1, "1", "a1"),
        wal.relation(1, "a", ("name", "v")),
        wal.insert(1, "2", "a2"),
        wal.relation(2, "b", ("id", "v")),
        wal.insert(2, "1", "b1"),
    ]
    with LogWriter(folder, wal.SOURCE) as writer:
        for message in wal.Transaction(100, 110, body).messages:
            writer.append(message)
        writer.flush()
    return folder


def test_changes_that_are_kept_stay_in_their_own_shapes(renamed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own key, though the transaction has two."""
    sinks = {"x": Notebook(keeps=True)}
    shapes = [schema("a", "id", "v", key=("id",)), schema("a", "name", "v", key=("name",))]
    target = Target("x", shapes[1], TableId("x", "a"))
    own = {tuple(Column(name, 25) for name in shape.names): shape for shape in shapes}
    outcome = stream(renamed, monkeypatch, sinks, Assignment("x", target, Lsn(0), own=own))[0]
    assert not outcome.failures
    assert [(c.schema, c.new.to_pylist()) for _, taken in sinks["x"].given for c in taken] == [  # type: ignore[union-attr]
        (shapes[0], [{"id": "1", "v": "a1"}]),
        (shapes[1], [{"name": "2", "v": "a2"}]),
    ]


def test_a_truck_that_reads_a_table_by_another_key_is_read_apart(
    renamed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it cannot read is its own trouble (I8)."""
    sinks = {"x": Notebook(), "y": Notebook()}
    given = assignment("y", "b", key=("id",)), assignment("x", "b", key=("missing",))
    outcome = stream(renamed, monkeypatch, sinks, *given)[0]
    assert _values(sinks["y"]) == ["b1"]
    assert [failure.truck for failure in outcome.failures] == ["x"]
