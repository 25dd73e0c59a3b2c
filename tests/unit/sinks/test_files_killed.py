"""kill -9 while files are made: a reader with a glob never sees a change twice, and in the end all are there (I4)."""

from __future__ import annotations

from pathlib import Path

import duckdb

from fixtures.killed import KEEPS, kill_repeatedly
from trucker.adapters.files import FilesConnection, FileType
from trucker.sinks.base import Workspace
from trucker.sinks.files.sink import FilesSink


def make_sink(folder: Path) -> FilesSink:
    connection = FilesConnection(
        name="files", adapter="files", location=folder / "out", file_type=FileType.PARQUET, rotate_bytes=40_000
    )
    return FilesSink(connection, Workspace("p", folder / "work"))


def seen(folder: Path) -> list[tuple[str, int]]:
    """What a reader finds, in order."""
    glob = f"{folder}/out/*/*/*.parquet"
    if not list((folder / "out").glob("[!_]*/*/*.parquet")):
        return []
    with duckdb.connect() as connection:
        query = f"select _operation, id from read_parquet('{glob}', filename=true) order by filename, file_row_number"
        return connection.execute(query.replace("filename=true", "filename=true, file_row_number=true")).fetchall()


def test_killed(tmp_path: Path) -> None:
    def check(committed: int) -> None:
        before = seen(tmp_path)
        sink = make_sink(tmp_path)
        position = sink.open().states()["main"].lsn
        last = position // 10 - 1
        assert last >= committed
        sink.close()
        expected = [("insert", 0)]
        for number in range(1, last + 1):
            expected += [("insert", number), ("update", 0)]
            expected += [("delete", number - KEEPS)] if number > KEEPS else []
        assert seen(tmp_path) == expected
        assert before == expected[: len(before)]
        assert not list((tmp_path / "out" / "_trucker" / "open").iterdir())

    kill_repeatedly("unit.sinks.test_files_killed", tmp_path, check, 3)
