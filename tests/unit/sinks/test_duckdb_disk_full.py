"""The disk below a DuckDB file fills up. In a process of its own, whose files may not grow past a limit."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

_PROGRAM = """
    import resource, sys
    from pathlib import Path
    from trucker.change import TableId
    from trucker.adapters.duckdb import DuckDBConnection
    from trucker.errors import SinkUnavailable
    from trucker.sinks.base import Workspace
    from trucker.sinks.duckdb import DuckDBSink
    from trucker.testing.handmade import insert
    from trucker.testing.suites.sink_suite import ITEMS, target_of
    from trucker.testing.suites.table_suite import TableSinkSuite, item

    folder = Path(sys.argv[1])

    class Suite(TableSinkSuite):
        def make_sink(self, project="suite"):
            path = folder / "lake.duckdb"
            connection = DuckDBConnection(name="lake", adapter="duckdb", path=path)
            return DuckDBSink(connection, Workspace(project, folder / "spool"))
        def rows(self, table): ...
        def put_foreign_row(self, table): ...

    suite, items = Suite(), target_of(ITEMS)
    sink = suite.started(items)
    batch = suite.batch([items])
    text = "".join(chr(33 + n * n % 90) for n in range(4000))
    rows = [insert(item(n, str(n) + text)) for n in range(3000)]
    receipts = suite.write(batch, {items: [[suite.values(ITEMS, *rows)]]})
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
    for _ in range(2):
        try:
            sink.commit(batch, receipts)
        except SinkUnavailable as error:
            print(error.code)
        else:
            print("no error")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    sink.open()
    sink.commit(batch, receipts)
    sink.commit(batch, receipts)
    sink.close()
    import duckdb
    with duckdb.connect(str(folder / "lake.duckdb"), read_only=True) as lake:
        print(lake.execute("select count(*), count(distinct id) from public.items").fetchall())
"""


def test_a_full_disk_is_waited_out(tmp_path: Path) -> None:
    """What was committed before is there, what was not is not; with room again the batch is applied once (I4)."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY, "files are limited here"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert set(lines[:2]) == {"TRK443"}, done.stdout
    assert lines[2] == "[(3000, 3000)]"
