"""PostgreSQL as a destination passes the suite, on an older and on the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.pg import Database, new_database
from fixtures.postgres_sink import read_rows
from trucker.change import TableId
from trucker.sinks.base import CARRIED, Sink, Work, Workspace
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.session import close_idle
from trucker.testing.handmade import copied_rows_of, insert, truncate, update
from trucker.testing.server import Server
from trucker.testing.sink_suite import BAG, ITEMS, START, target_of
from trucker.testing.table_suite import TableSinkSuite, item


class TestPostgresSink(TableSinkSuite):
    """On one version what is much is staged in tables, on the other in files, as where all run on one machine."""

    @pytest.fixture(autouse=True)
    def fresh(self, any_server: Server, tmp_path: Path) -> Iterator[None]:
        self.folder, self.near = tmp_path, any_server.version == 18
        for database in new_database(any_server, "destination"):
            self.database: Database = database
            yield
            close_idle(self.database.connection)

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, self.folder, self.near))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        return read_rows(self.database, table)

    def put_foreign_row(self, table: TableId) -> None:
        self.database.execute(f"insert into {table.quoted} (id) values (77)")

    def test_more_chunks_than_temporary_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """I9: a commit's locks do not grow with its parts. Staged or carried, all is applied in order, then gone."""
        monkeypatch.setattr("trucker.sinks.postgres.staging._KEPT", 3)
        items, bag = target_of(ITEMS), target_of(BAG)
        sink = self.filled(items, item(1, "old"))
        self.copy(sink, {bag: [[copied_rows_of(BAG, [{"a": "1", "b": "x"}])]]}, name="bag", at=START)
        parts = [self.values(ITEMS, insert(item(n)), update(item(1, f"part {n}"))) for n in range(2, 12)]
        parts.insert(5, self.values(ITEMS, truncate(), insert(item(1))))
        rows = [[self.values(BAG, insert({"a": str(n), "b": "y"}))] for n in range(8)]
        batch = self.batch([items, bag])
        receipts = self.write(batch, {bag: rows})
        for number, value in enumerate(parts):
            room = 0 if number % 2 else CARRIED
            receipts.append(self.write_part(Work(batch, items, number, room), [value]))
        sink.commit(batch, receipts)
        self.holds(items, item(1, "part 11"), *(item(n) for n in range(7, 12)))
        assert len(self.rows(bag.table)) == 9
        left = "select count(*) from pg_class where relname like 's\\_%' and relkind = 'r'"
        assert self.database.query(left) == [(0,)]
        assert not any(self.folder.iterdir())
