"""Heartbeats: small messages in the WAL that keep an idle slot moving and show that the stream is alive."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import pq

from trucker.errors import SourceError, SourceUnavailable
from trucker.postgres.protocol import HEARTBEAT
from trucker.postgres.stream import PASSING, PUBLICATION, connect_pq, field_of, lost


class Heart:
    """A second connection that writes heartbeats into the WAL, and looks after the publication.

    PostgreSQL 18 leaves out a publication that is missing with no more than a warning in its log; somebody has to look.
    """

    def __init__(self, conninfo: Mapping[str, str | int], publication: str) -> None:
        self._conninfo = conninfo
        self._publication = publication
        self._pgconn: pq.abc.PGconn | None = None

    def beat(self, content: str) -> bool:
        """One heartbeat. False where the server will never take one; `SourceUnavailable` where it does not just now."""
        try:
            if self._pgconn is None:
                self._pgconn = connect_pq(self._conninfo, -1, 10.0)
            self._check_publication(self._pgconn)
            result = self._pgconn.exec_params(
                b"select pg_catalog.pg_logical_emit_message(false, $1, $2)", [HEARTBEAT.encode(), content.encode()]
            )
        except psycopg.OperationalError as error:
            self.close()
            raise lost(error) from None
        if result.status == pq.ExecStatus.TUPLES_OK:
            return True
        state = field_of(result, pq.DiagnosticField.SQLSTATE)
        if self._pgconn.status == pq.ConnStatus.OK and state[:2] not in PASSING:
            self.close()
            return False
        self.close()
        raise SourceUnavailable(f"a heartbeat failed: {field_of(result, pq.DiagnosticField.MESSAGE_PRIMARY)}")

    def _check_publication(self, pgconn: pq.abc.PGconn) -> None:
        result = pgconn.exec_params(PUBLICATION.format(publication="$1").encode(), [self._publication.encode()])
        if result.status == pq.ExecStatus.TUPLES_OK and not result.ntuples:
            raise SourceError(
                f'publication "{self._publication}" was dropped while it was in use',
                code="TRK240",
                remedy="changes made since then are not in the stream: `trucker reset` and copy the tables anew",
            )

    def close(self) -> None:
        if self._pgconn is not None:
            self._pgconn.finish()
            self._pgconn = None
