"""Projects and pipelines built in code do what loaded ones do: copy, stream, stop, go on, and every look at them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import postgres
from fixtures.queue_sink import QueueSink, WatchedQueueSink
from fixtures.waiting import busy, wait_until
from trucker import Level, Pipeline, Project
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark

Take = Callable[[Project], None]

QUICK = {"retry": {"first": 0.2, "longest": 2}, "heartbeat": 1}
ENRICHED = "select r.id, r.email, c.name as customer from {{ rows }} left join customers c on c.id = r.customer"
MASKED = "left(email, 1) || repeat('*', length(email) - 1)"


@pytest.fixture
def take(spark: Any) -> Take:
    """Runs a project on the shared session until all that is there is taken; no truck may fail."""

    def run(project: Project) -> None:
        status = project.run(once=True, spark=spark)
        assert status.failures == ()

    return run


@contextmanager
def streaming(project: Project, spark: Any) -> Iterator[None]:
    """The project runs, and its trucks stream; it is stopped at the end."""
    stop, errors = threading.Event(), []

    def work() -> None:
        try:
            project.run(spark=spark, stop=stop)
        except BaseException as error:
            errors.append(error)

    def streams() -> bool:
        assert errors == []
        status = project.status()
        return status.running and all(truck.phase is TruckPhase.STREAMING for truck in status.trucks)

    thread = threading.Thread(target=work, name="project run")
    thread.start()
    try:
        wait_until(streams, 60)
        yield
    finally:
        stop.set()
        thread.join(120 * busy())
    assert errors == []


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "create table customers (id int primary key, name text)",
        "create table orders (id int primary key, customer int, email text)",
        "insert into customers values (1, 'Ada'), (2, 'Grace')",
        "insert into orders select i, 1 + i % 2, 'someone' || i || '@example.com' from generate_series(1, 100) i",
    )
    return database


def built(shop: Database, destination: Database, folder: Path) -> Project:
    """Orders as they are to PostgreSQL, and masked and enriched to PostgreSQL and to DuckDB."""
    enriched = {
        "rules": [{"mask": {"column": "email", "keep_first": 1}}],
        "sql": {"input.sql": ENRICHED},
    }
    orders = {"connection": "shop", "table": "public.orders"}
    return Project.build(
        name=shop.name,
        state=folder / "state",
        connections=[
            postgres("shop", shop),
            postgres("replica", destination),
            {"name": "file", "adapter": "duckdb", "path": folder / "file.duckdb"},
        ],
        trucks=[
            {"name": "plain", "input": orders, "output": {"connection": "replica"}},
            {"name": "flat", "input": orders, "output": {"connection": "replica", "table": "flat"}, **enriched},
            {"name": "file", "input": orders, "output": {"connection": "file", "table": "flat"}, **enriched},
        ],
        **QUICK,
    )


def in_file(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / "file.duckdb"), read_only=True) as connection:
        return connection.execute(query).fetchall()


def test_a_built_project_copies_streams_and_goes_on_where_its_destinations_stopped(
    shop: Database, destination: Database, tmp_path: Path, take: Take
) -> None:
    """I3, I4: nothing is copied again and no row is doubled, whatever object runs the project."""
    flat = "select id, email, customer from public.flat order by id"
    joined = f"select o.id, {MASKED}, c.name from orders o left join customers c on c.id = o.customer order by o.id"

    def same() -> None:
        plain = "select * from orders order by id"
        assert destination.query(plain) == [*shop.query(plain), *mark]
        assert destination.query(flat) == in_file(tmp_path, flat) == shop.query(joined)

    mark: list[tuple[Any, ...]] = []
    take(built(shop, destination, tmp_path))
    same()
    # A row that only the destination has: a second copy would not leave it there.
    mark.append((1000, 1, "mine"))
    destination.execute("insert into orders values (1000, 1, 'mine')")
    shop.execute(
        "insert into orders values (101, 2, 'new@example.com')",
        "update orders set customer = 2, email = 'other' where id <= 10",
        "update orders set id = 200 where id = 20",
        "delete from orders where id between 30 and 40",
    )
    take(built(shop, destination, tmp_path))
    same()
    take(built(shop, destination, tmp_path))
    same()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["state"], "no folder of YAML"


def test_every_look_at_a_built_project_works(shop: Database, destination: Database, tmp_path: Path, take: Take) -> None:
    project = built(shop, destination, tmp_path)
    findings = project.check()
    assert [finding for finding in findings if finding.level is Level.ERROR] == []
    assert findings[0].subject == f"project {shop.name}"
    take(project)
    shop.execute("insert into orders values (101, 2, 'new@example.com')")
    take(project)
    assert [truck.name for truck in project.status().trucks] == ["plain", "flat", "file"]
    (change,) = [json.loads(line) for line in project.peek(truck="plain")]
    assert change["new"] == {"id": 101, "customer": 2, "email": "new@example.com"}
    last = project.try_truck("flat")[-1]
    assert last.columns == ("operation", "id", "email", "customer")
    assert last.rows == (("insert", "101", "n**************", "Grace"),)
    assert project.redrive() == []
    assert project.accept() == []
    assert project.reset(["plain"])
    assert project.reset()
    assert shop.query("select slot_name from pg_replication_slots where database = current_database()") == []


def test_what_is_wrong_at_the_source_is_found_by_check(shop: Database, destination: Database, tmp_path: Path) -> None:
    pipeline = Pipeline(
        postgres("shop", shop),
        postgres("replica", destination),
        name=shop.name,
        tables="public.orders",
        state=tmp_path,
        rules=[{"mask": {"column": "mail"}}],
    )
    (error,) = [finding for finding in pipeline.check() if finding.level is Level.ERROR]
    assert error.code == "TRK140"
    assert "rules[0].mask: " in error.message


def test_a_pipeline_is_stopped_and_started_again(
    shop: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I3, I4."""

    def pipeline() -> Pipeline:
        source, replica = postgres("shop", shop), postgres("replica", destination)
        return Pipeline(source, replica, name=shop.name, tables=["public.*"], state=tmp_path, project=QUICK)

    def same() -> bool:
        tables = ("select * from orders order by 1", "select * from customers order by 1")
        return all(destination.query(query) == shop.query(query) for query in tables)

    with streaming(pipeline(), spark):
        shop.execute("update orders set email = null where id = 1", "insert into customers values (3, 'Edsger')")
        wait_until(same, 60)
    shop.execute("delete from orders where id = 2", "insert into orders values (101, 3, '')")
    with streaming(pipeline(), spark):
        wait_until(same, 60)


def test_a_sink_class_gets_every_change_once_staged_by_workers(shop: Database, tmp_path: Path, take: Take) -> None:
    """I4: the class is imported by Spark's workers, from the folder that the program has on its path."""
    queue = tmp_path / "queue"

    def pipeline(sink: type[QueueSink]) -> Pipeline:
        workers = {**QUICK, "batch": {"small_bytes": 0}}
        source = postgres("shop", shop)
        return Pipeline(
            source,
            partial(sink, queue),
            name="events",
            tables="public.orders",
            state=tmp_path / "state",
            project=workers,
        )

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (queue / "events").read_text().splitlines()]

    assert [finding for finding in pipeline(WatchedQueueSink).check() if finding.level is Level.ERROR] == []
    take(pipeline(WatchedQueueSink))
    assert sorted(line["new"]["id"] for line in lines()) == list(range(1, 101))
    staged_by = [int(path.name.rpartition("-")[2]) for path in queue.glob("staged-by-*")]
    assert staged_by
    assert os.getpid() not in staged_by
    shop.execute("insert into orders values (101, 1, 'x')", "delete from orders where id = 101")
    # What a crash left behind the length that counts is removed.
    with (queue / "events").open("a") as file:
        file.write("half a li")
    take(pipeline(QueueSink))
    take(pipeline(QueueSink))
    assert [(line["operation"], (line["new"] or line["old"])["id"]) for line in lines()[100:]] == [
        ("insert", 101),
        ("delete", 101),
    ]


def shout(text: str) -> str:
    return text.upper()


def test_spark_sql_calls_functions_of_the_program(
    shop: Database, destination: Database, tmp_path: Path, take: Take, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a session of the program's that nothing was run in before."""
    monkeypatch.delitem(spark.sparkContext.environment, "PYTHONPATH", raising=False)

    def whisper(text: str) -> str:
        return text.lower()

    pipeline = Pipeline(
        postgres("shop", shop),
        postgres("replica", destination),
        name=shop.name,
        tables="public.customers",
        state=tmp_path,
        sql={"transform.sql": "select id, shout(name) as loud, whisper(name) as soft from {{ rows }}"},
        functions=[shout, whisper],
        project=QUICK,
    )
    take(pipeline)
    shop.execute("insert into customers values (3, 'Edsger')")
    take(pipeline)
    assert destination.query("select * from customers order by id") == [
        (1, "ADA", "ada"),
        (2, "GRACE", "grace"),
        (3, "EDSGER", "edsger"),
    ]
