"""SQL that fails, gives too much, or meets what it was not made for: its truck alone stops, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.errors import TruckerError
from trucker.finding import Level
from trucker.observe.status import TruckPhase
from trucker.project import Project

pytestmark = pytest.mark.spark


@pytest.fixture
def two(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    """A table with odd names, and the place its trucks write to."""
    database.execute(
        'create table t (id int primary key, n int, "we\'ird""; drop table t; --" text)',
        "alter table t replica identity full",
        "insert into t values (1, 1, 'a'), (2, 2, $$'); drop table t; --$$)",
    )
    destination.execute("create table seen (what text, id int, n int, odd text)")
    return project.connect(postgres("there", destination))


def take(project: ProjectFolder, spark: Any) -> dict[str, str | None]:
    """All that is there; the trucks' errors."""
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    return {truck.name: truck.error for truck in status.trucks}


def test_a_truck_whose_sql_fails_stops_alone_and_writes_nothing(
    two: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """I8: with file and line, without data; once mended it goes on where it was, nothing lost or doubled."""
    two.truck("divides", ["public.t"], {"connection": "there", "table": "public.divided"})
    two.sql("divides", {"input": "select r.id,\n  100 / r.n as part\nfrom {{ rows }}"})
    two.truck("writes", ["public.t"], {"connection": "there"})
    two.sql("writes", {"output": "insert into seen (what, id) select 'w', r.id from {{ rows }};\n\n"
                                 "insert into seen (what, n) select 'x', 10 / (r.n - 5) from {{ rows }}"})  # fmt: skip
    two.truck("product", ["public.t"], {"connection": "there", "table": "public.product"})
    two.sql("product", {"input": "select r.id, g from {{ rows }}, generate_series(1, 20000) g where r.n > 50 or g = 1"},
            rows_max=10_000)  # fmt: skip
    two.truck("plain", ["public.t"], {"connection": "there", "table": "public.plain"})
    assert take(two, spark) == {"divides": None, "writes": None, "product": None, "plain": None}
    database.execute("insert into t values (3, 0, 'zero'), (4, 5, 'five'), (5, 60, 'many')")
    errors = take(two, spark)
    assert errors["plain"] is None
    assert "trucks/divides/input.sql: division by zero" in str(errors["divides"])
    assert "trucks/writes/output.sql:3" in str(errors["writes"])
    assert "rows_max" in str(errors["product"])
    assert not any(word in str(errors) for word in ("zero'", "five", "many"))
    assert destination.query("select id, part from divided order by 1") == [(1, 100), (2, 50)]
    assert destination.query("select what, count(*) from seen group by 1 order by 1") == [("w", 2), ("x", 2)]
    assert destination.query("select count(*) from product") == [(2,)]
    assert destination.query("select count(*) from plain") == [(5,)]
    two.sql("divides", {"input": "select r.id, 100 / nullif(r.n, 0) as part from {{ rows }}"})
    two.sql("writes", {"output": "insert into seen (what, id) select 'w', r.id from {{ rows }}"})
    two.sql("product", {"input": "select r.id, 1 as g from {{ rows }}"})
    assert take(two, spark) == {"divides": None, "writes": None, "product": None, "plain": None}
    assert destination.query("select count(*), sum(part) from divided") == [(5, 171)]
    assert destination.query("select id from seen where what = 'w' order by 1") == [(1,), (2,), (3,), (4,), (5,)]
    assert destination.query("select count(*) from product") == [(5,)]


def test_a_table_that_is_truncated(two: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    """Rows written by key go with it; output.sql is asked, and by default the truck stops (I8)."""
    destination.execute("create table stops (id int)", "create table goes_on (id int)")
    two.truck("by_key", ["public.t"], {"connection": "there", "table": "public.by_key"})
    two.sql("by_key", {"input": "select r.id, r.n from {{ rows }}"})
    for name, settings in (("stops", {}), ("goes_on", {"on_truncate": "ignore"})):
        two.truck(name, ["public.t"], {"connection": "there"})
        two.sql(
            name, {"output": f"insert into {name} select r.id from {{{{ rows }}}} where r.id is not null"}, **settings
        )
    take(two, spark)
    database.execute("begin; insert into t values (8, 8); truncate t; insert into t values (9, 9); commit")
    errors = take(two, spark)
    assert {name: bool(error) for name, error in errors.items()} == {"by_key": False, "stops": True, "goes_on": False}
    assert "on_truncate" in str(errors["stops"])
    assert destination.query("select id from by_key") == [(9,)]
    assert destination.query("select id from stops order by 1") == [(1,), (2,)]
    assert destination.query("select id from goes_on order by 1") == [(1,), (2,), (8,), (9,)]


def test_names_and_values_are_never_sql(
    two: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    two.truck("odd", ["public.t"], {"connection": "there"})
    name = "we'ird\\\"; drop table t; --"
    two.sql("odd", {"input": "select r.* from {{ rows }}",
                    "output": "insert into seen (what, id, odd) select '{{ input_table }}', r.id,"
                              f" {{{{ new[\"{name}\"] }}}} from {{{{ rows }}}}"})  # fmt: skip
    assert take(two, spark) == {"odd": None}
    database.execute("insert into t values (3, 3, $$\\'); drop table seen; --$$)")
    assert take(two, spark) == {"odd": None}
    assert destination.query("select what, id, odd from seen order by id") == [
        ("public.t", 1, "a"),
        ("public.t", 2, "'); drop table t; --"),
        ("public.t", 3, "\\'); drop table seen; --"),
    ]
    assert database.query("select count(*) from t") == [(3,)]


def test_a_table_that_changes_its_shape(
    two: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """What SQL does not name does not matter; what it names must be there; `r.*` has what there is."""
    two.truck("named", ["public.t"], {"connection": "there", "table": "public.named"})
    two.sql("named", {"input": "select r.id, r.n from {{ rows }}"})
    destination.execute("create table whole (id int, content jsonb)")
    two.truck("whole", ["public.t"], {"connection": "there"})
    two.sql("whole", {"output": "insert into whole select r.id, to_jsonb(r) from {{ rows }}"})
    take(two, spark)
    database.execute("alter table t add more int default 7", "insert into t values (3, 3, 'c', 8)")
    assert take(two, spark) == {"named": None, "whole": None}
    assert destination.query("select id, n from named order by 1") == [(1, 1), (2, 2), (3, 3)]
    assert destination.query("select content -> 'more' from whole where id = 3") == [(8,)]
    with InThread(two, spark) as run:
        run.wait_streaming()
        database.execute("alter table t drop n", "insert into t values (4, 'd', 9)")
        wait_until(lambda: destination.query("select count(*) from whole") == [(4,)], 60)
        wait_until(lambda: (truck := run.truck("named")) and truck.phase is TruckPhase.FAILED and truck, 60)
        assert "trucks/named/input.sql:1" in str(run.truck("named"))
    assert destination.query("select count(*) from named") == [(3,)]


@pytest.mark.parametrize(
    ("files", "settings", "said"),
    [
        ({"input": "select r.id,\n r.nn from {{ rows }}"}, {}, "input.sql:2"),
        (
            {"output": "insert into seen (id) select r.id from {{ rows }};\ninsert into sein select 1"},
            {},
            "output.sql:2",
        ),
        ({"output": "insert into seen (id) select {{ new.idd }} from {{ rows }}"}, {}, "idd"),
        ({"input": "select r.n from {{ rows }}"}, {}, "output.key"),
        ({"input": "select r.id as key from {{ rows }}"}, {"output": {"key": "key"}}, "delete"),
        ({"output": "commit"}, {}, "commit"),
        ({"output": "insert into seen (id) select r.id from {{ rows }}"}, {"compact": "none", "default": True}, "FULL"),
        ({"input": "select r.id, r.n from {{ rows }}"}, {"compact": "none"}, "output.sql"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_touched(
    two: ProjectFolder, database: Database, files: dict[str, str], settings: dict[str, Any], said: str, spark: Any
) -> None:
    """I11: by check and by run, with file and line; no slot and no publication is there afterwards."""
    settings = dict(settings)
    if settings.pop("default", False):
        database.execute("alter table t replica identity default")
    output = {"connection": "there", "table": "public.written", **settings.pop("output", {})}
    two.truck("wrong", ["public.t"], output).sql("wrong", files, **settings)
    findings = Project.load(two.folder).check()
    assert [said in f"{found.message} {found.remedy}" for found in findings if found.level is Level.ERROR] == [True]
    with pytest.raises(TruckerError, match=r"wrong|output\.sql|input\.sql"):
        InThread(two, spark, once=True).join()
    assert database.query("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
    assert database.query("select count(*) from pg_publication") == [(0,)]


def test_slow_statements_are_logged_without_data(
    two: ProjectFolder, database: Database, destination: Database, caplog: pytest.LogCaptureFixture, spark: Any
) -> None:
    """Those of executors too, in the log of the run: which truck, which file, how many rows, how long (I10)."""
    two.truck("slow", ["public.t"], {"connection": "there"})
    files = {"input": "select r.id, r.n from {{ rows }}", "output": "insert into seen (n) select r.n from {{ rows }}"}
    two.sql("slow", files, slow_query_threshold_ms=0)
    take(two, spark)
    database.execute("insert into t values (3, 424242, 'c')")
    caplog.clear()
    with caplog.at_level("WARNING", "trucker.slow"):
        take(two, spark)
    told = [record for record in caplog.records if record.name == "trucker.slow"]
    assert [(record.__dict__["file"], record.__dict__["rows"]) for record in told] == [
        ("trucks/slow/input.sql", 1),
        ("trucks/slow/output.sql", 1),
    ]
    assert not any("424242" in record.getMessage() for record in caplog.records)
