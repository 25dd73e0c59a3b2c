"""Moments in a log, as LSNs and as times: held against a plain list of its transactions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.wal import SOURCE, begin, commit, insert, relation
from trucker.changelog.folder.writer import LogWriter
from trucker.changelog.log_creation import create_log
from trucker.changelog.reader import LogReader
from trucker.engine.replay.log_moment import LoggedMoments, Moment, parse_moment, shown
from trucker.errors import ChangeLogError, ConfigError
from trucker.lsn import Lsn

START = Lsn(1000)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
Commit = tuple[Lsn, int]
"""The end of a transaction, and its time in seconds after noon."""


@contextmanager
def log_of(times: Sequence[int], blocks: Sequence[bool]) -> Iterator[tuple[LoggedMoments, list[Commit]]]:
    """A log of a transaction for each time; `blocks` says after which of them a block ends."""
    with tempfile.TemporaryDirectory() as folder:
        location = Path(folder) / "log"
        create_log(location, SOURCE, START)
        commits = []
        with closing(LogWriter(location, SOURCE, segment_bytes=4096)) as writer:
            for number, time in enumerate(times):
                lsn, micros = START + 100 * (number + 1), round((NOON.timestamp() + time) * 1_000_000)
                for each in (begin(lsn, number + 1, micros), relation(1), insert(1, "x"), commit(lsn, lsn + 8, micros)):
                    writer.append(each)
                commits.append((Lsn(lsn + 8), time))
                if number >= len(blocks) or blocks[number]:
                    writer.flush()
            writer.flush()
        with closing(LogReader(location)) as reader:
            yield LoggedMoments(reader), commits


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


times = st.lists(st.integers(0, 12), min_size=1, max_size=12)
cuts = st.lists(st.booleans(), max_size=12)


@given(times=times, blocks=cuts, moment=st.integers(-1, 13))
def test_a_time_is_the_first_transaction_that_is_not_before_it(
    times: list[int], blocks: list[bool], moment: int
) -> None:
    """`--from`: the clock of the source may have been set back. What may be missing in the log is refused."""
    with log_of(times, blocks) as (moments, commits):
        first = next((number for number, (_, time) in enumerate(commits) if time >= moment), None)
        if first is None or (first == 0 and commits[0][1] > moment):
            with pytest.raises(ChangeLogError) as caught:
                moments.start(at(moment))
            assert caught.value.code == "TRK313"
        else:
            assert moments.start(at(moment)) == (commits[first - 1][0] if first else START)


@given(times=times, blocks=cuts, moment=st.integers(-1, 13), begun=st.integers(0, 5))
def test_a_time_ends_before_the_first_transaction_that_is_later(
    times: list[int], blocks: list[bool], moment: int, begun: int
) -> None:
    """`--to`, as in PostgreSQL's recovery; after the last transaction nothing is known."""
    with log_of(times, blocks) as (moments, commits):
        start = commits[min(begun, len(commits)) - 1][0] if begun else START
        rest = [each for each in commits if each[0] > start]
        count = next((number for number, (_, time) in enumerate(rest) if time > moment), None)
        if count is None and commits[-1][1] < moment:
            with pytest.raises(ChangeLogError) as caught:
                moments.end(at(moment), start)
            assert "after what the change log has" in caught.value.message
        else:
            taken = rest[:count]
            found = moments.end(at(moment), start)
            assert found.end == (taken[-1][0] if taken else start)
            assert found.time == (at(taken[-1][1]) if taken else None)


@given(times=times, blocks=cuts, position=st.integers(START, START + 1400))
def test_a_position_ends_at_the_last_commit_before_it(times: list[int], blocks: list[bool], position: int) -> None:
    with log_of(times, blocks) as (moments, commits):
        before = [each for each in commits if each[0] <= position]
        if position > commits[-1][0]:
            with pytest.raises(ChangeLogError):
                moments.end(Lsn(position), START)
            return
        found = moments.end(Lsn(position), START)
        assert found.end == (before[-1][0] if before else START)
        assert found.time == (at(before[-1][1]) if before else None)
        assert moments.end(None, START).end == commits[-1][0]


def test_what_the_log_does_not_have_is_named_with_what_it_has() -> None:
    with log_of([3, 5], []) as (moments, commits):
        for moment in (Lsn(999), at(2)):
            with pytest.raises(ChangeLogError) as caught:
                moments.start(moment)
            assert f"it begins at {START}, its first commit is {commits[0][0]} (2026-01-31T12:00:03Z)" in str(
                caught.value
            )
        moments_after: tuple[Moment, ...] = (Lsn(2000), at(6))
        for moment in moments_after:
            with pytest.raises(ChangeLogError) as caught:
                moments.end(moment, START)
            assert f"its last commit is {commits[1][0]} (2026-01-31T12:00:05Z)" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("16/B374D848", Lsn(0x16B374D848)),
        ("0/0", Lsn(0)),
        (" 0/ff ", Lsn(255)),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31 13:00:00.000001+01:00", NOON + timedelta(microseconds=1)),
    ],
)
def test_moments_are_positions_or_times(text: str, moment: Moment) -> None:
    assert parse_moment(text, "--to") == moment


def test_a_time_without_an_offset_is_of_this_machine() -> None:
    local = datetime(2026, 1, 31, 12).astimezone()
    assert parse_moment("2026-01-31T12:00", "--to") == local
    assert shown(local.astimezone(timezone(timedelta(hours=5)))) == shown(local)


@pytest.mark.parametrize("text", ["", "yesterday", "1/2/3", "0x10", "G/1", "12:00", "123456789/0"])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^.TRK100. --from .*: this is neither an LSN nor a time"):
        parse_moment(text, "--from")
