"""The faulty sink: it passes the suite when nothing is scripted, and fails in order when something is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import get_args
from unittest.mock import create_autospec
from uuid import uuid4

import pytest

from trucker.change import TableId
from trucker.errors import SinkUnavailable
from trucker.sinks.base import Discards, FinishesCopies, ForeseesCopies, RecognizesTables, Sink
from trucker.sinks.batch import Receipt
from trucker.sinks.committer import Committer
from trucker.sinks.target import Target, TruckTable
from trucker.testing.faults import FaultySink, Hang, Method, Pass, unavailable
from trucker.testing.handmade import insert
from trucker.testing.memory import MemorySink, drop_store, store
from trucker.testing.suites.sink_suite import ITEMS, target_of
from trucker.testing.suites.table_suite import TableSinkSuite, item


class _Everything(MemorySink):
    """A sink with all that a sink may offer."""

    def unfinished(self, receipt: Receipt) -> bool:
        raise NotImplementedError

    def finish_copy(self, target: Target) -> None:
        raise NotImplementedError

    def expect_copies(self, sizes: Mapping[TruckTable, int]) -> None:
        raise NotImplementedError


class TestFaultySink(TableSinkSuite):
    @pytest.fixture(autouse=True)
    def destination(self) -> Iterator[None]:
        self.name = uuid4().hex
        yield
        drop_store(self.name)

    def make_sink(self, project: str = "suite") -> Sink:
        return FaultySink(MemorySink(self.name, project))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        held = store(self.name).tables.get(table)
        return held.rows if held else []

    def put_foreign_row(self, table: TableId) -> None:
        held = store(self.name).tables[table]
        held.rows.append(dict.fromkeys(held.columns) | {"id": "77"})

    def test_faults_come_in_order(self) -> None:
        """A commit that took effect and then failed is repeated without harm (I4)."""
        items = target_of(ITEMS)
        self.filled(items)
        sink = FaultySink(MemorySink(self.name, "suite"))
        committer = Committer(sink)
        committer.open()
        sink.script("publish", Pass(), unavailable(), unavailable(after=True))
        self.change(committer, items, insert(item(1)))
        for expected in ([item(1)], [item(1), item(2)]):
            with pytest.raises(SinkUnavailable):
                self.change(committer, items, insert(item(2)), step=2)
            self.holds(items, *expected)
        self.change(committer, items, insert(item(2)), step=2)
        self.holds(items, item(1), item(2))
        assert sink.done
        # After a failure whose outcome is not known the ledger is read again; the last one has nothing left to publish.
        assert sink.calls == ["open", "publish", "publish", "open", "publish", "open", "discard"]

    def test_every_method_of_a_sink_is_forwarded(self) -> None:
        contract = (Sink, Discards, RecognizesTables, FinishesCopies, ForeseesCopies)
        methods = {
            name: member
            for each in contract
            for name, member in vars(each).items()
            if callable(member) and not name.startswith("_")
        }
        assert {"open", "stage", "discard", "expect_copies", "finish_copy"} <= methods.keys()
        inner = create_autospec(_Everything, instance=True)
        sink = FaultySink(inner)
        for name, method in methods.items():
            arguments = [object()] * (len(signature(method).parameters) - 1)
            getattr(sink, name)(*arguments)
            getattr(inner, name).assert_called_once_with(*arguments)
        assert set(sink.calls) == methods.keys() == set(get_args(Method))

    def test_a_call_hangs_until_released(self) -> None:
        items = target_of(ITEMS)
        self.filled(items)
        sink = FaultySink(MemorySink(self.name, "suite"))
        hang = Hang()
        sink.script("publish", hang)
        thread = threading.Thread(target=self.change, args=(Committer(sink), items, insert(item(1))))
        thread.start()
        hang.wait_reached()
        self.holds(items)
        hang.release()
        thread.join(20)
        self.holds(items, item(1))
