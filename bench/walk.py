"""The way of one INSERT through the driver, counted: calls, modules, and switches between modules.

    .venv/bin/python bench/walk.py [--calls]

A project with one small table streams into PostgreSQL. When it is warm, one row is inserted, and every call of a
function of trucker's is counted until the position has advanced. Counts do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from trucker.project import Project
from trucker.testing.project_folder import postgres_entry, write_project
from trucker.testing.server import Server

WARM_UP = 20


class Walk:
    """Counts calls while `counting`, in the thread that applies batches."""

    def __init__(self) -> None:
        self.counting = False
        self.calls: Counter[str] = Counter()
        self.switches = 0
        self._module = ""

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.counting or event != "call" or not threading.current_thread().name.startswith("batches"):
            return
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("trucker."):
            return
        self.calls[f"{module}:{frame.f_code.co_qualname}"] += 1
        self.switches += module != self._module
        self._module = module

    @property
    def modules(self) -> int:
        return len({call.partition(":")[0] for call in self.calls})


def main() -> None:
    parser = argparse.ArgumentParser(description="calls, modules and switches of one INSERT in the driver")
    parser.add_argument("--calls", action="store_true", help="list the functions by how often they are called")
    options = parser.parse_args()
    walk = Walk()
    threading.setprofile(walk.profile)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "server", durable=False) as server:
        _walk(walk, Path(folder) / "project", server)
    sys.stdout.write(f"{sum(walk.calls.values())} calls, {walk.modules} modules, {walk.switches} switches\n")
    for call, count in walk.calls.most_common() if options.calls else ():
        sys.stdout.write(f"{count:5} {call}\n")


def _walk(walk: Walk, folder: Path, server: Server) -> None:
    for name in ("walk_source", "walk_target"):
        server.create_database(name)
    connections = [
        postgres_entry(server.connection(name, f"walk_{name}")) | {"name": name} for name in ("source", "target")
    ]
    truck = {"input": {"connection": "source", "tables": ["public.item"]}, "output": {"connection": "target"}}
    write_project(folder, {"unique_id": "walk", "connections": connections}, {"items": truck})
    with server.connect("walk_source") as source, server.connect("walk_target") as target:
        source.execute("create table item (id integer primary key, name text)")
        stop = threading.Event()
        run = threading.Thread(target=lambda: Project.load(folder).run(stop=stop))
        run.start()
        try:
            for number in range(WARM_UP + 1):
                walk.counting = number == WARM_UP
                source.execute("insert into item values (%s, 'x')", [number])
                _await(run, lambda number=number: _rows(target) > number)
                time.sleep(0.3)  # the batch ends after its rows are visible
            walk.counting = False
        finally:
            stop.set()
            run.join()


def _rows(target: Any) -> int:
    if target.execute("select to_regclass('public.item') is null").fetchone() == (True,):
        return 0
    return int(target.execute("select count(*) from item").fetchone()[0])


def _await(run: threading.Thread, condition: Any) -> None:
    while not condition():
        if not run.is_alive():
            sys.exit("the project ended")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
