"""What `trucker check` says of a truck's SQL: mistakes by file, line and nearest name; old values that never come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.source_rows import schema_of
from trucker.change import TableId
from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import SqlFile
from trucker.errors import CheckFailed
from trucker.finding import Level
from trucker.postgres.catalog import load_table
from trucker.postgres.connect import connect
from trucker.postgres.source_query import check_input, check_old_values
from trucker.project import Project


def truck(files: dict[str, str], **more: Any) -> TruckConfig:
    values = {"input": {"connection": "source", "table": "t"}, "output": {"connection": "out"}, **more}
    read = tuple(SqlFile(name, f"trucks/t/{name}", text) for name, text in files.items())
    return TruckConfig.model_validate({**values, "name": "t", "folder": Path("trucks/t"), "files": read})


def test_each_table_is_prepared_and_a_mistake_is_reported_once(database: Database) -> None:
    database.execute("create table a (id int primary key, name text)", "create table b (id int primary key, name text)")
    tables = [schema_of(database.connection, TableId("public", name)) for name in "ab"]
    (fine,) = check_input(database.connection, truck({"input.sql": "select * from {{ rows }}"}), tables)
    assert (fine.level, fine.message) == (Level.OK, "trucks/t/input.sql can run for 2 tables")
    (wrong,) = check_input(database.connection, truck({"input.sql": "select r.id,\n r.nmae from {{ rows }}"}), tables)
    assert (wrong.level, wrong.code, wrong.subject) == (Level.ERROR, "TRK132", "truck t")
    assert wrong.message == "trucks/t/input.sql:2:2: column r.nmae does not exist"
    assert "r.name" in wrong.remedy
    assert check_input(database.connection, truck({}), tables) == []


def test_positions_are_columns_where_every_change_is_kept(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    tables = [schema_of(database.connection, TableId("public", "t"))]
    files = {"input.sql": "select id, xid, operation from {{ rows }}"}
    assert check_input(database.connection, truck(files, compact="none"), tables)[0].level is Level.OK
    assert check_input(database.connection, truck(files), tables)[0].level is Level.ERROR


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("select {{ old.id }} from {{ rows }}", None),
        ("select r.* from {{ rows }}", None),
        ("select {{ old.amount }} from {{ rows }}", "amount"),
        ("select r.old__amount from {{ rows }}", "amount"),
        ("select {{ old | join(', ') }} from {{ rows }}", "amount"),
        ("select r.old__other from {{ rows }}", None),
    ],
)
def test_old_values_must_come_from_the_source(database: Database, text: str, lacking: str | None) -> None:
    """The statement that mends it is told, for every partition that needs it, and mends it (I11)."""
    database.execute(
        "create table t (id int, amount int, primary key (id)) partition by hash (id)",
        "create table t1 partition of t for values with (modulus 2, remainder 0)",
        "create table t2 partition of t for values with (modulus 2, remainder 1)",
        "alter table t1 replica identity full",
    )
    configured = truck({"transform.sql": text})
    with connect(database.connection, application="test") as connection:
        findings = list(check_old_values(configured, [load_table(connection, TableId("public", "t"))]))
    if lacking is None:
        assert findings == []
        return
    (found,) = findings
    assert (found.level, found.code) == (Level.ERROR, "TRK135")
    assert f"trucks/t/transform.sql uses the old value of {lacking}" in found.message
    assert found.remedy.startswith('run: ALTER TABLE "public"."t2" REPLICA IDENTITY FULL')
    database.execute(*found.remedy.removeprefix("run: ").split("; "))
    with connect(database.connection, application="test") as connection:
        assert list(check_old_values(configured, [load_table(connection, TableId("public", "t"))])) == []


def test_a_rules_name_is_the_tables_column(database: Database) -> None:
    database.execute("create table t (id int primary key, amount int)")
    configured = truck({"output.sql": "select {{ old.total }} from {{ rows }}"})
    with connect(database.connection, application="test") as connection:
        table = load_table(connection, TableId("public", "t"))
    assert list(check_old_values(configured, [table])) == []
    assert list(check_old_values(configured, [table], {"id": "id"})) == []
    (found,) = check_old_values(configured, [table], {"total": "amount"})
    assert "the old value of amount" in found.message


def test_check_and_run_refuse_it(database: Database, tmp_path: Path) -> None:
    database.execute("create table item (id int primary key, amount int)")
    config = database.connection
    (tmp_path / "trucker.yml").write_text(
        f"connections:\n  - name: source\n    host: {config.host}\n    port: {config.port}\n"
        f"    database: {config.database}\n    user: {config.user}\n    pass: {config.password.get_secret_value()}\n"
        "  - {name: out, adapter: jsonl, path: out}\n"
    )
    folder = tmp_path / "trucks" / "sums"
    folder.mkdir(parents=True)
    (folder / "truck.yml").write_text("input: {connection: source, table: item}\noutput: {connection: out}\n")
    (folder / "input.sql").write_text("select r.id,\n  r.amount - r.old__amont as x\nfrom {{ rows }}\n")
    project = Project.load(tmp_path)
    found = [finding for finding in project.check() if finding.level is Level.ERROR]
    assert [finding.code for finding in found] == ["TRK132"]
    assert found[0].message.startswith("trucks/sums/input.sql:2:14: column r.old__amont does not exist")
    truck_file = (
        "input: {connection: source, table: item}\noutput: {connection: out}\nrules: [{rename: {amount: sum}}]\n"
    )
    (folder / "truck.yml").write_text(truck_file)
    (folder / "input.sql").write_text("select r.id, r.sum - r.old__sum as x from {{ rows }}\n")
    with pytest.raises(CheckFailed, match="uses the old value of amount") as caught:
        Project.load(tmp_path).run(once=True)
    assert caught.value.remedy == 'run: ALTER TABLE "public"."item" REPLICA IDENTITY FULL'
