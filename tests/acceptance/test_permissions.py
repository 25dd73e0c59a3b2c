"""Other accounts of the machine read nothing of what a run keeps: a copy, a stream, Spark SQL, staged files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres, run_cli
from fixtures.waiting import wait_until


class Modes:
    """Looks at everything that turns up below a folder, again and again: most files live for a moment only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open_to_others: dict[str, str] = {}
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="modes", daemon=True)
        self._thread.start()

    def look(self) -> None:
        for place, folders, files in os.walk(self.folder):
            for name in (".", *folders, *files):
                path = Path(place, name)
                try:
                    mode = path.lstat().st_mode
                except OSError:
                    continue
                relative = str(path.relative_to(self.folder))
                self.seen.add(relative)
                if mode & 0o077 and not stat.S_ISLNK(mode):
                    self.open_to_others[relative] = stat.filemode(mode)

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self.look()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.look()


@pytest.mark.spark
def test_nothing_that_a_run_keeps_can_be_read_by_others(
    project: ProjectFolder, database: Database, destination: Database
) -> None:
    """With a umask that forbids nothing. Rows of 8 kB are too large for receipts: they are staged in files."""
    database.execute(
        "create table item (id int primary key, v text)",
        "alter table item alter v set storage external",
        "insert into item select i, repeat(chr(65 + i % 26), 8000) from generate_series(1, 300) i",
    )
    project.connect(
        postgres("replica", destination),
        {"name": "duck", "adapter": "duckdb", "path": "out.duckdb"},
        {"name": "lines", "adapter": "jsonl", "path": "lines"},
        {"name": "copies", "adapter": "jsonl", "path": "copies"},
    )
    for name in ("replica", "duck", "lines"):
        project.truck(name, ["public.item"], {"connection": name})
    project.truck("shaped", ["public.item"], {"connection": "copies"})
    project.sql("shaped", {"transform": "select id, upper(v) as v, operation from {{ rows }}"})
    modes = Modes(project.state)
    with (project.folder / "output.log").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "trucker", "run", str(project.folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            umask=0,
        )
        try:
            lines = project.folder / "copies"
            wait_until(lambda: _lines(lines) >= 300 or process.poll() is not None, 120)
            database.execute("update item set v = v || 'x'")
            wait_until(lambda: _lines(lines) >= 600 or process.poll() is not None, 120)
        finally:
            process.terminate()
            process.wait(60)
        output.seek(0)
        assert process.returncode == 0, output.read()
    modes.close()
    assert modes.open_to_others == {}
    kinds = {Path(name).suffix or name.split("/")[0] for name in modes.seen}
    assert {"lock", ".json", ".log", ".out", ".arrows", ".copy", ".rows", "log"} <= kinds, kinds
    # The user's own outputs follow the user's umask.
    assert (project.folder / "out.duckdb").stat().st_mode & 0o777 == 0o666
    assert all(file.stat().st_mode & 0o777 == 0o666 for file in lines.glob("*/*.jsonl"))


def _lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*/*.jsonl"))


def test_a_state_folder_that_others_can_read_is_corrected_or_refused(
    project: ProjectFolder, database: Database
) -> None:
    """By `reset`, which locks the project as `run` does and needs no Spark; `check` says what would be refused."""
    project.connect({"name": "lines", "adapter": "jsonl", "path": "lines"})
    project.truck("items", ["public.*"], {"connection": "lines"})
    database.execute("create table item (id int primary key)")
    project.state.mkdir()
    project.state.chmod(0o755)
    assert "TRK603" not in run_cli("check", str(project.folder)).stdout
    assert project.state.stat().st_mode & 0o777 == 0o755
    done = run_cli("reset", "--yes", str(project.folder))
    assert done.returncode == 0, done.stderr
    assert project.state.stat().st_mode & 0o777 == 0o700
    for file in project.state.iterdir():
        if file.name == "lock":
            file.unlink()
    (project.state / "another").touch()
    project.state.chmod(0o755)
    checked = run_cli("check", str(project.folder))
    assert checked.returncode == 1
    assert "TRK603" in checked.stdout
    refused = run_cli("run", str(project.folder))
    assert refused.returncode == 3, refused.stderr
    assert "[TRK603]" in refused.stderr
    assert f"chmod go-rwx {project.state}" in refused.stderr
    assert project.state.stat().st_mode & 0o777 == 0o755
    project.state.chmod(0o700)
    assert run_cli("check", str(project.folder)).returncode == 0
