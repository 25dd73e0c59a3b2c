"""What a project's files become."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from trucker.adapters.duckdb import DuckDBConnection
from trucker.adapters.jsonl import JsonLinesConnection
from trucker.adapters.postgres import PostgresConnection
from trucker.adapters.stdout import StdoutConnection
from trucker.config.models import ProjectConfig
from trucker.config.project_folder import load_project
from trucker.table import CopyMode, TableId
from trucker.types import Unfit

Load = Callable[..., ProjectConfig]
Write = Callable[..., Path]


def postgres(config: ProjectConfig, name: str = "main") -> PostgresConnection:
    connection = config.connection(name)
    assert isinstance(connection, PostgresConnection)
    return connection


def test_defaults(load: Load, tmp_path: Path) -> None:
    config = load()
    folder = tmp_path / "shop"
    assert config.unique_id == "shop"
    assert config.folder == folder
    assert config.state == config.state_folder == folder / ".trucker"
    assert (config.spark.master, config.spark.settings) == ("local[*]", {})
    assert (config.log.keep, config.log.max_bytes, config.log.segment_bytes) == (None, None, 64 * 1024 * 1024)
    assert config.batch.max_bytes == 64 * 1024 * 1024
    assert config.heartbeat == 10
    assert (config.retry.first, config.retry.longest) == (0.5, 30)
    main = postgres(config)
    assert (main.host, main.port, main.database, main.user, main.ssl.mode) == (
        "localhost",
        5432,
        "postgres",
        "postgres",
        "prefer",
    )
    assert config.connection("duck") == DuckDBConnection(name="duck", adapter="duckdb", path=folder / "out.duckdb")
    (truck,) = config.trucks
    assert (truck.name, truck.folder) == ("orders", folder / "trucks" / "orders")
    assert (truck.input.table, truck.input.tables, truck.input.is_many) == ("public.orders", ("public.orders",), False)
    assert (truck.output.table, truck.output.schema_) == (None, None)


def test_everything(load: Load, tmp_path: Path) -> None:
    config = load(
        """\
unique_id: a shop
state: /var/lib/trucker
heartbeat: 0
spark:
  master: spark://host:7077
  settings:
    spark.sql.adaptive.enabled: true
    spark.executor.cores: 4
log: {keep: 7d, max_bytes: 1.5 GiB, segment_bytes: 8MB}
batch: {max_bytes: 1000000}
retry: {first: 100ms, longest: 2m}
connections:
  - name: main
    host: db.example.com
    port: 6543
    database: shop
    user: me
    pass: 007
    ssl: {mode: verify-full, root_certificate: certs/ca.pem, certificate: ~/c.pem, key: /k.pem}
    replica_host: standby
    replica_port: 6544
    publication: pub
    slot: slot_1
    parameters: {connect_timeout: 5}
  - name: lines
    adapter: jsonl
    path: lines
    rotate_bytes: 1 MB
  - name: out
    adapter: stdout
""",
        """\
input:
  connection: main
  tables: [public.*, "!public.audit_*"]
  only_columns: [id, name]
  where: id > 5
output:
  connection: lines
  schema: copy
""",
    )
    assert config.unique_id == "a shop"
    assert config.state == Path("/var/lib/trucker")
    assert config.heartbeat == 0
    assert config.spark.settings == {"spark.sql.adaptive.enabled": "true", "spark.executor.cores": "4"}
    assert (config.log.keep, config.log.max_bytes, config.log.segment_bytes) == (604800, 3 * 512 * 1024**2, 8_000_000)
    assert config.batch.max_bytes == 1_000_000
    assert (config.retry.first, config.retry.longest) == (0.1, 120)
    main = postgres(config)
    assert main.password.get_secret_value() == "007"
    assert main.conninfo(application_name="test") == {
        "connect_timeout": "5",
        "host": "db.example.com",
        "port": 6543,
        "dbname": "shop",
        "user": "me",
        "password": "007",
        "sslmode": "verify-full",
        "sslrootcert": str(tmp_path / "shop/certs/ca.pem"),
        "sslcert": str(Path("~/c.pem").expanduser()),
        "sslkey": "/k.pem",
        "client_encoding": "UTF8",
        "application_name": "test",
    }
    replica = main.replica
    assert replica is not None
    assert (replica.host, replica.port, replica.database, replica.user) == ("standby", 6544, "shop", "me")
    assert replica.password.get_secret_value() == "007"
    assert replica.replica is None
    assert config.connection("lines") == JsonLinesConnection(
        name="lines", adapter="jsonl", path=tmp_path / "shop/lines", rotate_bytes=1_000_000
    )
    assert config.connection("out") == StdoutConnection(name="out", adapter="stdout")
    (truck,) = config.trucks
    assert truck.input.is_many
    assert truck.input.tables == ("public.*", "!public.audit_*")
    assert (truck.input.only_columns, truck.input.where) == (("id", "name"), "id > 5")
    assert truck.output.schema_ == "copy"


def test_trucks_are_found_in_both_places_and_nowhere_else(load: Load) -> None:
    truck = "input: {connection: main, table: a}\noutput: {connection: duck}\n"
    config = load(
        files={"beta/truck.yml": truck, "notes/readme.txt": "", ".hidden/truck.yml": "no", "trucks/.x/truck.yml": "no"}
    )
    assert [truck.name for truck in config.trucks] == ["orders", "beta"]


def test_ssl_as_a_mode(load: Load) -> None:
    config = load("connections: [{name: main, ssl: require}, {name: duck, ssl: {root_certificate: system}}]")
    assert postgres(config).ssl.mode == "require"
    assert postgres(config, "duck").conninfo()["sslrootcert"] == "system"


def test_every_key_has_a_form_that_reads_a_file(load: Load) -> None:
    values = {"host": "h", "port": "6000", "database": "d", "user": "u", "pass": "p w", "ssl": "allow", "slot": "s"}
    keys = "".join(f"\n    {key}_path: secrets/{key}" for key in values)
    duck = "{name: duck, adapter: duckdb, path_path: secrets/duck}"
    config = load(
        f"connections:\n  - name_path: secrets/name{keys}\n  - {duck}\n",
        files={f"secrets/{key}": f" {value}\n" for key, value in {**values, "name": "main", "duck": "x.db"}.items()},
    )
    main = postgres(config)
    assert (main.host, main.port, main.database, main.user) == ("h", 6000, "d", "u")
    assert (main.password.get_secret_value(), main.ssl.mode, main.slot) == ("p w", "allow", "s")
    file = config.connection("duck")
    assert isinstance(file, DuckDBConnection)
    assert file.path.name == "x.db"


def test_a_url_in_a_file(load: Load) -> None:
    config = load(
        "connections: [{name: main, url_path: url}, {name: duck}]",
        files={"url": "postgres://u:p%40w@h:6000/d?sslmode=require&connect_timeout=3\n"},
    )
    main = postgres(config)
    assert (main.host, main.port, main.database, main.user) == ("h", 6000, "d", "u")
    assert (main.password.get_secret_value(), main.ssl.mode) == ("p@w", "require")
    assert main.conninfo()["connect_timeout"] == "3"
    assert main.url is None


def test_aliases_and_merges(load: Load) -> None:
    config = load(
        "connections:\n  - &base\n    name: main\n    host: h\n    port: 6000\n"
        "  - <<: *base\n    name: duck\n    port: 7000\n"
    )
    duck = postgres(config, "duck")
    assert (duck.host, duck.port) == ("h", 7000)


def test_config_is_frozen_and_travels(load: Load) -> None:
    config = load("connections: [{name: main, pass: secret}, {name: duck}]")
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ValidationError):
        config.heartbeat = 3  # type: ignore[misc]


def test_models_can_be_built_in_python() -> None:
    made = PostgresConnection(name="a", password=SecretStr("x"), port=1)
    assert made.conninfo()["password"] == "x"
    assert PostgresConnection.model_validate(made.model_dump()) == made
    url = PostgresConnection(name="a", url=SecretStr("postgresql://u@h/d"))
    assert (url.user, url.host, url.database) == ("u", "h", "d")


def test_models_can_be_keys() -> None:
    made = PostgresConnection(name="a", parameters={"connect_timeout": "1"})
    same = PostgresConnection(name="a", parameters={"connect_timeout": "1"})
    assert {made: 1}[same] == 1


def test_loading_changes_nothing(write: Write, tmp_path: Path) -> None:
    folder = write()
    before = sorted(tmp_path.rglob("*"))
    load_project(folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "example", ["replica", "warehouse", "enriched", "live_totals", "history", "webhook", "search_index"]
)
def test_examples_load(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKS_SECRET", "secret")
    folder = Path(__file__).parents[3] / "examples" / example
    config = load_project(folder)
    assert config.unique_id == f"{example}_example"
    assert config.trucks


@pytest.mark.parametrize("written", ["null", '"null"'])
def test_what_becomes_of_values_that_do_not_fit(load: Load, written: str) -> None:
    """YAML takes a bare null for nothing; here it is a word."""
    truck = f"""\
input: {{connection: main, table: a}}
output:
  connection: duck
  columns:
    odd name: {{unfit: {written}}}
    b: {{unfit: text}}
"""
    (found,) = load(truck=truck).trucks
    policies = {name: column.unfit for name, column in found.output.columns.items()}
    assert policies == {"odd name": Unfit.NULL, "b": Unfit.TEXT}


def test_copy_modes_by_table(load: Load) -> None:
    """The first pattern that matches counts; other tables are exported."""
    copy = '{shop.big: incremental, "events_*": none, "*.*_log": auto, "*": none}'
    (truck,) = load(
        truck=f"input: {{connection: main, tables: ['*.*'], copy: {copy}}}\noutput: {{connection: duck}}\n"
    ).trucks
    tables = ("shop.big", "public.big", "public.events_a", "public.events_log", "shop.a_log", "shop.other")
    modes = [truck.input.copy_mode(TableId(*name.split("."))) for name in tables]
    assert [mode.value for mode in modes] == ["incremental", "none", "none", "none", "auto", "exported"]


@pytest.mark.parametrize("mode", CopyMode)
def test_one_copy_mode(load: Load, mode: CopyMode) -> None:
    (truck,) = load(
        truck=f"input: {{connection: main, table: orders, copy: {mode}}}\noutput: {{connection: duck}}\n"
    ).trucks
    assert truck.input.copy_mode(TableId("public", "orders")) is mode
