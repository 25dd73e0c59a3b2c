"""Rules held against the tables before anything runs (I11): what is refused, what is warned about, where rows go."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
import yaml

from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres
from trucker.change import TableId
from trucker.engine.truck.resolve import resolve_source
from trucker.errors import CheckFailed
from trucker.finding import Finding, Level
from trucker.project import Project
from trucker.source.factory import make_source

USERS = "create table users (id int primary key, email text, age int, born date)"
PARTS = (
    "create table parts (id int, day date, n int, word text, primary key (id, day)) partition by range (day)",
    "create table parts_1 partition of parts for values from ('2020-01-01') to ('2020-07-01')",
    "alter table parts_1 replica identity full",
    "create table parts_2 partition of parts for values from ('2020-07-01') to ('2021-01-01')",
)


def ruled(project: ProjectFolder, tables: Any, *rules: dict[str, Any], **output: Any) -> list[Finding]:
    """What check has to say that is not fine, of a truck with these rules."""
    given = {"table": tables} if isinstance(tables, str) else {"tables": tables}
    content = {
        "input": {"connection": "source", **given},
        "output": {"connection": "lake", **output},
        "rules": list(rules),
    }
    folder = project.folder / "trucks" / "ruled"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "truck.yml").write_text(yaml.safe_dump(content))
    found = Project.load(project.folder).check()
    return [finding for finding in found if finding.level is not Level.OK]


@pytest.fixture
def shop(project: ProjectFolder, database: Database) -> ProjectFolder:
    database.execute(USERS, "create table notes (id int primary key, n int, b bigint)", *PARTS)
    return project.connect({"name": "lake", "adapter": "duckdb", "path": "lake.duckdb"})


def test_a_filter_needs_the_values_that_are_not_sent(shop: ProjectFolder, database: Database) -> None:
    """I7, I11: with the exact statement, and nothing is made."""
    rule = {"filter": {"column": "age", "gt": 3}}
    (found,) = ruled(shop, "public.users", rule)
    assert (found.level, found.code) == (Level.ERROR, "TRK216")
    assert "email" in found.message
    assert 'run: ALTER TABLE "public"."users" REPLICA IDENTITY FULL' in found.remedy
    with pytest.raises(CheckFailed) as refused:
        Project.load(shop.folder).run(once=True)
    assert refused.value.code == "TRK216"
    assert database.query("select count(*) from pg_publication") == [(0,)]

    assert ruled(shop, "public.users", rule, {"exclude": "email"}) == []
    assert ruled(shop, "public.users", {**rule, "operations": "insert"}) == []
    assert ruled(shop, "public.notes", {"filter": {"column": "n", "gt": 3}}) == []
    (found,) = ruled(shop, "public.notes", {"filter": {"column": "n", "gt": 3}, "operations": "delete"})
    assert found.code == "TRK216"
    assert ruled(shop, "public.notes", {"filter": {"column": "id", "gt": 3}, "operations": "delete"}) == []

    (found,) = ruled(shop, "public.parts", {"filter": {"column": "n", "gt": 3}})
    assert '"public"."parts_2" REPLICA IDENTITY FULL' in found.remedy
    assert '"public"."parts_1"' not in found.remedy

    database.execute("alter table users replica identity full")
    assert ruled(shop, "public.users", rule) == []


def test_rules_that_do_nothing_are_refused(shop: ProjectFolder) -> None:
    """I10: a misspelt name must not leave a column unmasked."""
    (found,) = ruled(shop, "public.users", {"mask": {"columns": ["email", "emial"]}})
    assert (found.level, found.code) == (Level.ERROR, "TRK140")
    assert "truck.yml" in found.message
    assert "did you mean email?" in found.remedy
    many = ["public.users", "public.notes"]
    assert ruled(shop, many, {"mask": {"column": "email"}}) == []
    for rule, message in (
        ({"mask": {"column": "phone"}}, "has no column phone"),
        ({"mask": {"column": "email"}, "tables": ["notes"]}, "public.notes has no column email"),
        ({"mask": {"column": "email"}, "tables": "shop.*"}, "reads no table that this rule applies to"),
        ({"route": {"table": "public.nobody", "to": "a.b"}}, "reads no table that this rule applies to"),
        ({"filter": {"column": "born", "is_null": "true"}}, "public.notes has no column born"),
        ({"filter": {"column": "n", "eq": "x"}, "tables": "notes"}, "this is not an integer"),
        ({"exclude": "id"}, "is part of the key"),
    ):
        found = ruled(shop, many, rule)[0]
        assert found.level is Level.ERROR
        assert message in found.message, found
        assert "truck.yml:" in found.message


def test_keys_that_may_become_equal_are_warned_about(
    shop: ProjectFolder, destination: Database, project: ProjectFolder
) -> None:
    (found,) = ruled(shop, "public.notes", {"mask": {"column": "id", "keep_last": 1}}, {"rename": {"id": "key"}})
    assert (found.level, found.code) == (Level.WARNING, "TRK145")
    assert "key (mask)" in found.message
    assert ruled(shop, "public.notes", {"hash": {"column": "id", "key": "secret"}}) == []

    with duckdb.connect(str(project.folder / "lake.duckdb")) as lake:
        lake.execute("create schema public")
        lake.execute("create table public.users (id int, email text, unique (email))")
    (found,) = ruled(shop, "public.users", {"regex": {"column": "email", "pattern": "@.*", "replacement": ""}})
    assert (found.level, found.code) == (Level.WARNING, "TRK145")
    assert "email (regex)" in found.message

    destination.execute("create table people (id int primary key, email text)", "create unique index on people (email)")
    shop.connect(postgres("there", destination))
    (found,) = ruled(shop, "public.users", {"mask": {"column": "email"}}, connection="there", table="people")
    assert found.code == "TRK145"
    assert ruled(shop, "public.users", {"mask": {"column": "email"}}, connection="there", table="others") == []


def test_routes_and_written_columns(shop: ProjectFolder, database: Database) -> None:
    rules = [
        {"route": {"table": "public.notes", "to": "archive.old_notes"}},
        {"route": {"to": "copies.*"}, "tables": "public.*"},
    ]
    assert ruled(shop, ["public.users", "public.notes"], *rules, schema="elsewhere") == []
    config = Project.load(shop.folder).config
    source = make_source(config.connection("source"), config.unique_id)
    with source.session("test") as session:
        (truck,) = resolve_source(config, source, session).trucks
    outputs = {name.name: table.output for name, table in truck.tables.items()}
    assert outputs == {"users": TableId("copies", "users"), "notes": TableId("archive", "old_notes")}

    written = {"columns": {"mail": {"unfit": "text"}}}
    assert ruled(shop, "public.users", {"rename": {"email": "mail"}}, **written) == []
    (found,) = ruled(shop, "public.users", {"rename": {"email": "mails"}}, **written)
    assert "output.columns has mail" in found.message
    (found,) = ruled(shop, "public.users", {"rename": {"id": "key"}}, columns={"key": {"unfit": "null"}})
    assert "column key is part of the key" in found.message
