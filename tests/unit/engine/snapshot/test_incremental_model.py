"""Copies by chunks of a source in memory: whatever happens between two steps, the destination is right (I4, I6)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.chunked_engine import PLACE, ChunkedEngine, Died, Endless, Waiting
from fixtures.chunked_source import InOneGo, Server
from fixtures.heap import PAGE_BYTES, Dice
from fixtures.small_engine import FIRST, JobsHere
from fixtures.source_history import History
from trucker.config.models import CopyConfig
from trucker.engine.snapshot.incremental_copy import WAIT_SECONDS

# -- anything ------------------------------------------------------------------------------------------------------

LIVES = 6


def live(folder: Path, dice: Dice, *, ruled: bool = False) -> None:
    """Copies, and what goes on beside them, from start to start; then what is left, undisturbed."""
    delay = dice(4)
    names = ["a", "b"][: 1 + dice(2)]
    full = ruled and dice(2) > 0
    server = Server(names, dice, FIRST, delayed=delay > 0, synchronous=delay > 1, full=full)
    for name in server.names:
        server.fill(name, map(str, range(dice(9))))
    limits = CopyConfig(parallel=1 + dice(3), chunk_bytes=PAGE_BYTES * (1 + dice(2)))
    history = History(server, dice)
    size = (400, 1200, 5000)[dice(3)]
    engine = ChunkedEngine.of(
        folder, server, copy_config=limits, meanwhile=history.meanwhile, batch_bytes=size, part_bytes=size, ruled=ruled
    )
    history.engine = engine
    with closing(engine), suppress(InOneGo):  # after commits of two processes that counted late: it ends there
        for _ in range(LIVES):
            _live_once(engine, history, dice)
        history.stop()
        engine.settle()
        engine.check()


def _live_once(engine: ChunkedEngine, history: History, dice: Dice) -> None:
    try:
        engine.copy_chunks()
        for _ in range(dice(8)):
            history.meanwhile("wait")
            history.go_beside()
    except Died:
        engine.restart()
    except Endless as error:
        raise AssertionError(f"the copy never ends: {error}") from error


def _dice_of(tape: bytes) -> Dice:
    """They fall as the tape says, and when it has come to its end so that nothing more happens."""
    rest = iter(tape)
    return lambda sides: next(rest, 0) % sides


tapes = st.binary(min_size=1200, max_size=1200)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tapes)
def test_the_destination_is_as_the_source_was(tmp_path_factory: pytest.TempPathFactory, tape: bytes) -> None:
    live(tmp_path_factory.mktemp("engine") / "log", _dice_of(tape))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tapes)
def test_what_rules_make_of_the_source_is_at_the_destination(
    tmp_path_factory: pytest.TempPathFactory, tape: bytes
) -> None:
    """Each change keeps its operation, and its old row."""
    live(tmp_path_factory.mktemp("engine") / "log", _dice_of(tape), ruled=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(max_examples=6000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tapes)
def test_what_rules_make_of_the_source_is_at_the_destination_in_many_histories(
    tmp_path_factory: pytest.TempPathFactory, tape: bytes
) -> None:
    live(tmp_path_factory.mktemp("engine") / "log", _dice_of(tape), ruled=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(max_examples=6000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tapes)
def test_the_destination_is_as_the_source_was_in_many_histories(
    tmp_path_factory: pytest.TempPathFactory, tape: bytes
) -> None:
    live(tmp_path_factory.mktemp("engine") / "log", _dice_of(tape))


# -- what was wrong once, and what must not be ---------------------------------------------------------------------

PAGES = 9

Happenings = Mapping[tuple[str, int], Callable[[], object]]
"""What happens at a place when it is reached for the nth time."""


class Shop:
    """A table of a row on each page, and an engine that copies two pages in a round, by a script. Rows are written to a
    new page, unless there is a `page` for them."""

    def __init__(
        self,
        folder: Path,
        *,
        pages: int = PAGES,
        synchronous: bool = False,
        batch_bytes: int = 5000,
        small_bytes: int = 0,
        ruled: bool = False,
    ) -> None:
        self.page: int | None = None
        self.server = Server(["a"], self._choose, FIRST, synchronous=synchronous, full=ruled)
        self.server.fill("a", map(str, range(pages)))
        assert self.server.heaps["a"].file(()).pages == pages
        self.script: Happenings = {}
        self.reached: Counter[str] = Counter()
        limits = CopyConfig(parallel=2, chunk_bytes=PAGE_BYTES)
        self.engine = ChunkedEngine.of(
            folder,
            self.server,
            copy_config=limits,
            meanwhile=self._reach,
            batch_bytes=batch_bytes,
            part_bytes=5000,
            small_bytes=small_bytes,
            ruled=ruled,
        )

    def _choose(self, sides: int) -> int:
        return sides - 1 if self.page is None else self.page

    def _reach(self, where: str) -> None:
        self.reached[where] += 1
        happens = self.script.get((where, self.reached[where]))
        if happens is not None:
            happens()

    def copy(self, script: Happenings) -> None:
        """With all that happens by the script, and what follows; every part of it must happen."""
        self.script = script
        with closing(self.engine):
            try:
                self.engine.copy_chunks()
            except Died:
                self.engine.restart()
                self.engine.copy_chunks()
            assert all(self.reached[where] >= count for where, count in script)
            self.engine.settle()
            self.engine.check()

    def put(self, key: str, *, large: bool = True) -> None:
        with self.server.transaction() as transaction:
            transaction.put("a", key, large=large)

    def move(self, key: str, to: str) -> None:
        with self.server.transaction() as transaction:
            transaction.move("a", key, to)

    def delete(self, key: str) -> None:
        with self.server.transaction() as transaction:
            transaction.delete("a", key)

    def die(self) -> None:
        raise Died


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "log")


def test_a_table_that_is_rewritten_and_not_written_to(shop: Shop) -> None:
    """Nothing in the stream tells of its new file: the copy does not wait for what does."""
    shop.copy({("copy.chunk.after", 1): lambda: shop.server.rewrite("a")})


@pytest.mark.parametrize("fault", ["before", "after", "late"])
@pytest.mark.parametrize("number", range(1, 12))
def test_a_copy_ends_after_a_commit_that_failed(tmp_path: Path, fault: str, number: int) -> None:
    """The rows of its chunks are committed once: their changes may have been."""
    shop = Shop(tmp_path / "log", batch_bytes=600)

    def write(*keys: str) -> None:
        for key in keys:
            shop.put(key)
        shop.engine.capture()

    def fail() -> None:
        shop.engine.sinks[PLACE].next = fault

    shop.copy({("chunk", 2): lambda: write("0"), ("watermark", 3): lambda: write(*"888888"), ("publish", number): fail})


def test_a_value_that_was_read_again_as_it_was_later(tmp_path: Path) -> None:
    """The copy is not complete before its change has been applied."""
    shop = Shop(tmp_path / "log", pages=2)
    shop.copy({("watermark", 7): lambda: shop.move("0", "another"), ("watermark", 8): lambda: shop.put("another")})
    assert shop.reached["reselect"] == 1


@pytest.mark.parametrize("to", [None, "a third"])
def test_a_row_that_had_a_key_only_while_its_chunk_was_read(shop: Shop, to: str | None) -> None:
    """What is left of it in the stream is that it has left the key from which it came."""
    leave = (lambda: shop.delete("another")) if to is None else (lambda: shop.move("another", to))
    shop.page = 1
    shop.copy({("chunk", 2): lambda: shop.move("8", "another"), ("watermark", 3): leave})


@pytest.mark.parametrize("large", [True, False])
def test_a_commit_that_was_applied_and_is_not_visible(tmp_path: Path, large: bool) -> None:
    """Its row was on a page that is read when the lane has passed the commit."""
    shop = Shop(tmp_path / "log", synchronous=True)
    shop.copy({("chunk", 1): lambda: shop.put("8", large=large)})


@pytest.mark.parametrize("before", range(4, 8))
def test_a_row_that_was_there_only_while_the_last_chunks_were_read(tmp_path: Path, before: int) -> None:
    """A crash comes after their commit, and before the lane has passed the position at which they were read."""
    shop = Shop(tmp_path / "log", pages=2, batch_bytes=600)
    shop.page = 1

    def insert() -> None:
        for _ in range(before):
            shop.put("0")
        shop.put("another")

    leave = partial(shop.delete, "another")
    shop.copy({("chunk", 2): insert, ("watermark", 3): leave, ("published", 3): shop.die})


def test_a_commit_that_the_log_has_no_more_and_that_is_not_visible_after_a_crash(tmp_path: Path) -> None:
    """All have applied it when the process dies, and the next one is not told of it by the log."""
    shop = Shop(tmp_path / "log", synchronous=True)

    def write() -> None:
        shop.put("8")
        for _ in range(40):
            shop.server.watermark()
            shop.engine.capture()

    def forget_and_die() -> None:
        for step in 4 * [1] + 20 * [0]:
            shop.engine.step_beside(step)
        assert shop.server.hidden
        assert shop.engine.run.stream.reader.oldest() > shop.server.states[-1][0]
        shop.die()

    shop.copy({("chunk", 1): write, ("await_visible", 3): forget_and_die})


@pytest.mark.parametrize(("where", "again"), [("copy.chunk.after", 0), ("copy.chunk.before", 2)])
def test_after_a_crash_a_copy_goes_on_where_it_was(shop: Shop, where: str, again: int) -> None:
    shop.copy({(where, 2): shop.die})
    assert shop.reached["chunk"] == PAGES + again


@pytest.mark.parametrize("ruled", [False, True])
def test_the_answer_to_any_one_commit_of_a_copy_may_be_lost(tmp_path: Path, ruled: bool) -> None:
    """A value that was not sent is read again, as newer changes left it, only as long as the copy is not complete."""
    for commit in count(1):
        shop, lost = Shop(tmp_path / f"log{commit}", ruled=ruled), list[int]()

        def lose(shop: Shop = shop, lost: list[int] = lost) -> None:
            shop.engine.sinks[PLACE].next = "after"
            lost.append(shop.reached["chunk"])
            shop.script |= {
                ("connect", shop.reached["connect"] + 1): lambda: shop.move("0", "9"),
                ("reselect", shop.reached["reselect"] + 1): lambda: shop.put("9"),
            }

        shop.script = {("publish", commit): lose}
        with closing(shop.engine):
            shop.engine.copy_chunks()
            shop.engine.settle()
            shop.engine.check()
        if not lost:
            break
        last = lost
    assert last == [PAGES], "the last commit is behind the last chunk"


def test_the_log_is_kept_for_a_main_lane_that_nobody_is_in(tmp_path: Path) -> None:
    """The copy began at a later position, and what its truck does not need is forgotten."""
    shop = Shop(tmp_path / "log")

    def write() -> None:
        for _ in range(40):
            shop.server.watermark()
            shop.engine.capture()

    def forget() -> None:
        shop.engine.run._prune()
        stream = shop.engine.run.stream
        assert stream.main >= stream.reader.oldest()

    shop.copy({("await_ended", 1): write, ("chunk", 5): forget})


def test_the_driver_reads_chunks_while_workers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up, jobs, run = threading.Event(), list[int](), JobsHere.run

    def counted(self: JobsHere, function: Any, parts: Sequence[Any], **more: Any) -> list[Any]:
        jobs.append(shop.reached["chunk"])
        results: list[Any] = run(self, function, parts, **more)
        return results

    monkeypatch.setattr(JobsHere, "is_local", True)
    monkeypatch.setattr(JobsHere, "bring_up_workers", lambda self: up)
    monkeypatch.setattr(JobsHere, "run", counted)
    shop = Shop(tmp_path / "log", small_bytes=1)
    shop.copy({("chunk", 5): up.set})
    assert jobs[0] == 6


def test_a_copy_waits_for_the_log_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not behind a commit, for its truck to come to where the table is."""
    waits, wait = list[float | None](), Waiting.wait

    def noted(self: Waiting, timeout: float | None = None) -> bool:
        waits.append(timeout)
        return wait(self, timeout)

    monkeypatch.setattr(Waiting, "wait", noted)
    with closing(shop.engine):
        shop.engine.copy_chunks()
    assert set(waits) == {WAIT_SECONDS / 10}


def test_a_commit_that_counts_when_the_next_process_has_looked(tmp_path: Path) -> None:
    """That a copy has begun is known to the third process only: the second one has kept the log."""
    server = Server(["a"], lambda sides: sides - 1, FIRST)
    server.fill("a", map(str, range(PAGES)))
    reached: Counter[str] = Counter()

    def meanwhile(where: str) -> None:
        place = f"{len(starts)} {where}"
        reached[place] += 1
        if place == "1 publish" and reached[place] == 2:
            engine.sinks[PLACE].next = "late"
        elif place == "1 wait" and reached["1 publish"] == 2:
            raise Died
        elif place == "2 publish":
            engine.run._prune()
            raise Died

    starts = [1]
    engine = ChunkedEngine.of(tmp_path / "log", server, meanwhile=meanwhile, batch_bytes=600, part_bytes=600)
    with closing(engine):
        for _ in range(2):
            with pytest.raises(Died):
                engine.copy_chunks()
            for _ in range(40):
                server.watermark()
                engine.capture()
            starts.append(len(starts))
            engine.restart()
        engine.settle()
        engine.check()
