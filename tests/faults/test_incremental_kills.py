"""`kill -9` inside an incremental copy: it continues where it was, and only what was under way is read again (I4)."""

from __future__ import annotations

import random
import shutil
import time
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres, run_cli
from fixtures.random_dml import chosen_seed
from fixtures.row_makers import CREATION, change, changing, make_trucks, wrong
from fixtures.waiting import wait_until

POINTS = ("copy.begin.after", "worker.stage.after", "copy.chunk.before", "sink.commit.after", "copy.chunk.after")
ROWS = 12_000


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, n int, filling text)",
        f"insert into item select i, 0, repeat(md5(i::text), 10) from generate_series(1, {ROWS}) i",
    )
    project.config["copy"] = {"chunk_bytes": 65536, "parallel": 2}
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.item"], {"connection": "replica"}, copy="incremental")


def _page(destination: Database) -> int:
    """Up to which page the copy has got."""
    rows = destination.query("select split_part(snapshot, '#', 2) from trucker.tables where source_table = 'item'")
    return int(rows[0][0].split(".")[2]) if rows and rows[0][0].count(".") == 3 else 0


def test_killed_at_every_boundary_of_a_copy(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """The pages that were committed are not read again: the cursor never goes back."""
    page = 0
    for number, point in enumerate(POINTS):
        trucker = start(failpoints=f"{point}=kill@{1 if point.startswith('copy.begin') else 2}")
        assert trucker.process.wait(300) == -9, f"{point}: {trucker.output()}"
        database.execute(
            f"update item set n = n + 1 where id % {number + 3} = 0",
            f"delete from item where id % 97 = {number}",
            f"update item set id = -id where id % 101 = {number}",
        )
        if not point.startswith("copy.begin"):
            assert _page(destination) >= page
            page = _page(destination)
    assert page > 0
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert same(database, destination, "item")


def _copied_rows(destination: Database) -> int:
    """How many rows the destination has, if it has the table."""
    if destination.query("select to_regclass('item') is null") == [(True,)]:
        return 0
    return int(destination.query("select count(*) from item")[0][0])


def test_an_exported_copy_that_was_killed_continues_with_what_it_has(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """A kill costs the chunks under way, never the table. Small tables, and those without a key, are copied again."""
    database.execute(
        f"insert into item select i, 0, repeat(md5(i::text), 10) from generate_series({ROWS + 1}, {8 * ROWS}) i",
        "create table small (id int primary key)",
        "insert into small select generate_series(1, 100)",
        "create table bag (n int, filling text)",
        "alter table bag replica identity full",
        "insert into bag select i, repeat(md5(i::text), 10) from generate_series(1, 2000) i",
        "vacuum analyze item",
        "select pg_stat_reset()",
    )
    shop.truck("copy", ["public.*"], {"connection": "replica"})
    trucker = start(failpoints="worker.stage.after=kill@5")
    wait_until(lambda: _copied_rows(destination) > ROWS, 120)
    trucker.kill_tree()
    copied = _copied_rows(destination)
    assert 0 < copied < 8 * ROWS
    database.execute(
        "update item set n = n + 1 where id % 3 = 0",
        "delete from item where id % 97 = 1",
        "update item set id = -id where id % 101 = 2",
        "insert into item select -i - 1000000, 7, 'new' from generate_series(1, 2000) i",
    )
    for point in ("copy.begin.before=kill", "copy.begin.after=kill", "copy.chunk.after=kill@2"):
        trucker = start(failpoints=point)
        assert trucker.process.wait(300) == -9, f"{point}: {trucker.output()}"
        assert _copied_rows(destination) >= copied
    assert _copied_rows(destination) > copied
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert same(database, destination, "item", "small", "bag")
    assert "primary key" in destination.query("select pg_get_constraintdef(oid) from pg_constraint where"
        " conrelid = 'item'::regclass and contype = 'p'")[0][0].lower()  # fmt: skip
    assert destination.query("select count(*) from trucker.chunks") == [(0,)]
    assert list((shop.state / "copies" / "source").iterdir()) == []


def test_a_large_exported_copy_that_was_killed_goes_on_in_chunks(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """Where nothing of it can be continued, as here without its record. A second kill costs a round. Small tables, and
    those without a key, are copied in one go as before."""
    database.execute(
        "create table small (id int primary key)",
        "insert into small select generate_series(1, 100)",
        "create table bag (n int, filling text)",
        "alter table bag replica identity full",
        "insert into bag select i, repeat(md5(i::text), 10) from generate_series(1, 2000) i",
    )
    shop.config["copy"] |= {"auto_bytes": 262144}
    shop.save()
    shop.truck("copy", ["public.*"], {"connection": "replica"})
    trucker = start(failpoints="copy.end.before=kill")
    assert trucker.process.wait(300) == -9, trucker.output()
    assert _page(destination) == 0
    shutil.rmtree(shop.state / "copies")
    database.execute("update item set n = n + 1 where id % 3 = 0", "delete from item where id % 97 = 1")
    page = 0
    for point in ("copy.chunk.after", "copy.chunk.after"):
        trucker = start(failpoints=f"{point}=kill@2")
        assert trucker.process.wait(300) == -9, trucker.output()
        assert _page(destination) > page
        page = _page(destination)
        database.execute("update item set n = n + 1 where id % 5 = 0", "update item set id = -id where id % 101 = 2")
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert same(database, destination, "item", "small", "bag")


def test_a_copy_that_replaces_rows_is_repeated_in_one_go(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """What readers have of the earlier copy stays until the new one counts."""
    shop.config["copy"] |= {"auto_bytes": 8192}
    shop.save()
    shop.truck("copy", ["public.item"], {"connection": "replica"})
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert run_cli("reset", "--truck", "copy", "--yes", str(shop.folder)).returncode == 0
    database.execute("update item set n = 1")
    for _ in range(2):
        trucker = start(failpoints="copy.end.before=kill")
        assert trucker.process.wait(300) == -9, trucker.output()
        assert destination.query("select count(*), max(n) from item") == [(ROWS, 0)]
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert same(database, destination, "item")


def test_a_large_exported_copy_that_lost_its_connection_goes_on_in_chunks(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """Without a restart, too."""
    database.execute("create table small (id int primary key)", "insert into small values (1)")
    shop.config["copy"] |= {"auto_bytes": 262144}
    shop.save()
    shop.truck("copy", ["public.*"], {"connection": "replica"})
    go = shop.folder / "go"
    trucker = start(failpoints=f"copy.begin.after=hang:{go}")
    wait_until(lambda: list(shop.folder.glob("go.*")))
    ended = "select pg_terminate_backend(pid, 20000) from pg_stat_activity where backend_type = 'walsender'"
    assert database.query(f"{ended} and datname = current_database()")
    go.touch()
    wait_until(lambda: same(database, destination, "item", "small"), 120)
    trucker.stop()
    assert "cursor=" in trucker.output()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", ["incremental", "exported"])
def test_killed_at_random_under_load(
    shop: ProjectFolder, database: Database, destination: Database, start: Any, mode: str
) -> None:
    shop.truck("copy", ["public.item"], {"connection": "replica"}, copy=mode)
    dice = random.Random(chosen_seed())
    database.execute(
        "insert into item select i, 0, repeat('x', 300) from generate_series(1, 400000) i on conflict do nothing"
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        trucker = start()
        for _ in range(dice.randrange(200)):
            key = dice.randrange(400_000)
            moved = -key - 1_000_000
            free = f"not exists (select from item where id = {moved})"
            database.execute(
                dice.choice(
                    (
                        f"update item set n = n + 1 where id between {key} and {key + 40}",
                        f"delete from item where id between {key} and {key + 3}",
                        f"insert into item values ({key}, 1, 'new') on conflict (id) do update set n = -1",
                        f"update item set id = {moved} where id = {key} and {free}",
                    )
                )
            )
        if trucker.process.poll() is None:
            trucker.kill_tree()
    trucker = start()
    wait_until(lambda: same(database, destination, "item"), 300)
    trucker.stop()


def test_rules_and_sql_that_were_killed_go_on(
    project: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """Under load, with rules, the source's SQL and Spark's."""
    seed, modes = chosen_seed(), {"ruled": "incremental", "joined": "auto"}
    database.execute(*CREATION)
    project.config["copy"] = {"chunk_bytes": 65536, "parallel": 2, "auto_bytes": 65536}
    project.connect(postgres("replica", destination))
    for name, mode in modes.items():
        make_trucks(project, "replica", name, copy=mode)
    for number, point in enumerate(("copy.chunk.before=kill@3", "copy.chunk.after=kill@3")):
        trucker = start(failpoints=point)
        with changing(database, seed + number):
            assert trucker.process.wait(300) == -9, f"{point}: {trucker.output()}"
    trucker = start("--once")
    with changing(database, seed + 2):
        assert trucker.process.wait(300) == 0, trucker.output()
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert wrong(database, destination, *modes) == []


@pytest.mark.parametrize("truck", ["ruled", "edited"])
def test_an_exported_copy_with_rules_or_sql_continues_with_what_it_has(
    project: ProjectFolder, database: Database, destination: Database, start: Any, truck: str
) -> None:
    """Unless its rows would be made in another way."""
    database.execute(
        *CREATION,
        "insert into item select -i, 'm' || i, i, 'shown', false, repeat('x', 500) from generate_series(1, 16000) i",
        "insert into doc select -i, i, false, repeat('x', 500) from generate_series(1, 16000) i",
    )
    project.config["copy"] = {"auto_bytes": 65536}
    project.connect(postgres("replica", destination))
    make_trucks(project, "replica", truck, copy="exported")
    trucker = start(failpoints=f"worker.stage.after=hang@3:{project.folder / 'go'}")
    wait_until(lambda: list(project.folder.glob("go.*")), 300)
    trucker.kill_tree()
    assert 0 < destination.query(f"select count(*) from {truck}")[0][0] < 20_000
    change(database, random.Random(chosen_seed()), 30)
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert "interrupted copy continues" in trucker.output()
    assert wrong(database, destination, truck) == []
