"""What a user sees while a project runs: the log, the status and its exit code, and how a stop ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.documents import ROOT, blocks
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.proxy import Proxy
from fixtures.waiting import wait_until
from trucker.engine.project.lock import ProjectLock
from trucker.observe.status import TruckPhase

Start = Callable[..., TruckerProcess]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table orders (id int primary key, total numeric(10,2))",
        "insert into orders select i, i from generate_series(1, 1000) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("orders", ["public.orders"], {"connection": "replica"})


def first_truck(project: ProjectFolder) -> tuple[int, dict[str, Any]]:
    found = run_cli("status", "--json", str(project.folder))
    return found.returncode, json.loads(found.stdout)["trucks"][0]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_stop_during_a_copy_is_no_error(
    shop: ProjectFolder, start: Start, number: signal.Signals, tmp_path: Path
) -> None:
    shop.config["batch"] = {"small_bytes": 0}  # the copy is a job of Spark's
    shop.save()
    trucker = start(failpoints=f"worker.stage.before=hang:{tmp_path / 'go'}")
    wait_until(lambda: list(tmp_path.glob("go.*")) or trucker.process.poll(), 120, 0.1)
    copying = trucker.wait_phase(TruckPhase.COPYING).copying[0]
    assert (copying.table, copying.percent, copying.rows) == ("public.orders", 0, 0)
    if number is signal.SIGINT:  # as Ctrl-C does it: to every process of the terminal's group
        os.killpg(trucker.process.pid, number)
        assert trucker.process.wait(120) == 0, trucker.output()
    else:
        assert trucker.stop(number, timeout=120) == 0, trucker.output()
    code, truck = first_truck(shop)
    assert (code, truck["phase"], truck["error"], truck["copying"]) == (0, "stopped", None, [])
    assert "TRK510" not in trucker.output()
    assert "CANCELLED" not in trucker.output()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_it_waits_for_the_lock_ends_with_0(
    shop: ProjectFolder, start: Start, number: signal.Signals
) -> None:
    lock = ProjectLock(shop.state)
    lock.acquire(wait=False)
    try:
        waiting = start("--wait")
        wait_until(lambda: f'held_by="process {os.getpid()}' in waiting.output(), 60, 0.1)
        assert waiting.stop(number) == 0, waiting.output()
    finally:
        lock.release()


def test_a_stop_while_a_server_does_not_answer_ends_with_0(shop: ProjectFolder, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        shop.config["connections"][0] |= {"port": silent.getsockname()[1], "timeouts": {"connect": 600}}
        shop.save()
        waiting = start()
        silent.settimeout(60)
        client, _ = silent.accept()
        with client:
            assert waiting.stop() == 0, waiting.output()
    assert "Traceback" not in waiting.output()


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.server.port) as made:
        yield made


def test_the_log_and_the_status_report_an_unavailable_source(
    shop: ProjectFolder, database: Database, destination: Database, proxy: Proxy, tmp_path: Path
) -> None:
    """Standard output is a terminal, standard error a file: the file has the whole log."""
    shop.config["connections"][0] |= {"port": proxy.port}
    shop.save()
    screen, terminal = pty.openpty()
    log = tmp_path / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-m", "trucker", "run", str(shop.folder)]
        process = subprocess.Popen(
            command, stdout=terminal, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True
        )
    os.close(terminal)
    try:
        shown = _drain(screen)
        wait_until(lambda: "truck is streaming: truck=orders" in log.read_text(), 120, 0.1)
        assert re.search(r"table copied: truck=orders table=public.orders .*rows=1000 seconds=", log.read_text())
        database.execute("alter table orders add column note text", "insert into orders values (0, 0, 'x')")
        wait_until(lambda: same(database, destination, "orders"), 60)
        wait_until(lambda: first_truck(shop)[1]["lag_seconds"] == 0.0, 60, 0.2)
        assert "column added: truck=orders table=public.orders" in log.read_text()
        assert _recipe(shop) == 0

        proxy.cut()
        _, truck = wait_until(lambda: (found := first_truck(shop))[0] == 5 and found, 60, 0.2)
        assert truck["blind_since"] == truck["source_heard"]
        assert truck["lag_seconds"] >= 10
        assert "TRK201" in truck["error"]
        assert _recipe(shop) != 0
        text = run_cli("status", str(shop.folder)).stdout
        assert "streaming, blind" in text
        assert "lag unknown since" in text
        assert text.count("[TRK201]") == 2, "its code in the truck's line, the error once below"
        assert re.search(r"warning trucker.capture: source unavailable: source=source .*\[TRK201\]", log.read_text())
        database.execute("insert into orders values (-1, 0, 'y')")
        proxy.heal()
        wait_until(lambda: same(database, destination, "orders"), 60)
        wait_until(lambda: first_truck(shop)[0] == 0, 60, 0.2)
        assert re.search(r"info    trucker.capture: source available again: .*interrupted_seconds=\d", log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
        os.close(screen)
    assert "streaming" in "".join(shown)
    assert "truck is streaming" not in "".join(shown), "the log is where it was sent"


def test_status_tells_when_the_process_was_killed(shop: ProjectFolder, start: Start) -> None:
    trucker = start()
    trucker.wait_streaming(120)
    trucker.kill_tree()
    found = run_cli("status", str(shop.folder))
    assert found.returncode == 6, found.stdout
    assert f"not running, although it was not stopped: process {trucker.process.pid}" in found.stdout
    code, truck = first_truck(shop)
    assert (code, truck["phase"], truck["lag_seconds"]) == (6, "stopped", None)


def _drain(screen: int) -> list[str]:
    """Read what is written to the terminal, in a thread, so that nobody waits for it."""
    import threading

    shown: list[str] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(screen, 65536).decode(errors="replace"))
            except OSError:
                return

    threading.Thread(target=read, daemon=True).start()
    return shown


def _recipe(project: ProjectFolder) -> int:
    """The exit code of the check in the guide to monitoring, as written there."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    page = ROOT / "docs" / "howto" / "monitor.md"
    (recipe,) = [block.text for block in blocks(page) if "jq -e" in block.text]
    script = recipe.removeprefix("$ ").replace("/srv/trucker/shop", str(project.folder))
    script = script.replace("trucker status", f"{sys.executable} -m trucker status", 1)
    return subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False).returncode
