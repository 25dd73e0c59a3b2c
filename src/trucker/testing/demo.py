"""`trucker demo`: a shop under load is kept in step in two stores, is killed in the middle, and is compared at the end.

Everything is real: two PostgreSQL servers out of a wheel, a project folder, the command `trucker run` on it, `SIGKILL`
to all its processes. What the view shows comes from the status file that any project has.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import ProjectStatus, TruckPhase
from trucker.observe.units import duration, lag_text, rate
from trucker.testing.equality import Sum, columns, duckdb_sums, postgres_sum
from trucker.testing.process import TruckerProcess, kill_tree
from trucker.testing.project_folder import postgres_entry, write_project
from trucker.testing.server import Server
from trucker.testing.shop import TABLES, Customers, open_shop

SECONDS = 30.0
_START_SECONDS = 300.0
_LINE_SECONDS = 5.0
_CATCH_UP_SECONDS = 300.0
_DUCKDB = {
    "sales": ["public.orders", "public.order_items", "public.payments"],
    "catalogue": ["public.products", "public.reviews"],
    "people": ["public.customers"],
}


def main(seconds: float = SECONDS) -> int:
    """Run the demo: so many seconds of load beside the starts; 0 only if all tables are equal in the end."""
    view = View()
    with (
        _interruptible(),
        tempfile.TemporaryDirectory(prefix="trucker-demo-") as folder,
        contextlib.ExitStack() as stack,
    ):
        try:
            return _Demo(Path(folder), view, stack).run(seconds)
        except KeyboardInterrupt:
            view.say("interrupted: cleaning up")
            return 130
        except TruckerError as error:
            view.say(str(error))
            return 1
        finally:
            view.close()


class _Demo:
    def __init__(self, folder: Path, view: View, stack: contextlib.ExitStack) -> None:
        self._project = folder / "shop-project"
        self._duckdb = self._project / "shop.duckdb"
        self._servers = folder / "servers"
        self._view = view
        self._stack = stack

    def run(self, seconds: float) -> int:
        source, warehouse = self._set_up()
        customers = Customers(source.connect)
        self._stack.callback(customers.stop)
        customers.start()
        trucker = self._start()
        self._watch(trucker, customers, seconds * 0.5)
        killed = trucker.kill_tree()
        self._view.say(f"SIGKILL to all {killed} processes of trucker; the shop continues")
        self._watch(None, customers, seconds * 0.1)
        trucker = self._start()
        self._watch(trucker, customers, seconds * 0.4)
        customers.stop()
        customers.check()
        self._view.say(f"the shop closes after {customers.transactions} transactions")
        self._catch_up(trucker, source, customers)
        code = trucker.stop()
        self._view.say(f"trucker was stopped and ended with exit code {code}")
        return 0 if self._compare(source, warehouse) and code == 0 else 1

    # -- set-up -------------------------------------------------------------------------------------------------

    def _set_up(self) -> tuple[Server, Server]:
        self._view.say("starting two PostgreSQL servers (18 for the shop, 16 for its warehouse)")
        source, warehouse = Server(self._servers / "source", 18), Server(self._servers / "warehouse", 16)
        for server in (source, warehouse):
            self._stack.callback(server.destroy)
            server.start()
        with source.connect() as connection:
            open_shop(connection)
        self._write_project(source, warehouse)
        self._view.say(f"the project: {self._project}")
        self._warm_up()
        return source, warehouse

    def _write_project(self, source: Server, warehouse: Server) -> None:
        connections = [
            postgres_entry(source.connection("shop")),
            postgres_entry(warehouse.connection("warehouse")),
            {"name": "lake", "adapter": "duckdb", "path": "shop.duckdb"},
        ]
        trucks = {
            "replica": (["public.*"], "warehouse"),
            **{name: (tables, "lake") for name, tables in _DUCKDB.items()},
        }
        write_project(
            self._project,
            {"unique_id": "demo", "connections": connections, "retry": {"first": 0.2, "longest": 2.0}},
            {
                name: {"input": {"connection": "shop", "tables": tables}, "output": {"connection": destination}}
                for name, (tables, destination) in trucks.items()
            },
        )

    def _warm_up(self) -> None:
        """Let the killed run and the next one start from a class-data archive, as a second run on any machine does."""
        self._view.say("warming Spark up (the first time on a machine takes half a minute)")
        warm = subprocess.Popen([sys.executable, "-m", "trucker.engine.spark.cds_archive"], start_new_session=True)
        self._stack.callback(kill_tree, warm)
        if warm.wait() != 0:
            self._view.say("no archive could be made; starts will be slower")

    def _start(self) -> TruckerProcess:
        self._view.say("trucker run")
        trucker = TruckerProcess(self._project)
        self._stack.callback(trucker.kill_tree)
        return trucker

    # -- the run ------------------------------------------------------------------------------------------------

    def _watch(self, trucker: TruckerProcess | None, customers: Customers, seconds: float) -> None:
        """Show how it goes for so long, counted from when every truck streams."""
        given_up = time.monotonic() + _START_SECONDS
        until = time.monotonic() + seconds if trucker is None else None
        while until is None or time.monotonic() < until:
            customers.check()
            status = trucker.status() if trucker else None
            if trucker is not None:
                trucker.check()
            if until is None and status is not None and all(t.phase is TruckPhase.STREAMING for t in status.trucks):
                until = time.monotonic() + seconds
            if until is None and time.monotonic() > given_up:
                raise TruckerError(f"the trucks do not stream after {_START_SECONDS:.0f} s")
            self._view.show(status, customers.transactions)
            time.sleep(0.25)

    def _catch_up(self, trucker: TruckerProcess, source: Server, customers: Customers) -> None:
        with source.connect() as connection:
            row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        goal, began = Lsn.parse(row[0]), time.monotonic()
        while not trucker.caught_up(goal):
            trucker.check()
            if time.monotonic() > began + _CATCH_UP_SECONDS:
                raise TruckerError(f"trucker has not caught up within {_CATCH_UP_SECONDS:.0f} s")
            self._view.show(trucker.status(), customers.transactions)
            time.sleep(0.1)
        self._view.show(trucker.status(), customers.transactions)
        self._view.say(f"caught up after {duration(time.monotonic() - began)}")

    # -- the verdict --------------------------------------------------------------------------------------------

    def _compare(self, source: Server, warehouse: Server) -> bool:
        results: list[TableComparison] = []
        with source.connect() as source_connection, warehouse.connect() as warehouse_connection:
            in_duckdb = duckdb_sums(source_connection, self._duckdb, "public", TABLES)
            for table in TABLES:
                names = columns(source_connection, "public", table)
                expected = postgres_sum(source_connection, "public", table, names)
                copied = postgres_sum(warehouse_connection, "public", table, names)
                results.append(TableComparison(table, expected, copied, in_duckdb[table]))
        equal = all(result.equal for result in results)
        self._view.verdict(results, equal=equal)
        return equal


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table at the source and at both destinations."""

    table: str
    source: Sum | None
    postgres: Sum | None
    duckdb: Sum | None

    @property
    def equal(self) -> bool:
        return self.source is not None and self.source == self.postgres == self.duckdb


class View:
    """A table that moves on a terminal, a line now and then elsewhere; what is said stays above it."""

    def __init__(self) -> None:
        self._console = Console()
        self._live: Live | None = None
        self._began = time.monotonic()
        self._show_again = self._began
        self._previous_rows: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def say(self, text: str) -> None:
        line = Text.assemble((f"{time.monotonic() - self._began:5.1f} s  ", "dim"), text)
        self._console.print(line, soft_wrap=True)

    def show(self, status: ProjectStatus | None, transactions: int) -> None:
        """The trucks as they are now; None while trucker is down."""
        self._measure(status)
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(self._table(status, transactions), refresh=True)
        elif time.monotonic() >= self._show_again:
            self._show_again = time.monotonic() + _LINE_SECONDS
            self.say(f"{transactions} transactions; {self._line(status)}")

    def verdict(self, results: Sequence[TableComparison], *, equal: bool) -> None:
        self.close()
        table = Table("table", "source", "postgres", "duckdb", "verdict", title="rows and checksums")
        for result in results:
            verdict = Text("equal", "green") if result.equal else Text("DIFFERENT", "bold red")
            table.add_row(
                result.table, *(str(s or "-") for s in (result.source, result.postgres, result.duckdb)), verdict
            )
        self._console.print(table)
        text = "source and destinations are equal" if equal else "source and destinations DIFFER"
        self._console.print(Text(text, "bold green" if equal else "bold red"))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _measure(self, status: ProjectStatus | None) -> None:
        if status is None:
            self._previous_rows.clear()
            self._rates.clear()
            return
        for truck in status.trucks:
            updated_before, rows = self._previous_rows.get(truck.name, (status.updated, truck.rows))
            if status.updated - updated_before >= 1.0:
                self._rates[truck.name] = (truck.rows - rows) / (status.updated - updated_before)
                self._previous_rows[truck.name] = (status.updated, truck.rows)
            self._previous_rows.setdefault(truck.name, (status.updated, truck.rows))

    def _table(self, status: ProjectStatus | None, transactions: int) -> Table:
        title = f"{transactions} transactions in the shop"
        table = Table("truck", "to", "state", "lag", "rows", "rate", title=title)
        for truck in status.trucks if status else ():
            table.add_row(
                truck.name,
                truck.destination,
                truck.phase.value.replace("_", " "),
                lag_text(truck.lag_seconds, truck.lag_bytes),
                f"{truck.rows:,}",
                rate(self._rates.get(truck.name, 0.0)),
            )
        if not status:
            table.add_row("-", "-", Text("trucker is not up", "red"), "-", "-", "-")
        return table

    def _line(self, status: ProjectStatus | None) -> str:
        if status is None:
            return "trucker is not up"
        slowest = max(status.trucks, key=lambda truck: truck.lag_bytes or 0)
        trucks = ", ".join(
            f"{truck.name} {rate(self._rates.get(truck.name, 0.0))}"
            if truck.phase is TruckPhase.STREAMING
            else f"{truck.name} {truck.phase.value.replace('_', ' ')}"
            for truck in status.trucks
        )
        return f"lag {lag_text(slowest.lag_seconds, slowest.lag_bytes)}; {trucks}"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that nothing of it stays behind."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A shop replicated to two stores, killed once, compared at the end.")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="seconds of load, without the starts (default: %(default)s)"
    )
    sys.exit(main(parser.parse_args().seconds))
