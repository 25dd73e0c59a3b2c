"""PostgreSQL to Kafka by the command line: what a consumer of committed messages sees from the beginning."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from fixtures.kafka import Place, header, needs_kafka
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, run_cli
from fixtures.waiting import wait_until
from trucker.lsn import Lsn

pytestmark = needs_kafka

Start = Callable[..., TruckerProcess]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, kafka: Place) -> ProjectFolder:
    database.execute(
        "create table orders (id int primary key, total numeric(10,2))",
        "create table item (id int primary key, of_order int)",
        "insert into orders select i, i from generate_series(1, 100) i",
    )
    project.connect(kafka.settings(positions_topic=None, transactional_id=None))
    project.truck("orders", ["public.orders", "public.item"], {"connection": "stream"})
    return project


def values(place: Place, table: str) -> list[dict[str, Any]]:
    return [json.loads(message.value() or b"") for message in messages(place, table)]


def messages(place: Place, table: str) -> list[Message]:
    return place.messages(f"{place.prefix}.public.{table}")


def folded(place: Place, table: str, column: str) -> dict[int, Any]:
    """The rows that the events make, each key's in order."""
    rows: dict[int, Any] = {}
    for value in values(place, table):
        if value["operation"] == "delete":
            del rows[value["old"]["id"]]
        else:
            rows[value["new"]["id"]] = value["new"][column]
    return rows


def source(database: Database, table: str, column: str) -> dict[int, Any]:
    return dict(database.query(f"select id, {column}::float from {table}"))


def equal(place: Place, database: Database) -> bool:
    return folded(place, "orders", "total") == source(database, "orders", "total") and folded(
        place, "item", "of_order"
    ) == source(database, "item", "of_order")


def once_and_in_order(place: Place, table: str) -> None:
    found = messages(place, table)
    assert max(Counter(header(message, "trucker-id") for message in found).values(), default=1) == 1
    latest: dict[bytes | None, tuple[int, int]] = {}
    for message in found:
        at = (int(Lsn.parse(header(message, "trucker-lsn"))), int(header(message, "trucker-ordinal")))
        key = message.key()
        assert "snapshot" in json.loads(message.value() or b"") or at > latest.get(key, (0, 0))
        latest[key] = at


def test_a_project_streams_to_kafka_and_survives_kills(
    shop: ProjectFolder, database: Database, kafka: Place, start: Start
) -> None:
    """The copy, changes, transactions over two tables, kill -9 of all processes, and a broker that goes away."""
    checked = run_cli("check", str(shop.folder))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    trucker = start()
    trucker.wait_streaming(120)
    database.execute("update orders set total = 7 where id <= 10", "delete from orders where id = 100")
    wait_until(lambda: equal(kafka, database), 60)
    _buy(database, 1000)
    kafka.broker.kill()
    _buy(database, 2000)
    kafka.broker.start()
    wait_until(lambda: equal(kafka, database), 120)
    _buy(database, 3000)
    trucker.kill_tree()
    trucker = start()
    wait_until(lambda: equal(kafka, database), 120)
    assert trucker.stop() == 0, trucker.output()
    for table in ("orders", "item"):
        once_and_in_order(kafka, table)


def _buy(database: Database, first: int) -> None:
    """Transactions over two tables."""
    for order in range(first, first + 20):
        database.execute(
            f"begin; insert into orders values ({order}, 1); insert into item values ({order}, {order}); commit"
        )


def test_check_says_what_is_wrong_with_the_brokers(shop: ProjectFolder, kafka: Place) -> None:
    """All by `trucker check`, which creates nothing."""
    (connection,) = [each for each in shop.config["connections"] if each["name"] == "stream"]

    def found(**more: Any) -> dict[str, Any]:
        entry = {**connection, "timeout": 2, **more}
        shop.config["connections"] = [each for each in shop.config["connections"] if each["name"] != "stream"]
        shop.connect(entry)
        done = run_cli("check", "--json", str(shop.folder))
        errors = [finding for finding in json.loads(done.stdout) if finding["level"] == "error"]
        assert errors, done.stdout + done.stderr
        assert "wrong-password" not in done.stdout + done.stderr
        finding: dict[str, Any] = errors[0]
        return finding

    assert found(servers=["127.0.0.1:1"])["code"] == "TRK720"
    assert found(**kafka.broker.login(password="wrong-password"))["code"] == "TRK721"
    assert found(create_topics=False)["code"] == "TRK724"
