"""PostgreSQL as a destination passes the suite, on an older and on the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.pg import Database, new_database
from fixtures.postgres_sink import read_rows
from trucker.change import TableId
from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.stream.arriving_receipts import ArrivingReceipts
from trucker.engine.task.payload import Outcome
from trucker.errors import SinkUnavailable
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import CARRIED, Work
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.session import close_idle
from trucker.sinks.target import Target
from trucker.testing.handmade import copied_rows_of, delete, insert, truncate, update
from trucker.testing.server import Server
from trucker.testing.suites.changed_tables_suite import ChangedTablesSuite
from trucker.testing.suites.sink_suite import BAG, ITEMS, START, target_of
from trucker.testing.suites.table_suite import item


class TestPostgresSink(ChangedTablesSuite):
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

    def drop_table(self, table: TableId) -> None:
        self.database.execute(f"drop table {table.quoted}")

    def make_table(self, target: Target) -> None:
        columns = ", ".join(f'"{c.name}" {c.type_name}' for c in target.source.columns)
        key = ", ".join(f'"{name}"' for name in target.source.key)
        self.database.execute(f"create table {target.table.quoted} ({columns}, primary key ({key}))")

    def drop_column(self, table: TableId, column: str) -> None:
        self.database.execute(f'alter table {table.quoted} drop column "{column}"')

    def add_column(self, table: TableId, column: str) -> None:
        self.database.execute(f'alter table {table.quoted} add column "{column}" text')

    def forget_identities(self) -> None:
        self.database.execute("drop table trucker.identities")

    def test_more_chunks_than_temporary_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """I9: a commit's locks do not grow with its parts. Staged or carried, all is applied in order, then gone."""
        monkeypatch.setattr("trucker.sinks.postgres.stage.stage_store._MAX_TABLES", 3)
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
        self.nothing_is_left()

    def test_what_a_truncate_voids_is_removed(self) -> None:
        """Much has been staged, the truncate comes, and what follows is carried in the receipt."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        batch = self.batch([items])
        values = [self.values(ITEMS, insert(item(2, "x" * 5000))), self.values(ITEMS, truncate(), insert(item(3)))]
        sink.commit(batch, [self.write_part(Work(batch, items, 0, 1000), values)])
        self.holds(items, item(3))
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        """No table and no file of staged rows."""
        left = "select count(*) from pg_class where relname like 's\\_%' and relkind = 'r'"
        assert self.database.query(left) == [(0,)]
        assert not any(self.folder.iterdir())

    @pytest.mark.parametrize("room", [CARRIED, 0])
    def test_rows_found_otherwise_than_foreseen(self, room: int) -> None:
        """New rows are inserted and changed ones updated; where others have been there, all is as it is to be anyway,
        and what the batch did before is done once (I4)."""
        items = target_of(ITEMS)
        sink = self.filled(items, *(item(n, "old") for n in range(700)))
        self.database.execute(f"delete from {items.table.quoted} where id in ('3', '400')")
        self.database.execute(f"insert into {items.table.quoted} (id, name) values (900, 'theirs')")
        for step, first in ((1, 800), (2, 1000)):
            changed = self.values(ITEMS, *(update(item(n, f"step {step}")) for n in range(600)), step=step)
            new = self.values(ITEMS, *(insert(item(n, "new")) for n in range(first, first + 200)), step=step)
            batch = self.batch([items], step)
            parts = [self.write_part(Work(batch, items, n, room), [value]) for n, value in enumerate((changed, new))]
            sink.commit(batch, parts)
        kept = [item(n, "step 2") for n in range(600)] + [item(n, "old") for n in range(600, 700)]
        self.holds(items, *kept, *(item(n, "new") for n in range(800, 1200)))

    @pytest.mark.parametrize("room", [CARRIED, 0])
    def test_parts_that_arrive_one_by_one(self, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same rows in several parts, each applied before the next is there; little or much, and all kinds."""
        monkeypatch.setattr("trucker.sinks.postgres.stage.stage_store._MAX_TABLES", 3)
        items, bag = target_of(ITEMS), target_of(BAG)
        sink = self.filled(items, *(item(n, "old") for n in range(600)))
        self.copy(sink, {bag: [[copied_rows_of(BAG, [{"a": "1", "b": "x"}])]]}, name="bag", at=START)
        batch = self.batch([items, bag])
        outcomes = []
        for part in range(6):
            changes = [update(item(n, f"part {part}")) for n in range(part, 600)]
            changes += [insert(item(1000 + part))] + ([delete(item(999 + part))] if part else [])
            own = self.write_part(Work(batch, items, part, room), [self.values(ITEMS, *changes)])
            more = self.values(BAG, insert({"a": "1", "b": f"{part}"}))
            outcomes.append(Outcome({"here": [own, self.write_part(Work(batch, bag, part, room), [more])]}))
        sink.commit(batch, ArrivingReceipts("here", {"main"}, OutcomeStream.done(outcomes)))
        changed = [item(n, f"part {min(n, 5)}") for n in range(600)]
        self.holds(items, *changed, item(1005))
        assert sorted(str(row["b"]) for row in self.rows(bag.table)) == ["0", "1", "2", "3", "4", "5", "x"]

    def test_staged_text_that_is_missing(self) -> None:
        """It is told as something that passes, and nothing is written (I8)."""
        items = target_of(ITEMS)
        sink = self.filled(items)
        batch = self.batch([items])
        receipt = self.write_part(Work(batch, items, 0, 0), [self.values(ITEMS, insert(item(1)))])
        for file in self.folder.iterdir():
            file.unlink()
        self.database.execute("".join(f"drop table trucker.{name};" for name in self.stages()))
        with pytest.raises(SinkUnavailable):
            sink.commit(batch, [receipt])
        self.holds(items)

    def stages(self) -> list[str]:
        found = self.database.query(
            "select tablename from pg_tables where schemaname = 'trucker' and tablename ~ '^s_'"
        )
        return [row[0] for row in found]
