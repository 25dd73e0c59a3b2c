"""`kill -9` of the process that sends, at each boundary: each event comes, in order for its key, with the id it had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from fixtures.receiver import OK, Received, Reply, receiving
from fixtures.webhook import PROXIES, webhook_sink
from trucker import failpoint
from trucker.sinks.letters import Choice

STEPS, EVENTS, KEYS = 6, 40, 7
REFUSED = frozenset(range(3, STEPS * EVENTS, 29))
BOUNDARIES = ("events.send", "letters.put", "sink.position", "sink.commit")

SENDER = f"""
import sys
from pathlib import Path
from dataclasses import replace
from fixtures.webhook import webhook_sink
from trucker.sinks.committer import Committer
from trucker.testing.handmade import insert
from trucker.testing.suites.sink_suite import ITEMS, START, SinkMeans, target_of

url, folder, rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

class Means(SinkMeans):
    def make_sink(self, project="suite"):
        return webhook_sink(url, folder, project, batch={{"rows": rows}}, parallel=3)

means, target = Means(), target_of(ITEMS)
sink = means.committer()
stored = sink.open()
if not stored or not stored["main"].lsn:
    means.copy(sink, {{target: []}})
at = max(int(sink.open()["main"].lsn), int(START))
for step in range(1 + (at - START) // 0x100, {STEPS} + 1):
    batch = replace(means.batch([target], step), dead_letters={{"main": 1000}})
    numbers = range((step - 1) * {EVENTS}, step * {EVENTS})
    changes = means.values(ITEMS, *(insert({{"id": str(n % {KEYS}), "qty": str(n)}}) for n in numbers), step=step)
    sink.commit(batch, means.write(batch, {{target: [[changes]]}}))
sink.close()
"""


def _answer(request: Received) -> Reply:
    return Reply(422) if any(event["new"]["qty"] in REFUSED for event in request.events) else OK


def _send(url: str, folder: Path, rows: int, failpoints: str) -> int:
    environment = {name: text for name, text in os.environ.items() if name not in PROXIES}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SENDER, url, str(folder), str(rows)],
        env={**environment, failpoint.VARIABLE: failpoints, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


@pytest.mark.parametrize("rows", [1, 4])
def test_killed_at_every_boundary(tmp_path: Path, rows: int) -> None:
    with receiving() as receiver:
        receiver.answering = _answer
        moments = ("before", "after") if rows == 1 else ("after",)
        kills = [f"{boundary}.{when}" for boundary in BOUNDARIES for when in moments]
        for number, point in enumerate(kills):
            nth = 2 if number % 2 else 1
            assert _send(receiver.url, tmp_path, rows, f"{point}=kill@{nth}") == -9, point
        assert _send(receiver.url, tmp_path, rows, "") == 0
        _judge(receiver.events, _letters(receiver.url, tmp_path), receiver.taken if rows == 1 else [])


@pytest.mark.soak
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """The sender dies in the middle of requests, whichever."""
    with receiving() as receiver:
        for count in range(5, 200, 13):
            _kill_after(receiver.url, tmp_path / str(count), count)


def _kill_after(url: str, folder: Path, count: int) -> None:
    with receiving() as receiver:
        process: list[subprocess.Popen[bytes]] = []
        enough = threading.Event()

        def answer(request: Received) -> Reply:
            if len(receiver.received) == count and not enough.is_set():
                enough.set()
                process[0].kill()
            return _answer(request)

        receiver.answering = answer
        path = str(Path(__file__).parents[2])
        arguments = [sys.executable, "-c", SENDER, receiver.url, str(folder), "1"]
        process.append(subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": path}))
        process[0].wait(300)
        assert enough.is_set()
        assert _send(receiver.url, folder, 1, "") == 0
        _judge(receiver.events, _letters(receiver.url, folder), receiver.taken)


def _letters(url: str, folder: Path) -> list[str]:
    sink = webhook_sink(url, folder)
    try:
        return [done.letter.data["id"] or "" for done in sink.redrive(Choice(("main",)), dry_run=True)]
    finally:
        sink.close()


def _judge(events: list[dict[str, dict[str, int]]], letters: list[str], single: list[Received]) -> None:
    """Each event was taken or is a letter, once; the first time that events of a key came they came in order, and the
    last that came is the key's last."""
    numbers = [event["new"]["qty"] for event in events]
    assert set(numbers) == set(range(STEPS * EVENTS)) - REFUSED
    assert sorted(letters) == sorted(str(n % KEYS) for n in REFUSED)
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_key[number % KEYS].append(number)
    for key, came in by_key.items():
        first = list(dict.fromkeys(came))
        assert first == sorted(first), f"key {key}"
        assert came[-1] == max(came), f"key {key}"
    ids: dict[int, set[str]] = defaultdict(set)
    for request in single:
        ids[request.events[0]["new"]["qty"]].add(request.id)
    assert all(len(names) == 1 for names in ids.values())
