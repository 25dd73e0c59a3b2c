"""Messages handed over in bulk: however they are split, the log is the one that they make one by one, byte for byte."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.log_stores import MEMORY
from fixtures.wal import SOURCE, Transaction, begin, commit, insert, kind, message, relation, truncate
from trucker.changelog.folder.writer import LogWriter
from trucker.changelog.format.block import Open, summarise
from trucker.changelog.log_creation import create_log
from trucker.lsn import Lsn
from trucker.pg.messages import Messages

START = Lsn(0x1000)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """What a source sends: transactions, relations described anew, truncates, logical messages inside and outside."""
    lsn, found = int(START), list[bytes]()
    for _ in range(draw(st.integers(1, 8))):
        body: list[bytes] = []
        for _ in range(draw(st.integers(0, 12))):
            oid = draw(st.integers(16384, 16387))
            what = draw(st.integers(0, 9))
            if what == 0:
                body += [kind(9, "mood"), relation(oid, f"t{oid}", [f"c{draw(st.integers(0, 1))}"], 9)]
            elif what == 1:
                body.append(truncate(oid, 16384))
            elif what == 2:
                body.append(message(lsn, transactional=True))
            else:
                body.append(insert(oid, "x" * draw(st.integers(0, 90))))
        lsn += 16
        found += Transaction(lsn, lsn + 8, body).messages
        if draw(st.integers(0, 4)) == 0:
            found.append(message(lsn + 9))
    return found


def written(pieces: Iterable[list[bytes]], block_bytes: int, segment_bytes: int) -> dict[str, bytes]:
    """The files of the log that these pieces make."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        folder = Path(root) / "log"
        create_log(folder, SOURCE, START)
        with LogWriter(folder, SOURCE, block_bytes=block_bytes, segment_bytes=segment_bytes) as writer:
            for piece in pieces:
                writer.extend(Messages.of(piece))
            writer.flush()
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.name[0] == "0"}


@given(streams(), st.data())
@settings(max_examples=80, deadline=None)
def test_any_split_makes_the_same_log(messages: list[bytes], data: st.DataObject) -> None:
    """I4: what a reader finds cannot depend on how much came at a time."""
    sizes = data.draw(st.sampled_from([100, 400, 4 << 20])), data.draw(st.sampled_from([300, 1000, 64 << 20]))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(messages)), max_size=6)))
    pieces = [messages[a:b] for a, b in zip([0, *cuts], [*cuts, len(messages)], strict=True)]
    assert written(pieces, *sizes) == written(([each] for each in messages), *sizes)


@given(streams(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_part_is_what_a_list_would_give(messages: list[bytes], data: st.DataObject) -> None:
    whole = Messages.of(messages)
    assert list(whole) == messages
    start = data.draw(st.integers(0, len(messages)))
    end = data.draw(st.integers(start, len(messages)))
    assert list(whole.part(start, end)) == messages[start:end]
    assert whole.part(start, end).lengths.tolist() == [len(each) for each in messages[start:end]]
    gone = sorted(data.draw(st.sets(st.integers(0, len(messages) - 1))))
    assert list(whole.without(gone)) == [each for at, each in enumerate(messages) if at not in gone]
    again = Messages.joined([whole.part(0, start), whole.part(start, end), whole.part(end, len(messages))])
    assert list(again) == messages
    assert again.relations() == whole.relations()


def test_a_run_is_summed_up_from_its_edges() -> None:
    run = Messages.of([begin(100, 7), insert(1, "a"), commit(100, 108), message(120), begin(130, 8), insert(1, "b")])
    found = summarise(run, None, 50, 0)
    assert (found.first, found.last, found.end, found.commits) == (100, 130, 108, 1)
    assert found.open is not None
    assert (found.open.commit_lsn, found.open.xid, found.open.ordinal) == (130, 8, 1)


def test_a_run_inside_a_transaction_counts_on() -> None:
    started = Open(100, 5, 40, 7)
    found = summarise(Messages.of([insert(1, "a"), message(90, transactional=True)]), started, 50, 9)
    assert (found.first, found.last, found.end, found.commit_time, found.commits) == (100, 100, 50, 9, 0)
    assert found.open == Open(100, 5, 41, 7)


def test_a_non_transactional_message_counts_as_a_transaction() -> None:
    run = Messages.of([message(60), message(70)])
    found = summarise(run, None, 50, 0)
    assert (found.first, found.last, found.end, found.open) == (60, 70, 50, None)
    assert run.finished() == 2
