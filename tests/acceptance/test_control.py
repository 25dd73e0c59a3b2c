"""A running project is controlled by commands: pause, resume, reload, stop; and takes up tables that begin to match."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.load import changing
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase

Start = Callable[..., TruckerProcess]

TO_REPLICA = {"connection": "replica"}


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    for table in ("orders", "items", "later"):
        database.execute(
            f"create table {table} (id bigint generated always as identity primary key, note text)",
            f"insert into {table} (note) select 'n' || i from generate_series(1, 100) i",
        )
    project.connect(postgres("replica", destination))
    return project.truck("orders", ["public.orders"], TO_REPLICA).truck("items", ["public.items"], TO_REPLICA)


def writing(database: Database, *tables: str) -> AbstractContextManager[None]:
    """Rows are inserted into and updated in the tables all the while."""
    statements = [
        statement
        for table in tables
        for statement in (
            f"insert into {table} (note) values ('w')",
            f"update {table} set note = note || '.' where id % 50 = 1",
        )
    ]
    return changing(database, *statements, pause=0.005)


def command(shop: ProjectFolder, *arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON, with this exit code."""
    ended = run_cli(*arguments, "--json")
    assert ended.returncode == code, (ended.stdout, ended.stderr)
    return json.loads(ended.stdout)


def refused(*arguments: str, code: str, exit_code: int = 1) -> str:
    """The error of a command that changes nothing."""
    ended = run_cli(*arguments)
    assert ended.returncode == exit_code, (ended.stdout, ended.stderr)
    assert ended.stderr.startswith(f"error: [{code}]"), ended.stderr
    assert "\nnext: " in ended.stderr
    return ended.stderr


def phases(shop: ProjectFolder) -> dict[str, str]:
    return {truck["name"]: truck["phase"] for truck in command(shop, "status", str(shop.folder))["trucks"]}


def reload(shop: ProjectFolder, *options: str, code: int = 0) -> Any:
    return command(shop, "reload", str(shop.folder), *options, code=code)


def test_a_paused_truck_applies_nothing_over_restarts_until_it_is_resumed(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    folder = str(shop.folder)
    trucker = start()
    trucker.wait_streaming(120)
    (paused,) = command(shop, "pause", "orders", "-p", folder)
    assert (paused["paused"], paused["changed"], paused["running"], paused["busy"]) == (True, True, True, False)
    assert phases(shop) == {"orders": "paused", "items": "streaming"}
    before = destination.query("select * from orders order by id")
    database.execute("insert into orders (note) values ('x')", "insert into items (note) values ('y')")
    wait_until(lambda: same(database, destination, "items"))
    assert destination.query("select * from orders order by id") == before
    (again,) = command(shop, "pause", "orders", "-p", folder)
    assert (again["changed"], again["position"]) == (False, paused["position"])
    assert again["kept_bytes"] > 0
    assert "paused" in run_cli("status", folder).stdout
    refused("pause", "nothing", "-p", folder, code="TRK618")

    trucker.kill_tree()
    assert (shop.state / "control.sock").exists()
    assert command(shop, "status", folder, code=6)["trucks"][0]["phase"] in ("paused", "stopped")
    refused("stop", folder, code="TRK611")
    refused("reload", folder, code="TRK611")
    (offline,) = command(shop, "pause", "items", "-p", folder)
    assert (offline["changed"], offline["running"]) == (True, False)
    database.execute("insert into items (note) values ('z')")
    trucker = start()
    trucker.wait_phase(TruckPhase.PAUSED, "orders", 120)
    trucker.wait_phase(TruckPhase.PAUSED, "items")
    command(shop, "resume", "items", "-p", folder)
    wait_until(lambda: same(database, destination, "items"))
    assert destination.query("select * from orders order by id") == before
    command(shop, "resume", "orders", "-p", folder)
    wait_until(lambda: same(database, destination, "orders"))
    trucker.wait_streaming()

    command(shop, "pause", "orders", "items", "-p", folder)
    ended = command(shop, "stop", folder)
    assert (ended["pid"], ended["ended"]) == (trucker.process.pid, True)
    assert trucker.process.wait(60) == 0, trucker.output()
    assert not (shop.state / "control.sock").exists()
    assert phases(shop) == {"orders": "paused", "items": "paused"}
    command(shop, "resume", "orders", "items", "-p", folder)
    assert phases(shop) == {"orders": "stopped", "items": "stopped"}


def test_reload_takes_up_what_changed_under_load(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    """And refuses as a whole what it cannot take up; no row is lost or doubled."""
    folder = str(shop.folder)
    trucker = start()
    trucker.wait_streaming(120)
    with writing(database, "orders", "items", "later"):
        assert reload(shop)["sources"] == []
        shop.truck("later", ["public.later"], TO_REPLICA)
        added = reload(shop)
        assert (added["added"], added["refused"], added["sources"]) == (["later"], False, ["source"])
        trucker.wait_phase(TruckPhase.STREAMING, "later")

        wrong = shop.folder / "trucks" / "items" / "truck.yml"
        good = wrong.read_text()
        wrong.write_text(good.replace("public.items", "public.nothing"))
        findings = reload(shop, code=1)
        assert findings["refused"]
        assert "TRK" in "".join(finding["code"] for finding in findings["findings"])
        wrong.write_text("input: [")
        refused("reload", folder, code="TRK102", exit_code=2)
        wrong.write_text(good)

        # Several at once: one goes, one has another option, one has a rule.
        shutil.rmtree(shop.folder / "trucks" / "later")
        shop.sql("items", {}, on_error="dead_letter")
        shop.sql("orders", {}, rules=[{"mask": {"column": "note", "keep_first": 1}}])
        shop.config["heartbeat"] = 2
        shop.save()
        assert "heartbeat" in refused("reload", folder, code="TRK612")
        shop.config["heartbeat"] = 1
        shop.save()
        text = refused("reload", folder, code="TRK613")
        assert "trucker refresh orders" in text
        assert "trucker reload --on-sql-change go-on" in text
        several = reload(shop, "--on-sql-change", "go-on")
        assert (several["removed"], several["changed"], several["new_sql"]) == (
            ["later"],
            ["items", "orders"],
            ["orders"],
        )
        trucker.wait_phase(TruckPhase.STREAMING, "orders")
    wait_until(lambda: same(database, destination, "items"))
    ids = database.query("select id from orders order by id")
    wait_until(lambda: destination.query("select id from orders order by id") == ids)
    assert destination.query("select 1 from orders where note = 'w' and id > 100") != [], "with the old rules"
    database.execute("insert into orders (note) values ('secret')")
    wait_until(lambda: destination.query("select note from orders order by id desc limit 1") == [("s*****",)])
    rows = destination.query("select count(*) from later")
    assert rows < database.query("select count(*) from later"), "the truck was removed, its rows stay"
    # What a restart would do with the truck that comes back: it goes on where it was, if the log has it still.
    assert set(phases(shop)) == {"orders", "items"}
    command(shop, "stop", folder)
    assert trucker.process.wait(60) == 0, trucker.output()
    assert "Traceback" not in trucker.output()


def test_a_table_that_begins_to_match_a_pattern_is_taken_up(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    shutil.rmtree(shop.folder / "trucks" / "orders")
    shop.truck("items", ["public.*", "!public.orders", "!public.later"], TO_REPLICA)
    trucker = start()
    trucker.wait_streaming(120)
    with writing(database, "items"):
        database.execute("create table item_notes (id int, note text)", "insert into item_notes values (1, 'a')")
        wait_until(lambda: "tables that match are not taken up" in trucker.output(), 60)
        database.execute("alter table item_notes add primary key (id)")
        wait_until(lambda: destination.query("select to_regclass('item_notes')") != [(None,)], 90)
        database.execute("insert into item_notes values (2, 'b')")
    wait_until(lambda: same(database, destination, "items", "item_notes"))
    assert trucker.stop() == 0, trucker.output()


def test_damaged_rows_are_refreshed_under_load(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    """By a condition, by keys and as a whole; queued without an instance, or while one runs."""
    folder = str(shop.folder)
    trucker = start()
    trucker.wait_streaming(120)
    assert command(shop, "stop", folder)["ended"]
    destination.execute("update orders set note = 'damaged'", "delete from items where id % 3 = 0")
    (queued,) = command(shop, "refresh", "orders", "-p", folder, "--where", "id <= 100")
    assert (queued["state"], queued["where"]) == ("queued", "id <= 100")
    assert "the next `trucker run` reads them" in queued["reason"]
    keys = shop.folder / "keys.csv"
    keys.write_text("".join(f"{number}\n" for number in (3, 6, 9, 100_000)), encoding="utf-8")
    with writing(database, "orders", "items"):
        trucker = start()
        trucker.wait_streaming(120)
        destination.execute("insert into items values (100000, 'only here')")
        (by_keys,) = command(shop, "refresh", "items", "-p", folder, "--keys", str(keys), "--wait")
        assert (by_keys["state"], by_keys["total"], by_keys["deleted"]) == ("done", 4, 1)
        assert destination.query("select id from items where id in (3, 6, 9, 12, 100000) order by id") == [
            (3,),
            (6,),
            (9,),
        ]
        (whole,) = command(shop, "refresh", "items", "-p", folder, "--wait")
        assert whole["state"] == "done"
        assert {each["state"] for each in command(shop, "refresh", "--list", "-p", folder)} == {"done"}
        refused("refresh", "items", "-p", folder, "--where", "nothing > 1", code="TRK630")
        refused("refresh", "--cancel", "1", "-p", folder, code="TRK633")
    wait_until(lambda: same(database, destination, "orders", "items"))
    assert command(shop, "status", folder)["refreshes"] == []
    assert trucker.stop() == 0, trucker.output()


def test_damage_is_named_and_repaired_under_load(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    """Exit code 0 only if equal; keys of rows that differ as text, as JSON and as a file for `refresh`."""
    folder = str(shop.folder)
    refused("verify", "-p", folder, code="TRK611")
    trucker = start()
    trucker.wait_streaming(120)
    with writing(database, "orders", "items"):
        assert [each["equal"] for each in command(shop, "verify", "-p", folder)] == [True, True]
        destination.execute(
            "delete from orders where id = 3",
            "update orders set note = 'damaged' where id = 5",
            "insert into orders values (100000, 'only here')",
            "delete from items where id = 7",
        )
        ended = run_cli("verify", "orders", "-p", folder)
        assert ended.returncode == 1, ended.stderr
        first, *keys = ended.stdout.splitlines()
        assert "public.orders: 3 rows differ: 1 missing, 1 extra, 1 different" in first
        assert keys == ["  missing: 3", "  extra: 100000", "  different: 5"]
        file = shop.folder / "keys.csv"
        (items,) = command(shop, "verify", "items", "-p", folder, "--table", "items", "--keys", str(file), code=1)
        assert (items["missing"], items["differing"], items["equal"]) == ([["7"]], 1, False)
        assert file.read_text(encoding="utf-8") == "7\n"
        command(shop, "refresh", "items", "-p", folder, "--keys", str(file), "--wait")
        orders = command(shop, "verify", "-p", folder, "--repair")[1]
        assert (orders["truck"], orders["equal"], orders["repaired"]) == ("orders", True, 3)
        assert "equal; " in run_cli("verify", "items", "-p", folder).stdout
        refused("verify", "orders", "-p", folder, "--table", "public.other", code="TRK640")
        refused("verify", "--table", "public.orders", "-p", folder, code="TRK100", exit_code=2)
    wait_until(lambda: same(database, destination, "orders", "items"))
    assert trucker.stop() == 0, trucker.output()
