"""A PostgreSQL source as settings: its names, and how it travels. No server is needed."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.adapters.postgres import PostgresConnection
from trucker.config.registry import installed
from trucker.lsn import Lsn
from trucker.postgres.source import PostgresSource
from trucker.source.factory import make_source


def source(**settings: Any) -> PostgresSource:
    return PostgresSource(PostgresConnection(name="shop", **settings), "demo")


def test_the_adapter_says_which_class_the_source_of_a_connection_has() -> None:
    connection = PostgresConnection(name="shop")
    assert make_source(connection, "demo") == source()
    assert "trucker.postgres.source" in installed().source_modules()


def test_a_source_travels_and_stays_the_same() -> None:
    """A task's session is used again by the next task only where the source is equal."""
    sent = source(host="db", **{"pass": "secret"})
    arrived = pickle.loads(pickle.dumps(sent))
    assert arrived == sent
    assert arrived != source(host="other")


def test_slot_and_publication_are_named_by_the_project_unless_they_were_made_beforehand() -> None:
    assert (source().slot, source().publication) == ("trucker_demo_shop", "trucker_demo_shop")
    assert source().manages_publication
    given = source(slot="theirs", publication="Theirs too")
    assert (given.slot, given.publication) == ("theirs", "Theirs too")
    assert not given.manages_publication


def test_what_was_made_beforehand_is_not_among_what_is_dropped() -> None:
    assert source().objects() == ["replication slot trucker_demo_shop of shop", "publication trucker_demo_shop of shop"]
    assert source(replica_host="standby").objects()[0].endswith("of shop and of its standby")
    assert source(slot="theirs", publication="theirs").objects() == []


def test_the_stream_is_read_from_the_standby_and_heartbeats_go_to_the_primary() -> None:
    alone = source(host="db").stream_parameters()
    assert (alone.conninfo["host"], alone.primary) == ("db", None)
    both = source(host="db", replica_host="standby").stream_parameters()
    assert both.primary is not None
    assert (both.conninfo["host"], both.primary["host"]) == ("standby", "db")
    assert both.conninfo["application_name"] == "trucker capture trucker_demo_shop"


def test_every_snapshot_has_a_slot_of_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead try's temporary slot may still be there."""
    names: list[str] = []

    def new_slot(_: object, name: str, stop: object, *, temporary: bool) -> None:
        assert temporary
        names.append(name)

    monkeypatch.setattr("trucker.postgres.slot_creation.new_slot", new_slot)
    long = PostgresSource(PostgresConnection(name="x" * 60), "demo")
    for _ in range(3):
        long.export(threading.Event())
    assert len(set(names)) == 3
    assert all(len(name) <= 63 for name in names)


def test_a_snapshot_of_a_primary_is_not_verified() -> None:
    """Only recovery removes rows that a snapshot shows: there is nothing to connect for."""
    exported: Any = SimpleNamespace(snapshot="s", lsn=Lsn(1), standby=False)
    source(host="nowhere.invalid").verify(exported)
