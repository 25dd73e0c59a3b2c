"""What the NATS sink says when something is wrong: a code, a place and what to do; never a row or a secret (I10)."""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nats.aio.client import Client

from fixtures.documents import ROOT
from fixtures.jetstream import api, asked, messages
from fixtures.nats_sink import MAIN, OTHER, BrokenSink, StreamMeans, connection_of
from fixtures.tls import Authority
from fixtures.waiting import wait_until
from trucker.adapters.nats import NatsConnection
from trucker.errors import SinkError, SinkRefused, SinkUnavailable, TruckerError, TruckFailed
from trucker.finding import Level
from trucker.sinks.base import Workspace
from trucker.sinks.letters import Choice
from trucker.sinks.nats.sink import NatsSink
from trucker.testing.handmade import copied_rows_of, insert
from trucker.testing.jetstream import JetStreamServer
from trucker.testing.suites.sink_suite import ITEMS, START

ALL = "{ user: all, password: x }"


def sink_of(connection: NatsConnection, folder: Path) -> NatsSink:
    return NatsSink(connection, Workspace("suite", folder / "work"))


def failing(connection: NatsConnection, folder: Path) -> TruckerError:
    """What opening says; `check` says the same."""
    with closing(sink_of(connection, folder)) as sink:
        with pytest.raises(TruckerError) as failure:
            sink.open()
        (finding,) = sink.check()
        assert (finding.level, finding.code) == (Level.ERROR, failure.value.code)
    assert failure.value.remedy
    return failure.value


def test_a_check_creates_nothing(means: StreamMeans) -> None:
    with closing(sink_of(means.connection, means.folder)) as sink:
        (finding,) = sink.check()
        assert finding.level is Level.OK
        assert "will be created" in finding.message
        assert sink.stored() == {}
        assert list(sink.examine([MAIN], [])) == []
    streams = api(means.server.url, "STREAM.NAMES")["streams"] or []
    assert not [name for name in streams if means.stream in name.split("_")]
    means.started(MAIN)
    (finding,) = sink_of(means.connection, means.folder).check()
    assert "has 0 messages" in finding.message


def test_a_server_that_is_away(stream_name: str, tmp_path: Path, own_nats: JetStreamServer) -> None:
    own_nats.kill()
    away = failing(connection_of(own_nats.url, stream_name), tmp_path)
    assert away.code == "TRK730"
    assert away.transient
    assert "Connection refused" in away.message
    own_nats.start()
    with closing(sink_of(connection_of(own_nats.url, stream_name), tmp_path)) as sink:
        assert sink.open().states() == {}


def test_the_second_of_the_servers_is_asked_too(own_nats: JetStreamServer, stream_name: str, tmp_path: Path) -> None:
    connection = connection_of(own_nats.url, stream_name).model_copy(
        update={"servers": ("nats://127.0.0.1:1", own_nats.url)}
    )
    with closing(sink_of(connection, tmp_path)) as sink:
        assert sink.open().states() == {}


def test_a_server_without_jetstream(stream_name: str, tmp_path: Path) -> None:
    with JetStreamServer(tmp_path / "nats", "jetstream: disabled") as server:
        failure = failing(connection_of(server.url, stream_name), tmp_path)
    assert failure.code == "TRK733"
    assert "jetstream {}" in failure.remedy


def test_a_full_stream_waits_for_room(means: StreamMeans) -> None:
    settings = {"max_messages": 100, "discard": "new"}
    means.connection = connection_of(means.server.url, means.stream, stream_settings=settings)
    sink = means.started(MAIN)
    batch = means.batch([MAIN])
    receipts = means.write(batch, {MAIN: means.many(150)})
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="has no room") as full:
            sink.commit(batch, receipts)
        assert full.value.code == "TRK737"
        assert "nats stream edit" in full.value.remedy
        assert means.ids() == list(range(100))
    config = api(means.server.url, f"STREAM.INFO.{means.stream}")["config"]
    api(means.server.url, f"STREAM.UPDATE.{means.stream}", {**config, "max_msgs": 1000})
    sink.commit(batch, receipts)
    assert means.ids() == list(range(150))
    sink.close()


def test_an_event_that_is_too_large_stops_its_truck_alone(
    own_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    means = StreamMeans(own_nats, stream_name, tmp_path)
    sink = means.started(MAIN, OTHER)
    batch = means.batch([MAIN, OTHER])
    large = insert({"id": "7", "note": "private" * 200_000})
    receipts = means.write(
        batch,
        {
            MAIN: [[means.values(ITEMS, insert({"id": "6"}), large)]],
            OTHER: [[means.values(OTHER.source, insert({"a": "1"}))]],
        },
    )
    with pytest.raises(TruckFailed) as failed:
        sink.commit(batch, receipts)
    assert failed.value.truck == "main"
    assert failed.value.reason.code == "TRK736"
    assert "event 0/10F8/1 (insert of table public.items, row (id = 7))" in str(failed.value)
    assert "max_payload" in failed.value.reason.remedy
    assert "private" not in str(failed.value)
    sink.commit(batch.without(["main"]), [receipt for receipt in receipts if receipt.truck == "other"])
    means.apply(sink, {MAIN: [[means.values(ITEMS, insert({"id": "6"}), insert({"id": "7"}))]]})
    rows = [json.loads(each.value)["new"] for each in messages(own_nats.url, stream_name)]
    assert sorted(row.get("id", 0) for row in rows) == [0, 6, 7]
    sink.close()


def test_an_event_that_is_too_large_is_set_aside_and_sent_again(
    own_nats: JetStreamServer, stream_name: str, tmp_path: Path
) -> None:
    """Beside an instance that runs; rows of a copy, too."""
    means = StreamMeans(own_nats, stream_name, tmp_path)
    sink = means.committer()
    sink.open()
    large = {"name": "x" * 1_200_000, "qty": None, "note": None}
    means.begin_copy(sink, [MAIN])
    copied = replace(means.copied([MAIN]), dead_letters={"main": 10})
    sink.commit(copied, means.write(copied, {MAIN: [[copied_rows_of(ITEMS, [{"id": "1", **large}])]]}))
    batch = replace(means.batch([MAIN]), dead_letters={"main": 10})
    changes = means.values(ITEMS, insert({"id": "2", **large}), insert({"id": "3"}))
    sink.commit(batch, means.write(batch, {MAIN: [[changes]]}))
    assert means.ids() == [3]
    command = means.make_sink()
    assert isinstance(command, NatsSink)
    assert command.count_letters() == {"main": 2}
    assert [each.applied for each in command.redrive(Choice(("main",)), dry_run=False)] == [False, False]
    session = sink.sink._session  # type: ignore[attr-defined]
    own_nats.kill()
    own_nats.settings = "max_payload: 8MB"
    wait_until(lambda: not session.is_usable)
    own_nats.start()
    means.apply(sink, {MAIN: means.many(1, 2, first=4)}, 2)
    assert [each.applied for each in command.redrive(Choice(("main",)), dry_run=False)] == [True, True]
    with pytest.raises(SinkUnavailable):  # it finds what the command has written
        means.apply(sink, {MAIN: means.many(1, 3, first=5)}, 3)
    means.apply(sink, {MAIN: means.many(1, 3, first=5)}, 3)
    assert means.ids() == [3, 4, 1, 2, 5]
    assert command.count_letters() == {}
    means.close()


def test_a_stream_that_was_created_again(means: StreamMeans) -> None:
    sink = means.started(MAIN)
    means.apply(sink, {MAIN: means.many(3)})
    sink.close()
    api(means.server.url, f"STREAM.DELETE.{means.stream}")
    gone = failing(means.connection, means.folder)
    assert gone.code == "TRK734"
    assert "was deleted" in gone.message
    api(means.server.url, f"STREAM.CREATE.{means.stream}", {"name": means.stream, "subjects": [f"{means.stream}.>"]})
    assert "created again" in failing(means.connection, means.folder).message
    api(means.server.url, f"STREAM.DELETE.KV_trucker_{means.stream}")  # the remedy
    assert means.committer().open() == {}


def test_a_stream_that_has_lost_messages(means: StreamMeans) -> None:
    """As after a power failure of a server that had not synced its files."""
    sink = means.started(MAIN)
    means.apply(sink, {MAIN: means.many(3)})
    content = means.ledger()
    content["stream"]["last"] += 1

    async def count_more(client: Client) -> None:
        await (await client.jetstream().key_value(f"trucker_{means.stream}")).put(
            "ledger", json.dumps(content).encode()
        )

    asked(means.server.url, count_more)
    lost = failing(means.connection, means.folder)
    assert lost.code == "TRK734"
    assert "ends at 3, and trucker has written up to 4" in lost.message


def test_a_stream_that_does_not_take_a_subject(means: StreamMeans) -> None:
    api(
        means.server.url,
        f"STREAM.CREATE.{means.stream}",
        {"name": means.stream, "subjects": [f"{means.stream}.public.bag"]},
    )
    sink = sink_of(means.connection, means.folder)
    with closing(sink):
        sink.open()
        with pytest.raises(SinkError) as untaken:
            sink.prepare(MAIN)
        assert untaken.value.code == "TRK735"
        assert f"--subjects='{means.stream}.public.bag,{means.stream}.public.items'" in untaken.value.remedy
        assert [(target, error.code) for target, error in sink.examine([MAIN], [])] == [(MAIN, "TRK735")]


def test_a_ledger_that_is_no_ledger(means: StreamMeans) -> None:
    means.started(MAIN)

    async def damage(client: Client) -> None:
        await (await client.jetstream().key_value(f"trucker_{means.stream}")).put("ledger", b"{]")

    asked(means.server.url, damage)
    failure = failing(means.connection, means.folder)
    assert failure.code == "TRK738"
    assert not failure.transient


def test_a_bucket_that_is_there_is_used(means: StreamMeans) -> None:
    """With settings of somebody's own, and a key that was removed."""
    bucket = f"trucker_{means.stream}"

    async def prepare(client: Client) -> None:
        await (await client.jetstream().create_key_value(bucket=bucket, history=3)).put("ledger", b"{}")
        await (await client.jetstream().key_value(bucket)).delete("ledger")

    asked(means.server.url, prepare)
    sink = means.started(MAIN)
    means.apply(sink, {MAIN: means.many(3)})
    assert means.committer().open()["main"].lsn > START
    assert means.ids() == [0, 1, 2]


def test_a_second_connection_to_one_stream_is_refused(means: StreamMeans) -> None:
    means.started(MAIN)
    other = means.connection.model_copy(update={"name": "second"})
    assert "belongs to connection 'bus'" in failing(other, means.folder).message


def test_another_program_that_writes_to_the_stream(means: StreamMeans) -> None:
    """Trucker goes on behind its messages."""
    sink = means.started(MAIN)

    async def intrude(client: Client) -> None:
        await client.jetstream().publish(f"{means.stream}.public.items", b"{}")

    asked(means.server.url, intrude)
    batch = means.batch([MAIN])
    receipts = means.write(batch, {MAIN: means.many(3)})
    with pytest.raises(SinkUnavailable) as refused:
        sink.commit(batch, receipts)
    assert refused.value.code == "TRK739"
    sink.commit(batch, receipts)
    assert len(messages(means.server.url, means.stream)) == 4


def test_a_stream_that_consumers_empty_gets_a_warning(means: StreamMeans) -> None:
    settings = {"retention": "workqueue"}
    connection = connection_of(means.server.url, means.stream, stream_settings=settings)
    means.connection = connection
    sink = means.started(MAIN)
    means.apply(sink, {MAIN: means.many(3)})
    fine, warning = sink_of(connection, means.folder).check()
    assert (fine.level, warning.level) == (Level.OK, Level.WARNING)
    assert "come again" in warning.message
    wider = connection_of(means.server.url, means.stream, stream_settings={**settings, "max_messages": 5})
    assert "max_messages" in sink_of(wider, means.folder).check()[1].message
    sink.close()


# -- who may log in, and what they may do -----------------------------------------------------------------------------


def test_a_wrong_password_and_a_right_one(stream_name: str, tmp_path: Path) -> None:
    """The file is read again at each attempt."""
    word = secrets.token_hex(8)
    with JetStreamServer(tmp_path / "nats", f'authorization {{ user: trucker, password: "{word}" }}') as server:
        wrong = connection_of(server.url, stream_name, user="trucker", password="not it")
        failure = failing(wrong, tmp_path)
        assert isinstance(failure, SinkRefused)
        assert failure.code == "TRK731"
        assert "not it" not in str(failure)
        (tmp_path / "password").write_text(word)
        wrong.secrets_in({"pass": tmp_path / "password"})
        with closing(sink_of(wrong, tmp_path)) as sink:
            assert sink.open().states() == {}


def test_a_token(stream_name: str, tmp_path: Path) -> None:
    with JetStreamServer(tmp_path / "nats", 'authorization { token: "s3cret" }') as server:
        assert failing(connection_of(server.url, stream_name), tmp_path).code == "TRK731"
        with closing(sink_of(connection_of(server.url, stream_name, token="s3cret"), tmp_path)) as sink:
            assert sink.open().states() == {}


def test_an_nkey(stream_name: str, tmp_path: Path) -> None:
    user, stranger = _pair(nkeys.PREFIX_BYTE_USER), _pair(nkeys.PREFIX_BYTE_USER)
    allowed = user.public_key.decode()
    with JetStreamServer(tmp_path / "nats", f"authorization {{ users: [ {{ nkey: {allowed} }} ] }}") as server:
        refused = connection_of(server.url, stream_name, nkey=stranger.seed.decode())
        assert failing(refused, tmp_path).code == "TRK731"
        right = connection_of(server.url, stream_name, nkey=user.seed.decode())
        with closing(sink_of(right, tmp_path)) as sink:
            assert sink.open().states() == {}


def test_credentials_that_expire(stream_name: str, tmp_path: Path) -> None:
    """At the start, and while trucker runs."""
    operator = _pair(nkeys.PREFIX_BYTE_OPERATOR)
    system, account = _pair(nkeys.PREFIX_BYTE_ACCOUNT), _pair(nkeys.PREFIX_BYTE_ACCOUNT)
    unlimited = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "conn": -1, "subs": -1}
    limits = {"limits": {**unlimited, "data": -1, "payload": -1}}
    settings = (
        f"operator: {_jwt(operator, operator, 'operator', {})}\nresolver: MEMORY\n"
        f"system_account: {system.public_key.decode()}\nresolver_preload: {{\n"
        f"  {account.public_key.decode()}: {_jwt(account, operator, 'account', limits)}\n"
        f"  {system.public_key.decode()}: {_jwt(system, operator, 'account', {})}\n}}"
    )
    with JetStreamServer(tmp_path / "nats", settings) as server:
        old = _credentials(account, int(time.time()) - 10)
        failure = failing(connection_of(server.url, stream_name, creds=old), tmp_path)
        assert failure.code == "TRK731"
        assert "BEGIN" not in str(failure)
        short = connection_of(server.url, stream_name, creds=_credentials(account, int(time.time()) + 2))
        with closing(sink_of(short, tmp_path)) as sink:
            ledger = sink.open()
            expired = wait_until(lambda: _failure(lambda: sink.store(ledger)))
            assert expired.code == "TRK731"
            assert expired.transient


def test_rights_that_are_missing(stream_name: str, tmp_path: Path) -> None:
    """The message names the subject. Publishing without an answer would wait for ever."""
    events = '"$JS.API.>", "$KV.>"'
    settings = (
        f'authorization {{ users: [ {{ user: few, password: x, permissions: {{ publish: [{events}, "_INBOX.>"] }} }},'
        ' { user: none, password: x, permissions: { publish: { deny: ">" }, subscribe: ["_INBOX.>"] } } ] }'
    )
    with JetStreamServer(tmp_path / "nats", settings) as server:
        none = failing(connection_of(server.url, stream_name, user="none", password="x"), tmp_path)
        assert none.code == "TRK732"
        assert "stream.msg.get" in none.message.lower()
        connection = connection_of(server.url, stream_name, user="few", password="x")
        means = StreamMeans(server, stream_name, tmp_path, connection)
        sink = means.started(MAIN)
        batch = means.batch([MAIN])
        with pytest.raises(SinkRefused) as forbidden:
            sink.commit(batch, means.write(batch, {MAIN: means.many(3)}))
        assert forbidden.value.code == "TRK732"
        assert f"{stream_name}.public.items" in forbidden.value.message
        sink.close()


def test_the_rights_that_the_documentation_lists_are_enough(stream_name: str, tmp_path: Path) -> None:
    """For a first start, an interruption, a copy that begins anew, and letters."""
    page = (ROOT / "docs/reference/sinks/nats.md").read_text().split("## Rights")[1].split("\n## ")[0]
    table = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    subjects = [re.sub(r"\bapp\b|(?<=_)app\b", stream_name, name) for name in re.findall(r"`([^`]+)`", table)]
    allowed = json.dumps(subjects)
    user = f'user: few, password: x, permissions: {{ publish: {allowed}, subscribe: ["_INBOX.>"] }}'
    with JetStreamServer(tmp_path / "nats", f"authorization {{ users: [ {{ {user} }}, {ALL} ] }}") as server:
        connection = connection_of(server.url, stream_name, user="few", password="x")
        means = StreamMeans(server, stream_name, tmp_path, connection)
        assert sink_of(connection, tmp_path).check()[0].level is Level.OK
        broken = means.committer()
        broken.open()
        assert isinstance(broken.sink, BrokenSink)
        broken.sink.left = 10
        rows = copied_rows_of(ITEMS, [{"id": str(n), "name": "x", "qty": None, "note": None} for n in range(20)])
        with pytest.raises(SinkUnavailable):
            means.copy(broken, {MAIN: [[rows]]}, name="first-1")
        again = means.committer()
        again.open()
        means.copy(again, {MAIN: [[rows]]}, name="first-2")
        means.apply(again, {MAIN: means.many(10, first=20)})
        login = {"user": "all", "password": "x"}
        assert [json.loads(each.value)["new"]["id"] for each in messages(server.url, stream_name, **login)] == [
            *range(30)
        ]
        means.close()


def test_tls_on_both_sides(stream_name: str, tmp_path: Path) -> None:
    authority, stranger = Authority.make(tmp_path / "ca"), Authority.make(tmp_path / "other")
    served = authority.authority.issue_cert("127.0.0.1")
    served.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    served.private_key_pem.write_to_path(tmp_path / "server.key")
    certificate, key = authority.client("trucker")
    settings = (
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", '
        f'ca_file: "{authority.root}", verify: true }}'
    )
    with JetStreamServer(tmp_path / "nats", settings) as server:
        url = server.url.replace("nats:", "tls:")
        mine: dict[str, Any] = {"root_certificate": authority.root, "certificate": certificate, "key": key}
        with closing(sink_of(connection_of(url, stream_name, tls=mine), tmp_path)) as sink:
            assert sink.open().states() == {}
        unknown = failing(connection_of(url, stream_name, tls={**mine, "root_certificate": stranger.root}), tmp_path)
        assert unknown.code == "TRK731"
        assert "certificate" in unknown.message


def _failure(call: Any) -> TruckerError | None:
    try:
        call()
    except TruckerError as error:
        return error
    return None


def _pair(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(secrets.token_bytes(32), kind))


def _jwt(subject: nkeys.KeyPair, signer: nkeys.KeyPair, kind: str, claims: dict[str, Any], expires: int = 0) -> str:
    """A token as NATS signs them."""
    head = _encoded(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body: dict[str, Any] = {
        "jti": secrets.token_hex(8),
        "iat": int(time.time()),
        "iss": signer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": kind,
        "nats": {**claims, "type": kind, "version": 2},
    }
    if expires:
        body["exp"] = expires
    signed = f"{head}.{_encoded(json.dumps(body).encode())}"
    return f"{signed}.{_encoded(signer.sign(signed.encode()))}"


def _credentials(account: nkeys.KeyPair, expires: int) -> str:
    """A credentials file of a user."""
    user = _pair(nkeys.PREFIX_BYTE_USER)
    token = _jwt(user, account, "user", {"subs": -1, "data": -1, "payload": -1}, expires)
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
