"""SQL that is run for a change sees the database as it is with it."""

from __future__ import annotations

import threading

import pytest

from fixtures.pg import Database
from fixtures.waiting import wait_until
from trucker.errors import SourceUnavailable
from trucker.postgres.connect import connect
from trucker.postgres.visibility import await_visible


def test_an_open_transaction_is_waited_for(database: Database) -> None:
    database.execute("create table t (id int)")
    with database.connect() as open_, connect(database.connection, application="test") as reader:
        open_.execute("begin")
        open_.execute("insert into t values (1)")
        row = open_.execute("select pg_current_xact_id()::text::bigint % 4294967296").fetchone()
        assert row is not None
        xid = int(row[0])
        with pytest.raises(SourceUnavailable, match="1 transactions") as caught:
            await_visible(reader, [0, xid], timeout=0.05)
        assert caught.value.transient
        seen: list[object] = []

        def wait() -> None:
            await_visible(reader, [xid])
            seen.append(reader.execute("select count(*) from public.t").fetchone())

        waiting = threading.Thread(target=wait)
        waiting.start()
        open_.execute("commit")
        waiting.join(20)
        wait_until(lambda: seen)
        assert seen == [(1,)]


def test_what_is_over_is_seen_and_what_is_to_come_is_not(database: Database) -> None:
    with connect(database.connection, application="test") as reader:
        row = reader.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint % 4294967296").fetchone()
        assert row is not None
        await_visible(reader, [3, int(row[0]) - 1, (int(row[0]) - (1 << 31) + 1) % (1 << 32)], timeout=0)
        with pytest.raises(SourceUnavailable):
            await_visible(reader, [int(row[0]) + 10], timeout=0)
