"""Capture into object storage, with the storage, capture or its machine gone at any moment (I2, I4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.capture import Source, all_captured, capturing, inserted, kill, prepare
from fixtures.load import Load
from fixtures.pg import Database
from fixtures.waiting import wait_until
from fixtures.wal import everything
from trucker import failpoint
from trucker.capture.supervisor import CaptureState
from trucker.changelog.bucket import Bucket
from trucker.changelog.location import ObjectLocation
from trucker.changelog.log_creation import create_log
from trucker.changelog.objects.object_chain import ObjectChain
from trucker.changelog.reader import LogReader
from trucker.testing.object_storage import ObjectStorage


@pytest.fixture
def source(database: Database, tmp_path: Path, shared_storage: ObjectStorage, bucket: str) -> Source:
    database.execute("create table t (id int primary key, note text)")
    return prepare(database, shared_storage.location(f"{bucket}/logs/source", tmp_path / "log"), put_every=0.02)


def location_of(source: Source) -> ObjectLocation:
    assert isinstance(source.spec.log, ObjectLocation)
    return source.spec.log


def stored(source: Source) -> LogReader:
    """What is really there."""
    return LogReader(location_of(source).elsewhere())


def move(source: Source) -> None:
    """To another machine: what this one knew of the log is gone."""
    shutil.rmtree(source.spec.folder)
    create_log(source.spec.log, source.spec.identity, source.start)


def test_what_is_captured_can_be_read_from_anywhere(source: Source) -> None:
    with capturing(source.spec) as capture:
        for number in range(5):
            source.database.execute(f"insert into t values ({number})")
        all_captured(capture, source)
        assert source.confirmed() <= stored(source).durable().seen_lsn
    assert [inserted(found) for found in source.captured().values()] == [[str(n)] for n in range(5)]
    assert everything(location_of(source).elsewhere(), source.start).keys() == source.captured().keys()


def test_killed_at_any_moment_under_load(source: Source) -> None:
    with capturing(source.spec) as capture, Load(source.database) as load:
        for _ in range(3):
            before = stored(source).durable().commit_lsn
            wait_until(lambda before=before: stored(source).durable().commit_lsn > before)
            kill(capture)
            assert source.confirmed() <= stored(source).durable().seen_lsn
    move(source)
    with capturing(source.spec) as capture:
        all_captured(capture, source)
    assert [inserted(found) for found in source.captured().values()] == load.committed


@pytest.mark.parametrize("point", ["capture.put.before", "capture.put.after", "capture.publish.before"])
def test_killed_at_a_put(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Before, the object is not there and the server sends it again; after, it is there once."""
    monkeypatch.setenv(failpoint.VARIABLE, f"{point}=kill@2:{tmp_path / 'struck'}")
    with capturing(source.spec) as capture:
        for number in range(4):
            source.database.execute(f"insert into t values ({number})")
            all_captured(capture, source)  # so that each has an object of its own
        assert (tmp_path / "struck").exists()
        assert capture.restarts == 1
    assert [inserted(found) for found in source.captured().values()] == [[str(n)] for n in range(4)]


def test_killed_inside_a_transaction_larger_than_many_objects(source: Source) -> None:
    """What was stored of it stays, counts for nothing, and goes when it is pruned."""
    rows = 90_000
    bucket = Bucket(location_of(source))
    with capturing(source.spec) as capture:
        source.database.execute(f"insert into t select g, repeat('x', 300) from generate_series(1, {rows}) g")
        wait_until(lambda: len(ObjectChain(bucket.list()).segments) > 2)
        kill(capture)
        left = len(ObjectChain(bucket.list()).segments)
        all_captured(capture, source)
    assert len(ObjectChain(bucket.list()).segments) > left + 3
    (found,) = source.captured().values()
    assert len(inserted(found)) == rows


def test_the_storage_goes_and_comes_back(database: Database, tmp_path: Path, own_storage: ObjectStorage) -> None:
    """Capture waits and says so, nothing is acknowledged, and nothing is lost."""
    database.execute("create table t (id int primary key, note text)")
    source = prepare(database, own_storage.location("s3://changes/logs/source", tmp_path / "log"))
    with capturing(source.spec) as capture:
        database.execute("insert into t values (1)")
        all_captured(capture, source)
        confirmed = source.confirmed()
        own_storage.kill()
        database.execute("insert into t values (2)")
        wait_until(lambda: capture.state is CaptureState.RECONNECTING, timeout=60)
        assert "TRK310" in (capture.trouble or "")
        assert source.confirmed() <= max(confirmed, LogReader(source.spec.log).durable().seen_lsn)
        database.execute("insert into t values (3)")
        own_storage.start()
        all_captured(capture, source)
        assert capture.restarts == 0
        wait_until(lambda: capture.trouble is None)
    assert [inserted(found) for found in source.captured().values()] == [["1"], ["2"], ["3"]]


def test_an_idle_slot_advances_and_its_position_is_stored(source: Source) -> None:
    """What is acknowledged without a commit is noted in the storage: on another machine the log is not behind."""
    with capturing(source.spec):
        begun = source.confirmed()
        source.database.execute("create table not_published_yet ()")
        source.database.execute("checkpoint")
        wait_until(lambda: source.confirmed() > begun, timeout=30)
    move(source)
    assert stored(source).durable().seen_lsn >= source.confirmed()
    with capturing(source.spec) as capture:
        source.database.execute("insert into t values (1)")
        all_captured(capture, source)
    assert len(source.captured()) == 1
