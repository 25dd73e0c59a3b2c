"""The log against a model: whatever happens between, a reader finds each durable transaction once, or a named error."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.log_stores import FILES, OBJECTS, LogStore, forget_machine
from fixtures.wal import SOURCE, Transaction, everything, follow, insert, kind, relation, truncate
from trucker.changelog.folder.writer import LogWriter
from trucker.changelog.format.durable import read_durable
from trucker.changelog.location import LogLocation, truth_of
from trucker.changelog.open_writer import Writer
from trucker.changelog.reader import LogReader
from trucker.errors import ChangeLogError
from trucker.lsn import Lsn

START = Lsn(0x1000)
STORES = pytest.mark.parametrize("store", [FILES, OBJECTS], ids=lambda store: store.name)
SMALL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def histories(draw: st.DrawFn) -> list[Transaction]:
    """A source's transactions: a few relations, described before their first use and again when they change."""
    lsn, shapes, found = int(START), dict[int, int](), []
    for _ in range(draw(st.integers(1, 12))):
        body: list[bytes] = []
        for _ in range(draw(st.integers(0, 8))):
            oid = draw(st.integers(16384, 16388))
            if oid not in shapes or draw(st.integers(0, 9)) == 0:
                shapes[oid] = shapes.get(oid, -1) + 1
                body += [kind(16000 + oid, "mood"), relation(oid, f"t{oid}", [f"c{shapes[oid]}"], 16000 + oid)]
            elif draw(st.integers(0, 5)) == 0:
                body.append(relation(oid, f"t{oid}", [f"c{shapes[oid]}"], 16000 + oid))
            if draw(st.integers(0, 7)) == 0:
                body.append(truncate(oid))
            else:
                body.append(insert(oid, "x" * draw(st.integers(0, 60)) + str(lsn)))
        lsn += draw(st.integers(8, 64))
        found.append(Transaction(lsn, lsn + 8, body))
        lsn += 8
    return found


def shapes_of(transactions: list[Transaction]) -> dict[int, list[bytes]]:
    """For every transaction the description each change is to be read by."""
    current: dict[bytes, bytes] = {}
    found: dict[int, list[bytes]] = {}
    for transaction in transactions:
        used = found[transaction.commit_lsn] = []
        for text in transaction.body:
            if text[:1] == b"R":
                current[text[1:5]] = text
            elif text[:1] in b"IT":
                used.append(current[text[1:5] if text[:1] == b"I" else text[6:10]])
    return found


class Source:
    """Sends its history from a position on, describing relations anew in every session, as PostgreSQL does."""

    def __init__(self, history: list[Transaction]) -> None:
        self.history = history
        self._shapes = shapes_of(history)

    def messages(self, start: Lsn) -> Iterator[tuple[Transaction, bytes]]:
        sent: dict[bytes, bytes] = {}
        for transaction in self.history:
            if transaction.commit_lsn < start:
                continue
            shapes = iter(self._shapes[transaction.commit_lsn])
            for text in transaction.messages:
                if text[:1] in b"RY":
                    sent[text[:5]] = text
                elif text[:1] in b"IT":
                    shape = next(shapes)
                    if sent.get(shape[:5]) != shape:
                        sent[shape[:5]] = shape
                        yield transaction, shape
                yield transaction, text


def check(
    folder: LogLocation, expected: list[Transaction], shapes: dict[int, list[bytes]], max_bytes: int = 1 << 30
) -> None:
    found = everything(folder, START, max_bytes)
    assert list(found) == [t.commit_lsn for t in expected]
    for transaction in expected:
        assert found[transaction.commit_lsn].changes == transaction.changes
        assert found[transaction.commit_lsn].shapes == shapes[transaction.commit_lsn]


@contextlib.contextmanager
def new_log() -> Iterator[Path]:
    with FILES.new_log(START) as folder:
        assert isinstance(folder, Path)
        yield folder


@contextlib.contextmanager
def named_or_nothing(folder: Path) -> Iterator[None]:
    """What is inside either works or says which file is damaged."""
    try:
        yield
    except ChangeLogError as error:
        if error.code != "TRK303" or str(folder) not in error.message:
            raise


def any_writer(store: LogStore, place: LogLocation, data: st.DataObject) -> Writer:
    return store.writer(
        place, data.draw(st.sampled_from([300, 1000, 100_000])), data.draw(st.sampled_from([60, 200, 100_000]))
    )


def writer_for(folder: Path, data: st.DataObject) -> LogWriter:
    writer = any_writer(FILES, folder, data)
    assert isinstance(writer, LogWriter)
    return writer


@STORES
@SMALL
@given(history=histories(), data=st.data())
def test_each_transaction_once_through_flushes_rollbacks_and_crashes(
    store: LogStore, history: list[Transaction], data: st.DataObject
) -> None:
    """I1, I2, I4: the source sends from the durable end on after every interruption; nothing is lost or doubled."""
    source, shapes = Source(history), shapes_of(history)
    with store.new_log(START) as place:
        interruptions = data.draw(st.integers(0, 4))
        writer = any_writer(store, place, data)
        while True:
            for transaction, text in source.messages(writer.durable.seen_lsn):
                writer.append(text)
                event = data.draw(st.integers(0, 12))
                if event == 0:
                    durable = writer.settle()
                    done = [t for t in history if t.end_lsn <= durable.commit_lsn]
                    assert transaction.end_lsn > durable.commit_lsn or text[:1] == b"C"
                    check(place, done, shapes)
                elif event == 1 and interruptions:
                    interruptions -= 1
                    writer.rollback()
                    writer.refresh()
                    break
                elif event == 2 and interruptions:
                    interruptions -= 1
                    writer.close()
                    forget_machine(place)
                    writer = any_writer(store, place, data)
                    break
            else:
                break
        with writer:
            writer.settle()
            assert writer.durable.commit_lsn == writer.safe == history[-1].end_lsn
        check(place, history, shapes, data.draw(st.sampled_from([1, 500, 1 << 30])))
        check(truth_of(place), history, shapes)


@STORES
@SMALL
@given(history=histories(), data=st.data())
def test_any_two_positions_cut_out_exactly_the_transactions_between(
    store: LogStore, history: list[Transaction], data: st.DataObject
) -> None:
    with store.new_log(START) as place, any_writer(store, place, data) as writer:
        for _, text in Source(history).messages(START):
            writer.append(text)
            if text[:1] == b"C" and data.draw(st.booleans()):
                writer.settle()
        writer.settle()
        top = history[-1].end_lsn
        start = Lsn(data.draw(st.integers(START, top)))
        end = Lsn(data.draw(st.integers(start, top + 10)))
        reader = LogReader(place)
        found = follow([reader.read(ref) for ref in reader.blocks(start, end)])
        wanted = [t.commit_lsn for t in history if start <= t.commit_lsn < end]
        assert [lsn for lsn in found if lsn >= start] == wanted
        assert start <= reader.next_end(start, 1, end) <= max(end, start)
        # A range that was read whole is cut as one that is read in pieces, and a batch is as long as it says.
        middle = Lsn(data.draw(st.integers(start, end)))
        whole = reader.range(start, end)
        for part in (whole.part(start, middle), whole.part(middle, middle), whole.part(middle, whole.end)):
            assert part.references() == reader.blocks(part.start, part.end)
        batch = reader.next_range(start, data.draw(st.integers(1, 5000)), end)
        assert batch.references() == reader.blocks(start, batch.end)
        assert batch.commit_time == reader.range(start, batch.end).commit_time
        reader.close()


@SMALL
@given(histories(), st.data())
def test_a_crash_of_the_machine_loses_nothing_that_was_promised(
    history: list[Transaction], data: st.DataObject
) -> None:
    """Whatever was not yet synced may be torn off at any byte, and the durable file may be an older one."""
    source, shapes = Source(history), shapes_of(history)
    with new_log() as folder:
        writer = writer_for(folder, data)
        older = folder.parent / "older"
        for _, text in source.messages(START):
            if data.draw(st.integers(0, 4)) == 0:
                shutil.copy(folder / "durable", older)
                writer.flush()
            writer.append(text)
        promised = writer.durable
        writer.close()
        for path in folder.glob("*.open"):
            stem = int(path.name[:16], 16), int(path.name[17:].split(".")[0], 16)
            floor = promised.offset if stem == promised.segment else 0
            if stem >= promised.segment or not promised.offset:
                size = path.stat().st_size
                with path.open("r+b") as file:
                    file.truncate(data.draw(st.integers(floor, size)))
        if older.exists() and data.draw(st.booleans()):
            (folder / "durable").write_bytes(older.read_bytes())
        with LogWriter(folder, SOURCE) as writer:
            assert writer.durable.commit_lsn >= promised.commit_lsn
            check(folder, [t for t in history if t.end_lsn <= writer.durable.commit_lsn], shapes)
            for _, text in source.messages(writer.durable.seen_lsn):
                writer.append(text)
            writer.flush()
        check(folder, history, shapes)


@SMALL
@given(histories(), st.data())
def test_a_changed_bit_is_noticed_or_does_not_matter(history: list[Transaction], data: st.DataObject) -> None:
    """Exactly the durable transactions, or an error that names the file; before and after a writer's repair."""
    source, shapes = Source(history), shapes_of(history)
    with new_log() as folder:
        with writer_for(folder, data) as writer:
            for _, text in source.messages(START):
                writer.append(text)
                if data.draw(st.integers(0, 5)) == 0:
                    writer.flush()
            promised = writer.durable
        files = sorted(
            path for path in folder.iterdir() if path.suffix in (".open", ".segment") and path.stat().st_size
        )
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with named_or_nothing(folder):
            check(folder, [t for t in history if t.end_lsn <= promised.commit_lsn], shapes)
        with named_or_nothing(folder):
            LogWriter(folder, SOURCE).close()
            check(folder, [t for t in history if t.end_lsn <= read_durable(folder).commit_lsn], shapes)


@SMALL
@given(histories(), st.data())
def test_a_file_cut_short_is_noticed(history: list[Transaction], data: st.DataObject) -> None:
    with new_log() as folder:
        with writer_for(folder, data) as writer:
            for _, text in Source(history).messages(START):
                writer.append(text)
            promised = writer.flush()
        path = data.draw(st.sampled_from(sorted([*folder.glob("*.open"), *folder.glob("*.segment")])))
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(data.draw(st.integers(0, size - 1)))
        with pytest.raises(ChangeLogError, match=r"damaged|missing"):
            everything(folder, START)
        if path.suffix == ".open":
            with pytest.raises(ChangeLogError, match="damaged at byte"):
                LogWriter(folder, SOURCE)
        assert read_durable(folder) == promised
