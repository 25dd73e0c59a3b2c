"""The files sink: what is in files, when they appear, and what a crash leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from trucker.adapters.files import FilesConnection, FileType
from trucker.change import Changes, Lsn, TableId, TableSchema
from trucker.config.events import EventFormat
from trucker.errors import SinkError
from trucker.finding import Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Work
from trucker.sinks.committer import Committer
from trucker.sinks.files import sink as module
from trucker.sinks.files.sink import FilesSink
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, update
from trucker.types import Unfit

T = schema_of(TableId("public", "t"), {"id": "integer", "name": "text"}, ["id"])
DAY = 86_400_000_000


def make(folder: Path, **settings: Any) -> FilesSink:
    connection = FilesConnection(name="files", adapter="files", location=folder / "out", **settings)
    return FilesSink(connection, Workspace("p", folder / "work"))


def commit(
    sink: Committer, step: int, made: Sequence[Change], schema: TableSchema = T, *, micros: int = 1, **target: Any
) -> None:
    where = Target("main", schema, schema.table, **target)
    batch = Batch(Lsn(step), Lsn(step + 1), {"main": Lsn(step + 1)}, targets=(where,))
    changes = changes_of(schema, made, lsn=Lsn(step), time=micros, xid=7)
    numbered = replace(changes, ordinal=np.arange(len(made), dtype=np.int64))
    sink.commit(batch, [sink.write(Work(batch, where, 0), iter([numbered]))])


def row(number: int, name: str | None = "n") -> Change:
    return insert({"id": str(number), "name": name})


def names(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder / "out")) for path in (folder / "out").glob("[!_]*/**/*") if path.is_file()
    )


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for name in names(folder) for line in (folder / "out" / name).read_text().splitlines()]


def test_a_file_appears_when_enough_is_there_for_it(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path, rotate_bytes=3000))
    sink.open()
    seen = []
    for step in range(1, 9):
        commit(sink, step, [row(step)])
        seen.append(len(names(tmp_path)))
    assert seen[0] == 0
    assert 0 < seen[-1] < 8
    sink.close()
    assert names(tmp_path) == [f"main/public.t/{number:08d}.jsonl" for number in range(1, len(names(tmp_path)) + 1)]
    assert [line["new"]["id"] for line in lines(tmp_path)] == list(range(1, 9))


def test_a_file_appears_when_its_first_change_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions move on without changes, too, as heartbeats do: that is enough."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    sink = Committer(make(tmp_path, rotate_seconds=60))
    sink.open()
    commit(sink, 1, [row(1)])
    now[0] += 59
    sink.commit(Batch(Lsn(2), Lsn(3), {"main": Lsn(3)}), [])
    assert names(tmp_path) == []
    now[0] += 1
    sink.commit(Batch(Lsn(3), Lsn(4), {"main": Lsn(4)}), [])
    assert names(tmp_path) == ["main/public.t/00000001.jsonl"]


def test_a_file_that_the_manifest_counts_is_made_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: it was committed; and what the manifest does not name is removed."""
    sink = Committer(make(tmp_path, rotate_bytes=1))
    sink.open()

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FilesSink, "_make", crash)
        with pytest.raises(KeyboardInterrupt):
            commit(sink, 1, [row(1)])
    assert names(tmp_path) == []
    stray = tmp_path / "out" / "_trucker" / "open" / "000000000099.arrows"
    stray.write_bytes(b"half")
    again = Committer(make(tmp_path, rotate_bytes=1))
    assert again.open()["main"].lsn == 2
    assert [line["new"]["id"] for line in lines(tmp_path)] == [1]
    commit(again, 1, [row(1)])
    commit(again, 2, [row(2)])
    assert [line["new"]["id"] for line in lines(tmp_path)] == [1, 2]
    assert list(stray.parent.iterdir()) == []


def test_a_delivery_that_failed_before_the_manifest_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Committer(make(tmp_path, rotate_bytes=1))
    sink.open()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FilesSink, "_save", full)
        with pytest.raises(OSError, match="No space"):
            commit(sink, 1, [row(1), row(2)])
    sink.close()
    assert names(tmp_path) == []
    commit(sink, 1, [row(3)])
    assert [line["new"]["id"] for line in lines(tmp_path)] == [3]


@pytest.mark.parametrize("file_type", list(FileType))
def test_duckdb_reads_all_files_with_a_glob(tmp_path: Path, file_type: FileType) -> None:
    sink = Committer(make(tmp_path, file_type=file_type, format=EventFormat.FLAT, rotate_bytes=1, by_day=True))
    sink.open()
    commit(sink, 1, [row(1, 'say "hi", there\n'), row(2, ""), row(3, None)], micros=DAY * 20_000)
    commit(sink, 2, [update({"id": "1", "name": "x"}), delete({"id": "2"})], micros=DAY * 20_001)
    folder = f"{tmp_path}/out/main/public.t"
    reader = {
        FileType.JSON: f"read_json('{folder}/**/*.jsonl', hive_partitioning=true)",
        FileType.CSV: f"read_csv('{folder}/**/*.csv', hive_partitioning=true, allow_quoted_nulls=false)",
        FileType.PARQUET: f"read_parquet('{folder}/**/*.parquet', hive_partitioning=true)",
    }[file_type]
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"select _operation, id::int, name, day::varchar from {reader} order by _lsn, _ordinal"
        ).fetchall()
    assert rows == [
        ("insert", 1, 'say "hi", there\n', "2024-10-04"),
        ("insert", 2, "", "2024-10-04"),
        ("insert", 3, None, "2024-10-04"),
        ("update", 1, "x", "2024-10-05"),
        ("delete", 2, None, "2024-10-05"),
    ]


def test_arrow_reads_all_files_of_a_table_whose_columns_have_changed(tmp_path: Path) -> None:
    """Files have the columns of their time: one that is added begins another file."""
    sink = Committer(make(tmp_path, file_type=FileType.PARQUET, rotate_bytes=1 << 20))
    sink.open()
    wider = schema_of(T.table, {"id": "integer", "name": "text", "n": "bigint"}, ["id"])
    commit(sink, 1, [row(1)])
    commit(sink, 2, [insert({"id": "2", "name": "b", "n": "5"})], wider)
    sink.close()
    files = [str(tmp_path / "out" / name) for name in names(tmp_path)]
    assert len(files) == 2
    schema = pa.unify_schemas([pq.read_schema(file) for file in files])
    table = ds.dataset(str(tmp_path / "out" / "main"), schema=schema, format="parquet").to_table()
    assert table.select(["id", "n", "_operation"]).to_pylist() == [
        {"id": 1, "n": None, "_operation": "insert"},
        {"id": 2, "n": 5, "_operation": "insert"},
    ]


TYPES = {
    "i": ("bigint", "-9223372036854775808", -(2**63)),
    "r": ("real", "NaN", None),
    "d": ("double precision", "-Infinity", float("-inf")),
    "n": ("numeric(6,2)", "12.50", Decimal("12.50")),
    "u": ("numeric", "1e5", "1e5"),
    "b": ("boolean", "f", False),
    "by": ("bytea", "\\x00ff", b"\x00\xff"),
    "dt": ("date", "2026-01-31", date(2026, 1, 31)),
    "ti": ("time without time zone", "12:34:56.5", time(12, 34, 56, 500_000)),
    "ts": ("timestamp without time zone", "2026-01-31 12:34:56.789", datetime(2026, 1, 31, 12, 34, 56, 789_000)),
    "tz": ("timestamp with time zone", "2026-01-31 12:34:56+00", datetime(2026, 1, 31, 12, 34, 56, tzinfo=UTC)),
    "j": ("jsonb", '{"a": 1}', '{"a": 1}'),
    "a": ("integer[]", "{1,2}", "{1,2}"),
}
TYPED = schema_of(TableId("public", "typed"), {name: kind for name, (kind, _, _) in TYPES.items()}, ["i"])


def test_parquet_has_values_of_their_types(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path, file_type=FileType.PARQUET, rotate_bytes=1))
    sink.open()
    commit(sink, 1, [insert({name: text for name, (_, text, _) in TYPES.items()}), insert({"i": "1"})], TYPED)
    first, second = pq.read_table(tmp_path / "out" / names(tmp_path)[0]).to_pylist()
    assert first["r"] != first["r"]
    assert {name: first[name] for name in TYPES if name != "r"} == {n: v for n, (_, _, v) in TYPES.items() if n != "r"}
    assert [second[name] for name in TYPES] == [1] + [None] * (len(TYPES) - 1)
    assert (first["_lsn"], first["_ordinal"], first["_xid"], first["_snapshot"]) == (1, 0, 7, False)


@pytest.mark.parametrize(
    ("column", "text"),
    [("dt", "infinity"), ("ts", "-infinity"), ("tz", "infinity"), ("ti", "24:00:00"), ("n", "NaN"), ("i", "x1x")],
)
def test_what_a_type_cannot_hold_stops_the_truck_or_follows_its_policy(tmp_path: Path, column: str, text: str) -> None:
    """I8, I10."""
    sink = Committer(make(tmp_path, file_type=FileType.PARQUET, rotate_bytes=1))
    sink.open()
    cells = {"i": "1", column: text}
    with pytest.raises(SinkError, match=rf"TRK751.*'{column}' of table public.typed") as refused:
        commit(sink, 1, [insert(cells)], TYPED)
    assert text not in str(refused.value)
    commit(sink, 1, [insert(cells)], TYPED, unfit=((column, Unfit.TEXT),))
    assert pq.read_table(tmp_path / "out" / names(tmp_path)[0]).to_pylist()[0][column] == text
    if column != "i":
        commit(sink, 2, [insert(cells)], TYPED, unfit=((column, Unfit.NULL),))
        assert pq.read_table(tmp_path / "out" / names(tmp_path)[1]).to_pylist()[0][column] is None


def test_dates_before_our_era_and_far_ahead_are_numbers_of_days(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path, file_type=FileType.PARQUET, rotate_bytes=1))
    sink.open()
    commit(sink, 1, [insert({"i": "1", "dt": "0044-03-15 BC"}), insert({"i": "2", "dt": "10000-01-01"})], TYPED)
    days = pq.read_table(tmp_path / "out" / names(tmp_path)[0]).column("dt").cast(pa.int32()).to_pylist()
    assert days == [-735160, 2932897]


def test_names_of_trucks_and_tables_are_names_of_folders_that_readers_see(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path, rotate_bytes=1))
    sink.open()
    schema = schema_of(TableId("_x", "a/b=c"), {"id": "integer"}, ["id"])
    commit(sink, 1, [insert({"id": "1"})], schema)
    assert names(tmp_path) == ["main/%5Fx.a%2Fb%3Dc/00000001.jsonl"]


def test_a_column_called_as_one_that_is_added_is_refused(tmp_path: Path) -> None:
    schema = schema_of(TableId("public", "t"), {"id": "integer", "_xid": "text"}, ["id"])
    target = Target("main", schema, schema.table)
    parquet = make(tmp_path, file_type=FileType.PARQUET)
    assert [error.code for _, error in parquet.examine([target], ())] == ["TRK700"]
    with pytest.raises(SinkError, match="TRK700"):
        parquet.prepare(target)
    assert list(make(tmp_path).examine([target], ())) == []


def test_check_creates_nothing(tmp_path: Path) -> None:
    (finding,) = make(tmp_path).check()
    assert finding.level is Level.OK
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").touch()
    (finding,) = make(tmp_path).check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK750")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"transactions": True}, "marks of transactions"),
        ({"file_type": "csv", "format": "debezium"}, "have the columns of flat rows"),
        ({"s3": {}}, "is not s3"),
        ({"location": "ftp://x"}, "unknown scheme"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        FilesConnection.model_validate({"name": "files", "adapter": "files", "location": "out", **settings})


def test_small_deliveries_share_a_chunk_and_a_file(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path, file_type=FileType.PARQUET))
    sink.open()
    for step in range(1, 21):
        commit(sink, step, [row(step)])
        assert len(list((tmp_path / "out/_trucker/open").iterdir())) == 1
    sink.close()
    (name,) = names(tmp_path)
    file = pq.ParquetFile(tmp_path / "out" / name)
    assert file.metadata.num_row_groups == 1
    assert file.read().column("id").to_pylist() == list(range(1, 21))
    assert list((tmp_path / "out/_trucker/open").iterdir()) == []


def test_changes_that_are_there_when_the_file_type_is_changed_are_in_a_file_of_the_former(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path))
    sink.open()
    commit(sink, 1, [row(1)])
    other = Committer(make(tmp_path, file_type=FileType.PARQUET))
    other.open()
    commit(other, 2, [row(2)])
    other.close()
    assert names(tmp_path) == ["main/public.t/00000001.jsonl", "main/public.t/00000002.parquet"]
    assert json.loads((tmp_path / "out/main/public.t/00000001.jsonl").read_text())["new"]["id"] == 1
    assert pq.read_table(tmp_path / "out/main/public.t/00000002.parquet").column("id").to_pylist() == [2]


def test_an_empty_delivery_makes_no_file(tmp_path: Path) -> None:
    sink = Committer(make(tmp_path, rotate_bytes=1))
    sink.open()
    commit(sink, 1, [])
    sink.close()
    assert names(tmp_path) == []
    assert isinstance(changes_of(T, []), Changes)
