"""COPY's messages are told apart whatever their rows hold, and however they are cut on the way."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.postgres.raw_copy_out import CopyOut, end_of_rows

HEAD = b"H" + struct.pack(">IbhH", 9, 1, 1, 1)
END = b"c\0\0\0\4"


def frame(content: bytes, kind: bytes = b"d") -> bytes:
    return kind + struct.pack(">I", 4 + len(content)) + content


def complete(rows: int) -> bytes:
    return END + frame(f"COPY {rows}\0".encode(), b"C") + frame(b"T", b"Z")


# What looks like the beginning of a message, or is a whole one, is what could be taken for one.
ROWS = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.integers(0, 40).map(lambda count: b"d\0\0\0" * count),
        st.integers(1, 30).map(lambda count: frame(b"d") * count),
        st.binary(max_size=20).map(lambda text: text + b"d\0\0\0\x08" + b"12345678"),
        st.just(END),
        st.just(complete(1)),
    ),
    max_size=120,
)


@given(ROWS, st.sampled_from([b"", END, complete(3), b"d", b"d\0\0\1\0xy", b"N\0"]))
def test_where_the_rows_end(rows: list[bytes], rest: bytes) -> None:
    whole = b"".join(map(frame, rows))
    assert end_of_rows(whole + rest) == len(whole)


def received(sent: bytes, pieces: list[int], *, close: bool = False) -> tuple[bytes, CopyOut]:
    """What comes out when a server sends so, in pieces of these sizes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    out = CopyOut(ours)

    def send() -> None:
        at, sizes = 0, iter(pieces)
        with contextlib.suppress(BrokenPipeError):  # where it ends with an error
            while at < len(sent):
                size = next(sizes, len(sent))
                theirs.sendall(sent[at : at + size])
                at += size
        if close:
            theirs.close()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        found = b"".join(bytes(some) for some in out.frames())
    finally:
        thread.join()
        theirs.close()
    return found, out


@given(ROWS, st.lists(st.integers(1, 5000), max_size=20))
def test_rows_pass_as_they_are(rows: list[bytes], pieces: list[int]) -> None:
    whole = b"".join(map(frame, rows))
    found, out = received(HEAD + whole + complete(len(rows)), pieces)
    assert found == whole
    assert out.rows == len(rows)


def test_rows_larger_than_a_buffer() -> None:
    rows = [b"x" * (count << 18) for count in (1, 3, 0, 5, 2)]
    whole = b"".join(map(frame, rows))
    found, out = received(HEAD + whole + complete(5), [100_000] * 10)
    assert found == whole
    assert out.rows == 5


def test_notices_and_parameters_are_passed_over() -> None:
    said = frame(b"SNOTICE\0\0", b"N") + frame(b"TimeZone\0UTC\0", b"S")
    found, out = received(said + HEAD + frame(b"1") + said + frame(b"2") + complete(2), [3, 7, 11])
    assert found == frame(b"1") + frame(b"2")
    assert out.rows == 2


def test_an_error_is_raised_as_what_it_is() -> None:
    fields = b"SERROR\0C42P01\0Mrelation is gone\0\0"
    with pytest.raises(psycopg.errors.UndefinedTable, match="relation is gone") as caught:
        received(HEAD + frame(b"1") + frame(fields, b"E") + frame(b"E", b"Z"), [])
    assert caught.value.diag.message_primary == "relation is gone"
    with pytest.raises(psycopg.OperationalError, match="never heard of"):
        received(HEAD + frame(b"CZZZZZ\0Mnever heard of\0\0", b"E"), [])


@pytest.mark.parametrize("sent", [HEAD, HEAD + frame(b"1"), HEAD + frame(b"12")[:4], HEAD + frame(b"1") + END])
def test_a_connection_that_ends_is_no_end(sent: bytes) -> None:
    """I2: rows that did not come are not taken for none."""
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        received(sent, [], close=True)
