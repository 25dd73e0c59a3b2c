"""PostgreSQL → NATS by the command line: what a consumer finds that reads the stream from its start."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from fixtures.jetstream import messages
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, TruckerProcess, run_cli
from fixtures.waiting import wait_until
from trucker.testing.jetstream import JetStreamServer

Start = Callable[..., TruckerProcess]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, shared_nats: JetStreamServer, stream_name: str) -> ProjectFolder:
    database.execute(
        'create table "odd name" (id int primary key, note text)',
        "create table orders (id int primary key, total numeric(10,2))",
        "insert into orders select i, i from generate_series(1, 100) i",
    )
    project.connect(
        {
            "name": "bus",
            "adapter": "nats",
            "servers": shared_nats.url,
            "stream": {"name": stream_name, "duplicate_window": "100ms", "max_bytes": "64 MiB"},
            "subject": f"{stream_name}.{{{{ schema }}}}.{{{{ table }}}}",
            "transactions": "true",
        }
    )
    return project.truck("orders", ["public.orders", 'public."odd name"'], {"connection": "bus"})


def test_a_server_that_is_away_at_the_start_and_in_the_middle(
    shop: ProjectFolder, database: Database, own_nats: JetStreamServer, stream_name: str, spark: Any
) -> None:
    """Its truck waits, and `trucker status` says for what."""
    shop.config["connections"][-1]["servers"] = own_nats.url
    shop.save()
    InThread(shop, spark, once=True).join()
    own_nats.kill()

    def waits() -> bool:
        truck = run.truck()
        return truck is not None and "TRK730" in json.dumps(asdict(truck), default=str)

    with InThread(shop, spark) as run:
        wait_until(waits)
        own_nats.start()
        run.wait_streaming()
        own_nats.kill()
        database.execute("insert into orders values (101, 1)")
        wait_until(waits)
        own_nats.start()
        wait_until(lambda: len(messages(own_nats.url, stream_name)) == 103)
    *_, begin, row, end = messages(own_nats.url, stream_name)
    assert [each.headers["trucker-operation"] for each in (begin, row, end)] == ["begin", "insert", "end"]
    assert json.loads(row.value)["key"] == {"id": 101}


def test_a_kill_between_the_events_and_the_ledger_doubles_nothing(
    shop: ProjectFolder,
    database: Database,
    shared_nats: JetStreamServer,
    stream_name: str,
    start: Start,
    spark: Any,
) -> None:
    checked = run_cli("check", str(shop.folder))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"stream {stream_name} will be created" in " ".join(checked.stdout.split())
    InThread(shop, spark, once=True).join()
    for number in range(101, 104):
        database.execute(
            f"insert into orders values ({number}, 1); insert into \"odd name\" values ({number}, 'a.b')",
            f"update orders set total = 2 where id = {number}",
            f"delete from orders where id = {number - 100}",
        )
    killed = start("--once", failpoints="sink.commit.before=kill")
    assert killed.process.wait(120) == -signal.SIGKILL, killed.output()
    before = messages(shared_nats.url, stream_name)
    assert sum(message.headers["trucker-operation"] == "delete" for message in before) == 3
    database.execute("insert into orders values (200, 1)")
    InThread(shop, spark, once=True).join()

    read = messages(shared_nats.url, stream_name)
    orders = [message for message in read if message.subject == f"{stream_name}.public.orders"]
    rows = [(message.headers["trucker-operation"], json.loads(message.value)["key"]["id"]) for message in orders]
    changes = [
        (operation, key)
        for number in range(101, 104)
        for operation, key in (("insert", number), ("update", number), ("delete", number - 100))
    ]
    assert sorted(rows[:100]) == [("insert", number) for number in range(1, 101)]
    assert rows[100:] == [*changes, ("insert", 200)]
    odd = [message for message in read if message.subject == f"{stream_name}.public.odd%20name"]
    assert [json.loads(message.value)["new"]["note"] for message in odd] == ["a.b"] * 3
    assert {message.headers["trucker-table"] for message in odd} == {"public.odd name"}
    marks = [message for message in read if message.subject == f"{stream_name}.transactions"]
    assert [message.headers["trucker-operation"] for message in marks] == ["begin", "end"] * 10
    assert len({message.headers["trucker-id"] for message in read}) == len(read)
    status = run_cli("status", "--json", str(shop.folder))
    assert json.loads(status.stdout)["trucks"][0]["phase"] in ("streaming", "stopped")
