"""Moments in the change log: a position that a person gives as an LSN or as a time, and the commit it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from trucker.changelog.commit_times import CommitTimes, commit_times
from trucker.changelog.reader import LogReader
from trucker.errors import ChangeLogError, ConfigError
from trucker.lsn import Lsn

NOT_IN_LOG: Final = "TRK313"
_LSN: Final = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")

Moment = Lsn | datetime


def parse_moment(text: str, option: str) -> Moment:
    """An LSN (`0/16B3748`) or a time in ISO 8601. A time without an offset is one of this machine's time zone."""
    if _LSN.fullmatch(text.strip()):
        return Lsn.parse(text.strip())
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option} {text}: this is neither an LSN nor a time",
            remedy="write an LSN such as 0/16B3748, or a time such as 2026-01-31T12:00:00Z",
        ) from None


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A transaction of the log by its end, and when it was made; None where the log does not tell."""

    end: Lsn
    time: datetime | None

    def __str__(self) -> str:
        return f"{self.end} ({shown(self.time)})" if self.time is not None else str(self.end)


class LoggedMoments:
    """Finds moments in a log. `oldest` is the first position that it can be read from."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.oldest = reader.oldest()
        self._last = reader.durable()

    def start(self, moment: Moment) -> Lsn:
        """The position before the first transaction that was committed at this time or later; an LSN as it is.

        Raises where the log may have lost some of these transactions, or is behind the position.
        """
        if isinstance(moment, Lsn):
            self._check(moment, "--from")
            return moment
        micros = _micros(moment)
        start, first = self.oldest, True
        for commits in self._commits(self.oldest):
            later = np.flatnonzero(commits.times >= micros)
            if len(later):
                at = int(later[0])
                if first and at == 0 and commits.times[0] > micros:
                    raise self._too_early(f"--from {shown(moment)}")
                return Lsn(commits.ends[at - 1]) if at else start
            start, first = Lsn(commits.ends[-1]), False
        raise self._too_late(f"--from {shown(moment)}")

    def end(self, moment: Moment | None, start: Lsn) -> LoggedCommit:
        """The last commit that is not after the moment, by default of the log; nothing before `start`.

        As in PostgreSQL's own recovery, the first transaction that was committed after a given time is the first one
        that is left out.
        """
        if isinstance(moment, datetime):
            return self._end_at_time(moment, start)
        if moment is not None:
            self._check(moment, "--to")
        return self._last_commit(start, self._last.commit_lsn if moment is None else moment)

    def _end_at_time(self, moment: datetime, start: Lsn) -> LoggedCommit:
        micros, last = _micros(moment), LoggedCommit(start, None)
        for commits in self._commits(start):
            later = np.flatnonzero(commits.times > micros)
            count = int(later[0]) if len(later) else len(commits)
            last = _commit(commits, count - 1) if count else last
            if len(later):
                return last
        whole = self.last_commit(self._last.commit_lsn)
        if whole.time is not None and whole.time >= moment:
            return last
        raise self._too_late(f"--to {shown(moment)}")

    def last_commit(self, end: Lsn) -> LoggedCommit:
        """The last commit up to a position that the log has."""
        return self._last_commit(self.oldest, end)

    def _last_commit(self, start: Lsn, end: Lsn) -> LoggedCommit:
        """The last commit in `(start, end]`."""
        for ref in reversed(self._reader.blocks(start, end, 1) if start < end else []):
            commits = commit_times(self._reader.read(ref))
            inside = np.flatnonzero((commits.ends > start) & (commits.ends <= end))
            if len(inside):
                return _commit(commits, int(inside[-1]))
        return LoggedCommit(start, None)

    def _commits(self, start: Lsn) -> Iterator[CommitTimes]:
        for ref in self._reader.blocks(start, self._last.commit_lsn) if start < self._last.commit_lsn else []:
            commits = commit_times(self._reader.read(ref))
            inside = commits.ends > start
            if inside.any():
                yield CommitTimes(commits.ends[inside], commits.times[inside])

    def _check(self, position: Lsn, option: str) -> None:
        if position < self.oldest:
            raise self._too_early(f"{option} {position}")
        if position > self._last.seen_lsn:
            raise self._too_late(f"{option} {position}")

    def _too_early(self, what: str) -> ChangeLogError:
        first = next((_commit(commits, 0) for commits in self._commits(self.oldest)), None)
        begins = f", its first commit is {first}" if first else ""
        return ChangeLogError(
            f"{what} is before what the change log has: it begins at {self.oldest}{begins}",
            remedy=f"name {self.oldest} or a later moment; log.keep in trucker.yml has more kept from now on",
            code=NOT_IN_LOG,
        )

    def _too_late(self, what: str) -> ChangeLogError:
        last = self.last_commit(self._last.commit_lsn)
        return ChangeLogError(
            f"{what} is after what the change log has: its last commit is {last}",
            remedy="name an earlier moment; without --to all that the log has is replayed",
            code=NOT_IN_LOG,
        )


def _commit(commits: CommitTimes, at: int) -> LoggedCommit:
    time = datetime.fromtimestamp(int(commits.times[at]) // 1_000_000, UTC)
    return LoggedCommit(Lsn(int(commits.ends[at])), time.replace(microsecond=int(commits.times[at]) % 1_000_000))


def _micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def shown(moment: datetime) -> str:
    """The time as `--from` and `--to` take it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
