"""Files and folders that cannot be used: each has its code, the path, the reason and a remedy; nothing is TRK000."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, run_cli
from fixtures.unprivileged import run_bound

LONG = "x" * 300


def _locked(path: Path) -> Path:
    path.mkdir()
    path.chmod(0)
    return path


def _read_only(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o500)
    return path


def _file(path: Path) -> Path:
    path.write_text("x")
    return path


def _unreadable(path: Path) -> Path:
    path.write_text("x")
    path.chmod(0)
    return path


def _dangling(path: Path) -> Path:
    path.symlink_to(path.parent / "nowhere")
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_check_tells_of_every_path_of_a_project(project: ProjectFolder, database: Database, tmp_path: Path) -> None:
    """By `check`, all at once; the ways a path can be wrong are `unit/test_file_errors.py`'s, but for permissions."""
    database.execute("create table item (id int primary key)")
    _read_only(tmp_path / "read-only")
    _locked(tmp_path / "locked")
    ways = {
        "d1": ("duckdb", tmp_path / "read-only" / "x.duckdb", "TRK433", f"chmod u+rwx {tmp_path}/read-only"),
        "d2": ("duckdb", tmp_path / "locked" / "x.duckdb", "TRK433", f"chmod u+rwx {tmp_path}/locked"),
        "d3": ("duckdb", _unreadable(tmp_path / "no.duckdb"), "TRK433", f"chmod u+rw {tmp_path}/no.duckdb"),
        "d4": ("duckdb", _folder(tmp_path / "folder"), "TRK433", "folder"),
        "d5": ("duckdb", tmp_path / LONG, "TRK433", "shorter name"),
        "j1": ("jsonl", tmp_path / "locked", "TRK456", f"chmod u+rwx {tmp_path}/locked"),
        "j2": ("jsonl", tmp_path / "read-only" / "below", "TRK456", f"chmod u+rwx {tmp_path}/read-only"),
        "j3": ("jsonl", _file(tmp_path / "file"), "TRK456", "move that file away"),
        "j4": ("jsonl", _dangling(tmp_path / "link"), "TRK456", "remove the link"),
    }
    for name, (adapter, path, _, _) in ways.items():
        project.connect({"name": name, "adapter": adapter, "path": str(path)})
        project.truck(name, ["public.item"], {"connection": name})
    project.config |= {"state": str(tmp_path / "read-only" / "state"), "log": {"location": str(tmp_path / "file")}}
    project.save()
    done = run_bound("check", "--json", str(project.folder))
    assert done.returncode == 1, done.stderr
    found = {finding["subject"]: finding for finding in json.loads(done.stdout) if finding["level"] == "error"}
    expected = {f"connection {name}": (code, path, remedy) for name, (_, path, code, remedy) in ways.items()}
    expected["state"] = ("TRK603", tmp_path / "read-only", f"chmod u+rwx {tmp_path}/read-only")
    expected[str(tmp_path / "file" / "source")] = ("TRK306", tmp_path / "file", "move that file away")
    assert found.keys() >= expected.keys()
    for subject, (code, path, remedy) in expected.items():
        assert found[subject]["code"] == code
        assert str(path) in found[subject]["message"]
        assert remedy in found[subject]["remedy"]


@pytest.mark.parametrize("make", [_locked, _read_only, _file])
def test_a_state_folder_that_cannot_be_used_is_refused_by_every_command(
    project: ProjectFolder, make: Callable[[Path], Path]
) -> None:
    """Before anything else is looked at: the databases need not be there."""
    project.connect({"name": "lines", "adapter": "jsonl", "path": "lines"})
    project.truck("items", ["public.*"], {"connection": "lines"})
    make(project.state)
    commands = ["run", "reset"] if make is _read_only else ["run", "reset", "status"]
    for command in commands:
        done = run_bound(command, str(project.folder), *(["--yes"] if command == "reset" else []))
        assert done.returncode == 3, done.stdout + done.stderr
        assert "[TRK603]" in done.stderr
        assert str(project.state) in done.stderr
        assert "next: " in done.stderr


FILES: dict[str, tuple[str, Callable[[Path], Path], str, str]] = {
    "trucker.yml unreadable": ("trucker.yml", _unreadable, "TRK101", "chmod u+rw"),
    "trucker.yml a dangling link": ("trucker.yml", _dangling, "TRK101", "remove the link"),
    "truck.yml unreadable": ("trucks/t/truck.yml", _unreadable, "TRK101", "chmod u+rw"),
    "a truck's folder locked": ("trucks/locked", _locked, "TRK101", "chmod u+rwx"),
    "a truck's folder a dangling link": ("trucks/gone", _dangling, "TRK101", "remove the link"),
    "input.sql a dangling link": ("trucks/t/input.sql", _dangling, "TRK101", "remove the link"),
    "input.sql a folder": ("trucks/t/input.sql", _folder, "TRK101", "folder"),
    "output.sql unreadable": ("trucks/t/output.sql", _unreadable, "TRK101", "chmod u+rw"),
    "a secret unreadable": ("secret", _unreadable, "TRK101", "chmod u+rw"),
    "a secret a folder": ("secret", _folder, "TRK101", "folder"),
    "a secret a dangling link": ("secret", _dangling, "TRK101", "remove the link"),
}


@pytest.mark.parametrize(("name", "make", "code", "remedy"), FILES.values(), ids=FILES)
def test_a_file_of_the_project_that_cannot_be_read(
    tmp_path: Path, name: str, make: Callable[[Path], Path], code: str, remedy: str
) -> None:
    project = ProjectFolder(tmp_path / "project", "x")
    (project.folder / "secret").write_text("x")
    project.connect({"name": "source", "pass_path": "secret"}, {"name": "lines", "adapter": "jsonl", "path": "lines"})
    project.truck("t", ["public.*"], {"connection": "lines"})
    path = project.folder / name
    path.unlink(missing_ok=True)
    make(path)
    done = run_bound("check", str(project.folder))
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"[{code}]" in done.stderr
    assert str(path) in done.stderr
    assert remedy in done.stderr


def test_a_project_folder_that_cannot_be_entered(tmp_path: Path) -> None:
    _locked(tmp_path / "locked")
    done = run_bound("check", str(tmp_path / "locked" / "project"))
    assert done.returncode == 2
    assert "[TRK101]" in done.stderr
    assert f"chmod u+rwx {tmp_path / 'locked'}" in done.stderr


@pytest.mark.parametrize("make", [_read_only, _file, _dangling])
def test_init_where_nothing_can_be_written(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    make(tmp_path / "place")
    done = run_bound("init", str(tmp_path / "place" / "project"))
    assert done.returncode == 2
    assert "[TRK112]" in done.stderr
    assert str(tmp_path / "place") in done.stderr


def test_init_where_no_byte_can_be_written(tmp_path: Path) -> None:
    """A limit of file sizes stands for a full disk."""
    done = run_bound("init", str(tmp_path / "new"), limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert done.returncode == 2
    assert "[TRK112]" in done.stderr
    assert "ulimit -f" in done.stderr


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path / "project", "x")
    project.connect({"name": "source"}, {"name": "lines", "adapter": "jsonl", "path": "a\0b"})
    project.truck("t", ["public.*"], {"connection": "lines"})
    project.config["state"] = "~no-such-account-here/state"
    project.save()
    done = run_cli("check", str(project.folder))
    assert done.returncode == 2
    assert "the path has an invalid character" in done.stderr
    assert "an account that does not exist" in done.stderr
