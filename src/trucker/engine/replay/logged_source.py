"""The source of a replay: the change log alone. What the log does not have is an error, never read at the source.

The source has the values of now, and a replay writes those of then. Only a truck's own `input.sql` reads the source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NoReturn, cast

from trucker.change import Changes
from trucker.errors import SourceError
from trucker.source.base import QuerySession, Source

NOT_LOGGED = "TRK653"


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """Stands in for a source where tasks would read values that the stream did not send. It pickles."""

    name: str

    @classmethod
    def of(cls, name: str) -> Source:
        """As what the engine asks of a source while it applies changes."""
        return cast("Source", cls(name))

    def query_session(self, snapshot: str | None = None) -> QuerySession:
        return cast("QuerySession", _NoSession())


class _NoSession:
    closed = False

    def reselect(self, changes: Changes, *, only: Collection[str] | None = None) -> NoReturn:
        columns = ", ".join(sorted(changes.unchanged))
        raise SourceError(
            f"the change log does not have all values of a row of {changes.schema.table}: PostgreSQL does not send "
            f"large values that did not change (columns {columns})",
            remedy="replay into a copy of the destination, which has these values; or set REPLICA IDENTITY FULL at the "
            "source, for changes from then on",
            code=NOT_LOGGED,
        ).of_table(changes.schema.table)

    def await_visible(self, xids: Iterable[int]) -> None:
        """Nothing is read."""

    def close(self) -> None:
        """There is no connection."""
