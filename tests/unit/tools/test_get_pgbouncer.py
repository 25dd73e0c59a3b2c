"""Getting pgbouncer without root: from packages, and what is said where there are none."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
APT_GET = """case "$*" in
    *" download "*) touch "$(pwd)/one.deb" ;;
esac"""
APT_CACHE = 'printf "pgbouncer\\n  Depends: libc6\\n  Depends: libcares2\\n"'
DPKG = """mkdir -p "$3/usr/sbin" "$3/usr/lib/there"
touch "$3/usr/lib/there/libcares.so.2"
printf '#!/bin/sh\\necho "$LD_LIBRARY_PATH" "$@"' > "$3/usr/sbin/pgbouncer"
chmod 700 "$3/usr/sbin/pgbouncer" """


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, on a machine without pgbouncer, whose cache folder is `cache`."""
    spec = spec_from_file_location("get_pgbouncer", ROOT / "tools" / "get_pgbouncer.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "find_pgbouncer", lambda: None)
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(module, "unpacked_pgbouncer", lambda: tmp_path / "cache" / "pgbouncer")
    return module


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_it_is_unpacked_and_runs_with_its_libraries(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"apt-get": APT_GET, "apt-cache": APT_CACHE, "dpkg": DPKG}.items():
        program(tmp_path / "bin", name, text)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    assert tool.main() == 0
    found = tmp_path / "cache" / "pgbouncer" / "bin" / "pgbouncer"
    assert capsys.readouterr().out == f"pgbouncer: {found}\n"
    said = subprocess.run([found, "-q"], capture_output=True, text=True, check=True).stdout
    assert said == f"{tmp_path}/cache/pgbouncer/usr/lib/there -q\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["pgbouncer"]


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, "there is no apt-get"),
        ({"apt-get": "echo 'E: Unable to locate package pgbouncer' >&2; exit 100"}, "Unable to locate package"),
        ({"apt-get": APT_GET, "apt-cache": APT_CACHE, "dpkg": DPKG.replace("echo", "exit 1; echo")}, "failed"),
    ],
    ids=["no apt", "no package", "does not run"],
)
def test_where_it_is_unavailable_the_reason_and_a_remedy_are_printed(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: dict[str, str],
    reason: str,
) -> None:
    for name, text in programs.items():
        program(tmp_path / "bin", name, text)
    for name in ("mkdir", "touch", "chmod"):
        program(tmp_path / "bin", name, f'exec /bin/{name} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert tool.main() == 0
    said = capsys.readouterr().out
    assert reason in said
    assert "apt-get install pgbouncer" in said
    assert list((tmp_path / "cache").iterdir()) == []
