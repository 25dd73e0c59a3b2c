"""Dead letters of events in their file: each refused event once, over crashes, retries and redrives."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.errors import SinkError, SinkUnavailable
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.sinks.event import Event
from trucker.sinks.ledger import Entry, Ledger
from trucker.sinks.letter_file import LetterFile, Refusal, has_witness, witness
from trucker.sinks.letters import Choice, Reason
from trucker.table import TableId

ITEMS = TableId("public", "items")
SHOWN = TableId("shop", "items")
WHY = Reason("413", "the event is too large")
ALL = Choice(("main", "other"))


def event(number: int, value: bytes | None = b'{"x":1}', *, table: TableId = SHOWN) -> Event:
    return Event(value, b'{"id":%d}' % number, table, "insert", 0x1600000000 + number, number, f"16/0/{number}", False)


def refusal(number: int, value: bytes | None = b'{"x":1}') -> Refusal:
    return Refusal(event(number, value), ITEMS, WHY)


def passed(truck: str, end: int) -> tuple[str, Ledger]:
    """A witness of the ledger that a batch up to `end` brings, and that ledger."""
    before = Ledger({truck: Lsn(1)})
    plan = before.plan(Batch(Lsn(1), Lsn(end), {truck: Lsn(end)}))
    return witness(plan, truck), before.after(plan)


@pytest.fixture
def file(tmp_path: Path) -> LetterFile:
    return LetterFile(tmp_path / "spool" / "hooks.letters.db")


def put(file: LetterFile, *numbers: int, truck: str = "main", end: int = 100, most: int = 1000) -> bool:
    mark, _ = passed(truck, end)
    return file.put(truck, [refusal(number) for number in numbers], passed_by=mark, most=most)


def ids(file: LetterFile, choice: Choice = ALL) -> list[str]:
    chosen = file.chosen(choice)
    return [
        each.event.id for truck, numbers in chosen.items() for page in file.read(truck, numbers, 1) for each in page
    ]


def test_reading_creates_nothing(file: LetterFile) -> None:
    file.settle(Ledger())
    assert (file.count(), file.chosen(ALL), file.remove_copied([("main", ITEMS)])) == ({}, {}, 0)
    assert not file.path.parent.exists()


def test_a_letter_is_the_event_as_it_was(file: LetterFile) -> None:
    odd = Event(None, None, TableId("", ""), "begin", 2**62, -1, "16/0/begin", True)
    large = event(2, b"\x00" * 300_000)
    mark, ledger = passed("main", 100)
    assert file.put("main", [Refusal(odd, ITEMS, WHY), Refusal(large, ITEMS, WHY)], passed_by=mark, most=10)
    file.settle(ledger)
    letters = [each for page in file.read("main", file.chosen(ALL)["main"], 1) for each in page]
    assert [(each.event, each.source, each.reason, each.tries) for each in letters] == [
        (odd, ITEMS, WHY, 1),
        (large, ITEMS, WHY, 1),
    ]


def test_only_its_owner_reads_the_file(file: LetterFile) -> None:
    put(file, 1)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_a_letter_counts_once_its_ledger_is_stored(file: LetterFile) -> None:
    put(file, 1, 2)
    assert ids(file) == []
    file.settle(passed("main", 100)[1])
    assert ids(file) == ["16/0/1", "16/0/2"]
    file.settle(passed("main", 200)[1])
    assert ids(file) == ["16/0/1", "16/0/2"]


def test_a_letter_whose_ledger_was_never_stored_goes(file: LetterFile) -> None:
    """Its event comes again, and may be taken then."""
    put(file, 1)
    LetterFile(file.path).settle(Ledger({"main": Lsn(1)}))
    assert file.count() == {}


def test_an_event_refused_twice_is_one_letter(file: LetterFile) -> None:
    put(file, 1)
    put(file, 1, 2)
    file.settle(passed("main", 100)[1])
    assert ids(file) == ["16/0/1", "16/0/2"]


def test_the_same_id_in_two_trucks_is_two_letters(file: LetterFile) -> None:
    put(file, 1)
    put(file, 1, truck="other")
    file.settle(Ledger({"main": Lsn(100), "other": Lsn(100)}))
    assert file.count() == {"main": 1, "other": 1}
    assert ids(file, Choice(("other",))) == ["16/0/1"]


def test_more_than_the_most_are_not_stored(file: LetterFile) -> None:
    assert put(file, 1, 2, most=2)
    assert not put(file, 3, 4, most=3)
    assert file.count() == {"main": 2}
    assert put(file, 3, most=3)


def test_letters_are_chosen_by_truck_number_and_either_table(file: LetterFile) -> None:
    put(file, 1, 2, 3)
    file.settle(passed("main", 100)[1])
    (numbers,) = file.chosen(ALL).values()
    assert ids(file, Choice(("main",), ITEMS)) == ids(file, Choice(("main",), SHOWN)) == ids(file)
    assert file.chosen(Choice(("main",), TableId("public", "other"))) == {}
    assert ids(file, Choice(("main",), None, (numbers[1],))) == ["16/0/2"]


def test_what_was_delivered_goes_and_what_was_refused_again_says_why(file: LetterFile) -> None:
    put(file, 1, 2)
    file.settle(passed("main", 100)[1])
    first, second = file.chosen(ALL)["main"]
    file.remove([first])
    file.refused_again({second: Reason("422", "HTTP 422")})
    ((letter,),) = file.read("main", [first, second], 1000)
    assert (letter.number, letter.reason.sqlstate, letter.tries) == (second, "422", 2)
    assert file.count() == {"main": 1}


def test_a_copy_from_the_beginning_removes_the_letters_of_its_table(file: LetterFile) -> None:
    put(file, 1, 2)
    put(file, 3, truck="other")
    assert file.remove_copied([("main", ITEMS), ("main", TableId("public", "other"))]) == 2
    assert file.count() == {"other": 1}
    assert file.remove_copied([], ["other"]) == 1
    assert file.count() == {}


def test_pages_are_bounded_by_their_bytes(file: LetterFile) -> None:
    mark, ledger = passed("main", 100)
    file.put("main", [refusal(n, b"x" * 1000) for n in range(10)], passed_by=mark, most=10)
    file.settle(ledger)
    pages = list(file.read("main", file.chosen(ALL)["main"], 2500))
    assert [len(page) for page in pages] == [3, 3, 3, 1]


def test_a_count_follows_another_process(file: LetterFile) -> None:
    put(file, 1, 2)
    file.settle(passed("main", 100)[1])
    assert file.count() == {"main": 2}
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=LetterFile(file.path).remove, args=(file.chosen(ALL)["main"][:1],))
    other.start()
    other.join()
    assert other.exitcode == 0
    assert file.count() == {"main": 1}


def test_a_file_that_is_no_letter_file_says_what_to_do(file: LetterFile) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(b"no database" * 1000)
    with pytest.raises(SinkError, match=r"cannot be read") as caught:
        file.count()
    assert caught.value.code == "TRK711"
    assert not caught.value.transient
    assert str(file.path) in caught.value.remedy


def test_a_newer_file_is_left_alone(file: LetterFile) -> None:
    put(file, 1)
    database = sqlite3.connect(file.path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(SinkError, match="newer version") as caught:
        put(file, 2)
    assert caught.value.code == "TRK711"


def test_a_folder_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailable) as caught:
        put(LetterFile(tmp_path / "file" / "hooks.letters.db"), 1)
    assert caught.value.code == "TRK710"


def _copied(ledger: Ledger) -> Batch:
    return Batch(Lsn(5), Lsn(5), tables={("main", ITEMS): TableState(Phase.STREAMING, Lsn(5))}, snapshot="first-1")


def test_a_copy_is_known_by_the_state_of_its_table() -> None:
    before = Ledger({"main": Lsn(1)}, {("main", ITEMS): Entry(Phase.COPYING, Lsn(5), ITEMS, "first-1")})
    plan = before.plan(_copied(before))
    mark = witness(plan, "main")
    assert has_witness(before.after(plan), "main", mark)
    assert not has_witness(before, "main", mark)
    assert not has_witness(Ledger(), "main", mark)


@given(
    steps=st.lists(
        st.tuples(
            st.integers(1, 6),  # how many events the batch has
            st.sets(st.integers(0, 5)),  # which of them are refused at first
            st.sets(st.integers(0, 5)),  # and when they come again
            st.sampled_from(["", "before put", "after put", "after store"]),
        ),
        max_size=8,
    )
)
def test_after_any_crash_an_event_is_delivered_or_a_letter_and_never_neither(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, set[int], set[int], str]],
) -> None:
    """A model of publishing: each batch may crash at one place, and is then made again as far as it was not stored."""
    path = tmp_path_factory.mktemp("letters") / "x.letters.db"
    stored, number = Ledger({"main": Lsn(1)}), 0
    expected: list[str] = []
    for count, first, again, crash in steps:
        end = Lsn(stored.positions["main"] + 10)
        plan = stored.plan(Batch(stored.positions["main"], end, {"main": end}))
        for refused, at in ((first, crash), (again, "")):
            file = LetterFile(path)
            file.settle(stored)
            if at == "before put":
                continue
            refusals = [replace_id(number + n) for n in sorted(refused) if n < count]
            if refusals:
                file.put("main", refusals, passed_by=witness(plan, "main"), most=1000)
            if at == "after put":
                continue
            stored = stored.after(plan)
            expected += [each.event.id for each in refusals]
            if not at:
                file.settle(stored)
            break
        number += count
    file = LetterFile(path)
    file.settle(stored)
    assert ids(file) == expected


def replace_id(number: int) -> Refusal:
    return replace(refusal(number), source=ITEMS)
