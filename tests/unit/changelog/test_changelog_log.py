"""The change log piece by piece: what it refuses, what it keeps, how it is followed."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from fixtures.wal import SOURCE, begin, commit, everything, insert, message, relation, split
from trucker.changelog.folder.writer import LogWriter
from trucker.changelog.format import durable as durable_module
from trucker.changelog.format.durable import Durable, read_durable
from trucker.changelog.format.segment import Folder
from trucker.changelog.identity import SourceIdentity, check_against_server, check_against_slot, log_exists, read_source
from trucker.changelog.log_creation import create_log
from trucker.changelog.reader import LogReader
from trucker.changelog.retention import prune
from trucker.errors import ChangeLogError, ChangeLogFull, LockedError
from trucker.lsn import Lsn

START = Lsn(1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_log(tmp_path / "log", SOURCE, START)
    return tmp_path / "log"


@pytest.fixture
def reader(folder: Path) -> Iterator[LogReader]:
    found = LogReader(folder)
    yield found
    found.close()


def write(writer: LogWriter, lsns: Sequence[int], *, oid: int = 1, rows: int = 1, size: int = 10) -> None:
    """One transaction per LSN, ending eight bytes after it, each flushed."""
    for lsn in lsns:
        writer.append(begin(lsn))
        writer.append(relation(oid))
        for _ in range(rows):
            writer.append(insert(oid, "x" * size))
        writer.append(commit(lsn, lsn + 8))
        writer.flush()


def names(folder: Path) -> list[str]:
    return [segment.name for segment in Folder(folder).segments()]


# -- whose log it is ----------------------------------------------------------------------------------------------


def test_another_source_is_refused(folder: Path) -> None:
    other = SourceIdentity("8", SOURCE.database, SOURCE.slot, SOURCE.publication)
    with pytest.raises(ChangeLogError, match="another source: system identifier '7000000000000000001' instead of '8'"):
        LogWriter(folder, other)
    with pytest.raises(ChangeLogError, match="another source"):
        create_log(folder, other, START)


def test_creating_a_log_again_keeps_it(folder: Path) -> None:
    with LogWriter(folder, SOURCE) as writer:
        write(writer, [2000])
    create_log(folder, SOURCE, Lsn(5000))
    assert read_durable(folder).commit_lsn == 2008
    assert read_source(folder) == SOURCE
    assert log_exists(folder)


@pytest.mark.parametrize("opened", [lambda f: LogWriter(f, SOURCE), lambda f: LogReader(f).durable()])
def test_a_missing_log_is_not_made_by_opening_it(tmp_path: Path, opened: object) -> None:
    with pytest.raises(ChangeLogError, match="does not exist") as caught:
        opened(tmp_path / "nowhere")  # type: ignore[operator]
    assert "trucker reset" in caught.value.remedy
    assert not log_exists(tmp_path / "nowhere")


def test_segments_without_an_owner_are_refused(folder: Path) -> None:
    with LogWriter(folder, SOURCE) as writer:
        write(writer, [2000])
    (folder / "source.json").unlink()
    with pytest.raises(ChangeLogError, match=r"contains segments but no source\.json"):
        create_log(folder, SOURCE, START)


def test_a_log_behind_its_slot_is_refused() -> None:
    check_against_slot(Durable(Lsn(5), Lsn(9)), Lsn(9))
    with pytest.raises(ChangeLogError, match="the slot is at 0/A") as caught:
        check_against_slot(Durable(Lsn(5), Lsn(9)), Lsn(10))
    assert "trucker reset" in caught.value.remedy


def test_a_server_behind_the_log_is_refused() -> None:
    check_against_server(Durable(Lsn(5), Lsn(9)), Lsn(9))
    with pytest.raises(ChangeLogError, match="ahead of the server"):
        check_against_server(Durable(Lsn(5), Lsn(9)), Lsn(8))


def test_there_is_one_writer(folder: Path) -> None:
    with LogWriter(folder, SOURCE), pytest.raises(LockedError, match=f"process {os.getpid()}"):
        LogWriter(folder, SOURCE)
    LogWriter(folder, SOURCE).close()


def test_a_writer_waits_for_one_that_is_leaving(folder: Path) -> None:
    first = LogWriter(folder, SOURCE)
    threading.Timer(0.05, first.close).start()
    LogWriter(folder, SOURCE, lock_seconds=20).close()


# -- progress -----------------------------------------------------------------------------------------------------


def test_idle_progress_is_durable(folder: Path) -> None:
    with LogWriter(folder, SOURCE) as writer:
        write(writer, [2000])
        assert writer.see(Lsn(3000)) == read_durable(folder)
        assert (writer.durable.commit_lsn, writer.durable.seen_lsn) == (2008, 3000)
        assert writer.see(Lsn(2500)).seen_lsn == 3000
        write(writer, [4000])
        assert writer.durable.seen_lsn == 4008
    assert LogWriter(folder, SOURCE).durable.seen_lsn == 4008


def test_nothing_is_known_to_be_seen_inside_a_transaction(folder: Path) -> None:
    with LogWriter(folder, SOURCE) as writer:
        writer.append(begin(2000))
        assert writer.in_transaction
        assert writer.see(Lsn(1900)).seen_lsn == START


def test_messages_outside_transactions_are_kept_in_their_place(folder: Path, reader: LogReader) -> None:
    with LogWriter(folder, SOURCE) as writer:
        writer.append(message(1500))
        assert not writer.in_transaction
        writer.flush()
        assert writer.durable.commit_lsn == START
        assert reader.next_end(START, 1 << 20) == START
        write(writer, [2000])
        refs = reader.blocks(START, Lsn(2008))
        assert [text[:1] for ref in refs for text in split(reader.read(ref))] == [b"M", b"B", b"R", b"I", b"C"]
        assert reader.blocks(Lsn(2008), Lsn(9999)) == []


def test_commit_times_are_known_by_block(folder: Path, reader: LogReader) -> None:
    assert reader.range(START, START).commit_time is None
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        for lsn in (2000, 3000):
            writer.append(begin(lsn, time=lsn * 1_000_000_000))
            writer.append(commit(lsn, lsn + 8, time=lsn * 1_000_000_000))
            writer.flush()
    assert reader.range(START, Lsn(3008)).commit_time == 3_000_000_000_000
    assert reader.range(START, Lsn(2999)).commit_time == 2_000_000_000_000
    assert reader.range(START, Lsn(1500)).commit_time is None


def test_a_reader_follows_in_the_same_instant_and_sleeps_meanwhile(folder: Path, reader: LogReader) -> None:
    """The wait ends within milliseconds of the flush, and costs no time of the processor while nothing happens.

    On a busy machine many a turn takes longer, so the best of several counts.
    """
    woken: list[float] = []
    cost: list[float] = []

    def follow(after: Lsn) -> None:
        before = time.thread_time()
        assert reader.wait(after, 20).commit_lsn > after
        woken.append(time.monotonic())
        cost.append(time.thread_time() - before)

    delays: list[float] = []
    with LogWriter(folder, SOURCE) as writer:
        for lsn in range(2000, 4000, 10):
            if len(delays) >= 5 and min(delays) < 0.02 and min(cost) < 0.01:
                break
            thread = threading.Thread(target=follow, args=[writer.durable.commit_lsn])
            thread.start()
            thread.join(0.1)
            assert thread.is_alive()
            write(writer, [lsn])
            flushed = time.monotonic()
            thread.join(20)
            delays.append(woken[-1] - flushed)
    assert min(delays) < 0.02
    assert min(cost) < 0.01


def test_a_wait_for_nothing_ends_in_time(reader: LogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.monotonic()
    assert reader.wait(START, 0.05).commit_lsn == START
    monkeypatch.setattr(durable_module, "_inotify", lambda path: -1)
    assert reader.wait(START, 0.05).commit_lsn == START
    assert time.monotonic() - before < 10


def test_where_there_is_no_inotify_a_reader_polls(
    folder: Path, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_module, "_inotify", lambda path: -1)
    with LogWriter(folder, SOURCE) as writer:
        thread = threading.Thread(target=lambda: write(writer, [2000]))
        thread.start()
        assert reader.wait(START, 20).commit_lsn == 2008
        thread.join()


# -- segments -----------------------------------------------------------------------------------------------------


def test_segments_are_named_by_their_range_and_sealed_at_a_commit(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=200, block_bytes=100) as writer:
        writer.append(begin(2000))
        writer.append(relation(1))
        for _ in range(20):
            writer.append(insert(1, "x" * 50))
        inside = names(folder)
        assert len(inside) > 2
        assert all(name.endswith(".open") for name in inside)
        writer.append(commit(2000, 2008))
        writer.flush()
        write(writer, [3000], rows=5)
        write(writer, [4000])
    assert [name.split("-")[0] for name in names(folder)[:2]] == ["00000000000003E8.0000", "00000000000003E8.0001"]
    assert all("-00000000000007D8." in name for name in names(folder)[:2])
    assert list(everything(folder, START)) == [2000, 3000, 4000]


def test_a_reference_outlives_the_renaming_of_its_segment(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=400) as writer:
        write(writer, [2000])
        early = LogReader(folder)
        refs = early.blocks(START, Lsn(2008))
        late = pickle.loads(pickle.dumps(LogReader(folder)))
        assert names(folder)[0].endswith(".open")
        write(writer, [3000, 4000], rows=10)
        assert names(folder)[0].endswith(".segment")
        for reader in (early, late):
            assert len(reader.read(pickle.loads(pickle.dumps(refs[0])))) == 4
            reader.close()


def test_two_changes_of_the_folder_within_one_tick_are_both_noticed(folder: Path) -> None:
    """The folder has the same time before and after segments are deleted, as it may where both take a moment."""
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        write(writer, [2000, 3000, 4000])
        now = time.time_ns() + 3600 * 10**9  # recent, however slow this machine is
        os.utime(folder, ns=(now, now))
        with closing(LogReader(folder)) as reader:
            assert reader.oldest() == START
            assert prune(Folder(folder), Lsn(3008)) == 2
            os.utime(folder, ns=(now, now))
            assert reader.oldest() == Lsn(3008)


def test_reading_beside_renaming_and_pruning(folder: Path) -> None:
    """A reader at the end of the log while segments come, are sealed and go again, several times a block."""
    count = 200
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        thread = threading.Thread(target=lambda: write(writer, range(2000, 2000 + 10 * count, 10)))
        thread.start()
        reader, position, seen = LogReader(folder), START, 0
        while seen < count:
            reader.wait(position, 10)
            end = reader.next_end(position, 1000)
            seen += sum(split_count(reader, position, end))
            position = end
            prune(Folder(folder), position)
        thread.join()
        prune(Folder(folder), position)  # the last one is sealed a moment after it can be read
        assert seen == count
        assert reader.oldest() == position
        reader.close()


def split_count(reader: LogReader, start: Lsn, end: Lsn) -> Iterator[int]:
    for ref in reader.blocks(start, end):
        yield sum(text[:1] == b"C" for text in split(reader.read(ref)))


def test_a_missing_segment_is_named(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        write(writer, [2000, 3000, 4000])
    lost = names(folder)[1]
    (folder / lost).unlink()
    with pytest.raises(ChangeLogError, match="a segment is missing"):
        everything(folder, START)
    with pytest.raises(ChangeLogError, match="a segment is missing"):
        LogWriter(folder, SOURCE)


def test_a_missing_last_segment_is_named(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        write(writer, [2000, 3000])
    (folder / names(folder)[-1]).unlink()
    for use in (lambda: everything(folder, START), lambda: LogWriter(folder, SOURCE)):
        with pytest.raises(ChangeLogError, match=r"segment 00000000000007D8\.0000 is missing"):
            use()


def test_a_lost_durable_file_is_rebuilt_from_the_segments(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=300) as writer:
        write(writer, [2000, 3000, 4000])
    (folder / "durable").write_bytes(b"\0" * 600)
    with pytest.raises(ChangeLogError, match="none of its records is complete"):
        LogReader(folder).durable()
    with LogWriter(folder, SOURCE) as writer:
        assert writer.durable.commit_lsn == 4008
    assert list(everything(folder, START)) == [2000, 3000, 4000]


# -- relations ----------------------------------------------------------------------------------------------------


def test_many_relations_cost_a_block_only_those_it_uses(folder: Path, reader: LogReader) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=20_000) as writer:
        for oid in range(1, 501):
            write(writer, [2000 + 10 * oid], oid=oid)
        write(writer, [9000], oid=250)
    refs = reader.blocks(Lsn(8000), Lsn(9008))
    assert [ref.relations for ref in refs] == [(250,)]
    assert reader.relations(refs) == [relation(250)]
    everything_ = reader.blocks(START, Lsn(9008))
    assert {oid for ref in everything_ for oid in ref.relations} == set(range(1, 501))
    assert len(set(reader.relations(everything_))) == 500


def test_a_changed_relation_begins_a_new_run_and_comes_last(folder: Path, reader: LogReader) -> None:
    shapes = [relation(1, columns=columns) for columns in (["a"], ["a", "b"], ["a"])]
    with LogWriter(folder, SOURCE) as writer:
        writer.append(begin(2000))
        for shape in shapes:
            writer.append(shape)
            writer.append(shape)
            writer.append(insert(1, "x"))
        writer.append(commit(2000, 2008))
        writer.flush()
    refs = reader.blocks(START, Lsn(2008))
    assert len(refs) == 3
    assert [reader.read(ref).relations[1] for ref in refs] == shapes
    assert reader.relations(refs) == shapes
    fresh = LogReader(folder)
    assert fresh.relations(refs) == shapes
    fresh.close()


def test_a_description_that_was_rolled_back_is_written_when_it_comes_again(folder: Path) -> None:
    """What was learned from messages that never reached the log is not known."""
    old, new = relation(1, columns=["a"]), relation(1, columns=["a", "b"])
    with LogWriter(folder, SOURCE) as writer:
        for text in (begin(2000), old, insert(1, "x"), commit(2000, 2008)):
            writer.append(text)
        writer.flush()
        for text in (begin(3000), new):
            writer.append(text)
        writer.rollback()
        for text in (begin(3000), new, insert(1, "x", "y"), commit(3000, 3008)):
            writer.append(text)
        writer.flush()
    found = everything(folder, START)
    assert [found[2000].shapes, found[3000].shapes] == [[old], [new]]


def test_small_blocks_are_read_together(folder: Path, reader: LogReader) -> None:
    with LogWriter(folder, SOURCE) as writer:
        write(writer, range(2000, 3000, 10))
    (ref,) = reader.blocks(START, Lsn(5000))
    assert len(reader.read(ref)) == 100 * 3 + 1
    (part,) = reader.blocks(Lsn(2508), Lsn(2608))
    assert len(reader.read(part)) == 10 * 3
    assert part.bytes < ref.bytes


# -- retention ----------------------------------------------------------------------------------------------------


def test_the_first_transaction_is_the_first_that_is_not_applied_yet(folder: Path, reader: LogReader) -> None:
    """Transactions before it are in the same block."""
    with LogWriter(folder, SOURCE) as writer:
        for xid, lsn in ((7, 0x1000), (8, 0x2000), (9, 0x3000)):
            for each in (begin(lsn, xid), relation(1), insert(1, "x"), commit(lsn, lsn + 8)):
                writer.append(each)
        writer.flush()
    refs = reader.blocks(START, Lsn(0x4000))
    assert len(refs) == 1
    assert [reader.first_transaction(refs, Lsn(start)) for start in (0, 0x1008, 0x2008, 0x3008)] == [7, 8, 9, None]


def test_only_what_every_truck_has_applied_goes(folder: Path, reader: LogReader) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        write(writer, [2000, 3000, 4000])
        assert prune(Folder(folder), Lsn(2007)) == 0
        assert prune(Folder(folder), Lsn(3007)) == 1
        assert reader.oldest() == 2008
        with pytest.raises(ChangeLogError, match="after position 0/7D0"):
            reader.next_end(Lsn(2000), 1)
        assert reader.next_end(Lsn(2008), 1) == 3008
        assert prune(Folder(folder), Lsn(9999)) == 2
        assert reader.oldest() == 4008
        write(writer, [5000])
        assert reader.next_end(Lsn(4008), 1) == 5008


def test_a_transaction_over_several_segments_goes_as_a_whole(folder: Path, reader: LogReader) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=100, block_bytes=100) as writer:
        write(writer, [2000], rows=30)
        write(writer, [3000])
        parts = len(names(folder))
        assert prune(Folder(folder), Lsn(2007)) == 0
        # As a crash in the middle of pruning would leave it.
        (folder / names(folder)[0]).unlink()
        assert reader.oldest() == 2001
        assert prune(Folder(folder), Lsn(2008)) == parts - 2
        assert reader.next_end(Lsn(2008), 1) == 3008


def test_applied_history_is_kept_by_age_and_size(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=1) as writer:
        write(writer, range(2000, 2100, 10))
    segments = Folder(folder).segments()
    size = segments[0].bytes
    for segment in segments[:4]:
        os.utime(folder / segment.name, (0, 0))
    everything_applied = Lsn(9999)
    assert prune(Folder(folder), Lsn(2028), keep_seconds=3600) == 3
    assert prune(Folder(folder), everything_applied, keep_seconds=3600) == 1
    assert prune(Folder(folder), everything_applied, keep_seconds=3600, max_bytes=5 * size) == 1
    assert prune(Folder(folder), everything_applied, max_bytes=3 * size) == 2
    assert prune(Folder(folder), everything_applied, max_bytes=3 * size) == 0
    assert prune(Folder(folder), everything_applied) == 3


# -- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partly", [False, True])
def test_a_full_disk_passes(folder: Path, monkeypatch: pytest.MonkeyPatch, partly: bool) -> None:
    """Nothing is promised while there is no room; after a rollback the log goes on where it was."""
    real = os.writev

    def full(fd: int, buffers: Sequence[bytes]) -> int:
        if partly:
            os.write(fd, buffers[0][:50])
        raise OSError(errno.ENOSPC, "no space left on device")

    with LogWriter(folder, SOURCE) as writer:
        write(writer, [2000])
        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(ChangeLogFull) as caught:
            write(writer, [3000])
        assert caught.value.transient
        assert writer.durable == read_durable(folder)
        assert writer.durable.commit_lsn == 2008
        monkeypatch.setattr(os, "writev", real)
        writer.rollback()
        write(writer, [3000, 4000])
    assert list(everything(folder, START)) == [2000, 3000, 4000]


def test_a_failed_sync_promises_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with LogWriter(folder, SOURCE) as writer:
        monkeypatch.setattr(os, "fdatasync", broken)
        with pytest.raises(ChangeLogError, match="cannot be written") as caught:
            write(writer, [2000])
        assert not caught.value.transient
        assert read_durable(folder).commit_lsn == START
        monkeypatch.setattr(os, "fdatasync", real)
        writer.rollback()
        write(writer, [2000])
    assert list(everything(folder, START)) == [2000]


def test_memory_stays_bounded_in_a_large_transaction(folder: Path) -> None:
    """I9: a block's worth of a transaction is held, whatever its size."""
    with LogWriter(folder, SOURCE, block_bytes=10_000, segment_bytes=100_000) as writer:
        writer.append(begin(2000))
        writer.append(relation(1))
        most = 0
        for _ in range(5000):
            writer.append(insert(1, "x" * 100))
            most = max(most, writer.held)
        writer.append(commit(2000, 2008))
        writer.flush()
    assert most < 10_200
    assert len(everything(folder, START)[2000].changes) == 5000


def test_the_writing_side_loads_no_arrow() -> None:
    """Capture is a small process: each of these would double it."""
    heavy = ("pyarrow", "pydantic", "pyspark")
    code = f"import sys, trucker.capture.process; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_transaction_may_fill_more_segments_than_files_may_be_open(folder: Path, reader: LogReader) -> None:
    """I9: those that are full are closed, though the transaction is not finished and nothing of it is published."""
    with LogWriter(folder, SOURCE, segment_bytes=300, block_bytes=100) as writer:
        writer.append(begin(2000))
        writer.append(relation(1))
        for _ in range(500):
            writer.append(insert(1, "x" * 40))
        assert len(names(folder)) > 50
        assert sum(segment.fd >= 0 for segment in writer._segments) == 1
        assert reader.durable().commit_lsn == START
        writer.append(commit(2000, 2008))
        writer.flush()
        write(writer, [3000])
    assert [len(found.changes) for _, found in sorted(everything(folder, START).items())] == [500, 1]


def test_an_unfinished_transaction_over_many_segments_is_rolled_back(folder: Path) -> None:
    with LogWriter(folder, SOURCE, segment_bytes=300, block_bytes=100) as writer:
        write(writer, [1500])
        writer.append(begin(2000))
        for _ in range(100):
            writer.append(insert(1, "x" * 40))
        writer.rollback()
        assert len(names(folder)) == 1
        write(writer, [2000], rows=100)
    assert [len(found.changes) for _, found in sorted(everything(folder, START).items())] == [1, 100]
