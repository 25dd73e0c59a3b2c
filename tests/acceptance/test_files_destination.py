"""Files as a destination, by the command line: copied, changed, read with a glob."""

from __future__ import annotations

from pathlib import Path

import duckdb

from fixtures.pg import Database
from fixtures.project import ProjectFolder, run_cli


def test_files_are_there_when_a_run_has_ended(project: ProjectFolder, database: Database, tmp_path: Path) -> None:
    """`--once` ends with all that it took in files; the next one adds to them."""
    database.execute(
        "create table item (id int primary key, price numeric(8,2), sold timestamptz)",
        "insert into item select i, i + 0.50, '2026-01-31 12:00+00' from generate_series(1, 100) i",
    )
    project.connect({"name": "lake", "adapter": "files", "location": "lake", "file_type": "parquet"})
    project.truck("items", ["public.item"], {"connection": "lake"})
    checked = run_cli("check", str(project.folder))
    assert checked.returncode == 0, checked.stdout + checked.stderr

    def run() -> list[tuple[object, ...]]:
        ended = run_cli("run", "--once", str(project.folder))
        assert ended.returncode == 0, ended.stderr
        with duckdb.connect() as connection:
            glob = f"{project.folder}/lake/items/*/*.parquet"
            return connection.execute(
                "select _operation, _snapshot, count(*), sum(price) from read_parquet(?) group by all order by 1",
                [glob],
            ).fetchall()

    assert [(str(total), *rest) for *rest, total in run()] == [("5100.00", "insert", True, 100)]
    database.execute("update item set price = 1 where id <= 10", "delete from item where id > 90")
    assert [(str(total), *rest) for *rest, total in run()] == [
        ("None", "delete", False, 10),
        ("5100.00", "insert", True, 100),
        ("10.00", "update", False, 10),
    ]
