"""Frames found in the bytes of a socket, against stepping from one to the next; and the socket's ends."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.postgres.replication.replication_frames import Ended, InTheClear, cut


def protocol(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", 4 + len(content)) + content


def data(message: bytes) -> bytes:
    return protocol(b"d", b"w" + bytes(24) + message)


KEEPALIVE = protocol(b"d", b"k" + bytes(17))
NOTICE = protocol(b"N", b"SNOTICE\0\0")


@st.composite
def frames(draw: st.DrawFn) -> list[tuple[bytes, bytes | None]]:
    """Frames, each with its message where it holds one; some messages look like frames themselves."""
    found: list[tuple[bytes, bytes | None]] = []
    for _ in range(draw(st.integers(0, 12))):
        what = draw(st.integers(0, 9))
        if what == 0:
            found.append((KEEPALIVE, None))
        elif what == 1:
            found.append((NOTICE, None))
        else:
            inside = data(b"I" * draw(st.integers(1, 40))) if what == 2 else b"x" * draw(st.integers(0, 900))
            message = b"I" + inside
            found.append((data(message), message))
    return found


@given(frames(), st.integers(0, 60), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_all_whole_frames_are_found(each: list[tuple[bytes, bytes | None]], short: int, repeat: int) -> None:
    """A frame cut off at the end is left for later; everything before it is there, in order."""
    each = each * (1 + repeat)
    whole = b"".join(frame for frame, _ in each)
    given_bytes = whole[: max(0, len(whole) - short)]
    found = cut(given_bytes)
    fits, at = [], 0
    for frame, message in each:
        if at + len(frame) > len(given_bytes):
            break
        at += len(frame)
        fits.append((frame, message))
    assert found.rest == at
    assert list(found.messages) == [message for _, message in fits if message is not None]
    assert [given_bytes[a - 5 : b] for _, a, b in found.others] == [frame for frame, message in fits if message is None]


@pytest.fixture
def pair() -> Iterator[tuple[InTheClear, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = InTheClear(ours)
    yield stream, theirs
    stream.close()
    theirs.close()


def drain(stream: InTheClear) -> tuple[list[bytes], list[bytes]]:
    messages, others = list[bytes](), list[bytes]()
    while True:
        found = stream.collect(1 << 20)
        messages += (message for part in found.messages for message in part)
        others += found.others
        if found.drained:
            return messages, others


def test_bytes_may_come_in_any_pieces(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    sent = [os.urandom(size) for size in (1, 3000, 7, 9000, 40)]
    whole = KEEPALIVE + b"".join(data(message) for message in sent) + KEEPALIVE
    messages, others = list[bytes](), list[bytes]()
    for at in range(0, len(whole), 777):
        theirs.sendall(whole[at : at + 777])
        found = drain(stream)
        messages += found[0]
        others += found[1]
    assert messages == sent
    assert others == [KEEPALIVE[5:]] * 2


def test_a_keepalive_behind_much_data_is_not_left_waiting(pair: tuple[InTheClear, socket.socket]) -> None:
    """Its answer may be wanted, and nothing else may come until it is given."""
    stream, theirs = pair
    theirs.sendall(data(b"I" * 500) * 20 + KEEPALIVE)
    messages, others = drain(stream)
    assert (len(messages), others) == (20, [KEEPALIVE[5:]])


def test_a_message_larger_than_the_buffer(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    large = b"I" + os.urandom(900_000)
    rest = memoryview(data(b"Ia") + data(large) + data(b"Ib"))
    messages: list[bytes] = []
    theirs.setblocking(False)
    while rest:
        rest = rest[theirs.send(rest) :]
        messages += drain(stream)[0]
    messages += drain(stream)[0]
    assert messages == [b"Ia", large, b"Ib"]


def test_errors_and_ends(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    theirs.sendall(protocol(b"E", b"SFATAL\0C57P01\0Mterminating\0\0"))
    with pytest.raises(Ended) as ended:
        stream.collect(1 << 20)
    assert (ended.value.state, ended.value.words) == ("57P01", "terminating")


def test_the_end_of_the_copy(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    theirs.sendall(protocol(b"c", b""))
    with pytest.raises(Ended) as ended:
        stream.collect(1 << 20)
    assert not ended.value.state


def test_a_connection_that_breaks(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    theirs.close()
    with pytest.raises(ConnectionResetError):
        stream.collect(1 << 20)


def test_what_cannot_be_sent_now_is_sent_later(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    count = 0
    while not stream.flush():
        stream.send(bytes(30_000))
        count += 1
    got = 0
    while got < count * 30_005:
        got += len(theirs.recv(1 << 20))
        stream.flush()
    assert not stream.flush()


def test_halting_drops_what_is_on_its_way(pair: tuple[InTheClear, socket.socket]) -> None:
    stream, theirs = pair
    theirs.sendall(data(b"I" * 300) * 30 + protocol(b"c", b"") + protocol(b"C", b"COPY 0\0") + protocol(b"Z", b"I"))
    stream.halt(lambda events: None)
    assert theirs.recv(100) == protocol(b"c", b"")
