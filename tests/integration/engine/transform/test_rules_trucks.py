"""Trucks with rules: by snapshot and by stream, destinations hold what the same rules say as SQL at the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.ruled_shop import RuledWork, differences, ruled_shop
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase

pytestmark = pytest.mark.spark


def take(project: ProjectFolder, spark: Any) -> None:
    """All that is there, and no truck failed."""
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


def test_rules_give_what_the_same_sql_gives(
    project: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I3, I4, I6, I7: rows that enter a filter and leave it, in transactions of one change and of many."""
    ruled_shop(project, database, destination, tmp_path)
    work = RuledWork(database, chosen_seed())
    work.transaction(300)
    take(project, spark)
    assert differences(database, destination, tmp_path) == []
    for number in range(60):
        work.transaction(work.random.choice([1, 1, 3, 20]))
        if number == 30:
            work.truncate("bag")
            work.truncate("events")
    take(project, spark)
    assert differences(database, destination, tmp_path) == []


def test_what_rules_cannot_take_stops_their_truck_alone(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """I8, I10: a value that does not fit, and a column that would pass unmasked under its new name."""
    for table in ("casts", "masks", "fine"):
        database.execute(f"create table {table} (id int primary key, word text, secret text)")
    project.connect(postgres("there", destination))
    rules: dict[str, list[dict[str, Any]]] = {
        "casts": [{"cast": {"word": "integer"}}],
        "masks": [{"mask": {"column": "secret"}}, {"rename": {"word": "said"}}],
        "fine": [{"hash": {"column": "secret", "key": "k"}}, {"constant": {"origin": "here"}}],
    }
    for name, own in rules.items():
        project.truck(name, [f"public.{name}"], {"connection": "there", "schema": "shown"})
        project.sql(name, {}, rules=own)
    database.execute("insert into casts values (1, '007', 'top')", "insert into fine values (1, 'a', 'top')")
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute(
            "insert into casts values (2, 'no number', 'top')", "alter table masks rename secret to hidden"
        )
        database.execute("insert into masks values (1, 'a', 'top secret')")
        database.execute(
            "alter table fine add column more text default 'some'", "insert into fine values (2, 'b', 'x')"
        )
        failed = wait_until(lambda: _failed(project, "casts", "masks"))
        wait_until(lambda: destination.query("select count(*) from shown.fine") == [(2,)])
        run.stop()
    assert "TRK560" in failed["casts"]
    assert "row (id = 2) of table public.casts: column word has a value that is not of type integer" in failed["casts"]
    assert "TRK253" in failed["masks"]
    assert "no number" not in str(failed)
    assert "top" not in str(failed)
    assert destination.query("select * from shown.casts") == [(1, 7, "top")]
    assert destination.query("select count(*) from shown.masks") == [(0,)]
    rows = destination.query("select id, word, length(secret), origin, more from shown.fine order by 1")
    assert rows == [(1, "a", 64, "here", "some"), (2, "b", 64, "here", "some")]


def _failed(project: ProjectFolder, *trucks: str) -> dict[str, str] | None:
    status = project.status()
    found = {t.name: t.error for t in status.trucks if t.phase is TruckPhase.FAILED and t.error} if status else {}
    return found if set(found) == set(trucks) else None
