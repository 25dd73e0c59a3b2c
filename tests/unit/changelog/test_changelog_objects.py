"""A log of objects: writers that meet, answers that are lost, objects that are gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.log_stores import OBJECTS
from fixtures.wal import SOURCE, begin, commit, everything, insert, relation
from trucker.changelog import bucket as bucket_module
from trucker.changelog.bucket import Bucket
from trucker.changelog.format.durable import read_durable
from trucker.changelog.format.segment import SegmentId
from trucker.changelog.identity import SourceIdentity, log_exists, read_source
from trucker.changelog.location import ObjectLocation
from trucker.changelog.log_creation import create_log, delete_log
from trucker.changelog.objects.object_chain import ObjectChain, Objects, object_id, object_name
from trucker.changelog.objects.object_writer import ObjectWriter
from trucker.changelog.reader import LogReader
from trucker.changelog.retention import prune
from trucker.errors import ChangeLogError, ChangeLogUnavailable, LockedError
from trucker.lsn import Lsn

START = Lsn(1000)


@pytest.fixture
def place() -> Iterator[ObjectLocation]:
    with OBJECTS.new_log(START) as made:
        assert isinstance(made, ObjectLocation)
        yield made


def on_another_machine(place: ObjectLocation, tmp_path: Path) -> ObjectLocation:
    """The same log, seen from a machine that has just started."""
    other = replace(place, folder=tmp_path / "other")
    create_log(other, SOURCE, START)
    return other


def opened(place: ObjectLocation, **settings: Any) -> ObjectWriter:
    return ObjectWriter(place, SOURCE, **{"put_every": 0, **settings})


def write(writer: ObjectWriter, *lsns: int, rows: int = 1) -> None:
    """One transaction per LSN, ending eight bytes after it, each stored."""
    for lsn in lsns:
        for text in (begin(lsn), relation(1), *[insert(1, f"row of {lsn}")] * rows, commit(lsn, lsn + 8)):
            writer.append(text)
        writer.settle()


def names(place: ObjectLocation) -> list[str]:
    return [entry.name for entry in Bucket(place).list() if object_id(entry.name)]


def transactions(place: ObjectLocation) -> list[int]:
    return list(everything(place.elsewhere(), START))


# -- whose log it is ----------------------------------------------------------------------------------------------


def test_a_log_is_made_once_and_belongs_to_its_source(place: ObjectLocation) -> None:
    with opened(place) as writer:
        write(writer, 2000)
    create_log(place, SOURCE, Lsn(5000))
    assert LogReader(place.elsewhere()).durable().commit_lsn == 2008
    assert read_source(place) == SOURCE
    other = SourceIdentity("8", SOURCE.database, SOURCE.slot, SOURCE.publication)
    with pytest.raises(ChangeLogError, match="another source"):
        create_log(place, other, START)
    with pytest.raises(ChangeLogError, match="another source"):
        ObjectWriter(place, other)


def test_a_missing_log_is_not_made_by_opening_it(place: ObjectLocation) -> None:
    delete_log(place)
    assert not log_exists(place)
    for look in (lambda: opened(place), lambda: LogReader(place.elsewhere()).durable()):
        with pytest.raises(ChangeLogError, match="does not exist") as caught:
            look()
        assert caught.value.code == "TRK301"


def test_secrets_are_not_shown(place: ObjectLocation) -> None:
    secret = replace(place, access={"secret_access_key": "s3kr1t"})
    assert "s3kr1t" not in f"{secret!r} {secret}"


def test_a_storage_that_replaces_objects_is_refused(place: ObjectLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not keep two writers apart."""
    monkeypatch.setattr(Bucket, "put_new", Bucket.put)
    with pytest.raises(ChangeLogError, match="If-None-Match") as caught:
        create_log(replace(place, uri=f"{place.uri}-other"), SOURCE, START)
    assert caught.value.code == "TRK311"


# -- two writers --------------------------------------------------------------------------------------------------


def test_two_writers_on_one_machine(place: ObjectLocation) -> None:
    with opened(place), pytest.raises(LockedError):
        opened(place)


def test_a_writer_thought_dead_is_met_and_its_object_counts(place: ObjectLocation, tmp_path: Path) -> None:
    """The successor began before the last object came: it goes back to the end that there is, and doubles nothing."""
    with opened(place) as old:
        write(old, 2000)
        with opened(on_another_machine(place, tmp_path)) as new:
            write(old, 3000)
            with pytest.raises(ChangeLogUnavailable) as caught:
                write(new, 3000)
            assert caught.value.code == "TRK312"
            new.rollback()
            assert new.refresh().commit_lsn == 3008
            write(new, 4000)
            # Now the old one is behind, whatever it does.
            with pytest.raises(ChangeLogUnavailable):
                write(old, 4000)
            assert old.safe == 3008
    assert transactions(place) == [2000, 3000, 4000]


def test_a_latecomer_to_a_place_that_was_pruned(place: ObjectLocation, tmp_path: Path) -> None:
    """Its object is no part of the log, and is deleted with the next ones."""
    with opened(place) as old:
        write(old, 2000)
        with opened(on_another_machine(place, tmp_path)) as new:
            write(new, 3000, 4000, 5000, 6000)
            storage = Objects(place.elsewhere())
            assert prune(storage, Lsn(5008)) == 4
            write(old, 3000)
            reader = LogReader(place.elsewhere())
            assert reader.oldest() == 5008
            assert len(names(place)) == 2
            write(new, 7000, 8000)
            assert prune(Objects(place.elsewhere()), Lsn(7008)) == 2
    assert len(names(place)) == 1


def test_a_latecomer_to_a_log_that_was_reset(place: ObjectLocation, tmp_path: Path) -> None:
    with opened(place) as old:
        write(old, 2000)
        delete_log(replace(place, folder=None))
        write(old, 3000)
        other = on_another_machine(place, tmp_path)
        assert LogReader(other.elsewhere()).durable().commit_lsn == START
        assert LogReader(other.elsewhere()).oldest() == START
        with opened(other) as new:
            write(new, 7000)
    assert transactions(other) == [7000]


def test_a_transaction_that_never_finished_is_passed_over(place: ObjectLocation, tmp_path: Path) -> None:
    """And a writer thought dead may finish it: then it counts."""
    old = opened(place, object_bytes=100, block_bytes=60)
    write(old, 2000)
    for text in (begin(3000), relation(1), *[insert(1, "x" * 50)] * 4):
        old.append(text)
    old._land()
    begun = len(names(place))
    assert begun > 2
    with opened(on_another_machine(place, tmp_path)) as new:
        assert new.durable.commit_lsn == 2008
        old.append(commit(3000, 3008))
        old.settle()
        with pytest.raises(ChangeLogUnavailable):
            write(new, 3000, rows=4)
        new.rollback()
        assert new.refresh().commit_lsn == 3008
        for text in (begin(4000), relation(1), *[insert(1, "y" * 3_000_000)] * 3):
            new.append(text)
        new._land()
    old.close()
    with opened(on_another_machine(place, tmp_path / "third")) as third:
        assert third.durable.commit_lsn == 3008
        write(third, 4000, 5000)
    found = everything(place.elsewhere(), START)
    assert {lsn: len(one.changes) for lsn, one in found.items()} == {2000: 1, 3000: 4, 4000: 1, 5000: 1}


# -- answers that are lost ----------------------------------------------------------------------------------------


class Unsure:
    """Puts whose answers are lost, the object being made or not; and a storage that is away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import obstore

        self.real = obstore.put
        self.faults: list[str] = []
        monkeypatch.setattr(obstore, "put", self)
        monkeypatch.setattr(bucket_module, "_PAUSES", (0.0,))
        monkeypatch.setattr(bucket_module, "PUT_SECONDS", 0.05)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from obstore.exceptions import GenericError

        fault = self.faults.pop(0) if self.faults else ""
        if fault != "away":
            made = self.real(*arguments, **settings)
        if fault:
            raise GenericError("operation timed out, and a SECRET that must not be told")
        return made


@pytest.fixture
def unsure(monkeypatch: pytest.MonkeyPatch) -> Unsure:
    return Unsure(monkeypatch)


def test_a_put_whose_answer_is_lost(place: ObjectLocation, unsure: Unsure) -> None:
    with opened(place) as writer:
        unsure.faults = ["made", "away", "made"]
        write(writer, 2000, 3000, 4000)
    assert not unsure.faults
    assert transactions(place) == [2000, 3000, 4000]


def test_a_storage_that_is_away_too_long(place: ObjectLocation, unsure: Unsure) -> None:
    """Nothing is promised, nothing is forgotten of what was; after `refresh` it goes on."""
    with opened(place) as writer:
        write(writer, 2000)
        unsure.faults = ["away"] * 100_000
        with pytest.raises(ChangeLogUnavailable) as caught:
            write(writer, 3000)
        assert caught.value.transient
        assert "timed out" in caught.value.message
        assert "SECRET" not in str(caught.value)
        assert writer.safe == 2008
        writer.rollback()
        unsure.faults = []
        assert writer.refresh().commit_lsn == 2008
        write(writer, 3000)
    assert transactions(place) == [2000, 3000]


# -- reading ------------------------------------------------------------------------------------------------------


def test_a_machines_copies_are_enough_and_not_needed(place: ObjectLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as writer:
        reader = LogReader(place)
        write(writer, 2000)
        assert reader.blocks(START, Lsn(2008))
        with monkeypatch.context() as without:
            without.setattr(Bucket, "get_range", _not_asked)
            without.setattr(Bucket, "list", _not_asked)
            write(writer, 3000)
            (ref,) = reader.blocks(Lsn(2008), Lsn(3008))
            assert reader.read(ref)
        assert place.folder is not None
        shutil.rmtree(place.folder / "objects")
        assert len(everything(place, START)) == 2


def _not_asked(*_: Any) -> Any:
    raise AssertionError("the storage is asked")


def test_idle_progress_is_published_at_once_and_stored_at_intervals(place: ObjectLocation) -> None:
    with opened(place) as writer:
        write(writer, 2000)
        writer.see(Lsn(2500))
        writer._land()
        assert (writer.durable.seen_lsn, writer.safe) == (2500, 2500)
        writer.see(Lsn(2600))
        assert (writer.durable.seen_lsn, writer.safe) == (2600, 2500)
        assert place.folder is not None
        assert read_durable(place.folder, wide=True).seen_lsn == 2600
        writer.see(Lsn(2700), urgent=True)
        writer._land()
        assert writer.safe == 2700
    assert LogReader(place.elsewhere()).durable().seen_lsn == 2700
    assert [entry.name for entry in Bucket(place).list() if entry.name.endswith(".seen")] == [
        entry.name for entry in Bucket(place).list() if entry.name.endswith(f"{2700:016X}.seen")
    ]


@pytest.mark.usefixtures("young_clock")
def test_put_every_limits_the_number_of_objects(place: ObjectLocation) -> None:
    """Also on a machine that has just booted: the first object is stored at once, the second one an hour later."""
    with opened(place, put_every=3600) as writer:
        for lsn in range(2000, 3000, 10):
            for text in (begin(lsn), relation(1), insert(1, "x"), commit(lsn, lsn + 8)):
                writer.append(text)
            writer.flush()
        writer._land()
        assert writer.due is not None
        writer.settle()
    assert len(names(place)) == 2
    assert len(transactions(place)) == 100


# -- what is missing or damaged -----------------------------------------------------------------------------------


@pytest.fixture
def five(place: ObjectLocation) -> ObjectLocation:
    with opened(place) as writer:
        write(writer, 2000, 3000, 4000, 5000, 6000)
    return place


def test_an_object_deleted_by_somebody(five: ObjectLocation) -> None:
    """What comes after it can be had by whoever has applied what came before; nobody skips over it (I8)."""
    Bucket(five).delete([names(five)[2]])
    reader = LogReader(five.elsewhere())
    assert reader.oldest() == 4008
    assert len(everything(five.elsewhere(), Lsn(4008))) == 2
    with pytest.raises(ChangeLogError, match="after position"):
        reader.blocks(Lsn(2008), Lsn(6008))


def test_an_object_deleted_under_a_reader(five: ObjectLocation) -> None:
    reader = LogReader(five.elsewhere())
    refs = reader.blocks(START, Lsn(6008))
    gone = names(five)[2]
    Bucket(five).delete([gone])
    with pytest.raises(ChangeLogError, match=gone) as caught:
        LogReader(five.elsewhere()).read(refs[2])
    assert caught.value.code == "TRK307"


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:50] + b"?" + data[51:]])
def test_a_damaged_object(five: ObjectLocation, change: Callable[[bytes], bytes]) -> None:
    bucket, name = Bucket(five), names(five)[-1]
    bucket.put(name, change(bucket.get(name)))
    for look in (lambda: everything(five.elsewhere(), START), lambda: opened(five)):
        with pytest.raises(ChangeLogError, match=name) as caught:
            look()
        assert caught.value.code == "TRK303"


def test_names_and_chains() -> None:
    key = SegmentId(0x1234, 77)
    assert object_id(object_name(key)) == key
    assert object_id("source.json") is None
    assert ObjectChain().newest == -1
