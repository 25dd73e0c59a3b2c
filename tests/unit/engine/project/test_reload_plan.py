"""What a reload takes up of changed files, and what it refuses as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trucker.config.project_folder import load_project
from trucker.engine.project.reload_plan import ReloadPlan, plan_reload, truck_texts
from trucker.errors import ConfigError, ControlError


class Files:
    """A project's files, and what the running instance was started with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {
            "unique_id": "shop",
            "connections": [
                {"name": "main", "adapter": "postgres", "user": "u", "pass": "secret-1"},
                {"name": "spare", "adapter": "postgres", "database": "spare"},
                {"name": "out", "adapter": "stdout"},
            ],
        }
        folder.mkdir()
        self.save()
        for name in ("orders", "items"):
            self.truck(name)
        self.truck("far", connection="spare")
        self.config = load_project(folder)
        self.texts = truck_texts(self.config)

    def save(self) -> None:
        (self.folder / "trucker.yml").write_text(yaml.safe_dump(self.settings))

    def truck(self, name: str, connection: str = "main", **more: Any) -> None:
        folder = self.folder / "trucks" / name
        folder.mkdir(parents=True, exist_ok=True)
        content = {"input": {"connection": connection, "table": f"public.{name}"}, "output": {"connection": "out"}}
        (folder / "truck.yml").write_text(yaml.safe_dump({**content, **more}))

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / "trucks" / name)

    def plan(self, *, only: str | None = None, go_on: bool = False) -> ReloadPlan:
        return plan_reload(self.config, self.texts, load_project(self.folder), only=only, go_on=go_on)

    def refused(self, **options: Any) -> ControlError:
        with pytest.raises(ControlError) as raised:
            self.plan(**options)
        return raised.value


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "shop")


def test_files_that_have_not_changed_are_no_reload(files: Files) -> None:
    plan = files.plan()
    assert (plan.added, plan.removed, plan.changed, plan.sources) == ((), (), (), frozenset())


def test_the_place_that_the_files_are_read_from_is_no_change(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.truck("orders", rules=[{"mask": {"column": "note"}}])
    files.config, files.texts = load_project(files.folder), truck_texts(load_project(files.folder))
    monkeypatch.chdir(tmp_path)
    plan = plan_reload(files.config, files.texts, load_project(Path("shop")), only=None, go_on=False)
    assert plan.changed == ()


def test_only_the_sources_of_what_changed_are_concerned(files: Files) -> None:
    files.truck("later", connection="spare")
    assert files.plan().sources == {"spare"}
    files.remove("far")
    plan = files.plan()
    assert (plan.added, plan.removed, plan.sources) == (("later",), ("far",), {"spare"})
    files.truck("items", on_truncate="ignore")
    plan = files.plan()
    assert (plan.changed, plan.new_sql, plan.sources) == (("items",), (), {"main", "spare"})


def test_a_truck_that_goes_to_another_source_concerns_both(files: Files) -> None:
    files.truck("items", connection="spare")
    assert files.plan().sources == {"main", "spare"}


def test_one_truck_alone(files: Files) -> None:
    files.truck("later")
    files.truck("items", on_truncate="ignore")
    files.remove("far")
    plan = files.plan(only="later")
    assert (plan.added, plan.removed, plan.changed) == (("later",), (), ())
    assert [truck.name for truck in plan.config.trucks] == ["far", "items", "later", "orders"]
    assert plan.config.trucks[1].on_truncate == "stop", "the other trucks are as they are"
    assert files.plan(only="far").removed == ("far",)
    with pytest.raises(ConfigError, match="no truck 'nix'"):
        files.plan(only="nix")


Edit = Callable[[Files], object]


@pytest.mark.parametrize(
    "edit",
    [
        lambda files: files.truck("items", rules=[{"mask": {"column": "note"}}]),
        lambda files: (files.folder / "trucks" / "items" / "input.sql").write_text("select * from {{ rows }} r"),
        lambda files: (files.folder / "trucks" / "items" / "functions.py").write_text("def f(): ..."),
    ],
    ids=["rules", "sql", "functions"],
)
def test_other_sql_is_asked_about(files: Files, edit: Edit) -> None:
    edit(files)
    error = files.refused()
    assert error.code == "TRK613"
    assert "truck items" in error.message
    assert "trucker reload --on-sql-change go-on" in error.remedy
    assert "trucker refresh items" in error.remedy
    assert "--truck items --on-sql-change go-on" in files.refused(only="items").remedy
    plan = files.plan(go_on=True)
    assert (plan.changed, plan.new_sql) == (("items",), ("items",))
    assert files.plan(only="orders").changed == ()


def test_what_only_a_restart_takes_up_is_named_without_its_values(files: Files) -> None:
    files.settings |= {"heartbeat": 3, "spark": {"master": "local[1]"}, "log": {"keep": "1h"}}
    files.settings["connections"][0] |= {"pass": "secret-2", "port": 5433}
    files.save()
    error = files.refused()
    assert error.code == "TRK612"
    for name in ("heartbeat", "spark", "log", "connection main (", "pass", "port"):
        assert name in error.message
    assert "secret" not in str(error)
    assert "restart" in error.remedy


def test_a_new_connection_is_taken_up_and_one_that_is_gone_is_not_missed(files: Files) -> None:
    files.settings["connections"].append({"name": "extra", "adapter": "postgres", "database": "extra"})
    files.save()
    files.truck("later", connection="extra")
    assert files.plan().sources == {"extra"}
    del files.settings["connections"][1], files.settings["connections"][-1]
    files.save()
    files.remove("far")
    files.remove("later")
    assert files.plan().sources == {"spare"}


def test_the_first_sql_for_spark_needs_a_restart(files: Files) -> None:
    """The application was started without a session for it."""
    files.truck("later")
    (files.folder / "trucks" / "later" / "transform.sql").write_text("select * from {{ rows }} r")
    error = files.refused()
    assert error.code == "TRK612"
    assert "SQL for Spark" in error.message
