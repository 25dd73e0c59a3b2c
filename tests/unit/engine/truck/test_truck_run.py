"""A truck while it runs."""

from __future__ import annotations

import weakref

from trucker.engine.truck.truck import Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import SinkError


class Connection:
    """What a frame may hold."""


def _fail(seen: list[weakref.ref[Connection]]) -> None:
    connection = Connection()
    seen.append(weakref.ref(connection))
    try:
        raise ValueError
    except ValueError as error:
        raise SinkError("a reason", remedy="a next step") from error


def test_an_error_that_is_kept_lets_go_of_what_was_used_where_it_passed() -> None:
    """DuckDB's library covers the error with its complaints where a connection outlives everything."""
    run = TruckRun(Truck("t", "s", "d", {}))
    run.let_go()
    seen: list[weakref.ref[Connection]] = []
    try:
        _fail(seen)
    except SinkError as error:
        run.fail(error)
    assert seen[0]() is not None
    run.let_go()
    assert seen[0]() is None
    assert "a reason" in str(run.error)
