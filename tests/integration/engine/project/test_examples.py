"""The worked examples, end to end: by snapshot and by stream, with inserts, updates and deletes, after kills too."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fixtures.examples import Sales
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, TruckerProcess
from fixtures.random_dml import chosen_seed
from fixtures.waiting import wait_until
from fixtures.webhook import PROXIES, SECRET

pytestmark = pytest.mark.spark

Example = Callable[[str], ProjectFolder]


def take(project: ProjectFolder, spark: Any) -> None:
    """All that is there, and no truck failed."""
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


# -- an enriched table ------------------------------------------------------------------------------------------------

FLAT = """
select o.id, o.ordered_at, o.customer, c.name, c.country, p.title, o.quantity, o.quantity * p.price, o.note
from orders o left join customers c on c.id = o.customer left join products p on p.id = o.product order by o.id
"""


def test_an_enriched_table(example: Example, database: Database, destination: Database, spark: Any) -> None:
    """I6, I7: the flat table is the join at the source, whether its rows came by the copy or by the stream."""
    project = example("enriched")
    database.execute(
        "insert into customers select i, 'name ' || i, (array['pt', 'de'])[1 + i % 2] from generate_series(1, 10) i",
        "insert into products select i, 'title ' || i, i * 1.25 from generate_series(1, 5) i",
        "insert into orders select i, 1 + i % 9, 1 + i % 5, i % 7, '2024-02-29 12:00+00', repeat(md5(i::text), 200)"
        " from generate_series(1, 60) i",
    )
    take(project, spark)
    flat = "select * from flat_orders order by id"
    assert destination.query(flat) == database.query(FLAT)
    database.execute(
        "insert into orders select i, 1 + i % 9, 1 + i % 5, 1, now(), null from generate_series(61, 80) i",
        "update orders set quantity = quantity + 1 where id % 3 = 0",  # the long note is not sent again
        "update orders set customer = 9, note = 'another' where id % 5 = 0",
        "begin; update orders set id = id + 1000 where id <= 10; update orders set quantity = 9 where id = 1005; end",
        "delete from orders where id % 7 = 0",
        "begin; delete from orders where id = 16; insert into orders values (16, 1, 1, 1, now(), 'back'); commit",
        # Its customer and product are gone when the order's row is looked at: the order is, too, in the end.
        "insert into customers values (11, 'guest', 'fr')",
        "insert into orders values (500, 11, 1, 1, now(), 'short')",
        "begin; delete from orders where id = 500; delete from customers where id = 11; commit",
        "insert into orders values (501, 10, 2, 3, now(), 'of a customer who is renamed')",
        "update customers set name = 'renamed' where id = 10",  # at or after the change: the new name
    )
    take(project, spark)
    assert destination.query(flat) == database.query(FLAT)
    database.execute("truncate orders", "insert into orders values (1, 1, 1, 1)")
    take(project, spark)
    assert destination.query(flat) == database.query(FLAT)


# -- live totals ------------------------------------------------------------------------------------------------------

GROUPED = "select day, product, count(*), sum(quantity), sum(amount) from orders group by 1, 2 order by 1, 2"
TOTALS = "select * from daily_sales order by 1, 2"


@pytest.fixture
def sales(database: Database) -> Iterator[Callable[[], Sales]]:
    """Random work on the orders, once their table is there."""
    made: list[Sales] = []

    def begin() -> Sales:
        made.append(Sales(database, chosen_seed()))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def test_live_totals(
    example: Example, sales: Callable[[], Sales], database: Database, destination: Database, spark: Any
) -> None:
    """I3, I4: sums kept by new less old are those of GROUP BY at the source."""
    project = example("live_totals")
    work = sales()
    work.transaction(300)
    take(project, spark)
    assert destination.query(TOTALS) == database.query(GROUPED) != []
    for size, times in ((1, 40), (10, 10), (1000, 1)):
        for _ in range(times):
            work.transaction(size)
        take(project, spark)
        assert destination.query(TOTALS) == database.query(GROUPED), f"after transactions of {size} changes"
    database.execute("delete from orders")
    take(project, spark)
    assert destination.query(TOTALS) == []


class _Load:
    """Sales in a thread, until told to stop."""

    def __init__(self, sales: Sales) -> None:
        self._sales = sales
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self._sales.transaction()

    def wait(self, transactions: int) -> None:
        goal = self._sales.transactions + transactions
        wait_until(lambda: self._sales.transactions >= goal or not self._thread.is_alive(), 60)
        assert self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _killed_again_and_again(
    project: ProjectFolder, work: Sales, start: Callable[..., TruckerProcess], kills: int
) -> None:
    """Random work all the time, and every process of trucker killed so many times, each at some moment of its life;
    in the end it takes all that is there."""
    load = _Load(work)
    try:
        for number in range(kills):
            trucker = start(project)
            if number % 2 == 0:
                trucker.wait_streaming(120)
            load.wait(work.random.randrange(10, 400))
            trucker.kill_tree()
    finally:
        load.stop()
    last = start(project, "--once")
    assert last.process.wait(180) == 0, last.output()


@pytest.fixture
def start_on() -> Iterator[Callable[..., TruckerProcess]]:
    """`start_on(project, *arguments)`; what still runs at the end is killed."""
    running: list[TruckerProcess] = []

    def begin(project: ProjectFolder, *arguments: str) -> TruckerProcess:
        running.append(TruckerProcess(project, *arguments))
        return running[-1]

    yield begin
    for process in running:
        process.close()


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_live_totals_under_kills(
    kills: int,
    example: Example,
    sales: Callable[[], Sales],
    start_on: Callable[..., TruckerProcess],
    database: Database,
    destination: Database,
) -> None:
    """I3, I4: no sum has counted a change twice or not at all, whenever every process was killed."""
    project = example("live_totals")
    work = sales()
    work.transaction(300)
    _killed_again_and_again(project, work, start_on, kills)
    assert destination.query(TOTALS) == database.query(GROUPED) != []


# -- a history --------------------------------------------------------------------------------------------------------

JOURNAL = """
create table journal (
    seq bigint generated always as identity, xid bigint, table_name text, operation text, before jsonb, after jsonb
);
create function journal() returns trigger language plpgsql as $$ begin
    insert into journal (xid, table_name, operation, before, after) values (
        pg_current_xact_id()::text::bigint % (2::bigint ^ 32)::bigint, tg_table_schema || '.' || tg_table_name,
        lower(tg_op),
        case when tg_op <> 'INSERT' then to_jsonb(old) end, case when tg_op <> 'DELETE' then to_jsonb(new) end
    );
    return null;
end $$;
create trigger journal after insert or update or delete on orders for each row execute function journal();
create trigger journal after insert or update or delete on payments for each row execute function journal();
"""

HISTORY = "select xid, table_name, operation, before, after from history where xid is not null order by place"


def test_a_history(example: Example, database: Database, destination: Database, spark: Any) -> None:
    """Every change once, in the order of commits, as triggers at the source wrote them down."""
    project = example("history")
    database.execute(
        "insert into orders select i, 'name ' || i, 'new', repeat(md5(i::text), 200) from generate_series(1, 20) i",
        "insert into payments select i, i, i from generate_series(1, 20) i",
    )
    take(project, spark)
    copied = "select table_name, after from history where xid is null and commit_time is null and before is null"
    whole = (
        "select 'public.orders', to_jsonb(o) from orders o union all select 'public.payments', to_jsonb(p)"
        " from payments p order by 1, 2"
    )
    assert destination.query(f"{copied} order by 1, 2") == database.query(whole)
    database.execute(JOURNAL)
    order = _changes_that_overlap(database)
    take(project, spark)
    # The journal is in the order of writing: transactions follow each other as they committed.
    rows = database.query("select xid, table_name, operation, before, after from journal order by seq")
    assert destination.query(HISTORY) == sorted(rows, key=lambda row: order.index(row[0]))
    outside = "select count(*) from history where xid is not null and (commit_time is null or commit_time > now())"
    assert destination.query(outside) == [(0,)]
    places = "select commit_lsn, ordinal from history where xid is not null order by"
    assert destination.query(f"{places} place") == destination.query(f"{places} commit_lsn, ordinal")


def _changes_that_overlap(database: Database) -> list[int]:
    """Changes of both tables, in transactions that begin in one order and commit in another; their ids as committed."""
    committed: list[int] = []
    with database.connect() as one, database.connect() as two:

        def begin(connection: Any) -> int:
            connection.execute("begin")
            return int(connection.execute("select pg_current_xact_id()::text::bigint").fetchone()[0])

        for turn in range(6):
            first, second = begin(one), begin(two)
            one.execute(f"update orders set state = 'paid' where id = {turn + 1}")  # the long note is not sent again
            two.execute(f"insert into payments values ({100 + turn}, {turn}, 2.50)")
            one.execute(f"insert into payments values ({200 + turn}, {turn}, 7)")
            one.execute(f"update payments set amount = amount * 2 where id in ({200 + turn}, {turn + 1})")
            two.execute(f"update orders set id = id + 500, note = null where id = {turn + 8}")
            two.execute(f"delete from orders where id = {508 + turn}")
            one.execute(f"delete from payments where id = {200 + turn}")
            one.execute(f"insert into payments values ({200 + turn}, {turn}, 8)")
            order = [(one, first), (two, second)] if turn % 2 else [(two, second), (one, first)]
            for connection, xid in order:
                connection.execute("commit")
                committed.append(xid)
        lone = begin(one)
        one.execute("insert into orders select i, 'many', 'new', null from generate_series(1000, 3000) i")
        one.execute("update orders set state = 'sent' where id >= 1000")
        one.execute("delete from orders where id >= 1000 and id % 2 = 0")
        one.execute("commit")
        committed.append(lone)
    return committed


# -- webhooks ---------------------------------------------------------------------------------------------------------


def test_webhooks(
    example: Example, database: Database, spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The receiver's rows are those of the source: signed requests, and what came twice or late changes nothing."""
    monkeypatch.setenv("HOOKS_SECRET", SECRET)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("HOOKS_URL", f"http://127.0.0.1:{port}/changes")
    project = example("webhook")
    file = tmp_path / "orders.sqlite"
    receiver = subprocess.Popen([sys.executable, str(project.folder / "receiver.py"), str(port), str(file)])

    def rows() -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as kept:
            contents = kept.execute("select content from rows where content is not null").fetchall()
        return sorted(tuple(json.loads(content, parse_float=Decimal).values()) for (content,) in contents)

    try:
        database.execute(
            "insert into orders select i, 'customer ' || i, 'new', i * 1.25 from generate_series(1, 300) i"
        )
        take(project, spark)
        assert rows() == database.query("select * from orders order by id")
        database.execute(
            "update orders set state = 'paid' where id % 3 = 0",
            "update orders set state = 'sent', amount = amount + 1 where id % 9 = 0",
            "begin; update orders set id = id + 1000 where id < 9; update orders set amount = 7 where id = 1005; end",
            "delete from orders where id % 7 = 0",
            "begin; delete from orders where id = 16; insert into orders values (16, 'back', 'new', 1.5); commit",
        )
        take(project, spark)
        assert rows() == database.query("select * from orders order by id")
        database.execute("truncate orders", "insert into orders values (1, 'last', 'new', 0.1)")
        take(project, spark)
        assert rows() == database.query("select * from orders order by id")
    finally:
        receiver.kill()
        receiver.wait()


# -- a search index ----------------------------------------------------------------------------------------------------


def test_the_search_index_follows_the_articles(
    example: Example, database: Database, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "articles.db"
    monkeypatch.setenv("SEARCH_INDEX", str(index))
    project = example("search_index")

    def search(words: str) -> list[str]:
        command = [sys.executable, str(project.folder / "search.py"), str(index), words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    take(project, spark)
    assert search("slots") == ["1 Slots", "2 Copies"], "words of one stem are found"
    database.execute(
        "begin; update articles set body = '<p>It <i>drives</i>.</p>' where id = 3; delete from articles where id = 1;"
        "insert into articles select n, 'Number ' || n, 'drive' from generate_series(10, 1200) n; commit"
    )
    take(project, spark)
    assert search("slots") == ["2 Copies"]
    assert search("driving AND trucks") == ["3 Trucks"]
    assert search("number AND 1200") == ["1200 Number 1200"]
