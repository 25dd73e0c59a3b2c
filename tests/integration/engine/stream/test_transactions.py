"""Every shape of transaction, through every kind of sink: large, nested, interleaved, prepared, invisible."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database, start_server
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.replayed import Replayed
from fixtures.waiting import wait_until
from trucker.lsn import Lsn
from trucker.postgres.slot import open_transactions
from trucker.testing.equality import columns, duckdb_sums, postgres_sum, sum_of_texts
from trucker.testing.server import Server

pytestmark = pytest.mark.spark

TABLES = ("t", "bag", "whole", "other")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own: what is open or prepared here holds up new slots of the whole server."""
    yield from start_server(tmp_path_factory, 18, settings={"max_prepared_transactions": "10"})


@pytest.fixture
def database(own: Server) -> Iterator[Database]:
    yield from new_database(own, "source")


@pytest.fixture(autouse=True)
def nothing_prepared(database: Database) -> Iterator[None]:
    """What a failed test leaves prepared would hold up the next one's slot, and keep its database."""
    yield
    for (gid,) in database.query("select quote_literal(gid) from pg_prepared_xacts"):
        database.execute(f"rollback prepared {gid}")


@pytest.fixture
def copies(project: ProjectFolder, database: Database, destination: Database, tmp_path: Path) -> ProjectFolder:
    """The tables in each kind of destination; a part is 64 KiB, so that a few thousand rows are many."""
    database.execute(
        "create table t (id int primary key, n int, doc text)",
        "alter table t alter doc set storage external",
        "create table bag (a int, b text)",
        "alter table bag replica identity full",
        "create table whole (id int primary key, s text)",
        "alter table whole replica identity full",
        "create table other (id int primary key, s text)",
        "create schema hidden create table unpublished (id int primary key, s text)",
        "insert into t select i, i, repeat(md5(i::text), 90) from generate_series(1, 50) i",
        "insert into bag select i % 5, 'b' from generate_series(1, 50) i",
        "insert into other select i, 'o' from generate_series(1, 50) i",
    )
    project.config["batch"] = {"part_bytes": 65_536}
    project.connect(
        postgres("replica", destination),
        {"name": "lake", "adapter": "duckdb", "path": str(tmp_path / "lake.duckdb")},
        {"name": "audit", "adapter": "jsonl", "path": str(tmp_path / "audit")},
    )
    for name in ("replica", "lake", "audit"):
        project.truck(name, ["public.*"], {"connection": name})
    return project


def large(database: Database) -> None:
    """One transaction of some 3 MB in every way a table can change; the same rows again and again."""
    with database.connect() as connection, connection.transaction():
        for statement in (
            "delete from t where id > 50",
            "delete from other where id >= 100",
            "truncate whole",
            "insert into t select i, 0, repeat(md5(i::text), 90) from generate_series(101, 400) i",
            "insert into bag select i % 100, 'many' from generate_series(1, 4000) i",
            "insert into whole select i, repeat('w', 20) from generate_series(1, 2000) i",
            "update t set n = n + 1",  # without the long texts: TOAST
            "insert into other select i, 'gone in the end' from generate_series(100, 1000) i",
            "update t set id = id + 100000 where id > 100",  # moves rows with texts that are not sent
            "update bag set a = a + 1 where b = 'many'",
            "update whole set id = -id where id % 2 = 0",
            "delete from bag where a % 3 = 0",
            "update t set n = n * 2, doc = doc || 'x' where id % 7 = 0",
            "truncate other",
            "insert into other select i, 'after' from generate_series(1, 1500) i",
            "update t set id = -1 where id = 1; update t set id = 1 where id = 2; update t set id = 2 where id = -1",
            "delete from whole where id < -1000",
            "update other set s = s || id where id < 1000",
            "insert into t select i, 7, 'again' from generate_series(101, 300) i",
            "update t set id = id + 1000000 where id between 101 and 200",
            "delete from t where id between 100350 and 100400",
        ):
            connection.execute(statement.encode())


def tiny(database: Database, count: int) -> None:
    """Very many transactions of one row each, as fast as the server makes them."""
    database.execute(
        "create or replace procedure tiny(count int) language plpgsql as $$ begin"
        " for i in 1..count loop insert into other values (1000000 + i, 'tiny'); commit; end loop; end $$",
        f"call tiny({count})",
    )


def nested(database: Database) -> None:
    """Savepoints released, rolled back, and rolled back around a released one."""
    database.execute(
        "begin; insert into other values (5001, 'kept');"
        " savepoint a; insert into other values (5002, 'undone'); update t set n = -99 where id < 20; rollback to a;"
        " insert into other values (5003, 'kept');"
        " savepoint b; delete from other where id < 10; release b;"
        " savepoint c; savepoint d; truncate bag; release d; insert into bag values (1, 'undone'); rollback to c;"
        " update other set s = 'twice' where id = 5001; commit",
        "begin; insert into other values (5004, 'never'); rollback",
        "begin; savepoint a; insert into other values (5005, 'never'); rollback to a; commit",
    )


def interleaved(database: Database) -> None:
    """Long transactions side by side that commit in another order than they began; one gives up."""
    writers = [database.connect(autocommit=False) for _ in range(4)]
    try:
        for turn in range(30):
            for number, writer in enumerate(writers):
                key = 10_000 * (number + 1) + turn
                writer.execute("insert into other values (%s, %s)", [key, f"writer {number}"])
                writer.execute("update other set s = s || '!' where id between %s and %s", [key - 5, key])
                writer.execute("insert into bag values (%s, 'interleaved')", [turn])
            database.execute(f"insert into other values ({9000 + turn}, 'short')")
        for number in (2, 0, 3):
            writers[number].commit()
        writers[1].rollback()
    finally:
        for writer in writers:
            writer.close()


def two_phase(database: Database) -> Callable[[], None]:
    """Prepared, then committed, rolled back, or (what is returned) committed later: a transaction at its very end."""
    database.execute(
        "begin; insert into other values (7001, 'prepared'); update t set n = 71 where id = 20;"
        " prepare transaction 'committed'",
        "begin; insert into other values (7002, 'never'); prepare transaction 'undone'",
        "begin; insert into other values (7003, 'late'); delete from t where id = 21; prepare transaction 'late'",
        "insert into other values (7004, 'in between')",
        "rollback prepared 'undone'",
        "commit prepared 'committed'",
        "insert into other values (7005, 'after')",
    )
    return lambda: database.execute("commit prepared 'late'")


def position(run: InThread, name: str) -> Lsn:
    truck = run.truck(name)
    return Lsn.parse(truck.position) if truck is not None and truck.position else Lsn(0)


def flushed(database: Database) -> Lsn:
    return Lsn.parse(database.query("select pg_current_wal_flush_lsn()::text")[0][0])


def confirmed(database: Database) -> Lsn:
    found = "select confirmed_flush_lsn::text from pg_replication_slots where database = current_database()"
    return Lsn.parse(database.query(found)[0][0])


def differences(database: Database, destination: Database, folder: Path) -> list[str]:
    """What is not as at the source: PostgreSQL, DuckDB, and JSON lines when they are all done again."""
    found = []
    lines = Replayed(folder / "audit" / "audit", TABLES)
    with database.connect() as source, destination.connect() as replica:
        lake = duckdb_sums(source, folder / "lake.duckdb", "public", TABLES)
        for table in TABLES:
            names = columns(source, "public", table)
            expected = postgres_sum(source, "public", table, names)
            with source.transaction(force_rollback=True):
                rows = (tuple(row[name] for name in names) for row in lines.rows(table))
                replayed = sum_of_texts(source, "public", table, names, rows)
            copied = {"postgres": postgres_sum(replica, "public", table, names), "duckdb": lake[table]}
            for sink, got in (*copied.items(), ("jsonl", replayed)):
                if got != expected:
                    found.append(f"{table}: {sink} has {got}, not {expected}")
    return found


def test_every_shape_of_transaction(
    copies: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I1, I5, I7, I9: what committed is there as it was at the source, what did not is nowhere."""
    with InThread(copies, spark) as run:
        run.wait_streaming(120)
        large(database)
        nested(database)
        interleaved(database)
        commit_late = two_phase(database)
        wait_until(lambda: same(database, destination, *TABLES), 120, 0.2)
        assert destination.query("select count(*) from other where id in (7002, 7003)") == [(0,)]
        commit_late()
        tiny(database, 10_000)
        large(database)
        wait_until(lambda: same(database, destination, *TABLES), 120, 0.2)
        truck = run.truck("replica")
        assert truck is not None
        assert truck.batches < 1000, "many transactions share a batch"
    assert differences(database, destination, tmp_path) == []
    text = (tmp_path / "audit" / "audit" / "changes-000001.jsonl").read_text()
    assert "never" not in text
    assert "undone" not in text
    streamed = [line for line in map(json.loads, text.splitlines()) if not line.get("snapshot")]
    seen = [xid for xid, _ in groupby(line["xid"] for line in streamed)]
    assert len(seen) == len(set(seen)), "a transaction is whole, however long others were open meanwhile"


def test_a_transaction_of_unpublished_tables_moves_slot_and_positions(
    copies: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """I2: WAL that nobody wants is not held, neither at the source nor by a truck's stored position."""
    with InThread(copies, spark) as run:
        run.wait_streaming(120)
        database.execute("insert into hidden.unpublished select i, repeat('x', 500) from generate_series(1, 20000) i")
        goal = flushed(database)
        wait_until(lambda: confirmed(database) >= goal, 60, 0.1)
        database.execute("insert into other values (6000, 'seen')")
        goal = flushed(database)
        wait_until(lambda: same(database, destination, "other"), 60, 0.1)
        wait_until(lambda: all(position(run, name) >= goal for name in ("replica", "lake", "audit")), 60, 0.1)


def test_a_commit_that_is_not_visible_yet_while_a_copy_begins(
    copies: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I6: a transaction that waits for its synchronous standby is in the WAL and not visible to a new snapshot.

    The first copy begins while one waits, and a second truck's copy while another one does.
    """
    database.execute(f'alter database "{database.name}" set synchronous_commit = local')
    with synchronous(database):
        hanging = commit_in_background(
            database, "insert into other values (8001, 'flushed'); delete from t where id = 1"
        )
        with InThread(copies, spark) as run:
            wait_until(lambda: slot_waits(database), 60, 0.1)
            assert database.query("select count(*) from other where id = 8001") == [(0,)]
            database.execute("insert into other values (8002, 'visible')")
            release(database, hanging)
            run.wait_streaming(120)
            wait_until(lambda: same(database, destination, *TABLES), 60, 0.1)
    copies.truck("later", ["public.other", "public.t"], {"connection": "replica", "schema": "later"})
    with synchronous(database), InThread(copies, spark) as run:
        hanging = commit_in_background(
            database, "update other set s = 'again' where id > 8000; delete from t where id = 2"
        )
        wait_until(lambda: slot_waits(database), 60, 0.1)
        database.execute("insert into other values (8003, 'visible')")
        release(database, hanging)
        run.wait_streaming(120)
        wait_until(lambda: same(database, destination, *TABLES), 60, 0.1)
        wait_until(lambda: same(database, destination, "other", "t", schema="later"), 60, 0.1)
    assert differences(database, destination, tmp_path) == []


def test_a_commit_that_is_not_visible_yet_while_chunks_are_read(
    copies: ProjectFolder, database: Database, destination: Database, spark: Any, start: Any
) -> None:
    """I6: the stream has the transaction, and a chunk that is read now would not show it: no chunk is read before it
    does. A copy begins after such a transaction, and goes on after one that came meanwhile."""
    database.execute(f'alter database "{database.name}" set synchronous_commit = local')
    with InThread(copies, spark) as run:
        run.wait_streaming(120)
    copies.truck(
        "later", ["public.other", "public.t"], {"connection": "replica", "schema": "later"}, copy="incremental"
    )
    begun = "select count(*) from trucker.tables where truck = 'later' and snapshot like '%#%'"
    looking = "select from pg_stat_activity where application_name = 'trucker copy' and query like"
    with synchronous(database):
        hanging = commit_in_background(database, "delete from t where id = 3")
        trucker = start(failpoints="copy.begin.after=kill")
        wait_until(lambda: database.query(f"{looking} '%transactionid%'") or destination.query(begun) == [(2,)])
        assert destination.query(begun) == [(0,)]
        release(database, hanging)
        assert trucker.process.wait(300) == -9, trucker.output()
    assert destination.query(begun) == [(2,)]
    with synchronous(database):
        hanging = commit_in_background(
            database, "delete from t where id = 1; update t set n = 7 where id = 2; update other set s = 'new'"
        )
        with InThread(copies, spark, wait=True) as run:
            wait_until(lambda: database.query(f"{looking} '%snapshot()%'"))
            assert destination.query("select count(*) from later.t") == [(0,)]
            release(database, hanging)
            run.wait_streaming(120)
            wait_until(lambda: same(database, destination, "other", "t", schema="later"), 60, 0.1)


class synchronous:  # noqa: N801  (reads as a statement)
    """Commits that want a synchronous standby wait for one that does not exist."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._set("nobody")

    def __exit__(self, *_: object) -> None:
        self._set("")

    def _set(self, names: str) -> None:
        self._database.execute(f"alter system set synchronous_standby_names = '{names}'", "select pg_reload_conf()")
        wait_until(lambda: self._database.query("show synchronous_standby_names") == [(names,)])


def commit_in_background(database: Database, statements: str) -> threading.Thread:
    """A transaction that has been flushed and waits for the standby."""

    def work() -> None:
        with database.connect(application_name="hanging", autocommit=False) as connection:
            connection.execute("set local synchronous_commit = on")
            connection.execute(statements.encode())

    thread = threading.Thread(target=work)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where application_name = 'hanging' and wait_event = 'SyncRep'"
    wait_until(lambda: database.query(waiting) == [(1,)])
    return thread


def release(database: Database, hanging: threading.Thread) -> None:
    synchronous(database).__exit__()
    hanging.join(60)
    assert not hanging.is_alive()


def slot_waits(database: Database) -> bool:
    """Whether a slot is in the making; and the log says whom it waits for."""
    found = "select count(*) from pg_replication_slots where confirmed_flush_lsn is null and active"
    if database.query(found) != [(1,)]:
        return False
    with database.connect() as connection:
        return any("hanging" in line and "synchronous standby" in line for line in open_transactions(connection))


def test_what_holds_up_a_new_slot_is_named(database: Database) -> None:
    """A prepared transaction has no session that one could look for."""
    database.execute("create table p (id int)", "begin; insert into p values (1); prepare transaction 'it''s mine'")
    with database.connect() as connection, database.connect(application_name="slow one", autocommit=False) as writer:
        writer.execute("insert into p values (2)")
        held = open_transactions(connection)
        assert any("prepared transaction it's mine" in line and "COMMIT PREPARED" in line for line in held)
        assert any('application "slow one"' in line for line in held)
