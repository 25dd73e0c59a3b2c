from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def tool(name: str) -> ModuleType:
    """A script of `tools/` as a module."""
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "src" / "trucker").mkdir(parents=True)
    return tmp_path / "src"


def put(root: Path, name: str, text: str) -> None:
    path = root / "trucker" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config/project_check.py", "from trucker.engine.project import project_run"),
        ("config/project_check.py", "from trucker import engine"),
        ("sinks/base.py", "import trucker.postgres.slot"),
        ("changelog/reader.py", "from trucker.sinks.base import Sink"),
        ("postgres/slot.py", "from ..sinks import base"),
        ("change.py", "from trucker.config import models"),
        ("engine/project/project_run.py", "from trucker.cli import main"),
        ("observe/status.py", "from trucker.engine.project import project_run"),
        ("sinks/base.py", "import pyspark"),
        ("capture/process.py", "from pyspark.sql import SparkSession"),
        ("capture/process.py", "from trucker.engine.stream import source_stream"),
        ("sinks/lines/jsonl.py", "import duckdb"),
        ("engine/truck/resolve.py", "import psycopg"),
        ("engine/truck/resolve.py", "from trucker.postgres.slot import find_slot"),
        ("source/base.py", "from trucker.postgres.source import PostgresSource"),
        ("engine/spark/job.py", "from trucker.engine.stream import source_stream"),
        ("engine/spark/job.py", "from trucker.engine.truck.truck import Truck"),
        ("engine/transform/fold.py", "from ..stream.source_stream import SourceStream"),
        ("engine/plan.py", "from trucker.engine.truck.truck import Truck"),
        ("changelog/format/block.py", "from trucker.changelog.reader import LogReader"),
        ("changelog/folder/writer.py", "from trucker.changelog.objects.object_writer import ObjectWriter"),
        ("pgoutput/run.py", "from trucker.postgres.connect import connect"),
        ("sinks/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trucker.postgres import slot"),
        ("postgres/x.py", "def f():\n    import pyspark.sql"),
    ],
)
def test_a_wrong_arrow_is_named_with_file_and_line(
    package: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    put(package, name, text)
    assert tool("check_imports").main(package) == 1
    line = text.count("\n") + 1
    assert f"src/trucker/{name}:{line}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cli/main.py", "from trucker.project import Project\nimport typer"),
        (
            "engine/project/project_run.py",
            "from trucker.observe.status import write_status\nfrom pyspark.sql import SparkSession",
        ),
        ("engine/stream/source_stream.py", "from trucker.sinks.base import Sink\nfrom . import lane"),
        ("sinks/duckdb/sink.py", "import duckdb\nfrom trucker.sinks.base import Sink\nfrom ..base import Batch"),
        ("sinks/postgres.py", "import psycopg"),
        ("config/models.py", "from trucker.errors import ConfigError"),
        ("capture/process.py", "from trucker.postgres.replication.stream import ReplicationStream"),
        ("engine/truck/resolve.py", "from trucker.source.base import Source"),
        ("testing/demo.py", "from trucker.engine.spark.cds_archive import warm_up"),
        (
            "engine/stream/lane.py",
            "from trucker.engine.truck.truck_run import TruckRun\nfrom .source_stream import SourceStream",
        ),
        ("engine/spark/worker_daemon.py", "import trucker.engine.snapshot.snapshot_task"),
        ("changelog/reader.py", "from trucker.changelog.format.block import Head"),
    ],
)
def test_right_arrows_pass(package: Path, name: str, text: str) -> None:
    put(package, name, text)
    assert tool("check_imports").main(package) == 0


def test_the_package_keeps_its_arrows(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("check_imports").main(ROOT / "src") == 0, capsys.readouterr().out


@pytest.mark.parametrize("module", ["trucker.capture.process", "trucker.engine.transform.compact", "trucker.cli.main"])
def test_what_must_start_quickly_loads_no_spark_by_any_way(module: str) -> None:
    """The arrows are about one file at a time; this is about all that a module drags along."""
    code = f"import sys, {module}; print(*sorted(m for m in ('pyspark', 'py4j') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_long_module_needs_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = tool("check_sizes")
    monkeypatch.setattr(sizes, "ROOT", tmp_path)
    body = "def f() -> None:\n    pass\n" + "x = 1\n" * sizes.LIMIT
    (tmp_path / "long.py").write_text(body)
    assert sizes.main(tmp_path) == 1
    (tmp_path / "long.py").write_text('"""Long.\n\nSize: one table, and a table is read in one place.\n"""\n' + body)
    assert sizes.main(tmp_path) == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "class A:\n    def f(self):\n        self._at = 0.0\n    def g(self):\n        self._at = monotonic()",
            3,
        ),
        ("class A:\n    _at: float = 0\n    def f(self):\n        self._at = monotonic() + 5", 2),
        ("def f():\n    last, n = -1.0, 2\n    while now := clock.perf_counter():\n        last = now", 2),
        ("def f(self, now):\n    self._since = self._since or now", 2),
    ],
)
def test_the_zero_of_a_clock_is_found(package: Path, capsys: pytest.CaptureFixture[str], text: str, line: int) -> None:
    put(package, "slot.py", text)
    assert tool("check_clocks").main(package.parent, ["src"]) == 1
    assert capsys.readouterr().out.startswith(f"src/trucker/slot.py:{line}: ")


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def f(self):\n        self._at = -math.inf\n    def g(self):\n        self._at = monotonic()",
        "def f():\n    took = 0.0\n    began = time.monotonic()\n    took = time.monotonic() - began",
        "def f():\n    last = 0\ndef g():\n    last = time.monotonic()",
    ],
)
def test_other_zeros_pass(package: Path, text: str) -> None:
    put(package, "slot.py", text)
    assert tool("check_clocks").main(package.parent, ["src"]) == 0


def test_an_instant_of_another_module_is_followed_unless_it_is_private(package: Path) -> None:
    put(package, "slot.py", "def f(a):\n    a.read_at, a._at = 0.0, 0.0")
    put(package, "lane.py", "def f(a):\n    a._at = time.monotonic()")
    assert tool("check_clocks").main(package.parent, ["src"]) == 0
    put(package, "stream.py", "def f(a):\n    a.read_at = time.monotonic()")
    assert tool("check_clocks").main(package.parent, ["src"]) == 1


def test_no_clock_of_the_repository_begins_at_zero() -> None:
    assert tool("check_clocks").main() == 0


# -- stores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config/project_check.py", 'if adapter == "duckdb":\n    pass'),
        ("config/project_check.py", 'raise ValueError(f"{name} must be postgres or duckdb")'),
        ("engine/spark/session_future.py", 'local = connection.adapter == "postgres"'),
        ("engine/lookups.py", "from trucker.sinks.duckdb.lookup import DuckDBLookup"),
        ("engine/lookups.py", "from trucker.adapters import duckdb"),
        ("engine/project/project_run.py", "from trucker.adapters.postgres import PostgresConnection"),
        ("cli/live.py", 'taken = "stdout" in adapters'),
        ("sinks/duckdb/sink.py", "import trucker.adapters.postgres"),
        ("types.py", 'FORMS = {"jsonl": 1}'),
    ],
)
def test_a_store_is_named_by_its_own_modules_only(
    package: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    put(package, name, text)
    assert tool("check_stores").main(package) == 1
    assert f"src/trucker/{name}:1: names " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sinks/duckdb/sink.py", 'import trucker.adapters.duckdb\nname = "duckdb"'),
        ("adapters/postgres_url.py", 'SCHEME = "postgres://"'),
        ("sinks/lines/jsonl.py", 'name = "jsonl"'),
        ("capture/process.py", "from trucker.postgres.replication.stream import ReplicationStream"),
        ("engine/project/project_run.py", 'import sys\n"""Not for duckdb."""\nsys.stdout.write("PostgreSQL")'),
        ("testing/demo.py", 'adapter = "duckdb"'),
    ],
)
def test_a_store_may_be_named_by_its_own_modules_and_by_exceptions(package: Path, name: str, text: str) -> None:
    put(package, name, text)
    assert tool("check_stores").main(package) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("class Chunk:\n    pass\n", "class Chunk:\n    pass\n"),
        ("class _Reader:\n    pass\n", "import os\n\nclass _Reader:\n    pass\n"),
        ("class Row:\n    pass\n", "Row = tuple[int, ...]\n"),
        ("Fault = Pass | Fail\n", "Fault = Mapping[str, int]\n"),
        ("class Place:\n    pass\n", "Place: TypeAlias = Path\n"),
    ],
)
def test_a_name_that_two_modules_define_is_named_with_both(
    package: Path, capsys: pytest.CaptureFixture[str], one: str, other: str
) -> None:
    put(package, "one.py", one)
    put(package, "engine/other.py", other)
    names = tool("check_names")
    names.ALLOWED = {}
    assert names.main(package) == 1
    said = capsys.readouterr().out
    assert "src/trucker/one.py:1: " in said
    assert "src/trucker/engine/other.py:" in said


def test_a_name_of_one_module_passes_wherever_it_is_used(package: Path) -> None:
    put(package, "one.py", "class Chunk:\n    pass\n\nTABLE = {}\nfirst = TABLE['x']\nLIMIT = A_BIT | ANOTHER\n")
    put(package, "two.py", "from trucker.one import Chunk\n\nfirst = TABLE['y']\nLIMIT = A_BIT | THIRD\n")
    names = tool("check_names")
    names.ALLOWED = {}
    assert names.main(package) == 0


def test_an_exception_that_is_no_longer_needed_is_reported(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(package, "one.py", "class Chunk:\n    pass\n")
    names = tool("check_names")
    names.ALLOWED = {"Chunk": "both are chunks"}
    assert names.main(package) == 1
    assert "Chunk is allowed to repeat, and does not" in capsys.readouterr().out


def test_every_name_of_the_package_means_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("check_names").main(ROOT / "src") == 0, capsys.readouterr().out
