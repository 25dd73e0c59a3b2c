"""Adapters are found by entry point, trucker's own and those of other packages alike."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from fixtures.documents import ROOT, blocks
from trucker.adapters.postgres import PostgresConnection
from trucker.config import registry
from trucker.config.adapter import Component
from trucker.config.project_folder import load_project
from trucker.config.registry import GROUP, Registry, installed
from trucker.config.schema import project_schema
from trucker.errors import ConfigError
from trucker.sinks.base import Workspace
from trucker.sinks.factory import make_sink

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = list(_PROJECT["entry-points"]["trucker.adapters"])
"""Trucker's own adapters."""

WORKSPACE = Workspace("project", Path("unused"))

SHELF = """
from typing import Literal

from pydantic import Field, SecretStr

from trucker.adapters import Adapter, Connection, ProjectPath


class ShelfConnection(Connection):
    adapter: Literal["shelf"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The folder of the shelf.")
    token: SecretStr = Field(default=SecretStr(""), description="The token.")


SHELF = Adapter(name="shelf", connection=ShelfConnection, sink="shelf_sink:ShelfSink", lookup="shelf_sink:Gone")
OTHER = 3
"""
SINK = """
from trucker.testing.memory import MemorySink


class ShelfSink(MemorySink):
    def __init__(self, connection, workspace):
        super().__init__(connection.name, workspace.project)
        self.connection = connection
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package onto Python's path, as an installer would: modules, and metadata with its entry points."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)

    def put(package: str, points: str, **modules: str) -> None:
        info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        installed.cache_clear()

    yield put
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]
    installed.cache_clear()


def project(folder: Path, connection: str, truck: str = "") -> Path:
    truck_folder = folder / "project" / "trucks" / "any"
    truck_folder.mkdir(parents=True)
    (folder / "project" / "trucker.yml").write_text(f"connections:\n  - name: source\n  - {connection}\n")
    (truck_folder / "truck.yml").write_text(
        "input: {connection: source, table: t}\noutput: {connection: there}\n" + truck
    )
    return folder / "project"


def refused(folder: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_project(folder)
    return caught.value


def test_truckers_own_are_listed_in_its_metadata_and_come_first() -> None:
    assert installed().names[: len(OWN)] == OWN
    assert [adapter.name for adapter in installed().built_in()] == OWN
    assert {point.module for point in entry_points(group=GROUP) if point.dist and point.dist.name == "trucker"} == {
        f"trucker.adapters.{name}" for name in OWN
    }


def test_a_package_brings_an_adapter(install: Install, tmp_path: Path) -> None:
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter=SHELF, shelf_sink=SINK)
    (tmp_path / "token").write_text("first\n")
    folder = project(tmp_path, "{name: there, adapter: shelf, path_path: path, token_path: ../token}")
    (folder / "path").write_text("books\n")
    connection = load_project(folder).connection("there")
    assert (connection.adapter, connection.path) == ("shelf", folder / "books")  # type: ignore[attr-defined]
    assert "first" not in repr(connection)
    assert "shelf_sink" not in sys.modules, "the sink is imported by those who use it"
    sink = make_sink(pickle.loads(pickle.dumps(connection)), WORKSPACE)
    assert type(sink).__name__ == "ShelfSink"
    assert sink.connection == connection  # type: ignore[attr-defined]
    (tmp_path / "token").write_text("second\n")
    assert connection.refreshed().token.get_secret_value() == "second"  # type: ignore[attr-defined]
    (tmp_path / "token").unlink()
    assert connection.refreshed() is connection
    assert installed().foreign_modules() == ["shelf_adapter"]


def test_the_guide_shows_an_adapter_that_works(install: Install, tmp_path: Path) -> None:
    shown = {block.language: block.text for block in reversed(blocks(ROOT / "docs" / "howto" / "write_a_sink.md"))}
    assert GROUP in shown["toml"]
    install("trucker-sqlite", "sqlite = trucker_guide:SQLITE", trucker_guide=shown["python"])
    project(tmp_path, "{name: unused, adapter: sqlite, path: x}")
    text = shown["yaml"] + "  - name: source\n"
    (tmp_path / "project" / "trucker.yml").write_text(text.replace("pocket\n", "there\n"))
    assert load_project(tmp_path / "project").connection("there").adapter == "sqlite"


def test_an_executor_finds_the_sink_without_looking_for_adapters(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter=SHELF, shelf_sink=SINK)
    connection = load_project(project(tmp_path, "{name: there, adapter: shelf, path: x}")).connection("there")
    component = pickle.loads(pickle.dumps(installed()["shelf"].sink_component))
    monkeypatch.setattr(registry, "entry_points", lambda group: pytest.fail("executors have no entry points"))
    installed.cache_clear()
    assert type(make_sink(connection, WORKSPACE, component)).__name__ == "ShelfSink"


def test_the_schema_of_trucker_yml_has_it(install: Install) -> None:
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter=SHELF)
    keys = project_schema([*installed().built_in(), installed()["shelf"]])["$defs"]["ShelfConnection"]["properties"]
    assert {"name", "adapter", "path", "path_path", "token", "token_path"} <= set(keys)


def test_an_ability_that_an_adapter_lacks_is_refused(install: Install, tmp_path: Path) -> None:
    code = SHELF.replace(', lookup="shelf_sink:Gone"', "")
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter=code)
    lookups = "on_error: dead_letter\nlookups:\n  any: {connection: there, table: t, cache: 1m}\n"
    folder = project(tmp_path, "{name: there, adapter: shelf, path: x}", lookups)
    (folder / "trucks" / "any" / "output.sql").write_text("select 1")
    said = str(refused(folder))
    assert '"there" is a shelf connection, whose tables cannot be looked up' in said
    assert "with the adapter postgres or duckdb" in said
    assert "a shelf destination keeps no dead letters" in said
    assert "there is a shelf connection" in said


def test_an_adapter_without_a_sink_is_no_output(install: Install, tmp_path: Path) -> None:
    code = SHELF.replace(', sink="shelf_sink:ShelfSink"', "")
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter=code)
    error = refused(project(tmp_path, "{name: there, adapter: shelf, path: x}"))
    assert (error.code, "cannot be an output" in error.message) == ("TRK109", True)
    assert " or ".join(OWN) in error.remedy


def test_an_unknown_adapter_lists_the_known_ones(install: Install, tmp_path: Path) -> None:
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter="raise RuntimeError('not imported')")
    error = refused(project(tmp_path, "{name: there, adapter: shef}"))
    assert (error.code, error.place and error.place.line) == ("TRK105", 3)
    assert 'did you mean "shelf"?' in error.remedy
    assert ", ".join([*OWN, "shelf"]) in error.remedy


@pytest.mark.parametrize(
    ("points", "module", "said"),
    [
        ("shelf_adapter:SHELF", "import no_such_driver", "ModuleNotFoundError: No module named 'no_such_driver'"),
        ("shelf_adapter:SHELF", "1 / 0", "ZeroDivisionError: division by zero"),
        ("shelf_adapter:NONE", SHELF, "AttributeError: "),
        ("shelf_adapter:OTHER", SHELF, "shelf_adapter:OTHER is not a trucker.adapters.Adapter"),
        ("shelf_adapter:SHELF", SHELF.replace('"shelf"', '"desk"'), "shelf_adapter:SHELF is the adapter desk"),
        ("shelf_adapter:SHELF", SHELF.replace('Literal["shelf"]', "str"), 'must declare adapter: Literal["shelf"]'),
        ("shelf_adapter:SHELF", SHELF.replace("shelf_sink:ShelfSink", "shelf_sink"), "not of the form module:Class"),
    ],
)
def test_an_adapter_that_cannot_be_used_names_its_package_and_the_cause(
    install: Install, tmp_path: Path, points: str, module: str, said: str
) -> None:
    install("trucker-shelf", f"shelf = {points}", shelf_adapter=module)
    error = refused(project(tmp_path, "{name: there, adapter: shelf, path: x}"))
    assert error.code == "TRK116"
    assert "trucker.yml:3:" in error.message
    assert "the adapter shelf of the package trucker-shelf cannot be used: " in error.message
    assert said in error.message
    assert "install trucker-shelf again" in error.remedy


def test_an_adapter_that_cannot_be_used_disturbs_no_other_project(install: Install, tmp_path: Path) -> None:
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter="1 / 0")
    error = refused(project(tmp_path, "{name: there, adapter: jsonl, path: x}", "on_error: dead_letter\n"))
    assert error.code == "TRK115"
    assert installed().offering(lambda adapter: adapter.sink) == OWN


@pytest.mark.parametrize(("name", "told"), [("shelf", "trucker-shelf"), ("duckdb", "trucker")])
def test_two_packages_with_one_name_are_named(install: Install, tmp_path: Path, name: str, told: str) -> None:
    install("trucker-shelf", "shelf = shelf_adapter:SHELF", shelf_adapter=SHELF)
    install("another-shelf", f"{name} = shelf_adapter:SHELF")
    error = refused(project(tmp_path, f"{{name: there, adapter: {name}, path: x}}"))
    assert error.code == "TRK117"
    assert told in error.message
    assert "another-shelf" in error.message
    assert "pip uninstall " in error.remedy
    assert error.remedy != "keep one of them: pip uninstall trucker"


def test_missing_metadata_of_trucker_is_reported() -> None:
    with pytest.raises(ConfigError, match="trucker's own adapters are not listed") as caught:
        _ = Registry([])["postgres"]
    assert "pip install" in caught.value.remedy


# -- components --------------------------------------------------------------------------------------------------------


def test_a_built_in_sink() -> None:
    assert type(make_sink(PostgresConnection(name="p"), WORKSPACE)).__name__ == "PostgresSink"


def test_a_missing_driver_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for name in [name for name in sys.modules if name.startswith("trucker.sinks.duckdb")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError) as missing:
        installed()["duckdb"].sink_component.load()
    assert (missing.value.code, missing.value.remedy) == ("TRK114", 'pip install "trucker[duckdb]"')


@pytest.mark.parametrize("place", ["no_such_module_at_all:Sink", "trucker.sinks.lines.stdout:NoSuchSink"])
def test_another_missing_module_is_not_taken_for_the_driver(place: str) -> None:
    with pytest.raises(ConfigError, match=place) as caught:
        Component("shelf", place, "driver", "pip install driver").load()
    assert caught.value.code == "TRK116"


def test_truckers_own_adapters_import_no_driver() -> None:
    code = (
        "import sys; from trucker.config.registry import installed; installed().built_in();"
        "heavy = ('psycopg', 'duckdb', 'numpy', 'pyarrow', 'pyspark', 'trucker.sinks.base');"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_class_of_truckers_adapters_exists() -> None:
    for adapter in installed().built_in():
        assert adapter.types is not None
        assert adapter.sink_component.load().name == adapter.name
        assert not adapter.lookup or adapter.lookup_component.load().as_text in (True, False)
