"""A whole project whose change log is on object storage: machines and the storage itself come and go (I4).

What one machine has is deleted with it. The next one has the project's files, the storage and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.capture import capturing, streamed_source
from fixtures.load import Load
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, TruckerProcess, json_lines, postgres, run_cli
from fixtures.waiting import wait_until
from trucker.adapters.postgres import PostgresConnection
from trucker.capture.supervisor import CaptureSpec
from trucker.changelog.bucket import Bucket
from trucker.changelog.identity import read_source
from trucker.changelog.location import ObjectLocation, location_of
from trucker.changelog.objects.object_chain import ObjectChain, object_id
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.project import Project
from trucker.testing.object_storage import ObjectStorage

ROWS = "select id, note from t order by id"


def machine(path: Path, source: Database, target: Database, location: str, storage: ObjectStorage) -> ProjectFolder:
    """The project as a machine has it."""
    project = ProjectFolder(path, source.name)
    project.config["log"] = {"location": location, "s3": storage.s3, "put_every": 0.02}
    project.connect(postgres("source", source), postgres("target", target))
    return project.truck("copy", ["public.t"], {"connection": "target"})


def bucket_of(project: ProjectFolder) -> Bucket:
    place = location_of(Project.load(project.folder).config, "source")
    assert isinstance(place, ObjectLocation)
    return Bucket(place)


def equal(source: Database, target: Database) -> bool:
    return source.query(ROWS) == target.query(ROWS)


@pytest.fixture
def tables(database: Database) -> Database:
    database.execute("create table t (id int primary key, note text)", "insert into t values (-1, 'before')")
    return database


@pytest.fixture
def begin() -> Iterator[Callable[[ProjectFolder], TruckerProcess]]:
    running: list[TruckerProcess] = []

    def start(project: ProjectFolder) -> TruckerProcess:
        running.append(TruckerProcess(project))
        return running[-1]

    yield start
    for process in running:
        process.close()


def test_another_machine_continues_the_log(
    tables: Database,
    destination: Database,
    tmp_path: Path,
    shared_storage: ObjectStorage,
    bucket: str,
    begin: Callable[[ProjectFolder], TruckerProcess],
) -> None:
    """SIGKILL to everything under load, all that the machine had deleted, twice: nothing lost, nothing doubled."""
    for number in range(2):
        project = machine(tmp_path / f"machine{number}", tables, destination, bucket, shared_storage)
        trucker = begin(project)
        trucker.wait_streaming(180)
        with Load(tables, first=100_000 * number) as load:
            wait_until(lambda load=load: len(load.committed) > 20)
            trucker.kill_tree()
        shutil.rmtree(project.folder)
    copied = destination.query("select * from trucker.tables")
    last = machine(tmp_path / "last", tables, destination, bucket, shared_storage)
    trucker = begin(last)
    wait_until(lambda: equal(tables, destination), timeout=120, interval=0.2)
    assert trucker.stop() == 0
    assert destination.query("select * from trucker.tables") == copied, "nothing was copied anew"


@pytest.mark.soak
def test_the_object_storage_is_lost_and_returns_during_a_run(
    tables: Database,
    destination: Database,
    tmp_path: Path,
    own_storage: ObjectStorage,
    begin: Callable[[ProjectFolder], TruckerProcess],
) -> None:
    """The run goes on by itself, status tells meanwhile, and nothing is lost."""
    project = machine(tmp_path / "machine", tables, destination, "s3://changes/logs", own_storage)
    trucker = begin(project)
    trucker.wait_streaming(120)
    with Load(tables):
        own_storage.kill()
        wait_until(lambda: (truck := trucker.truck()) and "TRK310" in (truck.error or ""), timeout=90)
        own_storage.start()
    wait_until(lambda: equal(tables, destination), timeout=120, interval=0.2)
    assert trucker.stop() == 0


@pytest.mark.spark
def test_commands_on_a_log_of_objects(
    tables: Database, destination: Database, tmp_path: Path, shared_storage: ObjectStorage, bucket: str, spark: Any
) -> None:
    project = machine(tmp_path / "machine", tables, destination, bucket, shared_storage)
    run = InThread(project, spark)
    run.wait_streaming()
    tables.execute("insert into t values (1, 'one')", "update t set note = 'uno' where id = 1")
    wait_until(lambda: equal(tables, destination), timeout=60)
    run.stop()
    checked = run_cli("check", str(project.folder))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "the change log's storage answers" in checked.stdout
    peeked = json_lines(run_cli("peek", str(project.folder)).stdout)
    assert [line["operation"] for line in peeked][-1:] == ["update"]
    shown = run_cli("status", str(project.folder), "--json").stdout
    assert shared_storage.secret_key not in shown
    entries = bucket_of(project).list()
    assert len(ObjectChain(entries).segments) <= 2, "what everybody has applied is deleted"
    assert {"source.json", "shapes.json"} <= {entry.name for entry in entries}
    answer = run_cli("reset", str(project.folder), "--yes")
    assert answer.returncode == 0, answer.stderr
    assert not bucket_of(project).list()


def test_a_storage_that_refuses_is_found_by_a_check(
    tables: Database, destination: Database, tmp_path: Path, shared_storage: ObjectStorage, bucket: str
) -> None:
    """Before anything is made anywhere (I11); and without the key in the message (I10)."""
    project = machine(tmp_path / "machine", tables, destination, "s3://no-such-bucket/logs", shared_storage)
    assert [f.code for f in Project.load(project.folder).check() if f.code] == ["TRK311"]
    project.config["log"] = {"location": bucket, "s3": {**shared_storage.s3, "secret_access_key": "wr0ng"}}
    (finding,) = [f for f in Project.load(project.save().folder).check() if f.code]
    assert finding.code == "TRK311"
    assert "403" in finding.message
    assert "wr0ng" not in f"{finding}"


@pytest.mark.spark
@pytest.mark.parametrize("fault", ["deleted", "damaged", "all gone", "no log"])
def test_a_log_that_was_tampered_with_is_refused(
    tables: Database,
    destination: Database,
    tmp_path: Path,
    shared_storage: ObjectStorage,
    bucket: str,
    spark: Any,
    fault: str,
) -> None:
    """Never skipped over (I8, I11); the error says which object and what to do."""
    project = machine(tmp_path / "machine", tables, destination, bucket, shared_storage)
    run = InThread(project, spark)
    run.wait_streaming()
    run.stop()
    capture_only(project, tables, 6)
    objects = bucket_of(project)
    names = [entry.name for entry in objects.list() if object_id(entry.name)]
    assert len(names) >= 6
    code = tamper(objects, names, fault)
    why = failed_run(project, spark)
    assert f"[{code}]" in why
    assert "trucker reset" in why
    assert shared_storage.secret_key not in why


def capture_only(project: ProjectFolder, source: Database, count: int) -> None:
    """Changes that are in the log and at no destination, each in an object of its own."""

    config = Project.load(project.folder).config
    place = location_of(config, "source")
    found = read_source(place)
    connection = config.connection("source")
    assert isinstance(connection, PostgresConnection)
    streamed = streamed_source(connection, found.slot, found.publication)
    with capturing(CaptureSpec(streamed, place, found, 0, put_every=0)) as capture:
        for number in range(count):
            source.execute(f"insert into t values ({100 + number})")
            lsn = source.query("select pg_current_wal_flush_lsn()::text")[0][0]
            capture.wait_seen(Lsn.parse(lsn), timeout=30)


def tamper(objects: Bucket, names: list[str], fault: str) -> str:
    """Do it; the code of the error that must come of it."""
    if fault == "deleted":
        objects.delete([names[-3]])
        return "TRK302"
    if fault == "damaged":
        data = bytearray(objects.get(names[-3]))
        data[len(data) // 2] ^= 1
        objects.put(names[-3], bytes(data))
        return "TRK303"
    if fault == "all gone":
        objects.delete(names)
        return "TRK304"
    objects.delete(["source.json"])
    return "TRK301"


def failed_run(project: ProjectFolder, spark: Any) -> str:
    """Why the start is refused, or why a truck fails."""
    run = InThread(project, spark, once=True)
    try:
        run.join()
    except TruckerError as error:
        return str(error)
    truck = run.truck()
    assert truck is not None
    assert truck.phase is TruckPhase.FAILED
    return str(truck.error)
