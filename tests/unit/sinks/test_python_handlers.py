"""What handlers and batchers are called with, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fixtures.handlers import FullJournal, Journal, KeepingShelf, Shelf, connection_of, journal, shelf
from trucker import Batcher, Handler, RowChange, RowRefused, TableId
from trucker.change import Lsn
from trucker.config.handler_file import HandlerFile, HandlerText, read_handler
from trucker.errors import DataError, SinkError, SinkHeld, SinkUnavailable, TruckFailed
from trucker.finding import Level
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch
from trucker.sinks.committer import Committer
from trucker.sinks.letters import Choice
from trucker.sinks.python import python_sink
from trucker.sinks.python.documents import DocumentFolder
from trucker.sinks.python.handler_code import check_class, instance_of
from trucker.testing.handmade import copied_rows_of, delete, insert, schema_of, truncate, update
from trucker.testing.suites.sink_suite import ITEMS, PAIR, START, SinkMeans, TargetLoad, target_of
from trucker.types import Unfit

MAIN = target_of(ITEMS)
OTHER = target_of(PAIR, "other")
SECRET = "the row's own text"


def item(number: int, **cells: str) -> dict[str, str | None]:
    return {"id": str(number), "name": None, "qty": None, "note": None, **cells}


class Desk(SinkMeans):
    """A sink with one class for its trucks, driven by hand."""

    def __init__(self, folder: Path, kind: type, *trucks: str, settings: Mapping[str, Any], **more: Any) -> None:
        self.folder = folder
        self._make: Callable[[], Any] = lambda: connection_of(kind, *(trucks or ("main",)), settings=settings, **more)

    def make_sink(self, project: str = "suite") -> Sink:
        return python_sink(self._make(), Workspace(project, self.folder / project))

    def streaming(self, *targets: Any) -> Committer:
        sink = self.committer()
        sink.open()
        self.copy(sink, {target: [] for target in targets or (MAIN,)})
        return sink


def calls(path: Path, *names: str) -> list[tuple[Any, ...]]:
    """The calls of a journal, with the id of the row."""
    found = []
    for entry in journal(path):
        row = entry.get("new") or entry.get("old") or {}
        if not names or entry["call"] in names:
            found.append((entry["call"], row.get("id", row.get("a"))))
    return found


# -- every change ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_given_whole_and_in_order_across_tables(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FullJournal, settings={"path": tmp_path / "journal"})
    pair = target_of(PAIR)
    sink = desk.streaming(MAIN, pair)
    first, second = Lsn(START + 0x10), Lsn(START + 0x20)
    batch = desk.batch([MAIN, pair])
    parts: TargetLoad = {
        MAIN: [[_at(first, 0, MAIN, insert(item(1)))], [_at(second, 1, MAIN, insert(item(2)))]],
        pair: [[_at(first, 1, pair, insert({"a": "7"})), _at(second, 0, pair, insert({"a": "8"}))]],
    }
    sink.commit(batch, desk.write(batch, parts))
    assert calls(tmp_path / "journal")[2:] == [
        ("begin", None),
        ("insert", 1),
        ("insert", 7),
        ("commit", None),
        ("begin", None),
        ("insert", 8),
        ("insert", 2),
        ("commit", None),
    ]


def _at(lsn: Lsn, ordinal: int, target: Any, *changes: Any) -> Any:
    from trucker.testing.handmade import changes_of

    values = changes_of(target.source, changes, lsn=lsn)
    return replace(values, ordinal=values.ordinal + ordinal)


def test_the_rows_of_a_copy_come_in_pieces_behind_a_refresh(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FullJournal, settings={"path": tmp_path / "journal"})
    sink = desk.committer()
    sink.open()
    rows = [item(number) for number in range(2500)]
    desk.copy(sink, {MAIN: [[copied_rows_of(ITEMS, rows[:1200])], [copied_rows_of(ITEMS, rows[1200:])]]})
    names = [entry["call"] for entry in journal(tmp_path / "journal")]
    assert names[:3] == ["refresh", "begin", "insert"]
    assert (names.count("begin"), names.count("insert"), names.count("commit")) == (3, 2500, 3)
    assert all(entry["snapshot"] for entry in journal(tmp_path / "journal")[1:])
    assert [number for name, number in calls(tmp_path / "journal", "insert")] == list(range(2500))


def test_a_table_has_the_name_that_the_truck_gives_it(tmp_path: Path) -> None:
    target = target_of(ITEMS, table=TableId("lake", "things"))
    desk = Desk(tmp_path, FullJournal, settings={"path": tmp_path / "journal"})
    sink = desk.streaming(target)
    desk.change(sink, target, insert(item(1)))
    assert {entry["table"] for entry in journal(tmp_path / "journal") if entry["table"]} == {"lake.things"}


class Clumsy(Journal):
    """Fails as long as a file is there, at rows with a name."""

    def on_insert(self, change: RowChange) -> None:
        if change.new and change.new["name"] and (self._path.parent / "broken").exists():
            raise KeyError(SECRET)
        super().on_insert(change)


def test_a_handler_that_fails_goes_on_at_the_transaction_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    desk = Desk(tmp_path, Clumsy, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()
    (tmp_path / "broken").touch()
    batch = desk.batch([MAIN])
    parts: TargetLoad = {
        MAIN: [
            [_at(Lsn(START + n), 0, MAIN, insert(item(n, **({"name": "x"} if n == 3 else {}))))] for n in range(1, 5)
        ]
    }
    for _ in range(2):
        with pytest.raises(TruckFailed) as caught:
            sink.commit(batch, desk.write(batch, parts))
        assert isinstance(caught.value.reason, SinkUnavailable)
        assert caught.value.reason.code == "TRK743"
        assert "on_insert of public.items: KeyError in test_python_handlers.py, line " in str(caught.value)
        assert SECRET not in str(caught.value) + caplog.text
    (tmp_path / "broken").unlink()
    sink.commit(batch, desk.write(batch, parts))
    assert calls(tmp_path / "journal") == [("insert", number) for number in (1, 2, 3, 4)]
    assert desk.committer().open()["main"].lsn == batch.end


def test_a_failure_that_stays_stops_the_truck(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Clumsy, settings={"path": tmp_path / "journal"}, tries=3)
    sink = desk.streaming()
    (tmp_path / "broken").touch()
    reasons = []
    for _ in range(4):
        with pytest.raises(TruckFailed) as caught:
            desk.change(sink, MAIN, insert(item(1)), insert(item(2, name="x")))
        reasons.append(caught.value.reason)
    assert [reason.code for reason in reasons] == ["TRK743", "TRK743", "TRK744", "TRK744"]
    assert isinstance(reasons[2], DataError)
    assert "id = 2" in reasons[2].message
    assert SECRET not in str(reasons[2])


def test_the_other_trucks_are_given_a_delivery_once(tmp_path: Path) -> None:
    """I8: the framework publishes it again without the truck whose handler fails."""
    desk = Desk(tmp_path, Clumsy, "main", "other", settings={"path": tmp_path / "journal"})
    other = target_of(ITEMS, "other", TableId("public", "others"))
    sink = desk.streaming(MAIN, other)
    (tmp_path / "broken").touch()
    batch = desk.batch([MAIN, other])
    receipts = desk.write(
        batch, {MAIN: [[desk.values(ITEMS, insert(item(1, name="x")))]], other: [[desk.values(ITEMS, insert(item(2)))]]}
    )
    with pytest.raises(TruckFailed) as caught:
        sink.commit(batch, receipts)
    assert caught.value.truck == "main"
    sink.commit(batch.without(["main"]), [each for each in receipts if each.truck == "other"])
    assert calls(tmp_path / "journal") == [("insert", 2)]
    states = desk.committer().open()
    assert (states["main"].lsn, states["other"].lsn) == (START, batch.end)


def test_a_copy_goes_on_from_the_piece_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.sinks.python.sink.time.sleep", lambda seconds: (tmp_path / "broken").unlink())
    (tmp_path / "broken").touch()
    desk = Desk(tmp_path, Clumsy, settings={"path": tmp_path / "journal"})
    sink = desk.committer()
    sink.open()
    rows = [item(number, **({"name": "x"} if number == 1500 else {})) for number in range(2000)]
    desk.copy(sink, {MAIN: [[copied_rows_of(ITEMS, rows)]]})
    numbers = [number for _, number in calls(tmp_path / "journal")]
    assert numbers == [*range(1500), *range(1000, 2000)]


class Picky(Journal):
    """Refuses rows with a name."""

    def on_insert(self, change: RowChange) -> None:
        if change.new and change.new["name"] and not (self._path.parent / "tolerant").exists():
            raise RowRefused("there is a name")
        super().on_insert(change)


def test_a_refused_row_stops_the_truck_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Picky, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()
    with pytest.raises(TruckFailed, match="there is a name") as caught:
        desk.change(sink, MAIN, insert(item(1, name=SECRET)))
    assert caught.value.reason.code == "TRK744"
    assert SECRET not in str(caught.value)


def _with_letters(desk: Desk, sink: Committer, *changes: Any, most: int = 10, step: int = 1) -> Batch:
    batch = replace(desk.batch([MAIN], step), dead_letters={"main": most})
    sink.commit(batch, desk.write(batch, {MAIN: [[desk.values(ITEMS, *changes, step=step)]]}))
    return batch


def test_refused_rows_become_dead_letters_that_can_be_redriven(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Picky, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()
    _with_letters(desk, sink, insert(item(1)), insert(item(2, name="x")), insert(item(3)))
    assert calls(tmp_path / "journal") == [("insert", 1), ("insert", 3)]
    assert getattr(sink.sink, "letters", None) == {"main": 1}, "as the status shows"
    other: Any = desk.make_sink()
    assert other.count_letters() == {"main": 1}
    choice = Choice(("main",))
    (outcome,) = other.redrive(choice, dry_run=True)
    assert not outcome.applied
    (outcome,) = other.redrive(choice, dry_run=False)
    assert (outcome.applied, outcome.letter.tries, outcome.letter.reason.message) == (False, 2, "there is a name")
    (tmp_path / "tolerant").touch()
    (outcome,) = other.redrive(choice, dry_run=False)
    assert outcome.applied
    assert other.count_letters() == {}
    assert calls(tmp_path / "journal")[-1] == ("insert", 2)
    _with_letters(desk, sink, insert(item(4)), step=2)
    assert calls(tmp_path / "journal")[-1] == ("insert", 4)


def test_more_dead_letters_than_allowed_stop_the_truck(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Picky, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()
    with pytest.raises(TruckFailed) as caught:
        _with_letters(desk, sink, *(insert(item(number, name="x")) for number in range(3)), most=2)
    assert caught.value.reason.code == "TRK470"


class Slow(Journal):
    """Begins a call, waits until as many run as were asked for, or its key's turn is over, and writes both."""

    running: ClassVar[int] = 0
    most: ClassVar[int] = 0

    async def on_insert(self, change: RowChange) -> None:  # type: ignore[override]
        await self._take(change)

    async def on_update(self, change: RowChange) -> None:  # type: ignore[override]
        await self._take(change)

    async def _take(self, change: RowChange) -> None:
        Slow.running += 1
        Slow.most = max(Slow.most, Slow.running)
        for _ in range(10):
            await asyncio.sleep(0)
        Slow.running -= 1
        self._change(change.operation, change)


def test_an_async_handler_gets_several_changes_at_once_in_order_per_key(tmp_path: Path) -> None:
    Slow.most = 0
    desk = Desk(tmp_path, Slow, settings={"path": tmp_path / "journal"}, parallel=4)
    sink = desk.streaming()
    changes = [insert(item(key)) for key in range(8)]
    changes += [update(item(number % 8, qty=str(number))) for number in range(80)]
    desk.change(sink, MAIN, *changes)
    assert Slow.most == 4
    for key in range(8):
        got = [entry["ordinal"] for entry in journal(tmp_path / "journal") if entry["new"]["id"] == key]
        assert got == sorted(got)
        assert len(got) == 11


def test_a_class_that_keeps_events_of_a_loop_keeps_the_loop(tmp_path: Path) -> None:
    """What a handler starts in `open` runs between calls, and ends with `close`."""
    desk = Desk(tmp_path, Beating, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()
    desk.change(sink, MAIN, insert(item(1)))
    sink.close()
    assert calls(tmp_path / "journal") == [("open", None), ("insert", 1), ("ended", None), ("close", None)]


class Beating(Journal):
    async def open(self) -> None:
        self.write("open")
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.write("ended")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.write("close")


# -- net changes -------------------------------------------------------------------------------------------------------


class Counting(Shelf):
    """Counts its calls."""

    seen: ClassVar[list[tuple[str, int]]] = []

    def upsert(self, table: TableId, rows: Sequence[Mapping[str, Any]]) -> None:
        self.seen.append(("upsert", len(rows)))
        for row in rows:
            if row["name"] == "refused" and not (self._path.parent / "tolerant").exists():
                raise RowRefused("no such name")
            if row["name"] == "broken":
                raise KeyError(SECRET)
        super().upsert(table, rows)

    def delete(self, table: TableId, keys: Sequence[Mapping[str, Any]]) -> None:
        self.seen.append(("delete", len(keys)))
        super().delete(table, keys)


@pytest.fixture
def counting(tmp_path: Path) -> Desk:
    Counting.seen.clear()
    return Desk(tmp_path, Counting, settings={"path": tmp_path / "shelf"}, batch={"rows": 4}, tries=2)


def _numbers(desk: Desk) -> set[str | None]:
    return {row["id"] for row in shelf(desk.folder / "shelf", ITEMS.table)}


def test_ten_events_on_three_keys_are_calls_for_three_rows(counting: Desk) -> None:
    """Net changes, over the parts of a batch, too."""
    sink = counting.streaming()
    Counting.seen.clear()
    parts = [
        [counting.values(ITEMS, *(insert(item(n)) for n in range(3)))],
        [counting.values(ITEMS, *(update(item(n, name="a")) for n in range(3)))],
        [counting.values(ITEMS, update(item(0, name="b")), delete({"id": "1"}), update(item(2, name="c")))],
        [counting.values(ITEMS, update(item(0, name="d")))],
    ]
    counting.apply(sink, {MAIN: parts})
    assert Counting.seen == [("delete", 1), ("upsert", 2)]
    assert _numbers(counting) == {"0", "2"}


def test_calls_have_no_more_rows_than_allowed(counting: Desk) -> None:
    sink = counting.streaming()
    counting.change(sink, MAIN, *(insert(item(n)) for n in range(10)))
    assert [count for name, count in Counting.seen if name == "upsert"] == [4, 4, 2]


def test_the_rows_that_a_batcher_refuses_are_found_and_set_aside(counting: Desk) -> None:
    sink = counting.streaming()
    rows = [insert(item(n, **({"name": "refused"} if n in (1, 2) else {}))) for n in range(4)]
    _with_letters(counting, sink, *rows)
    assert _numbers(counting) == {"0", "3"}
    store: Any = counting.make_sink()
    assert store.count_letters() == {"main": 2}
    _with_letters(counting, sink, insert(item(1, name="good")), step=2)
    assert store.count_letters() == {"main": 1}, "a newer row of the key makes a letter void"
    (counting.folder / "tolerant").touch()
    (outcome,) = store.redrive(Choice(("main",)), dry_run=False)
    assert outcome.applied
    assert _numbers(counting) == {"0", "1", "2", "3"}


def test_one_row_that_fails_again_and_again_is_set_aside_and_a_store_that_fails_is_not(counting: Desk) -> None:
    sink = counting.streaming()
    one = [insert(item(n, **({"name": "broken"} if n == 1 else {}))) for n in range(4)]
    with pytest.raises(TruckFailed) as caught:
        _with_letters(counting, sink, *one)
    assert caught.value.reason.code == "TRK743"
    _with_letters(counting, sink, *one)
    assert _numbers(counting) == {"0", "2", "3"}
    every = [insert(item(n, name="broken")) for n in range(10, 14)]
    codes = []
    for _ in range(2):
        with pytest.raises(TruckFailed) as caught:
            _with_letters(counting, sink, *every, step=2)
        codes.append(caught.value.reason.code)
        assert SECRET not in str(caught.value)
    assert codes == ["TRK743", "TRK744"]


class Plain(Batcher):
    """Cannot empty a table, and has no ability to say whether one is empty."""

    rows: ClassVar[dict[Any, Any]] = {}

    def upsert(self, table: TableId, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows.update({row["id"]: row for row in rows})

    def delete(self, table: TableId, keys: Sequence[Mapping[str, Any]]) -> None:
        for key in keys:
            self.rows.pop(key["id"], None)


def test_a_batcher_without_truncate_takes_a_first_copy_and_stops_where_a_table_is_emptied(tmp_path: Path) -> None:
    Plain.rows.clear()
    desk = Desk(tmp_path, Plain, settings={})
    sink = desk.committer()
    sink.open()
    desk.copy(sink, {MAIN: [[copied_rows_of(ITEMS, [item(1), item(2)])]]})
    assert set(Plain.rows) == {1, 2}
    with pytest.raises(TruckFailed, match="was truncated at the source") as caught:
        desk.change(sink, MAIN, truncate())
    assert caught.value.reason.code == "TRK745"
    with pytest.raises(TruckFailed, match="is copied again"):
        desk.copy(desk_open(desk), {MAIN: [[copied_rows_of(ITEMS, [item(3)])]]}, name="second")
    again = desk_open(desk)
    again.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
    desk.copy(again, {MAIN: [[copied_rows_of(ITEMS, [item(3)])]]}, name="third")
    assert 3 in Plain.rows


def desk_open(desk: Desk) -> Committer:
    sink = desk.committer()
    sink.open()
    return sink


# -- a position of the handler's own -----------------------------------------------------------------------------------


class Stumbling(KeepingShelf):
    """Fails half-way through a delivery while a file is there."""

    def delete(self, table: TableId, keys: Sequence[Mapping[str, Any]]) -> None:
        super().delete(table, keys)
        if (self._path.parent / "broken").exists():
            raise OSError(SECRET)


def test_a_delivery_that_fails_half_way_leaves_nothing_at_a_handler_that_keeps_its_position(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Stumbling, settings={"path": tmp_path / "shelf"})
    sink = desk.streaming()
    desk.change(sink, MAIN, insert(item(1)), insert(item(2)))
    (tmp_path / "broken").touch()
    with pytest.raises(TruckFailed):
        desk.change(sink, MAIN, delete({"id": "1"}), insert(item(3)), step=2)
    assert _numbers(desk) == {"1", "2"}
    (tmp_path / "broken").unlink()
    desk.change(sink, MAIN, delete({"id": "1"}), insert(item(3)), step=2)
    assert _numbers(desk) == {"2", "3"}


def test_a_position_of_another_project_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path, KeepingShelf, settings={"path": tmp_path / "shelf"})
    desk.streaming().close()
    with pytest.raises(SinkError, match="belongs to project 'suite'") as caught:
        desk.committer("another").open()
    assert caught.value.code == "TRK747"


# -- checks ------------------------------------------------------------------------------------------------------------


class NoMethods(Handler):
    pass


class OneHalf(Handler):
    def on_insert(self, change: RowChange) -> None: ...

    def load_position(self) -> None: ...


class Crooked(Handler):
    def on_insert(self) -> None: ...  # type: ignore[override]

    def on_update(self, change: RowChange, more: int = 0) -> None: ...


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (NoMethods, "has none of the methods on_begin, on_insert"),
        (OneHalf, "has load_position, and not save_position"),
        (Crooked, "on_insert cannot be called with 1 argument"),
        (Journal, "cannot be made with the truck's settings"),
    ],
)
def test_check_says_what_is_wrong_with_a_class(tmp_path: Path, kind: type, told: str) -> None:
    sink: Any = Desk(tmp_path, kind, settings={}).make_sink()
    (finding,) = sink.check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK742")
    assert told in finding.message


def test_check_says_what_is_promised(tmp_path: Path) -> None:
    kinds = {Journal: "every change, at least once", KeepingShelf: "net changes, exactly once"}
    for kind, told in kinds.items():
        sink: Any = Desk(tmp_path, kind, settings={"path": tmp_path / "x"}).make_sink()
        (finding,) = sink.check()
        assert (finding.level, told in finding.message) == (Level.OK, True)


TYPED = """
from dataclasses import dataclass

@dataclass
class Typed:
    host: str
    port: int = 80
    hosts: list[str] = ()
    fast: bool = False
    plain = None

    def on_insert(self, change): ...
"""


def _typed(tmp_path: Path, **settings: Any) -> HandlerFile:
    path = tmp_path / "handler.py"
    code, errors = read_handler(HandlerText("t/handler.py", path, TYPED), settings)
    assert code is not None
    assert errors == []
    return code


def test_settings_have_the_types_that_the_class_is_annotated_with(tmp_path: Path) -> None:
    """What a YAML file holds is text."""
    made = instance_of(_typed(tmp_path, host="007", port="9200", hosts=["a", "b"], fast="true"))
    assert (made.host, made.port, made.hosts, made.fast) == ("007", 9200, ["a", "b"], True)


def test_a_setting_of_another_type_is_refused_without_its_value(tmp_path: Path) -> None:
    (error,) = check_class(_typed(tmp_path, host="x", port=SECRET))
    assert error.code == "TRK742"
    assert "the setting port is not of type int" in error.message
    assert SECRET not in str(error)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99, "project": "suite"}', "[]"])
def test_a_damaged_position_is_refused(tmp_path: Path, text: str) -> None:
    desk = Desk(tmp_path, Journal, settings={"path": tmp_path / "journal"})
    desk.streaming().close()
    (file,) = tmp_path.rglob("positions/main.json")
    file.write_text(text)
    with pytest.raises(SinkError) as caught:
        desk.committer().open()
    assert caught.value.code == "TRK747"


def test_only_one_process_calls_the_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.sinks.python.documents._PATIENCE", 0.0)
    desk = Desk(tmp_path, Journal, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()
    with DocumentFolder(tmp_path / "suite" / "positions", "suite").locked(), pytest.raises(SinkHeld) as caught:
        desk.change(sink, MAIN, insert(item(1)))
    assert caught.value.code == "TRK749"
    assert calls(tmp_path / "journal") == []


def test_a_position_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, Journal, settings={"path": tmp_path / "journal"})
    sink = desk.streaming()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("trucker.sinks.python.documents.os.fsync", full)
        with pytest.raises(SinkUnavailable, match="No space left") as caught:
            desk.change(sink, MAIN, insert(item(1)))
    assert caught.value.code == "TRK748"
    desk.change(sink, MAIN, insert(item(1)))
    assert desk.committer().open()["main"].lsn == START + 0x100


def test_a_value_that_does_not_fit_follows_its_policy(tmp_path: Path) -> None:
    schema = schema_of(ITEMS.table, {"id": "integer not null", "day": "date"}, ["id"])
    got: list[Any] = []
    for unfit in (None, Unfit.TEXT, Unfit.NULL):
        target = replace(target_of(schema), unfit=(("day", unfit),) if unfit else ())
        folder = tmp_path / str(unfit)
        desk = Desk(folder, Journal, settings={"path": tmp_path / f"{unfit}.out"})
        desk.change(desk.streaming(target), target, insert({"id": "1", "day": "infinity"}))
        got += [entry["new"]["day"] for entry in journal(tmp_path / f"{unfit}.out")]
    assert got == ["infinity", "infinity", None]
    target = replace(target_of(schema), unfit=(("day", Unfit.ERROR),))
    desk = Desk(tmp_path / "error", Journal, settings={"path": tmp_path / "error.out"})
    with pytest.raises(TruckFailed, match="column day") as caught:
        desk.change(desk.streaming(target), target, insert({"id": "1", "day": "infinity"}))
    assert caught.value.reason.code == "TRK746"


def test_a_store_that_fails_while_refused_rows_are_looked_for_makes_no_letters(tmp_path: Path) -> None:
    Fickle.calls = 0
    desk = Desk(tmp_path, Fickle, settings={"path": tmp_path / "shelf"})
    sink = desk.streaming()
    with pytest.raises(TruckFailed) as caught:
        _with_letters(desk, sink, insert(item(1)), insert(item(2)))
    assert caught.value.reason.code == "TRK743"
    store: Any = desk.make_sink()
    assert store.count_letters() == {}


class Fickle(Shelf):
    """Refuses its first call, and then is not there."""

    calls: ClassVar[int] = 0

    def upsert(self, table: TableId, rows: Sequence[Mapping[str, Any]]) -> None:
        Fickle.calls += 1
        raise RowRefused("no") if Fickle.calls == 1 else ConnectionError(SECRET)
