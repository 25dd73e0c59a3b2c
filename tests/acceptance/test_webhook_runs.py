"""Webhooks by the command line: from PostgreSQL to a receiver that fails, refuses and comes back, with a kill."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from collections import defaultdict
from contextlib import closing
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, run_cli
from fixtures.receiver import OK, Received, Receiver, Reply, receiving
from fixtures.waiting import wait_until
from fixtures.webhook import PROXIES, SECRET

REFUSED = {13, 77}
NOTE = "a value that nobody may see"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port at which nobody listens yet."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


def refuse(request: Received) -> Reply:
    ids = {event["key"]["id"] for event in request.events}
    return Reply(422, body=request.body) if ids & REFUSED else OK


def signed(request: Received) -> bool:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    content = f"{request.id}.{request.headers['webhook-timestamp']}.".encode() + request.body
    digest = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return request.headers["webhook-signature"] == f"v1,{digest}" and request.headers["x-shop"] == "north"


def test_changes_reach_a_receiver(project: ProjectFolder, database: Database, port: int, start: Any) -> None:
    """Each change at least once, in order for its key; refused ones by `redrive`; nothing of them is ever shown."""
    database.execute(
        "create table item (id int primary key, n int, note text)",
        f"insert into item select i, 0, '{NOTE}' from generate_series(1, 100) i",
    )
    (project.folder / "secret").write_text(SECRET)
    (project.folder / "headers").write_text("X-Shop: north\n")
    project.connect(
        {
            "name": "hooks",
            "adapter": "webhook",
            "url": f"http://127.0.0.1:{port}/{{{{ schema }}}}/{{{{ table }}}}",
            "secret_path": "secret",
            "headers_path": "headers",
            "batch": {"rows": 8},
            "timeouts": {"retry": 1},
        }
    )
    project.truck("items", ["public.*"], {"connection": "hooks"}).sql("items", {}, on_error="dead_letter")
    trucker = start(failpoints="letters.put.after=kill")
    wait_until(lambda: "destination unavailable" in trucker.output(), 120)
    with receiving(port=port) as receiver:
        receiver.answering = refuse
        said = _campaign(project, database, receiver, trucker, start)
    for secret in (NOTE, SECRET):
        assert secret not in said


def _campaign(
    project: ProjectFolder, database: Database, receiver: Receiver, trucker: TruckerProcess, start: Any
) -> str:
    """All that trucker says meanwhile."""
    assert trucker.process.wait(300) == -9, trucker.output()
    assert receiver.taken
    output = trucker.output()
    trucker = start()
    trucker.wait_streaming(120)
    assert sorted({event["key"]["id"] for event in receiver.events}) == [n for n in range(1, 101) if n not in REFUSED]

    # A receiver that is away, and comes back: nothing is lost, and the truck waits.
    receiver.answering = lambda _: Reply(503)
    database.execute(*(f"update item set n = {n} where id % 3 = {n % 3}" for n in range(1, 7)))
    wait_until(lambda: "HTTP 503" in trucker.output(), 120)
    receiver.answering = refuse
    last = {n: max(m for m in range(1, 7) if m % 3 == n % 3) for n in range(1, 101)}
    wait_until(lambda: _last(receiver) == {n: m for n, m in last.items() if n not in REFUSED}, 120)
    # Of each refused row: its insert, and two updates.
    wait_until(lambda: (truck := trucker.truck("items")) is not None and truck.dead_letters == 6, 60)

    checked = run_cli("check", "--json", str(project.folder))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (warning,) = (each for each in json.loads(checked.stdout) if each["code"] == "TRK473")
    assert (warning["level"], warning["message"]) == ("warning", "6 dead letters: events that its destination refused")
    listed = run_cli("redrive", "--dry-run", str(project.folder))
    assert listed.returncode == 0, listed.stderr
    assert "6 dead letters, 0 applied, 0 refused again, 6 not tried" in listed.stdout
    again = run_cli("redrive", "--json", str(project.folder))
    assert again.returncode == 1, again.stderr
    results = [(each["applied"], each["sqlstate"], each["tries"]) for each in json.loads(again.stdout)]
    assert results == [(False, "422", 2)] * 6
    receiver.answering = lambda _: OK
    done = run_cli("redrive", str(project.folder))
    assert done.returncode == 0, done.stderr
    assert "6 dead letters, 6 applied" in done.stdout
    wait_until(lambda: (truck := trucker.truck("items")) is not None and truck.dead_letters == 0, 60)
    assert trucker.stop() == 0, trucker.output()

    assert _last(receiver) == last
    assert all(signed(request) for request in receiver.received)
    assert {request.path for request in receiver.received} == {"/public/item"}
    came: dict[int, list[int]] = defaultdict(list)
    for event in receiver.events:
        came[event["key"]["id"]].append(event["new"]["n"])
    for key, numbers in came.items():
        first = list(dict.fromkeys(numbers))
        assert first == [0, last[key] - 3, last[key]], f"id {key}"
    return "".join(
        (output, trucker.output(), checked.stdout, listed.stdout, again.stdout, done.stdout, str(project.status()))
    )


def _last(receiver: Receiver) -> dict[int, int]:
    """What the last event of each key says."""
    return {event["key"]["id"]: event["new"]["n"] for event in receiver.events}
