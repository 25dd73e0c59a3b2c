"""The file of refreshes: numbers, states, keys; what is damaged is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from trucker.control.answers import Refresh, RefreshState
from trucker.engine.refresh.refresh_record import ENDED, RefreshRecord
from trucker.errors import ControlError, FileError
from trucker.table import Key

KEYS = [("1", "a\nb"), ("2", '"ü",'), ("3", "")]


def wish(table: str = "public.t", where: str | None = None) -> Refresh:
    return Refresh(0, "a", table, 0.0, where=where)


def of_keys(record: RefreshRecord, keys: list[Key]) -> Refresh:
    (added,) = record.add([(wish(), keys)])
    return added


def test_refreshes_are_numbered_and_taken_oldest_first(tmp_path: Path) -> None:
    record = RefreshRecord(tmp_path)
    assert record.all() == []
    record.add([(wish("public.t"), None), (wish("public.u"), None)])
    record.add([(wish("public.t", "id = 1"), None)])
    assert [(each.id, each.table) for each in RefreshRecord(tmp_path).all()] == [
        (1, "public.t"),
        (2, "public.u"),
        (3, "public.t"),
    ]
    assert record.next({"a"}) == record.get(1)
    assert record.next({"other"}) is None
    record.change(1, state=RefreshState.DONE)
    assert record.next({"a"}) == record.get(2)
    assert [each.id for each in record.active()] == [2, 3]


def test_keys_are_read_in_slices_and_removed_at_the_end(tmp_path: Path) -> None:
    record = RefreshRecord(tmp_path)
    added = of_keys(record, KEYS)
    assert (added.keys, added.total) == (3, 3)
    assert record.keys(added.id, 0, 2) == KEYS[:2]
    assert record.keys(added.id, 2, 2) == KEYS[2:]
    record.change(added.id, state=RefreshState.FAILED, reason="because")
    assert list((tmp_path / "refreshes").iterdir()) == []
    assert record.change(added.id, done=3).done == 0, "it is over"


def test_the_same_rows_are_queued_once(tmp_path: Path) -> None:
    record = RefreshRecord(tmp_path)
    first = of_keys(record, KEYS)
    other = of_keys(record, KEYS[::-1])
    with pytest.raises(ControlError, match=f"by refresh {first.id} already") as error:
        of_keys(record, KEYS)
    assert error.value.code == "TRK631"
    record.cancel(first.id)
    again = of_keys(record, KEYS)
    assert [each.id for each in record.active()] == [other.id, again.id]
    assert {file.name for file in (tmp_path / "refreshes").iterdir()} == {f"{other.id}.keys", f"{again.id}.keys"}


def test_a_copy_that_has_begun_is_not_cancelled(tmp_path: Path) -> None:
    record = RefreshRecord(tmp_path)
    record.add([(wish(), None)])
    record.change(1, state=RefreshState.RUNNING)
    with pytest.raises(ControlError, match="must be completed") as error:
        record.cancel(1)
    assert error.value.code == "TRK633"


def test_the_last_that_ended_are_listed(tmp_path: Path) -> None:
    record = RefreshRecord(tmp_path)
    for number in range(1, ENDED + 11):
        record.add([(wish(), None)])
        record.change(number, state=RefreshState.DONE)
    record.add([(wish(), None)])
    assert [each.id for each in record.all()] == list(range(11, ENDED + 12))


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format": 2, "refreshes": []}', '{"format": 1, "refreshes": [{"id": 1}]}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "refreshes.json"
    path.write_text(content)
    with pytest.raises(FileError, match="is damaged or was written by another version") as error:
        RefreshRecord(tmp_path).all()
    assert error.value.code == "TRK617"
    assert str(path) in str(error.value.remedy)


def test_keys_that_are_handed_in_are_taken_once(tmp_path: Path) -> None:
    record = RefreshRecord(tmp_path)
    name = record.hand_in(KEYS)
    assert record.handed_in(name) == KEYS
    with pytest.raises(ControlError) as error:
        record.handed_in(name)
    assert error.value.code == "TRK630"
    record.discard(record.hand_in(KEYS))
    assert list((tmp_path / "refreshes").iterdir()) == []
