"""A source transaction is never half visible at the destination (I5)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.waiting import wait_until

ACCOUNTS = 50
SECONDS = 120
STATES = 40


def test_money_is_never_on_the_way(
    project: ProjectFolder, database: Database, destination: Database, start: Callable[..., TruckerProcess]
) -> None:
    """Money moves between two tables, which two trucks carry; their sum at the destination is always the same."""
    database.execute(
        "create table checking (id int primary key, amount bigint not null)",
        "create table savings (id int primary key, amount bigint not null)",
        f"insert into checking select i, 1000 from generate_series(1, {ACCOUNTS}) i",
        f"insert into savings select i, 1000 from generate_series(1, {ACCOUNTS}) i",
    )
    project.connect(postgres("replica", destination))
    project.truck("checking", ["public.checking"], {"connection": "replica"})
    project.truck("savings", ["public.savings"], {"connection": "replica"})
    done = threading.Event()

    def move(seed: int) -> None:
        chance = random.Random(seed)
        with database.connect() as connection:
            while not done.wait(0.002):  # leaves the machine to others, too
                amount, one, other = chance.randint(1, 50), chance.randint(1, ACCOUNTS), chance.randint(1, ACCOUNTS)
                with connection.transaction():
                    connection.execute("update checking set amount = amount - %s where id = %s", [amount, one])
                    connection.execute("update savings set amount = amount + %s where id = %s", [amount, other])

    trucker = start()
    trucker.wait_streaming()
    movers = [threading.Thread(target=move, args=[seed]) for seed in range(2)]
    for mover in movers:
        mover.start()
    sums: set[int] = set()
    states: set[str] = set()
    try:
        with destination.connect() as connection:

            def enough() -> bool:
                row = connection.execute(
                    "select (select sum(amount) from checking) + (select sum(amount) from savings),"
                    " (select md5(string_agg(amount::text, ',' order by id)) from checking)"
                ).fetchone()
                assert row is not None
                sums.add(row[0])
                states.add(row[1])
                return len(states) >= STATES

            wait_until(enough, SECONDS, 0.002)
    finally:
        done.set()
        for mover in movers:
            mover.join()
    assert sums == {2 * 1000 * ACCOUNTS}
    wait_until(lambda: same(database, destination, "checking", "savings"))
    assert trucker.stop() == 0
