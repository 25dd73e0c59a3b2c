"""Requests to a real HTTP server: cuts and order, what answers mean, signatures, TLS and proxies."""

from __future__ import annotations

import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from fixtures.documents import ROOT, blocks
from fixtures.receiver import OK, Received, Receiver, Reply, in_turn, receiving
from trucker.adapters.webhook import WebhookConnection
from trucker.errors import SinkError, SinkRefused, SinkUnavailable
from trucker.sinks.event import Event
from trucker.sinks.webhook.courier import Courier, ReceiverLimits, SendOutcome
from trucker.sinks.webhook.sent_events import SentEvents
from trucker.sinks.webhook.signature import header_text, request_id, signed_headers
from trucker.table import TableId

ITEMS = TableId("public", "items")
SECRET_ROW = "a value of a row"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def event(number: int, key: int | None = None, operation: str = "insert", *, table: TableId = ITEMS) -> Event:
    """With the row's own key, or that of another row."""
    key = number if key is None else key
    value = b'{"n":%d,"key":%d,"note":"%s"}' % (number, key, SECRET_ROW.encode())
    json_key = None if operation == "truncate" else b'{"id":%d}' % key
    return Event(value, json_key, table, operation, 0x1600000000, number, f"16/0/{number}", False)


def connection(url: str, **settings: Any) -> WebhookConnection:
    settings.setdefault("timeouts", {"retry": 5, "read": 30})
    return WebhookConnection.model_validate({"name": "hooks", "adapter": "webhook", "url": url, **settings})


def deliver(url: str, events: Sequence[Event], *, room: int = 0, **settings: Any) -> SendOutcome:
    courier = Courier(connection(url, **settings), ReceiverLimits())
    try:
        return courier.deliver("main", list(enumerate(events)), room)
    finally:
        courier.close()


def failure(outcome: SendOutcome) -> SinkError:
    assert isinstance(outcome.error, SinkError)
    assert SECRET_ROW not in str(outcome.error)
    return outcome.error


def numbers(receiver: Receiver) -> list[int]:
    return [each["n"] for each in receiver.events]


# -- cuts and order ------------------------------------------------------------------------------------------------


def test_one_event_is_one_request_with_its_headers(receiver: Receiver) -> None:
    outcome = deliver(f"{receiver.url}/in?x=1", [event(1, table=TableId("public", "žluť %"))])
    (request,) = receiver.taken
    assert outcome.taken == {0}
    assert (request.path, request.events[0]["n"]) == ("/in?x=1", 1)
    shown = {name: text for name, text in request.headers.items() if name.startswith(("trucker", "webhook", "content"))}
    assert shown.pop("webhook-timestamp").isdigit()
    assert shown == {
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "webhook-id": "16/0/1",
        "trucker-id": "16/0/1",
        "trucker-table": "public.%C5%BElu%C5%A5 %25",
        "trucker-operation": "insert",
        "trucker-lsn": "16/0",
        "trucker-ordinal": "1",
    }


def test_arrays_are_cut_by_rows_and_by_bytes(receiver: Receiver) -> None:
    events = [event(n) for n in range(10)]
    deliver(receiver.url, events, batch={"rows": 4}, parallel=1)
    assert [len(each.events) for each in receiver.taken] == [4, 4, 2]
    first = receiver.taken[0].headers
    assert [each["_event_id"] for each in receiver.events] == [each.id for each in events]
    assert (first["trucker-count"], first["trucker-first-id"], first["trucker-last-id"]) == ("4", "16/0/0", "16/0/3")
    receiver.taken.clear()
    size = len(events[0].value or b"") + 1
    deliver(receiver.url, events, batch={"rows": 100, "bytes": 3 * size}, parallel=1)
    assert [len(each.events) for each in receiver.taken] == [3, 3, 3, 1]
    receiver.taken.clear()
    deliver(receiver.url, events, batch={"rows": 100, "bytes": 1}, parallel=1)
    assert [each.body[:1] for each in receiver.taken] == [b"["] * 10
    assert numbers(receiver) == list(range(10))


def test_the_url_may_name_the_table_and_an_array_has_one_url(receiver: Receiver) -> None:
    other = TableId("public", "a/b")
    events = [event(1), event(2, table=other), event(3, table=other), event(4)]
    deliver(receiver.url + "/{{ truck }}/{{ schema }}/{{ table }}", events, batch={"rows": 10}, parallel=1)
    assert [(each.path, len(each.events)) for each in receiver.taken] == [
        ("/main/public/items", 1),
        ("/main/public/a%2Fb", 2),
        ("/main/public/items", 1),
    ]


def test_arrays_stay_long_where_tables_alternate(receiver: Receiver) -> None:
    other = TableId("public", "other")
    events = [event(n, 1, table=ITEMS if n % 2 else other) for n in range(40)]
    deliver(receiver.url + "/{{ table }}", events, batch={"rows": 10}, parallel=2)
    assert [len(each.events) for each in receiver.taken] == [10] * 4


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("parallel", [1, 8])
def test_events_of_a_key_keep_their_order_whatever_else_happens(receiver: Receiver, rows: int, parallel: int) -> None:
    """Requests fail for now, connections break, and a truncate comes in between."""
    sent = [event(n, n % 7, "truncate" if n == 130 else "insert") for n in range(200)]
    faults = [Reply(503), Reply(reset=True), OK, Reply(429), OK, OK] * 2
    receiver.answering = in_turn(*faults)
    outcome = deliver(
        receiver.url, sent, batch={"rows": rows}, parallel=parallel, timeouts={"retry": 60, "connect": 60}
    )
    assert outcome.taken == set(range(200))
    order = numbers(receiver)
    assert sorted(order) == list(range(200))
    by_key: dict[int, list[int]] = defaultdict(list)
    for each in receiver.events:
        by_key[each["key"]].append(each["n"])
    for key, ns in by_key.items():
        assert ns == sorted(ns), f"key {key}"
    assert order.index(130) == 130


def test_requests_of_different_keys_are_under_way_at_once(receiver: Receiver) -> None:
    meeting = threading.Barrier(4, timeout=60)

    def meet(_: Received) -> Reply:
        meeting.wait()
        return OK

    receiver.answering = meet
    courier = Courier(connection(receiver.url, parallel=4), ReceiverLimits())
    dealt = courier._lanes(list(enumerate(event(n) for n in range(400))))
    assert len(dealt) == 4
    outcome = courier.deliver("main", [lane[0] for lane in dealt], 0)
    courier.close()
    assert len(outcome.taken) == 4
    assert receiver.most_at_once == 4


def test_an_update_that_changes_a_key_waits_for_both(receiver: Receiver) -> None:
    moved = b'{"n":50,"key":1,"operation":"update","old":{"id":0},"key":{"id":1}}'
    events = [event(n, n % 8) for n in range(50)]
    events.append(Event(moved, b'{"id":1}', ITEMS, "update", 0x1600000000, 50, "16/0/50", False))
    events += [event(n, n % 8) for n in range(51, 100)]
    deliver(receiver.url, events, parallel=8)
    assert numbers(receiver).index(50) == 50


# -- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [Reply(500), Reply(503), Reply(408), Reply(425), Reply(429), Reply(429, {"Retry-After": "0"}), Reply(reset=True)],
    ids=lambda reply: f"{reply.status}{'-reset' if reply.reset else ''}{''.join(reply.headers)}",
)
def test_what_fails_for_now_is_sent_again_with_the_same_id(receiver: Receiver, reply: Reply) -> None:
    receiver.answering = in_turn(reply, reply)
    outcome = deliver(receiver.url, [event(1)], timeouts={"retry": 120})
    assert outcome.taken == {0}
    assert [each.id for each in receiver.received] == ["16/0/1"] * 3


@pytest.mark.parametrize("reply", [Reply(500), Reply(429), Reply(reset=True)], ids=["500", "429", "reset"])
def test_after_a_while_the_batch_is_given_back(receiver: Receiver, reply: Reply) -> None:
    receiver.answering = lambda _: reply
    error = failure(deliver(receiver.url, [event(1)], timeouts={"retry": 0}))
    assert isinstance(error, SinkUnavailable)
    assert error.code == "TRK712"
    assert receiver.url in error.message


def test_a_receiver_that_hangs_is_given_up(receiver: Receiver) -> None:
    receiver.answering = in_turn(Reply(hang=True))
    error = failure(deliver(receiver.url, [event(1)], timeouts={"retry": 0, "read": "50ms"}))
    assert (error.code, error.transient) == ("TRK712", True)
    assert "no answer in time" in error.message


def test_nobody_listens() -> None:
    with receiving() as gone:
        url = gone.url
    error = failure(deliver(url, [event(1)], timeouts={"retry": 0}))
    assert (error.code, error.transient) == ("TRK712", True)
    assert "nobody listens there" in error.message


def test_a_host_without_an_address() -> None:
    error = failure(deliver("http://no-such-host.invalid/", [event(1)], timeouts={"retry": 0}))
    assert (error.code, error.transient) == ("TRK712", True)
    assert "cannot be resolved" in error.message


def test_a_pause_that_the_receiver_asks_for_holds_for_all_and_for_the_next_try(receiver: Receiver) -> None:
    """Nothing is sent before it is over, however often the batch is tried again."""
    receiver.answering = lambda _: Reply(429, {"Retry-After": "600"})
    limits = ReceiverLimits()
    for _ in range(3):
        courier = Courier(connection(receiver.url), limits)
        outcome = courier.deliver("main", list(enumerate(event(n) for n in range(20))), 0)
        courier.close()
        assert failure(outcome).transient
        receiver.answering = lambda _: OK
    assert 1 <= len(receiver.received) <= 4, "at most one by each lane that was under way"


def test_a_date_in_retry_after_is_understood(receiver: Receiver) -> None:
    receiver.answering = in_turn(Reply(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}))
    assert deliver(receiver.url, [event(1)], timeouts={"retry": 120}).taken == {0}


@pytest.mark.parametrize("status", [401, 403, 407])
def test_credentials_that_are_refused_are_no_fault_of_the_events(receiver: Receiver, status: int) -> None:
    receiver.answering = lambda _: Reply(status)
    outcome = deliver(receiver.url, [event(1)], room=10)
    assert isinstance(failure(outcome), SinkRefused)
    assert failure(outcome).code == "TRK713"
    assert not outcome.refused


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_not_followed(receiver: Receiver, status: int) -> None:
    with receiving() as elsewhere:
        receiver.answering = lambda _: Reply(status, {"Location": f"{elsewhere.url}/{SECRET_ROW}"})
        outcome = deliver(receiver.url, [event(1)], room=10)
        assert not elsewhere.received
    error = failure(outcome)
    assert (error.code, error.transient) == ("TRK714", False)
    assert "127.0.0.1" in error.message


@pytest.mark.parametrize("status", [400, 404, 409, 410, 413, 422])
def test_an_event_that_is_refused_is_told_apart(receiver: Receiver, status: int) -> None:
    receiver.answering = lambda request: Reply(status) if request.id == "16/0/3" else OK
    outcome = deliver(receiver.url, [event(n) for n in range(6)], room=1)
    assert outcome.taken == {0, 1, 2, 4, 5}
    (error,) = outcome.refused.values()
    assert list(outcome.refused) == [3]
    assert (error.code, error.sqlstate) == ("TRK717", str(status))
    assert SECRET_ROW not in str(error)


def test_without_room_nothing_is_sent_after_an_event_that_is_refused(receiver: Receiver) -> None:
    receiver.answering = lambda request: Reply(400) if request.id == "16/0/3" else OK
    outcome = deliver(receiver.url, [event(n) for n in range(6)], parallel=1)
    assert numbers(receiver) == [0, 1, 2]
    assert list(outcome.refused) == [3]
    assert outcome.error is None


def test_the_bad_events_of_an_array_are_found_by_halves(receiver: Receiver) -> None:
    bad = {5, 6, 40}
    receiver.answering = lambda request: Reply(422) if bad & {each["n"] for each in request.events} else OK
    outcome = deliver(receiver.url, [event(n) for n in range(64)], room=3, batch={"rows": 64}, parallel=1)
    assert set(outcome.refused) == bad
    assert numbers(receiver) == [n for n in range(64) if n not in bad]
    assert len(receiver.received) < 40


def test_an_array_that_is_too_large_is_halved_and_the_next_ones_are_smaller(receiver: Receiver) -> None:
    size = len(event(10).value or b"")
    receiver.answering = lambda request: Reply(413) if len(request.body) > 9 * size else OK
    outcome = deliver(receiver.url, [event(n + 100) for n in range(96)], batch={"rows": 32}, parallel=1)
    assert len(outcome.taken) == 96
    assert numbers(receiver) == list(range(100, 196))
    refused = len(receiver.received) - len(receiver.taken)
    assert refused <= 4, "only the first array is tried in vain"


def test_a_retried_array_has_the_same_id_and_another_array_another(receiver: Receiver) -> None:
    receiver.answering = in_turn(Reply(503))
    deliver(receiver.url, [event(n) for n in range(4)], batch={"rows": 2}, parallel=1, timeouts={"retry": 120})
    first, again, second = (each.id for each in receiver.received)
    assert first == again != second


# -- signatures ----------------------------------------------------------------------------------------------------


def test_the_signature_is_that_of_the_specification() -> None:
    """An example of the Standard Webhooks specification, computed by its reference library."""
    key = connection("http://x", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    courier = Courier(key, ReceiverLimits())
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', courier._keys)
    courier.close()
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_the_code_of_the_reference_verifies_it(receiver: Receiver) -> None:
    page = ROOT / "docs" / "reference" / "sinks" / "webhook.md"
    (code,) = (block.text for block in blocks(page) if block.language == "python")
    names: dict[str, Any] = {}
    exec(code, names)
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    deliver(receiver.url, [event(1)], secret=f"{secret} whsec_{'x' * 32}")
    (request,) = receiver.taken
    assert names["verified"](secret, request.headers, request.body)
    assert not names["verified"]("whsec_AAAA", request.headers, request.body)
    assert not names["verified"](secret, request.headers, request.body + b" ")
    old = str(int(request.headers["webhook-timestamp"]) - 400)
    assert not names["verified"](secret, {**request.headers, "webhook-timestamp": old}, request.body)


def test_two_secrets_give_two_signatures(receiver: Receiver) -> None:
    deliver(receiver.url, [event(1)], secret="new-secret\nold-secret")
    signatures = receiver.taken[0].headers["webhook-signature"].split()
    assert [each[:3] for each in signatures] == ["v1,", "v1,"]
    assert len(set(signatures)) == 2


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_an_id_is_visible_ascii_without_dots(ids: list[str]) -> None:
    name = request_id(ids)
    assert name.isascii()
    assert name.isprintable()
    assert not {" ", "."} & set(name)


@given(st.text(min_size=1), st.text(min_size=1))
def test_header_texts_differ_where_texts_do(one: str, other: str) -> None:
    assert header_text(one).isascii()
    assert header_text(one).isprintable()
    assert (header_text(one) == header_text(other)) == (one == other)


# -- TLS, certificates and proxies ---------------------------------------------------------------------------------


class Authority:
    """A certificate authority, a server of its own and a client's certificate."""

    def __init__(self, folder: Path, *, ask: bool = False) -> None:
        authority = trustme.CA()
        self.root = folder / "root.pem"
        authority.cert_pem.write_to_path(str(self.root))
        self.client = folder / "client.pem"
        authority.issue_cert("client@example.com").private_key_and_cert_chain_pem.write_to_path(str(self.client))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self.context)
        if ask:
            authority.configure_trust(self.context)
            self.context.verify_mode = ssl.CERT_REQUIRED


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with receiving(authority.context) as secure:
        trusted = deliver(secure.url, [event(1)], ssl={"root_certificate": str(authority.root)})
        assert trusted.taken == {0}
        error = failure(deliver(secure.url, [event(2)], timeouts={"retry": 0}))
        assert (error.code, error.transient) == ("TRK715", True)
        assert numbers(secure) == [1]


def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path, ask=True)
    files = {"root_certificate": str(authority.root), "certificate": str(authority.client)}
    with receiving(authority.context) as secure:
        assert deliver(secure.url, [event(1)], ssl=files).taken == {0}
        without = {"root_certificate": str(authority.root)}
        assert failure(deliver(secure.url, [event(2)], ssl=without, timeouts={"retry": 0})).transient
        assert numbers(secure) == [1]


def test_a_certificate_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SinkError) as caught:
        deliver("https://127.0.0.1:1", [event(1)], ssl={"root_certificate": str(tmp_path / "none.pem")})
    assert (caught.value.code, caught.value.transient) == ("TRK716", False)


def test_a_proxy_of_the_environment_is_used_unless_the_receiver_is_excepted(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy gets requests with the whole URL."""
    monkeypatch.setenv("http_proxy", receiver.url.replace("http://", "http://user:word@"))
    deliver("http://receiver.test/in", [event(1)])
    (request,) = receiver.taken
    assert request.path == "http://receiver.test/in"
    assert request.headers["proxy-authorization"].startswith("Basic ")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with receiving() as direct:
        deliver(f"{direct.url}/in", [event(2)])
        assert direct.taken[0].path == "/in"


# -- what has been sent --------------------------------------------------------------------------------------------


@given(st.data())
def test_nothing_is_left_out_that_was_not_taken(data: st.DataObject) -> None:
    """Whatever is cut, fails and comes again, what is left out as sent was taken."""
    sent, taken = SentEvents(), set[str]()
    ids = [str(n) for n in range(12)]
    for _ in range(4):
        cuts = sorted(data.draw(st.sets(st.integers(1, 11))))
        pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
        fails = data.draw(st.integers(0, len(pieces)))
        sent.begin("main")
        for number, piece in enumerate(pieces):
            if sent.piece("main", piece) is not None:
                assert set(piece) <= taken
                continue
            left_out = set(sent.taken("main")) & set(piece)
            assert left_out <= taken
            if number == fails:
                some = set(piece[: data.draw(st.integers(0, len(piece)))])
                sent.take("main", some)
                taken |= some
                break
            taken |= set(piece)
            sent.finish("main", piece, {})
        else:
            assert taken == set(ids)
