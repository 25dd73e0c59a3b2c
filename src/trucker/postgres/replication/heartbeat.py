"""Heartbeats: small messages in the WAL that keep an idle slot moving and show that the stream is alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import pq

from trucker.errors import SourceError, SourceUnavailable
from trucker.postgres.replication.protocol import HEARTBEAT
from trucker.postgres.replication.stream import PASSING, PUBLICATION, connect_pq, execute_pq, field_of, promoted

MESSAGE = pq.DiagnosticField.MESSAGE_PRIMARY


class Heart:
    """A second connection that writes heartbeats into the WAL, and looks after the publication.

    PostgreSQL 18 leaves out a publication that is missing with no more than a warning in its log; somebody has to look.
    Where the stream comes from a `standby`, it checks that this is still one: a promoted one goes on streaming, but
    what it streams is its own.
    """

    def __init__(
        self,
        conninfo: Mapping[str, str | int],
        publication: str,
        standby: Mapping[str, str | int] | None = None,
        *,
        timeout: float = 10.0,
        silence: float = 60.0,
    ) -> None:
        self._conninfo = conninfo
        self._publication = publication
        self._standby = standby
        self._timeout = timeout
        self._silence = silence
        self._pgconn: pq.abc.PGconn | None = None
        self._watcher: pq.abc.PGconn | None = None

    def beat(self, content: str) -> bool:
        """One heartbeat. False where the server will never take one; `SourceUnavailable` where it does not just now."""
        if self._standby is not None:
            self._check_standby(self._standby)
        try:
            if self._pgconn is None:
                self._pgconn = connect_pq(self._conninfo, -1, self._timeout)
            self._check_publication(self._pgconn)
            result = self._execute(
                self._pgconn,
                b"select pg_catalog.pg_logical_emit_message(false, $1, $2)",
                [HEARTBEAT.encode(), content.encode()],
            )
        except SourceUnavailable:
            self.close()
            raise
        if result.status == pq.ExecStatus.TUPLES_OK:
            return True
        state = field_of(result, pq.DiagnosticField.SQLSTATE)
        if self._pgconn.status == pq.ConnStatus.OK and state[:2] not in PASSING:
            self.close()
            return False
        self.close()
        raise SourceUnavailable(f"a heartbeat failed: {field_of(result, MESSAGE)}")

    def _check_publication(self, pgconn: pq.abc.PGconn) -> None:
        result = self._execute(pgconn, PUBLICATION.format(publication="$1").encode(), [self._publication.encode()])
        if result.status == pq.ExecStatus.TUPLES_OK and not result.ntuples:
            raise SourceError(
                f'publication "{self._publication}" was dropped while it was in use',
                code="TRK240",
                remedy="changes since then are lost: run `trucker reset`, then `trucker run`, which copies the "
                "tables again",
            )

    def _check_standby(self, conninfo: Mapping[str, str | int]) -> None:
        """Before anything is asked of the primary: a standby is mostly promoted because the primary is gone."""
        try:
            if self._watcher is None:
                self._watcher = connect_pq(conninfo, -1, self._timeout)
            result = self._execute(self._watcher, b"select pg_catalog.pg_is_in_recovery()", [])
        except SourceUnavailable:
            self.close()
            raise
        if result.status != pq.ExecStatus.TUPLES_OK:
            self.close()
            raise SourceUnavailable(f"the standby does not answer: {field_of(result, MESSAGE)}")
        if result.get_value(0, 0) != b"t":
            raise promoted()

    def _execute(self, pgconn: pq.abc.PGconn, command: bytes, values: Sequence[bytes]) -> pq.abc.PGresult:
        return execute_pq(pgconn, command, values, wake=-1, timeout=self._silence)

    def close(self) -> None:
        for pgconn in (self._pgconn, self._watcher):
            if pgconn is not None:
                pgconn.finish()
        self._pgconn = self._watcher = None
