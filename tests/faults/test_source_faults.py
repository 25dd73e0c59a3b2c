"""What befalls the source, its slot, its publication, its server: nothing is lost without being told (I8, I11)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database, start_server
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.standby import make_standby
from fixtures.waiting import wait_until
from trucker import failpoint
from trucker.errors import CheckFailed, TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.project import Project
from trucker.testing.server import Server
from trucker.testing.standby import Standby

pytestmark = pytest.mark.spark

TABLES = ("account", "ledger", "note")
SCHEMA = (
    "create table account (id int primary key, n numeric, about json)",
    "create table ledger (n int, note text)",  # no key: a doubled row shows
    "alter table ledger replica identity full",
    "create table note (id int primary key, account int references account, t text)",
    """insert into account select i, 0, '{"a": 1}' from generate_series(1, 50) i""",
    "insert into ledger select i % 7, 'before' from generate_series(1, 500) i",
    "insert into note select i, i, 'n' from generate_series(1, 50) i",
)
# Rows that go, rows that come, rows that change, one of them to what is equal but not the same.
CHANGES = (
    "delete from note where id > 40",
    "delete from account where id > 45",
    "update account set n = n + id where id < 10",
    "update account set n = '0.00' where id = 20",
    "insert into account values (100, 1.5, null)",
    "insert into note values (100, 100, 'late')",
    "delete from ledger where n = 3",
    "insert into ledger values (3, 'after'), (3, 'after')",
)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own, which may be stopped, restored and told to give up slots."""
    yield from start_server(tmp_path_factory, 18)


@pytest.fixture
def own_database(fragile: Server) -> Iterator[Database]:
    yield from new_database(fragile, "source")


@pytest.fixture
def folder(tmp_path: Path, own_database: Database, destination: Database) -> ProjectFolder:
    return make_project(tmp_path / "project", own_database, destination)


def make_project(path: Path, source: Database, destination: Database, **keys: Any) -> ProjectFolder:
    source.execute(*SCHEMA)
    made = ProjectFolder(path, source.name)
    made.connect(postgres("source", source, **keys), postgres("replica", destination))
    return made.truck("copy", ["public.*"], {"connection": "replica"})


def streaming(project: ProjectFolder, spark: Any, source: Database, destination: Database) -> InThread:
    """A run that has copied everything and applies what comes."""
    run = InThread(project, spark)
    run.wait_streaming(120)
    source.execute("insert into ledger values (0, 'first')")
    wait_until(lambda: same(source, destination, *TABLES), 60, 0.05)
    return run


def drop_slot(database: Database) -> None:
    """Although somebody reads from it."""
    mine = f"from pg_replication_slots where database = '{database.name}' and not temporary"

    def gone() -> bool:
        try:
            database.execute(
                f"select pg_terminate_backend(active_pid) {mine} and active_pid is not null",
                f"select pg_drop_replication_slot(slot_name) {mine}",
            )
        except psycopg.errors.ObjectInUse:
            return False
        return not database.query(f"select 1 {mine}")

    wait_until(gone, 30, 0.02)


def invalidate_slot(database: Database) -> None:
    """The server gives it up: it would have to keep more WAL than it may."""
    database.execute("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    try:
        for _ in range(4):
            database.execute("select pg_logical_emit_message(false, 'filling', 'x')", "select pg_switch_wal()")
        database.execute("checkpoint")
    finally:
        database.execute("alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")
    lost = f"select wal_status from pg_replication_slots where database = '{database.name}'"
    assert database.query(lost) == [("lost",)]


def fails(run: InThread) -> str:
    """The error that the run ends with, as its status tells it."""
    run.join()
    truck = run.truck()
    assert truck is not None
    assert truck.phase is TruckPhase.FAILED
    assert truck.error is not None
    return truck.error


def refused(project: ProjectFolder, spark: Any) -> TruckerError:
    """What a start is refused with."""
    with pytest.raises(TruckerError) as found:
        InThread(project, spark).join()
    return found.value


# -- the slot -----------------------------------------------------------------------------------------------------


def test_a_slot_that_is_dropped_stops_the_trucks(
    folder: ProjectFolder, own_database: Database, destination: Database, spark: Any
) -> None:
    """I11: what was written since cannot be had. `trucker reset` is the way out; the rows stay until it is taken."""
    run = streaming(folder, spark, own_database, destination)
    drop_slot(own_database)
    assert "TRK230" in fails(run)
    own_database.execute(*CHANGES)
    assert refused(folder, spark).code == "TRK230"
    assert destination.query("select count(*) from account") == [(50,)]
    Project.load(folder.folder).reset()
    with InThread(folder, spark):
        wait_until(lambda: same(own_database, destination, *TABLES), 60, 0.1)


def test_a_dropped_slot_is_created_again_with_on_slot_loss_resnapshot(
    tmp_path: Path, own_database: Database, destination: Database, spark: Any
) -> None:
    """By itself, in the same run; the old rows are readable meanwhile, and what stands on the tables stays."""
    project = make_project(tmp_path / "project", own_database, destination, on_slot_loss="resnapshot")
    with streaming(project, spark, own_database, destination) as run:
        destination.execute(
            "create view rich as select id, n from account",
            "create table mine (account int references account on delete cascade)",
            "insert into mine values (1), (20), (50)",
            "alter table note add foreign key (account) references account",
            "alter table account add column remark text",
            "update account set remark = 'mine' where id in (1, 20)",
        )
        untouched = destination.query("select xmin::text from account where id = 30")
        go = tmp_path / "go"
        failpoint.arm({failpoint.VARIABLE: f"copy.end.before=hang:{go}"})
        try:
            drop_slot(own_database)
            own_database.execute(*CHANGES)
            wait_until(lambda: failpoint.hits("copy.end.before"), 90)
            assert destination.query("select count(*), sum(n) from account") == [(50, 0)]
            assert destination.query("select count(*) from ledger") == [(501,)]
            assert destination.query("select count(*) from rich") == [(50,)]
            assert destination.query("select distinct phase from trucker.tables") == [("copying",)]
        finally:
            go.touch()
            failpoint.arm({})
        wait_until(lambda: same(own_database, destination, *TABLES), 60, 0.1)
        own_database.execute("insert into ledger values (9, 'goes on')", "update account set n = 7 where id = 100")
        wait_until(lambda: same(own_database, destination, *TABLES), 30, 0.05)
        run.check()
    assert destination.query("select id, remark from account where remark is not null order by id") == [
        (1, "mine"),
        (20, "mine"),
    ]
    assert destination.query("select account from mine order by 1") == [(1,), (20,)], "the rows that refer, but to 50"
    assert destination.query("select xmin::text from account where id = 30") == untouched
    assert not destination.query("select 1 from pg_tables where schemaname = 'trucker' and tablename ~ '^[cs]_'")


def test_a_slot_that_the_server_gave_up(
    tmp_path: Path, own_database: Database, destination: Database, spark: Any
) -> None:
    """`max_slot_wal_keep_size`: refused with the reason; told to, a start copies again."""
    project = make_project(tmp_path / "project", own_database, destination)
    streaming(project, spark, own_database, destination).stop()
    invalidate_slot(own_database)
    own_database.execute(*CHANGES)
    error = refused(project, spark)
    assert isinstance(error, CheckFailed)
    assert error.code == "TRK232"
    assert "wal_removed" in error.message
    project.config["connections"][0]["on_slot_loss"] = "resnapshot"
    with InThread(project.save(), spark):
        wait_until(lambda: same(own_database, destination, *TABLES), 90, 0.1)


def test_another_server_under_the_same_name_is_refused_whatever_the_policy(
    tmp_path: Path, own_database: Database, database: Database, destination: Database, spark: Any
) -> None:
    """I11: there, too, the slot is missing; that is not a slot that was lost."""
    project = make_project(tmp_path / "project", own_database, destination, on_slot_loss="resnapshot")
    streaming(project, spark, own_database, destination).stop()
    database.execute(*SCHEMA[:4])
    project.config["connections"][0] = postgres("source", database, on_slot_loss="resnapshot")
    assert refused(project.save(), spark).code == "TRK302"
    assert destination.query("select count(*) from account") == [(50,)]


# -- the publication ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["stop", "resnapshot"])
def test_a_publication_that_is_dropped(
    tmp_path: Path, any_database: Database, destination: Database, spark: Any, policy: str
) -> None:
    """PostgreSQL 18 goes on without a word; what is written meanwhile is in no stream, so all is copied again."""
    project = make_project(tmp_path / "project", any_database, destination, on_slot_loss=policy)
    run = streaming(project, spark, any_database, destination)
    (name,) = any_database.query("select pubname from pg_publication")[0]
    any_database.execute(f"drop publication {name}", *CHANGES)
    if policy == "stop":
        assert "TRK240" in fails(run)
        Project.load(project.folder).reset()
        run = InThread(project, spark)
    with run:
        wait_until(lambda: same(any_database, destination, *TABLES), 90, 0.1)
        any_database.execute("insert into ledger values (9, 'goes on')")
        wait_until(lambda: same(any_database, destination, *TABLES), 30, 0.05)


# -- the server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [False, True], ids=["behind", "past the log"])
def test_a_server_restored_to_an_earlier_point_is_refused(
    folder: ProjectFolder,
    own_database: Database,
    destination: Database,
    fragile: Server,
    tmp_path: Path,
    spark: Any,
    writes: bool,
) -> None:
    """I11: the log holds what never happened there; also when its WAL reaches further than the log by now."""
    streaming(folder, spark, own_database, destination).stop()
    fragile.stop()
    shutil.copytree(fragile.data.resolve(), tmp_path / "backup", symlinks=True)
    fragile.start()
    run = streaming(folder, spark, own_database, destination)
    own_database.execute(*CHANGES)
    wait_until(lambda: same(own_database, destination, *TABLES), 60, 0.05)
    run.stop()
    (before,) = own_database.query("select pg_current_wal_flush_lsn()::text")[0]
    fragile.stop("immediate")
    restore(fragile, tmp_path / "backup")
    fragile.start()
    if writes:
        fill = "insert into ledger select 5, repeat('other', 50) from generate_series(1, 5000)"
        while Lsn.parse(own_database.query("select pg_current_wal_flush_lsn()::text")[0][0]) <= Lsn.parse(before):
            own_database.execute(fill)
    if writes:
        assert "TRK304" in fails(InThread(folder, spark))
    else:
        assert refused(folder, spark).code == "TRK304"
    assert destination.query("select count(*) from account where id = 100") == [(1,)], "nothing was touched"


def restore(server: Server, backup: Path) -> None:
    data = server.data.resolve()
    owner = data.stat()
    shutil.rmtree(data)
    shutil.copytree(backup, data, symlinks=True)
    for path in (data, *data.rglob("*")):
        if not path.is_symlink():
            shutil.chown(path, owner.st_uid, owner.st_gid)
    data.chmod(0o700)


@pytest.fixture
def twin(own_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    yield from make_standby(own_server, tmp_path_factory)


def keep_slots(primary: Server, standby: Standby) -> None:
    """The standby keeps a copy of the failover slots; the primary sends nobody what the standby does not have."""
    with standby.connect() as connection:
        connection.execute(f"alter system set primary_conninfo = '{primary.conninfo}'".encode())
        connection.execute("alter system set sync_replication_slots = on")
        connection.execute("select pg_reload_conf()")
    with primary.connect() as connection:
        connection.execute(f"alter system set synchronized_standby_slots = '{standby.slot}'".encode())
        connection.execute("select pg_reload_conf()")


@pytest.fixture
def source(own_server: Server) -> Iterator[Database]:
    yield from new_database(own_server, "source")


class Writer:
    """Writes one transaction after the other until the server is gone."""

    def __init__(self, database: Database) -> None:
        self.written = 0
        self._database = database
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def _run(self) -> None:
        with suppress(psycopg.OperationalError), self._database.connect() as connection:
            while True:
                with connection.transaction():
                    connection.execute("insert into ledger values (%s, 'entry')", [self.written])
                    connection.execute("update account set n = n + 1 where id = %s", [self.written % 50])
                self.written += 1

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_failover_to_a_standby_with_a_synchronised_slot(
    own_server: Server, twin: Standby, source: Database, tmp_path: Path, destination: Database, spark: Any
) -> None:
    """The same system on a new timeline: it goes on where it was, nothing lost and nothing doubled (I4)."""
    project = make_project(tmp_path / "project", source, destination)
    run = streaming(project, spark, source, destination)
    keep_slots(own_server, twin)
    promoted = Database(twin, source.name, twin.connection("source", source.name))
    synced = f"select 1 from pg_replication_slots where database = '{source.name}' and synced and not temporary"
    wait_until(lambda: promoted.query(synced), 90, 0.1)
    writer = Writer(source)
    wait_until(lambda: writer.written > 200, 60)
    own_server.kill()
    writer.join()
    twin.promote()
    run.stop()
    promoted.execute("insert into ledger values (-1, 'after the failover')")
    project.config["connections"][0]["port"] = twin.port
    with InThread(project.save(), spark) as run:
        wait_until(lambda: same(promoted, destination, *TABLES), 90, 0.1)
        promoted.execute("insert into ledger values (-2, 'goes on')")
        wait_until(lambda: same(promoted, destination, *TABLES), 30, 0.05)
        run.check()
    assert destination.query("select count(*) from ledger where n < 0") == [(2,)]
    twin.stop()
