"""A project with `replica_host`: copied from and streamed by the standby, published on the primary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.standby import Pair, follow, make_standby, replica_keys
from fixtures.waiting import wait_until
from trucker.errors import CheckFailed, SourceError, SourceUnavailable
from trucker.observe.status import TruckPhase
from trucker.pg.connection import PgConnection
from trucker.postgres.snapshot import enter_snapshot
from trucker.project import Project
from trucker.testing.server import Server
from trucker.testing.standby import Standby

pytestmark = pytest.mark.spark


@pytest.fixture
def copy(primary: Server) -> Iterator[Database]:
    """The destination, on the primary too."""
    yield from new_database(primary, "destination")


@pytest.fixture
def second(own_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    """Another standby of `own_pair`'s primary."""
    yield from make_standby(own_server, tmp_path_factory)


@pytest.fixture
def folder(tmp_path: Path, pair: Pair, copy: Database) -> ProjectFolder:
    return project_of(tmp_path, pair, copy)


def project_of(tmp_path: Path, pair: Pair, copy: Database, **more: Any) -> ProjectFolder:
    project = ProjectFolder(tmp_path / "project", pair.database.name)
    project.connect(postgres("source", pair.database, **{**replica_keys(pair.standby), **more}), postgres("copy", copy))
    return project.truck("all", ["public.*"], {"connection": "copy"})


def write(database: Database, first: int) -> None:
    """Inserts, updates, deletes and a moved key, over two tables."""
    database.execute(
        f"insert into t select i, 'row ' || i, repeat(md5(i::text), 300)"
        f" from generate_series({first}, {first + 299}) i",
        "update t set name = upper(name) where id % 3 = 0",
        "delete from t where id % 5 = 0",
        f"update t set id = -id where id = {first + 1}",
        "begin; insert into u select id from t on conflict do nothing; delete from u where id % 2 = 0; commit",
    )


TABLES = (
    "create table t (id int primary key, name text, doc text)",
    "alter table t alter doc set storage external",
    "create table u (id int primary key)",
)


def test_everything_comes_through_the_standby(folder: ProjectFolder, pair: Pair, copy: Database, spark: Any) -> None:
    source = pair.database
    source.execute(*TABLES)
    write(source, 1)
    with InThread(folder, spark) as run:
        run.wait_streaming()
        assert same(source, copy, "t", "u")
        here, there = pair.slots()
        assert (len(here), len(there)) == (0, 1)
        write(source, 1001)
        wait_until(lambda: same(source, copy, "t", "u"))
        held = pair.query("select application_name from pg_stat_activity where application_name like 'trucker%'")
        assert any("capture" in name for (name,) in held)
        assert source.query("select 1 from pg_publication") == [(1,)]
    write(source, 2001)
    with InThread(folder, spark) as run:
        run.wait_streaming()
        wait_until(lambda: same(source, copy, "t", "u"))
        # a table that comes later is copied from the standby too, beside the stream
        pair.standby.restart()
        write(source, 3001)
        wait_until(lambda: same(source, copy, "t", "u"), 60)
    source.execute("create table late (id int primary key)", "insert into late select generate_series(1, 100)")
    with InThread(folder, spark) as run:
        wait_until(lambda: same(source, copy, "late") if run.truck() else None, 60)
        run.wait_streaming()
        source.execute("delete from late where id > 50")
        wait_until(lambda: same(source, copy, "t", "u", "late"))
    Project.load(folder.folder).reset()
    assert pair.slots() == ([], [])
    assert source.query("select 1 from pg_publication") == []


def test_copies_by_chunks_are_read_from_the_standby(
    folder: ProjectFolder, pair: Pair, copy: Database, spark: Any
) -> None:
    """I6: with the rows of a transaction that was open on the primary when its table was published."""
    source = pair.database
    folder.config["copy"] = {"chunk_bytes": 65536, "parallel": 2}
    folder.save().truck("all", ["public.t"], {"connection": "copy"}, copy="incremental")
    source.execute(*TABLES)
    write(source, 1)
    InThread(folder, spark, once=True).join()
    folder.truck("all", ["public.*"], {"connection": "copy"}, copy="incremental")
    source.execute("create table late (id int primary key)")
    waits = "select from pg_stat_activity where query like '%pg_locks%transactionid%' and pid <> pg_backend_pid()"
    copied = "select from trucker.tables where source_table = 'late' and snapshot not like '%#%'"
    with source.connect() as writer:
        writer.autocommit = False
        writer.execute("insert into late values (1)")
        with InThread(folder, spark) as run:
            wait_until(lambda: source.query(waits) or copy.query(copied))
            writer.execute("insert into late values (2)")
            writer.commit()
            write(source, 1001)
            wait_until(lambda: same(source, copy, "t", "u", "late"))
            run.wait_streaming()
            source.execute("vacuum full t")
            write(source, 2001)
            wait_until(lambda: same(source, copy, "t", "u", "late"))


def test_a_copy_of_which_recovery_took_rows_is_taken_again(
    folder: ProjectFolder, pair: Pair, copy: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pair.database
    source.execute(*TABLES)
    write(source, 1)
    checked: list[bool] = []

    def once_ended(connection: PgConnection, snapshot: str) -> None:
        """The snapshot is entered to look at the tables, and again when they have been copied."""
        checked.append(len(checked) != 1)
        if not checked[-1]:
            raise SourceUnavailable("the exported snapshot is gone")
        enter_snapshot(connection, snapshot)

    monkeypatch.setattr("trucker.postgres.source.enter_snapshot", once_ended)
    InThread(folder, spark, once=True).join()
    assert checked == [True, False, True, True]
    assert same(source, copy, "t", "u")


def test_once_takes_all_that_the_primary_has_committed(
    folder: ProjectFolder, pair: Pair, copy: Database, spark: Any
) -> None:
    source = pair.database
    source.execute(*TABLES)
    write(source, 1)
    InThread(folder, spark, once=True).join()
    assert same(source, copy, "t", "u")
    with lagging(pair, 1500):
        write(source, 1001)
        InThread(folder, spark, once=True).join()
        assert same(source, copy, "t", "u")


@contextmanager
def lagging(pair: Pair, milliseconds: int) -> Iterator[None]:
    """The standby replays commits only so long after they were made."""
    with pair.read() as standby:
        try:
            standby.execute(f"alter system set recovery_min_apply_delay = {milliseconds}")
            standby.execute("select pg_reload_conf()")
            yield
        finally:
            standby.execute("alter system reset recovery_min_apply_delay")
            standby.execute("select pg_reload_conf()")


def test_a_standby_that_was_promoted_is_refused_and_can_be_the_source_itself(
    tmp_path: Path, own_pair: Pair, destination: Database, spark: Any
) -> None:
    source = own_pair.database
    source.execute(*TABLES)
    folder = project_of(tmp_path, own_pair, destination)
    with InThread(folder, spark) as run:
        run.wait_streaming()
        write(source, 1)
        wait_until(lambda: same(source, destination, "t", "u"))
        own_pair.standby.promote()
        wait_until(lambda: (truck := run.truck()) is not None and truck.phase is TruckPhase.FAILED)
        truck = run.truck()
        assert truck is not None
        assert "TRK260" in (truck.error or "")
    with pytest.raises(CheckFailed, match="promoted") as caught:
        Project.load(folder.folder).run(spark=spark)
    assert caught.value.code == "TRK260"
    own_pair.database.server.stop()
    promoted = Database(own_pair.standby, source.name, own_pair.standby.connection("source", source.name))
    folder.config["connections"][0] = postgres("source", promoted)
    folder.save()
    with InThread(folder, spark) as run:
        run.wait_streaming()
        write(promoted, 1001)
        wait_until(lambda: same(promoted, destination, "t", "u"))


def test_the_primary_fails_over_and_the_standby_follows(
    tmp_path: Path, own_pair: Pair, second: Standby, destination: Database, spark: Any
) -> None:
    source = own_pair.database
    source.execute(*TABLES)
    follow(second, own_pair.standby)
    pair = Pair(source, second)
    folder = project_of(tmp_path, pair, destination)
    with InThread(folder, spark) as run:
        run.wait_streaming()
        write(source, 1)
        wait_until(lambda: same(source, destination, "t", "u"))
    own_pair.standby.promote()
    promoted = Database(own_pair.standby, source.name, own_pair.standby.connection("source", source.name))
    write(promoted, 1001)
    folder.config["connections"][0] = postgres("source", promoted, **replica_keys(second))
    folder.save()
    with InThread(folder, spark) as run:
        run.wait_streaming()
        write(promoted, 2001)
        wait_until(lambda: same(promoted, destination, "t", "u"))
    here, there = Pair(promoted, second).slots()
    assert (len(here), len(there)) == (0, 1)


def test_a_standby_named_later_is_refused_until_reset(
    folder: ProjectFolder, pair: Pair, copy: Database, spark: Any
) -> None:
    source = pair.database
    source.execute(*TABLES)
    write(source, 1)
    with_standby = folder.config["connections"][0]
    folder.config["connections"][0] = postgres("source", source)
    folder.save()
    InThread(folder, spark, once=True).join()
    folder.config["connections"][0] = with_standby
    folder.save()
    project = Project.load(folder.folder)
    with pytest.raises(CheckFailed, match="is on the primary"):
        project.run(spark=spark, once=True)
    project.reset()
    assert pair.slots() == ([], [])
    InThread(folder, spark, once=True).join()
    here, there = pair.slots()
    assert (len(here), len(there)) == (0, 1)
    assert same(source, copy, "t", "u")


def test_a_standby_of_another_system_is_refused_before_anything_is_created(
    tmp_path: Path, pair: Pair, copy: Database, own_server: Server
) -> None:
    pair.database.execute(*TABLES)
    own_server.create_database(pair.database.name)
    secret = own_server.connection("x").password.get_secret_value()
    folder = project_of(tmp_path, pair, copy, replica_port=own_server.port, replica_pass=secret)
    with pytest.raises((CheckFailed, SourceError)) as caught:
        Project.load(folder.folder).run()
    assert caught.value.code == "TRK260"
    assert pair.slots() == ([], [])
    assert pair.database.query("select 1 from pg_publication") == []
