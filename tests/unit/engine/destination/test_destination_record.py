"""What is known of destinations without them."""

from __future__ import annotations

from pathlib import Path

from trucker.change import Lsn, TableId
from trucker.changelog.document import FileDocument
from trucker.engine.destination.destination_record import DestinationRecord, Recorded
from trucker.engine.project.continuity import needed_from
from trucker.engine.truck.truck import InputTable, Truck
from trucker.sinks.batch import Phase

T = TableId("public", "t")


def test_what_was_noted_is_there_after_a_restart(tmp_path: Path) -> None:
    file = FileDocument(tmp_path / "destinations" / "source.json")
    record = DestinationRecord(file)
    assert not record.uses("replica")
    record.put({"orders": Recorded("replica", Lsn(0x200), frozenset({T}))})
    record.mark("orders", frozenset({T}))
    again = DestinationRecord(file)
    assert again.uses("replica")
    assert not again.uses("other")
    assert again.again("orders") == {T}
    assert again.states(["other"]) == {}
    (state,) = again.states(["replica"]).values()
    assert (state.lsn, state.tables[T].phase) == (Lsn(0x200), Phase.STREAMING)


def test_the_log_is_needed_from_the_position_that_was_noted(tmp_path: Path) -> None:
    record = DestinationRecord(FileDocument(tmp_path / "source.json"))
    record.put({"orders": Recorded("replica", Lsn(0x200), frozenset({T})), "new": Recorded("replica")})
    tables = {T: InputTable(T, T, ())}
    trucks = [Truck(name, "source", "replica", tables) for name in ("orders", "new")]
    assert needed_from(trucks, record.states(["replica"])) == {"orders": Lsn(0x200)}


def test_a_reset_truck_needs_nothing_but_its_destination_stays_known(tmp_path: Path) -> None:
    record = DestinationRecord(FileDocument(tmp_path / "source.json"))
    record.put({"orders": Recorded("replica", Lsn(0x200), frozenset({T}))})
    record.forget(["orders", "unknown"])
    assert record.get("orders") == Recorded("replica")
    assert record.uses("replica")


def test_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "source.json").write_text('{"format": 1, "trucks": [{"truck": 1}]}')
    assert not DestinationRecord(FileDocument(tmp_path / "source.json")).uses("replica")
