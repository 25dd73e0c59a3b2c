"""Run the failed tests of a test run again, each alone, and tell flaky tests from broken ones.

As a pytest plugin (`-p tools.repeat_failed --outcome FILE`) it writes how a run ended: pytest's exit status, the seed
of the order, and every test that failed, had an error in its set-up or tear-down, or took its worker down with it. The
run itself is not changed. As a script (`repeat_failed.py FILE [options for pytest]`) it reads that file, runs each of
these tests in a process of its own, and prints one line for each:

    FLAKY <node id>     it passed the second time
    FAILED <node id>    it failed twice

The exit code is 0 if every failed test passed the second time, and 1 otherwise. A run that did not come to its end is
not repeated, it has failed: no file was written, the run was interrupted, a file could not be collected, or tests were
left out because too many workers crashed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

GIVE_UP = 20
"""After so many tests that failed twice the others are not repeated: the verdict is known."""


# -- as a plugin ------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcome", type=Path, metavar="FILE", help="write which tests failed to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--outcome")
    if file is not None and not hasattr(config, "workerinput"):  # a worker of xdist reports to the process that has it
        config.pluginmanager.register(Recorder(file.resolve()), "outcome-recorder")


class Recorder:
    """Collects what failed, and writes it when the run ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}
        self._not_collected: dict[str, None] = {}
        self._collected: set[str] = set()
        self._run: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._run.add(report.nodeid)
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected[report.nodeid] = None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        outcome = {
            "status": int(exitstatus),
            "seed": session.config.getoption("randomly_seed", None),
            "failed": list(self._failed),
            "not_collected": list(self._not_collected),
            "not_run": sorted(self._collected - self._run),
        }
        self._file.write_text(json.dumps(outcome, indent=2))


# -- as a script ------------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def why_not_repeated(outcome: dict[str, Any]) -> str | None:
    """Why a run that ended like this has failed for good."""
    if outcome["not_collected"]:
        return "could not be collected: " + ", ".join(outcome["not_collected"])
    if outcome["status"] != pytest.ExitCode.TESTS_FAILED:
        return f"the test run did not come to its end (pytest's exit status was {outcome['status']})"
    if outcome["not_run"]:
        return "the test run did not come to its end; not run: " + ", ".join(outcome["not_run"])
    if not outcome["failed"]:
        return "the test run failed without a test that failed"
    return None


def passes(test: str, seed: int | None, options: Sequence[str]) -> bool:
    """Run one test in a process of its own, in the order and with the random numbers that it failed with."""
    ordered = [] if seed is None else [f"--randomly-seed={seed}"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *ordered, *options, test]
    return subprocess.run(command, check=False).returncode == 0


def repeat(outcome: dict[str, Any], options: Sequence[str]) -> int:
    """Repeat what failed, and print the verdict on each test; the exit code."""
    flaky: list[str] = []
    failed: list[str] = []
    tests = list(outcome["failed"])
    for number, test in enumerate(tests, 1):
        if len(failed) == GIVE_UP:
            say(f"not repeated, as {GIVE_UP} tests have failed twice: " + ", ".join(tests[number - 1 :]))
            break
        say(f"-- repeated alone, {number} of {len(tests)}: {test}")
        (flaky if passes(test, outcome["seed"], options) else failed).append(test)
    say("")  # a test that took its process down has left a line without an end
    for test in flaky:
        say(f"FLAKY {test}")
    for test in failed:
        say(f"FAILED {test}")
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    file, *options = arguments
    try:
        outcome = json.loads(Path(file).read_text())
    except FileNotFoundError:
        say("the test run ended before it could say what failed")
        return 1
    reason = why_not_repeated(outcome)
    if reason is not None:
        say(reason)
        return 1
    return repeat(outcome, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
