"""The Kafka sink on a real broker: refusals, faults, fencing, and what consumers of committed messages see."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from fixtures.kafka import Place, header, needs_kafka
from fixtures.killed import KEEPS, SCHEMA, kill_repeatedly
from fixtures.waiting import wait_until
from trucker.adapters.kafka import KafkaConnection
from trucker.change import Lsn, TableId
from trucker.errors import DataError, SinkError, SinkRefused, SinkUnavailable, TruckFailed
from trucker.failpoint import VARIABLE
from trucker.finding import Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Work
from trucker.sinks.committer import Committer
from trucker.sinks.kafka.producer import TransactionalProducer
from trucker.sinks.kafka.sink import KafkaSink
from trucker.sinks.letters import Choice
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, truncate
from trucker.testing.kafka_broker import BARE

pytestmark = needs_kafka

ITEM = schema_of(TableId("public", "item"), {"id": "integer", "body": "text"}, ["id"])
TARGET = Target("main", ITEM, ITEM.table)


def make(connection: KafkaConnection, folder: Path) -> Committer:
    return Committer(KafkaSink(connection, Workspace("p", folder / "work")))


def opened(connection: KafkaConnection, folder: Path, target: Target = TARGET) -> Committer:
    committer = make(connection, folder)
    committer.open()
    committer.prepare(target)
    return committer


def commit(
    committer: Committer, step: int, rows: Sequence[Change], target: Target = TARGET, letters: int | None = None
) -> None:
    batch = Batch(Lsn(step), Lsn(step + 1), {target.truck: Lsn(step + 1)}, targets=(target,))
    if letters is not None:
        batch = replace(batch, dead_letters={target.truck: letters})
    values = changes_of(target.source, rows, lsn=Lsn(step))
    committer.commit(batch, [committer.write(Work(batch, target, 0), iter([values]))])


def row(number: int, body: str = "") -> Change:
    return insert({"id": str(number), "body": body})


def numbers(place: Place, *, committed: bool = True) -> list[int]:
    return [value_of(message)["new"]["id"] for message in place.messages(topic_of(place), committed=committed)]


def topic_of(place: Place, table: str = "item") -> str:
    return f"{place.prefix}.public.{table}"


def value_of(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(message.value() or b"")
    return value


def admin(place: Place) -> AdminClient:
    return AdminClient({"bootstrap.servers": place.broker.servers, "log_level": 0})


def topics(place: Place) -> set[str]:
    return {name for name in admin(place).list_topics(timeout=20).topics if name.startswith(place.prefix)}


def create(place: Place, name: str, **settings: str) -> None:
    new = NewTopic(name, num_partitions=1, replication_factor=1, config=settings)
    client = admin(place)
    client.create_topics([new])[name].result()


# -- what is written ---------------------------------------------------------------------------------------------------


def test_a_message_has_key_headers_and_the_partition_of_its_key(kafka: Place, tmp_path: Path) -> None:
    sink = opened(kafka.connection(partitions=3), tmp_path)
    commit(sink, 10, [row(number) for number in range(30)])
    commit(sink, 20, [row(number) for number in range(30)])
    messages = kafka.messages(topic_of(kafka))
    assert len({message.partition() for message in messages}) == 3
    by_key = Counter((message.key(), message.partition()) for message in messages)
    assert set(by_key.values()) == {2}, "a key is in one partition"
    first = messages[0]
    number = value_of(first)["new"]["id"]
    assert json.loads(first.key() or b"") == {"id": number}
    assert [name for name, _ in first.headers() or []] == [
        f"trucker-{name}" for name in ("table", "operation", "lsn", "ordinal", "id")
    ]
    assert (header(first, "trucker-table"), header(first, "trucker-operation")) == ("public.item", "insert")
    assert header(first, "trucker-id") == f"0/A/{header(first, 'trucker-ordinal')}"


def test_marks_of_transactions_have_a_topic_of_their_own(kafka: Place, tmp_path: Path) -> None:
    marks = f"{kafka.prefix}.marks.main"
    connection = kafka.connection(transactions=True, transaction_topic=kafka.prefix + ".marks.{{ truck }}")
    sink = opened(connection, tmp_path)
    commit(sink, 10, [row(1), row(2)])
    messages = kafka.messages(marks)
    assert [header(message, "trucker-operation") for message in messages] == ["begin", "end"]
    assert {message.key() for message in messages} == {None}
    assert len(kafka.messages(topic_of(kafka))) == 2


def test_a_delete_is_followed_by_a_tombstone_in_debeziums_envelope(kafka: Place, tmp_path: Path) -> None:
    """So that a compacted topic forgets the row."""
    connection = kafka.connection(format="debezium", topic_settings={"cleanup.policy": "compact"})
    sink = opened(connection, tmp_path)
    commit(sink, 10, [row(1), delete({"id": "1"})])
    messages = kafka.messages(topic_of(kafka))
    assert [header(message, "trucker-operation") for message in messages] == ["insert", "delete", "tombstone"]
    assert [message.value() is None for message in messages] == [False, False, True]
    assert len({message.key() for message in messages}) == 1


def test_a_compacted_topic_refuses_what_has_no_key(kafka: Place, tmp_path: Path) -> None:
    sink = opened(kafka.connection(topic_settings={"cleanup.policy": "compact"}), tmp_path)
    with pytest.raises(TruckFailed, match="does not take events without a key") as caught:
        commit(sink, 10, [row(1), truncate()])
    assert caught.value.code == "TRK724"
    commit(sink, 10, [row(1)])
    assert numbers(kafka) == [1], "the producer goes on"


def test_events_without_a_key_are_in_one_partition_in_order(kafka: Place, tmp_path: Path) -> None:
    bag = schema_of(TableId("public", "bag"), {"n": "integer"})
    target = Target("main", bag, bag.table)
    sink = opened(kafka.connection(partitions=3), tmp_path, target)
    commit(sink, 10, [insert({"n": str(number)}) for number in range(50)], target)
    messages = kafka.messages(topic_of(kafka, "bag"))
    assert len({message.partition() for message in messages}) == 1
    assert [value_of(message)["new"]["n"] for message in messages] == list(range(50))
    assert {message.key() for message in messages} == {None}


def test_a_transaction_larger_than_the_queue_is_one_transaction(kafka: Place, tmp_path: Path) -> None:
    """I9: what the client holds at once is bounded, and consumers see all of it or nothing."""
    sink = opened(kafka.connection(partitions=1), tmp_path)
    commit(sink, 10, [row(number) for number in range(60_000)])
    assert numbers(kafka) == list(range(60_000))


def test_positions_are_in_a_compacted_topic_of_one_partition(kafka: Place, tmp_path: Path) -> None:
    sink = opened(kafka.connection(), tmp_path)
    commit(sink, 10, [row(1)])
    commit(sink, 20, [row(2)])
    messages = kafka.messages(f"{kafka.prefix}.positions")
    assert {message.partition() for message in messages} == {0}
    assert [json.loads(message.value() or b"") for message in messages] == [
        {"project": "p", "lsn": "0/B"},
        {"project": "p", "lsn": "0/15"},
    ]
    assert KafkaSink(kafka.connection(), Workspace("p", tmp_path)).stored()["main"].lsn == 21


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_check_creates_nothing(kafka: Place, tmp_path: Path) -> None:
    sink = KafkaSink(kafka.connection(), Workspace("p", tmp_path))
    assert [finding.level for finding in sink.check()] == [Level.OK]
    assert list(sink.examine([TARGET], ())) == []
    assert dict(sink.stored()) == {}
    assert topics(kafka) == set()


def test_topics_are_asked_for_where_they_may_not_be_created(kafka: Place, tmp_path: Path) -> None:
    connection = kafka.connection(create_topics=False)
    sink = KafkaSink(connection, Workspace("p", tmp_path))
    (finding,) = sink.check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK724")
    assert f"--create --topic {kafka.prefix}.positions" in finding.remedy
    ((target, error),) = sink.examine([TARGET], ())
    assert (target, error.code) == (TARGET, "TRK724")
    create(kafka, f"{kafka.prefix}.positions", **{"cleanup.policy": "compact"})
    create(kafka, topic_of(kafka))
    assert [finding.level for finding in sink.check()] == [Level.OK]
    commit(opened(connection, tmp_path), 10, [row(1)])
    assert numbers(kafka) == [1]


def test_a_name_that_no_topic_can_have_is_refused(kafka: Place, tmp_path: Path) -> None:
    odd = Target("main", ITEM, TableId("public", "an item"))
    with pytest.raises(SinkError, match="not a name that a topic can have") as caught:
        opened(kafka.connection(), tmp_path, odd)
    assert caught.value.code == "TRK724"


def test_positions_that_would_go_are_refused(kafka: Place, tmp_path: Path) -> None:
    create(kafka, f"{kafka.prefix}.positions", **{"cleanup.policy": "delete"})
    with pytest.raises(SinkError, match="loses positions") as caught:
        make(kafka.connection(), tmp_path).open()
    assert caught.value.code == "TRK727"
    assert "--add-config cleanup.policy=compact" in caught.value.remedy


def test_positions_of_another_project_are_refused(kafka: Place, tmp_path: Path) -> None:
    commit(opened(kafka.connection(), tmp_path), 10, [row(1)])
    with pytest.raises(SinkError, match="positions of project 'p', not of 'other'") as caught:
        KafkaSink(kafka.connection(), Workspace("other", tmp_path)).open()
    assert caught.value.code == "TRK727"


def test_a_timeout_that_the_brokers_do_not_permit_is_refused(kafka: Place, tmp_path: Path) -> None:
    sink = opened(kafka.connection(transaction_timeout="2h"), tmp_path)
    with pytest.raises(SinkError, match="permit less than transaction_timeout") as caught:
        commit(sink, 10, [row(1)])
    assert caught.value.code == "TRK726"
    assert not caught.value.transient


def test_a_transaction_that_takes_too_long_is_said_to(kafka: Place, tmp_path: Path) -> None:
    connection = kafka.connection(partitions=1).model_copy(update={"transaction_timeout": 1.0})
    sink = opened(connection, tmp_path)
    kafka_sink = sink.sink
    assert isinstance(kafka_sink, KafkaSink)
    commit(sink, 10, [row(1)])
    producer = kafka_sink._begun()
    producer.produce(topic_of(kafka), b"late", b"key")
    producer.flush()
    # The brokers mark its end: two messages and two marks.
    wait_until(lambda: kafka.end_of(topic_of(kafka)) == 4, 60)
    with pytest.raises(SinkUnavailable, match="longer than transaction_timeout") as caught:
        commit(sink, 11, [row(2)])
    assert caught.value.code == "TRK726"
    commit(sink, 11, [row(2)])
    assert numbers(kafka) == [1, 2]


def test_settings_that_the_library_does_not_know_are_refused(kafka: Place, tmp_path: Path) -> None:
    (finding,) = KafkaSink(kafka.connection(settings={"client.nonsense": 1}), Workspace("p", tmp_path)).check()
    assert finding.code == "TRK728"
    assert "client.nonsense" in finding.message


def test_wrong_credentials_are_refused_and_in_no_log(
    kafka: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = kafka.connection(**kafka.broker.login(password="wrong-password"), settings={"debug": "security"})
    (finding,) = KafkaSink(wrong, Workspace("p", tmp_path)).check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK721")
    with pytest.raises(SinkRefused) as caught:
        make(wrong, tmp_path).open()
    assert caught.value.code == "TRK721"
    told = [str(record.__dict__) for record in caplog.records if record.name == "trucker.sink"]
    assert told
    assert "wrong-password" not in "".join([*told, str(caught.value), finding.message])


def test_credentials_that_expire_are_refused_until_their_file_has_new_ones(kafka: Place, tmp_path: Path) -> None:
    login = kafka.broker.login()
    connection = kafka.connection(**login)
    secret = tmp_path / "secret"
    secret.write_text("expired")
    connection.secrets_in({"pass": secret})
    sink = make(connection, tmp_path)
    with pytest.raises(SinkRefused):
        sink.open()
    secret.write_text(login["pass"])
    sink.open()
    sink.prepare(TARGET)
    commit(sink, 10, [row(1)])
    assert numbers(kafka) == [1]


def test_rights_that_are_missing_are_named(kafka: Place, tmp_path: Path) -> None:
    connection = kafka.connection(**kafka.broker.login(BARE), timeout=5)
    (finding,) = KafkaSink(connection, Workspace("p", tmp_path)).check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK723")
    assert f"grant user {BARE}" in finding.remedy
    allowed = [
        (ResourceType.TOPIC, kafka.prefix, operation)
        for operation in (AclOperation.CREATE, AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE)
    ]
    _grant(kafka, allowed)
    sink = opened(connection, tmp_path)
    with pytest.raises(SinkRefused, match="TRANSACTIONAL_ID") as caught:
        commit(sink, 10, [row(1)])
    assert caught.value.code == "TRK723"
    rest = [
        (ResourceType.TRANSACTIONAL_ID, kafka.prefix, operation)
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    _grant(kafka, [*rest, (ResourceType.GROUP, "trucker-", AclOperation.READ)])
    commit(sink, 10, [row(1)])
    assert numbers(kafka) == [1], "these rights are enough"


def _grant(place: Place, rights: Sequence[tuple[ResourceType, str, AclOperation]]) -> None:
    bindings = [
        AclBinding(kind, name, ResourcePatternType.PREFIXED, f"User:{BARE}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in rights
    ]
    client = admin(place)
    for future in client.create_acls(bindings).values():
        future.result()


# -- too large ---------------------------------------------------------------------------------------------------------


def _narrow(place: Place) -> KafkaConnection:
    return place.connection(partitions=1, topic_settings={"max.message.bytes": "20000"}, settings={"batch.size": 20000})


def test_a_message_too_large_stops_its_truck_and_tells_nothing_of_the_row(kafka: Place, tmp_path: Path) -> None:
    sink = opened(_narrow(kafka), tmp_path)
    commit(sink, 10, [row(1)])
    with pytest.raises(TruckFailed) as caught:
        commit(sink, 11, [row(2), row(3, "secret" * 5000), row(4)])
    assert caught.value.code == "TRK725"
    assert isinstance(caught.value.reason, DataError)
    assert re.search(r"is a message of 30\d\d\d bytes, and topic \S+ takes 20000", str(caught.value))
    assert "secret" not in str(caught.value)
    commit(sink, 11, [row(5)])
    assert numbers(kafka) == [1, 5], "the producer goes on"


def test_the_measure_of_a_message_is_the_brokers_own(kafka: Place, tmp_path: Path) -> None:
    """One byte more than the topic takes is refused here, and what is not refused the broker takes."""
    sink = opened(_narrow(kafka), tmp_path)
    low, high = 0, 20_000
    step = 10
    while high - low > 1:
        middle = (low + high) // 2
        try:
            commit(sink, step, [row(1, "x" * middle)])
        except TruckFailed:
            high = middle
        else:
            low, step = middle, step + 1
    with pytest.raises(TruckFailed, match="is a message of 20001 bytes"):
        commit(sink, step, [row(1, "x" * high)])


def test_a_message_too_large_becomes_a_dead_letter_and_is_sent_when_it_fits(kafka: Place, tmp_path: Path) -> None:
    connection = _narrow(kafka)
    sink = opened(connection, tmp_path)
    commit(sink, 10, [row(2), row(3, "x" * 30_000), row(4)], letters=10)
    assert numbers(kafka) == [2, 4]
    store = KafkaSink(connection, Workspace("p", tmp_path / "work"))
    assert dict(store.count_letters()) == {"main": 1}
    (again,) = store.redrive(Choice(("main",)), dry_run=False)
    assert not again.applied
    _raise_limit(kafka)
    (sent,) = store.redrive(Choice(("main",)), dry_run=False)
    assert sent.applied
    assert dict(store.count_letters()) == {}
    commit(sink, 11, [row(5, "x" * 30_000)])
    assert numbers(kafka) == [2, 4, 3, 5], "the run that goes on was not disturbed"


def _raise_limit(place: Place) -> None:
    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic_of(place), incremental_configs=[entry])
    client = admin(place)
    client.incremental_alter_configs([resource])[resource].result()


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_is_waited_for(kafka: Place, tmp_path: Path) -> None:
    """At the start, and in the middle: nothing is lost, nothing doubled."""
    connection = kafka.connection(partitions=1, timeout=2)
    kafka.broker.kill()
    sink = make(connection, tmp_path)
    with pytest.raises(SinkUnavailable) as caught:
        sink.open()
    assert caught.value.code == "TRK720"
    (finding,) = KafkaSink(connection, Workspace("p", tmp_path)).check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK720")
    kafka.broker.start()
    until_done(sink.open)
    sink.prepare(TARGET)
    until_done(lambda: commit(sink, 10, [row(1)]))
    kafka.broker.kill()
    with pytest.raises(SinkUnavailable):
        commit(sink, 11, [row(2)])
    with pytest.raises(SinkUnavailable):
        commit(sink, 11, [row(2)])
    kafka.broker.start()
    until_done(lambda: commit(sink, 11, [row(2)]))
    assert numbers(kafka) == [1, 2]


def until_done(work: Callable[[], Any]) -> None:
    """Repeat as the engine does, until the brokers answer again."""

    def done() -> bool:
        try:
            work()
        except SinkUnavailable:
            return False
        return True

    wait_until(done, 120)


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_commit_without_an_answer_is_settled(
    kafka: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The network goes while the transaction is committed: it counts as a whole or not at all, and once."""
    sink = opened(kafka.behind_proxy(partitions=1, timeout=2), tmp_path)
    commit(sink, 10, [row(1)])
    real = TransactionalProducer.commit

    def cut(producer: TransactionalProducer) -> None:
        getattr(kafka.proxy, fault)()
        real(producer)

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalProducer, "commit", cut)
        with pytest.raises(SinkUnavailable):
            commit(sink, 11, [row(2)])
    kafka.proxy.heal()
    until_done(lambda: commit(sink, 11, [row(2)]))
    until_done(lambda: commit(sink, 12, [row(3)]))
    assert numbers(kafka) == [1, 2, 3]


def test_a_process_that_was_replaced_is_fenced(kafka: Place, tmp_path: Path) -> None:
    connection = kafka.connection(partitions=1)
    zombie = opened(connection, tmp_path / "a")
    commit(zombie, 10, [row(1)])
    new = opened(connection, tmp_path / "b")
    commit(zombie, 11, [row(2)])  # it goes on until the new one writes
    commit(new, 11, [row(2)])  # which notices that this was done
    commit(new, 12, [row(3)])
    with pytest.raises(SinkError, match="another process has taken over") as caught:
        commit(zombie, 12, [row(3)])
    assert caught.value.code == "TRK722"
    assert not caught.value.transient
    commit(new, 13, [row(4)])
    assert numbers(kafka) == [1, 2, 3, 4]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def make_sink(folder: Path) -> KafkaSink:
    """For the processes that are killed."""
    settings = json.loads((folder / "connection.json").read_text())
    return KafkaSink(KafkaConnection.model_validate(settings), Workspace("suite", folder / "work"))


def _whole_and_once(place: Place, committed: int) -> int:
    """What a consumer of committed messages sees from the beginning; the last batch of it."""
    messages = place.messages(f"{place.prefix}.public.t")
    counts = Counter(header(message, "trucker-id") for message in messages)
    assert set(counts.values()) == {1}, "a change comes once"
    batches = Counter(value_of(message)["commit_lsn"] for message in messages if "snapshot" not in value_of(message))
    last = max((int(Lsn.parse(lsn)) // 10 for lsn in batches), default=0)
    assert last >= committed
    expected = {str(Lsn(number * 10 + 5)): 2 + (number > KEEPS) for number in range(1, last + 1)}
    assert batches == expected, "whole transactions, none missing"
    counter = [value_of(message)["new"]["n"] for message in messages if value_of(message)["operation"] == "update"]
    assert counter == list(range(1, last + 1)), "a key's changes are in order"
    return last


def test_killed_while_it_commits(kafka: Place, tmp_path: Path) -> None:
    (tmp_path / "connection.json").write_text(json.dumps(kafka.settings(partitions=3)))

    def check(committed: int) -> None:
        stored = make_sink(tmp_path).open()
        assert _whole_and_once(kafka, committed) == stored.positions["main"] // 10 - 1

    kill_repeatedly("integration.sinks.test_kafka", tmp_path, check, 3)
    assert SCHEMA.table.name == "t"


def test_killed_at_each_step_of_a_commit(kafka: Place, tmp_path: Path) -> None:
    """I4: before and after each thing that must survive a crash; the broker itself is killed in between, too."""
    (tmp_path / "connection.json").write_text(json.dumps(kafka.settings(partitions=3)))
    last = 0
    for number, point in enumerate(("position.before", "position.after", "commit.before", "commit.after")):
        last = max(last, _die_at(tmp_path, f"sink.{point}=kill@5"))
        if number == 1:
            kafka.broker.kill()
            kafka.broker.start()
        sink = make_sink(tmp_path)
        until_done(sink.open)
        assert _whole_and_once(kafka, last) == sink.stored()["main"].lsn // 10 - 1


def _die_at(folder: Path, failpoints: str) -> int:
    """Commit for ever until the failpoint kills; the last batch that was said to be committed."""
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from fixtures.killed import commit_for_ever\nfrom integration.sinks.test_kafka import make_sink\n"
        "commit_for_ever(make_sink(Path(sys.argv[1])))\n"
    )
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", code, str(folder), tests]
    ended = subprocess.run(
        command, env={**os.environ, VARIABLE: failpoints}, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == -9, ended.stderr
    said = ended.stdout.split()
    return int(said[-1]) if said else 0
