"""`.ci/run` on small projects: what it repeats, what it prints, and when it fails."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = """\
check:
\ttest ! -e unchecked
test:
\t.venv/bin/python -m pytest -p no:cacheprovider -n {workers} --dist loadfile --max-worker-restart 3 $(ARGS)
"""
PLUGINS = "-p xdist -p pytest_timeout -p no:randomly"
ONCE = """
    def once(name):
        mark = pathlib.Path(__file__).with_name(name)
        seen = mark.exists()
        mark.touch()
        return not seen
"""


class Repository:
    """As much of a repository as `.ci/run` uses, with tests of our choosing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (".ci/run", "tools/repeat_failed.py"):
            (folder / name).parent.mkdir()
            shutil.copy(ROOT / name, folder / name)
        python = folder / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    soak: a long one\n")

    def ci(self, tests: str, workers: int = 0) -> tuple[int, list[str]]:
        """The exit code of `.ci/run`, and its verdicts."""
        (self.folder / "Makefile").write_text(MAKEFILE.format(workers=workers))
        text = "import os, pathlib, time\nimport pytest\n" + dedent(ONCE) + dedent(tests)
        (self.folder / "test_it.py").write_text(text)
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": PLUGINS}
        command = [self.folder / ".ci" / "run"]
        ended = subprocess.run(command, env=os.environ | plugins, capture_output=True, text=True, timeout=240)
        self.output = ended.stdout + ended.stderr
        return ended.returncode, [
            line for line in ended.stdout.splitlines() if line.startswith(("FLAKY ", "FAILED ")) and " - " not in line
        ]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_what_passes_is_not_repeated(repository: Repository) -> None:
    assert repository.ci("def test_fine():\n    assert once('fine')") == (0, [])


def test_a_test_that_passes_the_second_time_is_flaky_and_seen(repository: Repository) -> None:
    """A failure, an error in set-up, one in tear-down, and parameters that have to be quoted."""
    tests = """
        @pytest.mark.parametrize("given", ["it's a \\"word\\"", "$HOME; [x]"])
        def test_call(given):
            assert not once("call" + given[0])

        @pytest.fixture
        def late():
            assert not once("setup")

        def test_setup(late):
            pass

        @pytest.fixture
        def untidy():
            yield
            assert not once("teardown")

        def test_teardown(untidy):
            pass

        def test_fine():
            assert once("fine")
    """
    code, lines = repository.ci(tests)
    assert code == 0, repository.output
    assert sorted(lines) == [
        "FLAKY test_it.py::test_call[$HOME; [x]]",
        'FLAKY test_it.py::test_call[it\'s a "word"]',
        "FLAKY test_it.py::test_setup",
        "FLAKY test_it.py::test_teardown",
    ]


def test_a_test_that_fails_twice_fails_the_run(repository: Repository) -> None:
    tests = """
        def test_flaky():
            assert not once("flaky")

        def test_broken():
            raise AssertionError
    """
    code, lines = repository.ci(tests)
    assert code != 0
    assert lines == ["FLAKY test_it.py::test_flaky", "FAILED test_it.py::test_broken"]


def test_a_crashed_worker_and_a_timeout_are_repeated(repository: Repository) -> None:
    tests = """
        def test_crash():
            if once("crash"):
                os._exit(3)

        @pytest.mark.timeout(1, method="thread")
        def test_hangs():
            if once("hangs"):
                time.sleep(60)
    """
    code, lines = repository.ci(tests, workers=2)
    assert code == 0, repository.output
    assert sorted(lines) == ["FLAKY test_it.py::test_crash", "FLAKY test_it.py::test_hangs"]


def test_a_test_that_passes_only_alone_does_not_hide_those_that_were_not_run(repository: Repository) -> None:
    """xdist gives up after some crashes, and pytest then ends as if all tests had been run."""
    tests = """
        def test_alone():
            if "PYTEST_XDIST_WORKER" in os.environ:
                os._exit(3)

        def test_after_it():
            pass
    """
    code, lines = repository.ci(tests, workers=2)
    assert (code != 0, lines) == (True, []), repository.output
    assert "not run: test_it.py::test_after_it" in repository.output


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_collected_fails_the_run_at_once(repository: Repository, workers: int) -> None:
    """Also where it could be the second time."""
    code, lines = repository.ci("assert not once('import')\ndef test_fine(): pass", workers)
    assert (code != 0, lines) == (True, []), repository.output
    assert "could not be collected: test_it.py" in repository.output


def test_an_interrupted_run_fails(repository: Repository) -> None:
    code, lines = repository.ci("def test_end():\n    pytest.exit('the machine goes down', returncode=2)")
    assert (code != 0, lines) == (True, []), repository.output


def test_a_run_without_tests_fails(repository: Repository) -> None:
    code, lines = repository.ci("")
    assert (code != 0, lines) == (True, [])
    assert "did not come to its end" in repository.output


def test_what_fails_before_the_tests_fails_the_run(repository: Repository) -> None:
    """The checks, and an environment that cannot be made."""
    (repository.folder / "unchecked").touch()
    assert repository.ci("def test_fine(): pass")[0] != 0
    assert "-m pytest" not in repository.output
    (repository.folder / "unchecked").unlink()
    (repository.folder / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert repository.ci("def test_fine(): pass")[0] != 0
