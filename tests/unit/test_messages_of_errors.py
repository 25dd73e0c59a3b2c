"""A truck, table or connection is named once in a message, not twice."""

from __future__ import annotations

import pytest

from trucker.errors import SinkError, TruckFailed
from trucker.finding import Finding, Level


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("table public.a was dropped", "truck main: table public.a was dropped"),
        ("truck main: table public.a was dropped", "truck main: table public.a was dropped"),
        ("truck main has copied public.a", "truck main has copied public.a"),
        ("truck main_2: table public.a was dropped", "truck main: truck main_2: table public.a was dropped"),
    ],
)
def test_a_failed_truck_is_named_once(message: str, expected: str) -> None:
    assert TruckFailed("main", SinkError(message)).message == expected


@pytest.mark.parametrize(
    ("subject", "message", "expected"),
    [
        ("truck main", "truck main: table public.a was dropped", "table public.a was dropped"),
        ("truck main, table public.a", "truck main: no column x", "no column x"),
        ("truck main, table public.a", "table public.a: no column x", "no column x"),
        ("truck main", "truck main_2: no column x", "truck main_2: no column x"),
        ("truck main", "truck main writes public.a", "truck main writes public.a"),
    ],
)
def test_a_finding_does_not_repeat_its_subject(subject: str, message: str, expected: str) -> None:
    assert Finding(Level.ERROR, subject, message).message == expected
