"""The record of paused trucks survives the process, and a damaged one is no reason to run what was paused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.engine.project.pause_record import PauseRecord
from trucker.errors import FileError

steps = st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from("abcd"))), max_size=12)


@given(steps)
def test_it_says_what_was_paused_and_not_resumed(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[bool, set[str]]]
) -> None:
    state = tmp_path_factory.mktemp("state")
    paused: set[str] = set()
    for pauses, names in script:
        record = PauseRecord(state)
        if pauses:
            assert record.pause(names) == names - paused
            paused |= names
        else:
            assert record.resume(names) == names & paused
            paused -= names
        assert PauseRecord(state).trucks().keys() == paused


def test_a_truck_that_is_paused_again_keeps_the_time_since_when(tmp_path: Path) -> None:
    record = PauseRecord(tmp_path)
    record.pause(["a"])
    since = record.trucks()["a"]
    record.pause(["a", "b"])
    assert record.trucks()["a"] == since


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "paused": {}}', '{"format": 1, "paused": ["a"]}'])
def test_a_damaged_record_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "paused.json").write_text(text)
    with pytest.raises(FileError, match=r"paused\.json") as raised:
        PauseRecord(tmp_path).trucks()
    assert raised.value.code == "TRK617"
    assert "remove" in raised.value.remedy
