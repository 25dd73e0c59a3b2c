"""A project built in code: what its values become, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from trucker import ConfigError, Pipeline, Project
from trucker.adapters.duckdb import DuckDBConnection
from trucker.adapters.postgres import PostgresConnection, Ssl
from trucker.config.models import InputConfig, OutputConfig
from trucker.config.problems import ConfigErrors
from trucker.config.project_folder import load_project

SHOP: Mapping[str, object] = {"name": "shop", "host": "db.example.com", "pass": "secret"}
WAREHOUSE: Mapping[str, object] = {"name": "warehouse", "adapter": "duckdb", "path": "warehouse.duckdb"}
ORDERS: Mapping[str, object] = {
    "name": "orders",
    "input": {"connection": "shop", "table": "public.orders"},
    "output": {"connection": "warehouse"},
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def build(**changes: Any) -> Project:
    arguments: dict[str, Any] = {"connections": [SHOP, WAREHOUSE], "trucks": [ORDERS], "state": "state", **changes}
    return Project.build(name="sales", **arguments)


def pipeline(**changes: Any) -> Pipeline:
    arguments: dict[str, Any] = {
        "source": {"host": "db.example.com"},
        "sink": {"adapter": "duckdb", "path": "warehouse.duckdb"},
        "tables": ["public.*"],
        "state": "state",
        **changes,
    }
    return Pipeline(arguments.pop("source"), arguments.pop("sink"), name="sales", **arguments)


def mistakes(make: Any, **changes: Any) -> list[tuple[str, str, str]]:
    """Code, message with its place, and remedy of all that is wrong."""
    with pytest.raises(ConfigError) as caught:
        make(**changes)
    errors = caught.value.errors if isinstance(caught.value, ConfigErrors) else (caught.value,)
    return [(error.code, error.message, error.remedy) for error in errors]


# -- what values become -----------------------------------------------------------------------------------------------


def test_a_built_project_is_the_one_that_the_files_describe(tmp_path: Path) -> None:
    sql = "select r.id, r.note from {{ rows }}"
    rules = [{"mask": {"column": "email", "keep_first": 1}}]
    folder = tmp_path / "sales"
    (folder / "trucks" / "orders").mkdir(parents=True)
    (folder / "trucker.yml").write_text(
        "connections:\n  - {name: shop, host: db.example.com, pass: secret}\n"
        "  - {name: warehouse, adapter: duckdb, path: ../warehouse.duckdb}\n"
        "state: ../state\nheartbeat: 3s\nlog: {keep: 1h}\n"
    )
    (folder / "trucks" / "orders" / "truck.yml").write_text(
        "input: {connection: shop, table: public.orders}\noutput: {connection: warehouse}\n"
        "on_error: dead_letter\nrules:\n  - mask: {column: email, keep_first: 1}\n"
    )
    (folder / "trucks" / "orders" / "input.sql").write_text(sql)
    loaded = load_project(folder)
    truck = {**ORDERS, "on_error": "dead_letter", "rules": rules, "sql": {"input.sql": sql}}
    built = build(trucks=[truck], heartbeat="3s", log={"keep": "1h"}).config

    ours, theirs = built.trucks[0], loaded.trucks[0]
    assert built.unique_id == loaded.unique_id == "sales"
    assert built.state_folder == loaded.state_folder.resolve() == tmp_path / "state"
    assert (built.heartbeat, built.log) == (loaded.heartbeat, loaded.log)
    assert built.connection("shop") == loaded.connection("shop")
    apart = {"folder", "files"}
    assert ours.model_dump(exclude=apart) == theirs.model_dump(exclude=apart)
    assert [(file.name, file.text) for file in ours.files] == [(file.name, file.text) for file in theirs.files]
    assert ours.folder is None


def test_relative_paths_are_seen_from_the_working_folder_and_stay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = build()
    monkeypatch.chdir("/")
    assert project.config.state_folder == tmp_path / "state"
    warehouse = project.config.connection("warehouse")
    assert isinstance(warehouse, DuckDBConnection)
    assert warehouse.path == tmp_path / "warehouse.duckdb"


def test_nothing_is_written(tmp_path: Path) -> None:
    build()
    pipeline()
    assert list(tmp_path.iterdir()) == []


def test_models_are_taken_for_mappings(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    shop = PostgresConnection(
        name="shop", url=SecretStr("postgresql://me:secret@h/d"), ssl=Ssl(mode="verify-ca", certificate=Path("ca.pem"))
    )
    warehouse = DuckDBConnection(name="warehouse", adapter="duckdb", path=Path("w.duckdb"))
    truck = {
        "name": "orders",
        "input": InputConfig(connection="shop", table="public.orders"),
        "output": OutputConfig(connection="warehouse", schema_="copies"),
    }
    config = build(connections=[shop, warehouse], trucks=[truck]).config
    source = config.connection("shop")
    assert isinstance(source, PostgresConnection)
    assert (source.user, source.host, source.password.get_secret_value()) == ("me", "h", "secret")
    assert source.ssl.certificate == tmp_path / "ca.pem"
    assert config.trucks[0].input.tables == ("public.orders",)
    assert config.trucks[0].output.schema_ == "copies"


def test_a_value_is_no_template_and_sql_is_one() -> None:
    password = "{{ env('X') }}"
    truck = {**ORDERS, "sql": {"input.sql": "select * from {{ rows }} where note <> '{{ env('X', 'none') }}'"}}
    project = build(connections=[{**SHOP, "pass": password}, WAREHOUSE], trucks=[truck])
    source = project.config.connection("shop")
    assert isinstance(source, PostgresConnection)
    assert source.password.get_secret_value() == password
    assert mistakes(build, trucks=[{**ORDERS, "sql": {"input.sql": "select {{ row }}"}}])[0][0] == "TRK103"


def test_a_secret_can_be_in_a_file_that_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("old\n")
    shop = {"name": "shop", "pass_path": Path("password")}
    source = build(connections=[shop, WAREHOUSE]).config.connection("shop")
    file.write_text("new\n")
    assert isinstance(source, PostgresConnection)
    assert source.password.get_secret_value() == "old"
    assert source.refreshed().password.get_secret_value() == "new"


def test_a_pipeline_is_a_project_with_one_truck() -> None:
    config = pipeline(
        input={"where": "id > 0"},
        output={"schema": "copies"},
        rules=[{"exclude": ["email"]}],
        sql={"input.sql": "select * from {{ rows }}"},
        batch="transaction",
        project={"batch": {"max_bytes": "1 MiB"}},
    ).config
    (truck,) = config.trucks
    assert (config.unique_id, truck.name) == ("sales", "sales")
    assert (truck.input.connection, truck.input.tables, truck.input.where) == ("source", ("public.*",), "id > 0")
    assert (truck.output.connection, truck.output.schema_, truck.batch) == ("sink", "copies", "transaction")
    assert config.batch.max_bytes == 1024 * 1024
    assert [file.name for file in truck.files] == ["input.sql"]


def test_the_connections_of_a_pipeline_may_have_names() -> None:
    config = pipeline(
        source={"name": "shop"}, sink=DuckDBConnection(name="copy", adapter="duckdb", path=Path("c"))
    ).config
    assert [connection.name for connection in config.connections] == ["shop", "copy"]
    assert (config.trucks[0].input.connection, config.trucks[0].output.connection) == ("shop", "copy")


def test_a_project_that_never_ran_has_a_status() -> None:
    status = pipeline().status()
    assert [(truck.name, truck.phase.value) for truck in status.trucks] == [("sales", "stopped")]


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "message", "remedy"),
    [
        ({"connections": [{**SHOP, "port": "many"}, WAREHOUSE]}, "TRK105", 'connections[0].port: "port" must be a', ""),
        (
            {"connections": [{**SHOP, "port": None}, WAREHOUSE]},
            "TRK105",
            'connections[0].port: "port" has no value',
            "",
        ),
        (
            {"connections": [{**SHOP, "hots": "h"}, WAREHOUSE]},
            "TRK104",
            'connections[0].hots: unknown key "hots"',
            'did you mean "host"?',
        ),
        (
            {"connections": [{**SHOP, "ssl": {"mod": 1}}, WAREHOUSE]},
            "TRK104",
            "connections[0].ssl.mod: unknown",
            "mode",
        ),
        ({"connections": [SHOP, {"name": "warehouse", "adapter": "duckdb"}]}, "TRK106", "connections[1]: ", "add path"),
        ({"connections": [SHOP, {**WAREHOUSE, "adapter": "duck"}]}, "TRK105", "connections[1].adapter: ", "duckdb"),
        (
            {"connections": [SHOP, {**SHOP, "name": "Shop"}, WAREHOUSE]},
            "TRK108",
            "connections[1].name: ",
            "connections[0]",
        ),
        ({"connections": ["shop"]}, "TRK105", "connections[0]: a connection must contain keys", ""),
        ({"connections": []}, "TRK105", "connections: ", ""),
        ({"connections": [{**SHOP, "pass_path": "x"}, WAREHOUSE]}, "TRK105", "connections[0].pass_path: the conn", ""),
        ({"connections": [{"name": "shop", "pass_path": 3}, WAREHOUSE]}, "TRK105", 'connections[0].pass_path: "p', ""),
        ({"trucks": []}, "TRK111", "trucks: the project has no truck", "list at least one"),
        ({"trucks": ["orders"]}, "TRK106", 'trucks[0]: "name" is missing', ""),
        ({"trucks": [{**ORDERS, "name": "a/b"}]}, "TRK105", "trucks[0].name: the truck's name", "63"),
        ({"trucks": [ORDERS, {**ORDERS, "name": "Orders"}]}, "TRK108", "trucks[1]: another truck", "trucks[0]"),
        ({"trucks": [{**ORDERS, "on_eror": "stop"}]}, "TRK104", "trucks[0].on_eror: unknown key", "on_error"),
        ({"trucks": [{**ORDERS, "folder": "x"}]}, "TRK104", 'trucks[0].folder: unknown key "folder"', ""),
        (
            {"trucks": [{**ORDERS, "input": {"connection": "shop", "tables": ["a", "b.c.d"]}}]},
            "TRK105",
            "trucks[0].input.tables[1]: ",
            "write schema.table",
        ),
        (
            {"trucks": [{**ORDERS, "output": {"connection": "warehous"}}]},
            "TRK107",
            'trucks[0].output.connection: there is no connection "warehous"',
            'did you mean "warehouse"?',
        ),
        ({"trucks": [{**ORDERS, "rules": [{"mask": {}}]}]}, "TRK105", "trucks[0].rules[0]", ""),
        (
            {"trucks": [{**ORDERS, "sql": {"inputs.sql": ""}}]},
            "TRK104",
            "trucks[0].sql.inputs.sql: unknown",
            "input.sql",
        ),
        ({"trucks": [{**ORDERS, "sql": {"input.sql": 3}}]}, "TRK105", "trucks[0].sql.input.sql: the SQL must be", ""),
        ({"trucks": [{**ORDERS, "sql": "select 1"}]}, "TRK105", 'trucks[0].sql: "sql" must be a mapping', "input.sql"),
        ({"trucks": [{**ORDERS, "sql": {"input.sql": "select {{ }}"}}]}, "TRK103", "orders/input.sql:1:", ""),
        ({"trucks": [{**ORDERS, "functions": [lambda: 1]}]}, "TRK105", "trucks[0].functions[0]: this is not", "def"),
        ({"trucks": [{**ORDERS, "functions": len}]}, "TRK105", 'trucks[0].functions: "functions" must be', "list"),
        ({"heartbeet": 3}, "TRK104", 'heartbeet: unknown key "heartbeet"', "heartbeat"),
        ({"log": {"keep": "long"}}, "TRK105", "log.keep: this is not a duration", "30s"),
        ({"unique_id": "x"}, "TRK104", 'unique_id: "unique_id" is not a setting here', "the argument name"),
        ({"retry": 3}, "TRK105", 'retry: "retry" must contain keys and values', ""),
    ],
)
def test_what_is_wrong_is_named_by_its_key(changes: Any, code: str, message: str, remedy: str) -> None:
    first = mistakes(build, **changes)[0]
    assert first[0] == code
    assert first[1].startswith(message)
    assert remedy in first[2]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"source": {"port": 0}}, "TRK105", 'source.port: "port" must be at least 1'),
        ({"source": "postgresql://h/d"}, "TRK105", "source: a connection must contain keys"),
        ({"source": {"adapter": "duckdb", "path": "x"}}, "TRK109", 'source.name: "source" is a duckdb connection'),
        ({"sink": {"adapter": "duckdb"}}, "TRK106", 'sink: "path" is missing'),
        ({"sink": {"adapter": "stdout", "name": "Source"}}, "TRK108", "sink.name: another connection"),
        ({"tables": ["public.*", "a.b.c"]}, "TRK105", "tables[1]: "),
        ({"tables": []}, "TRK105", "tables: "),
        ({"input": {"wher": "x"}}, "TRK104", 'input.wher: unknown key "wher"'),
        ({"input": 3}, "TRK105", 'input: "input" must contain keys and values'),
        ({"output": {"connection": "other"}}, "TRK107", 'output.connection: there is no connection "other"'),
        ({"on_eror": "stop"}, "TRK104", 'on_eror: unknown key "on_eror"'),
        ({"sql": {"input.sql": "select {{ }}"}}, "TRK103", "sales/input.sql:1:"),
        ({"project": {"spark": {"mastre": "x"}}}, "TRK104", 'project.spark.mastre: unknown key "mastre"'),
        ({"project": {"state": "x"}}, "TRK104", 'project.state: "state" is not a setting here'),
        ({"sink": {"adapter": "jsonl", "path": "x"}, "on_error": "dead_letter"}, "TRK115", "on_error: a jsonl"),
    ],
)
def test_what_is_wrong_with_a_pipeline_is_named_by_its_argument(changes: Any, code: str, message: str) -> None:
    first = mistakes(pipeline, **changes)[0]
    assert first[0] == code
    assert first[1].startswith(message)


def test_all_that_is_wrong_is_told_at_once() -> None:
    errors = mistakes(
        build,
        connections=[{**SHOP, "port": -1}, {**WAREHOUSE, "memory": "much"}],
        trucks=[{**ORDERS, "compact": "all", "sql": {"input.sql": "{{ x }}"}}],
        heartbeat="soon",
    )
    assert len(errors) == 5


def test_no_message_holds_a_value() -> None:
    secret = "hunter2"
    for message in mistakes(build, connections=[{**SHOP, "url": f"mysql://{secret}@h/d", "port": secret}, WAREHOUSE]):
        assert secret not in str(message)
