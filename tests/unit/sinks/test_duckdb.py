from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trucker.adapters.duckdb import DuckDBConnection
from trucker.change import Column, Lsn, TableId, TableSchema
from trucker.errors import SinkError, SinkUnavailable, TruckFailed
from trucker.finding import Checkable, Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.duckdb import DuckDBSink
from trucker.sinks.duckdb.session import Session
from trucker.sinks.duckdb.types import duckdb_type, holds, widens
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, changes_of, copied_rows_of, delete, insert, schema_of, update
from trucker.testing.memory_table import MemoryTable

ITEMS = schema_of(TableId("public", "items"), {"id": "integer", "a": "text", "b": "integer"}, ["id"])
TARGET = Target("main", ITEMS, ITEMS.table)
AT = Lsn(0x100)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "shop.duckdb"


def make(path: Path) -> DuckDBSink:
    return DuckDBSink(DuckDBConnection(name="d", adapter="duckdb", path=path), Workspace("p", path.parent / "work"))


def started(path: Path, target: Target = TARGET) -> Committer:
    sink = Committer(make(path))
    sink.open()
    sink.prepare(target)
    slot = (target.truck, target.source.table)
    sink.commit(Batch(AT, AT, tables={slot: TableState(Phase.COPYING, AT)}, targets=(target,), snapshot="s"), [])
    done = Batch(AT, AT, {target.truck: AT}, {slot: TableState(Phase.STREAMING, AT)}, (target,), "s")
    sink.commit(done, [])
    return sink


def change(sink: Committer, *changes: Change, step: int = 1, target: Target = TARGET) -> None:
    start, end = Lsn(AT + step * 16 - 16), Lsn(AT + step * 16)
    batch = Batch(start, end, {target.truck: end}, targets=(target,))
    sink.commit(batch, [sink.write(Work(batch, target, 0), iter([changes_of(target.source, changes, lsn=start)]))])


def session_of(sink: Committer) -> Session:
    assert isinstance(sink.sink, DuckDBSink)
    return sink.sink._session


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path)) as connection:
        rows: list[tuple[object, ...]] = connection.execute(statement).fetchall()
        return rows


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Another process has the file open for writing; its id."""
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read(); c.close()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.close()


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_held_by_another_process(path: Path) -> None:
    sink = started(path)
    sink.close()
    with held(path) as holder:
        with pytest.raises(SinkUnavailable) as failed:
            change(sink, insert({"id": "1"}))
        assert f"process {holder}" in failed.value.message
        assert "shell" in failed.value.remedy
        with pytest.raises(SinkUnavailable):
            make(path).open()
        (finding,) = make(path).check()
        assert (finding.level, finding.code) == (Level.ERROR, "TRK431")
    change(sink, insert({"id": "1"}))
    sink.close()
    assert query(path, "SELECT id FROM public.items") == [(1,)]


def test_others_can_read_when_it_is_quiet(
    path: Path, wait_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trucker.sinks.duckdb.session.IDLE_SECONDS", 0.05)
    sink = started(path)
    change(sink, insert({"id": "1"}))
    wait_until(lambda: not session_of(sink).is_open)
    code = (
        "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).execute('FROM public.items').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[(1, None, None)]\n"
    change(sink, insert({"id": "2"}), step=2)
    sink.close()
    assert not session_of(sink).is_open
    assert len(query(path, "FROM public.items")) == 2


def test_a_sink_pickles(path: Path) -> None:
    sink = started(path)
    copy: DuckDBSink = pickle.loads(pickle.dumps(sink.sink))
    assert not copy._session.is_open
    sink.close()


def test_a_file_of_something_else(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(SinkError, match="TRK432") as failed:
        make(path).open()
    assert not failed.value.transient
    (finding,) = make(path).check()
    assert finding.level is Level.ERROR
    assert finding.remedy


def test_check_creates_nothing(path: Path) -> None:
    sink = make(path.parent / "new" / "x.duckdb")
    assert isinstance(sink, Checkable)
    assert [finding.level for finding in sink.check()] == [Level.OK]
    assert list(path.parent.iterdir()) == []
    started(path).close()
    before = path.stat().st_mtime_ns
    assert [finding.level for finding in make(path).check()] == [Level.OK]
    assert path.stat().st_mtime_ns == before


def test_a_folder_in_the_way(path: Path) -> None:
    path.mkdir()
    with pytest.raises(SinkError, match="TRK433"):
        make(path).open()


def test_a_newer_format_is_refused(path: Path) -> None:
    started(path).close()
    query(path, "UPDATE trucker.format SET version = 99")
    with pytest.raises(SinkError, match="upgrade trucker"):
        make(path).open()


def test_the_state_can_be_queried(path: Path) -> None:
    sink = started(path)
    change(sink, insert({"id": "1"}))
    sink.close()
    assert query(path, "SELECT project, truck, lsn FROM trucker.positions") == [("p", "main", "0/110")]
    state = "SELECT truck, source_schema, source_table, phase, lsn, target_schema, target_table FROM trucker.tables"
    assert query(path, state) == [("main", "public", "items", "streaming", "0/100", "public", "items")]


# What `INSERT INTO … VALUES` of every trucker with format 1 relies on.
FORMAT_1 = {
    "dead_letters": "id project truck source_schema source_table target_schema target_table operation lsn ordinal"
    " key data sqlstate reason constraint_name column_name tries created_at updated_at",
    "format": "version",
    "identities": "project truck source_schema source_table identity",
    "positions": "project truck lsn",
    "tables": "project truck source_schema source_table phase lsn target_schema target_table snapshot",
}


def test_the_layout_of_the_state_is_that_of_its_format(path: Path) -> None:
    """A file that an earlier trucker filled goes on, and the other way round."""
    started(path).close()
    columns = (
        "SELECT table_name, string_agg(column_name, ' ' ORDER BY column_index) FROM duckdb_columns()"
        " WHERE schema_name = 'trucker' GROUP BY table_name"
    )
    assert dict(query(path, columns)) == FORMAT_1
    assert query(path, "SELECT version FROM trucker.format") == [(1,)]


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_schema_called_like_the_file(path: Path) -> None:
    target = Target("main", ITEMS, TableId("shop", "items"))
    sink = started(path, target)
    change(sink, insert({"id": "1", "a": "x"}), target=target)
    sink.close()
    assert query(path, "FROM shop.shop.items") == [(1, "x", None)]


def test_names_that_differ_in_capitals_only(path: Path) -> None:
    sink = started(path)
    with pytest.raises(SinkError, match="which ignores case"):
        sink.prepare(Target("main", ITEMS, TableId("public", "Items")))
    columns = (*ITEMS.columns, Column("A", 25, type_name="text"))
    with pytest.raises(SinkError, match="'A' and 'a'"):
        sink.prepare(Target("main", TableSchema(ITEMS.table, columns, ("id",)), ITEMS.table))
    both = schema_of(TableId("public", "both"), {"x": "text", "X": "text"})
    with pytest.raises(SinkError, match="which ignores case"):
        sink.prepare(Target("main", both, both.table))
    sink.close()


def test_truckers_own_schema_is_refused(path: Path) -> None:
    sink = make(path)
    sink.open()
    with pytest.raises(SinkError, match="the schema of trucker's own tables"):
        sink.prepare(Target("main", ITEMS, TableId("Trucker", "positions")))
    sink.close()


def with_types(**types: str) -> Target:
    schema = schema_of(ITEMS.table, {"id": "integer", "a": "text", "b": "integer", **types}, ["id"])
    return Target("main", schema, schema.table)


def test_a_column_is_widened(path: Path) -> None:
    sink = started(path)
    change(sink, insert({"id": "1", "b": "5"}))
    wider = with_types(b="bigint")
    sink.prepare(wider)
    change(sink, insert({"id": "2", "b": str(2**40)}), step=2, target=wider)
    sink.close()
    assert query(path, "SELECT id, b FROM public.items ORDER BY id") == [(1, 5), (2, 2**40)]


def test_a_type_that_does_not_fit_is_refused(path: Path) -> None:
    sink = started(path)
    with pytest.raises(SinkError, match="TRK438") as failed:
        sink.prepare(with_types(b="uuid"))
    assert "VARCHAR" in failed.value.remedy
    with pytest.raises(SinkError, match="cannot hold every VARCHAR"):
        sink.prepare(with_types(b="text"))
    sink.close()


def test_a_users_table_keeps_its_own_columns(path: Path) -> None:
    query(path, "CREATE SCHEMA public")
    query(
        path,
        "CREATE TABLE public.items "
        "(id BIGINT, note VARCHAR DEFAULT 'new', seen INTEGER NOT NULL, b HUGEINT, a VARCHAR)",
    )
    sink = started(path)
    change(sink, insert({"id": "1", "a": "x", "b": "1"}), insert({"id": "2", "a": "y", "b": "2"}))
    sink.close()
    query(path, "UPDATE public.items SET note = 'mine'")
    change(sink, update({"id": "1", "a": "X", "b": "1"}), update({"id": "3", "a": "y", "b": "2"}, {"id": "2"}), step=2)
    change(sink, insert({"id": "4"}), step=3)
    sink.close()
    assert query(path, "SELECT id, a, note FROM public.items ORDER BY id") == [
        (1, "X", "mine"),
        (3, "y", "mine"),
        (4, None, "new"),
    ]


def test_a_constraint_of_the_user_stops_the_truck(path: Path) -> None:
    query(path, "CREATE SCHEMA public")
    query(path, "CREATE TABLE public.items (id BIGINT, a VARCHAR CHECK (a <> 'secret'), b BIGINT)")
    sink = started(path)
    with pytest.raises(TruckFailed, match="constraint") as failed:
        change(sink, insert({"id": "1", "a": "secret"}))
    assert "secret" not in str(failed.value)
    assert failed.value.__cause__ is None or "secret" not in str(failed.value.__cause__)
    sink.close()
    assert query(path, "FROM public.items") == []


def test_a_table_that_was_dropped(path: Path) -> None:
    sink = started(path)
    sink.close()
    query(path, "DROP TABLE public.items")
    with pytest.raises(TruckFailed, match=r"public\.items was dropped at the destination"):
        change(sink, insert({"id": "1"}))
    sink.close()


def test_a_missing_value_that_cannot_be_held(path: Path) -> None:
    sink = started(path)
    column = Column("d", 1700, type_name="numeric(5,2)", missing_value="NaN")
    with pytest.raises(SinkError, match=r"'d' of table public\.items is DECIMAL\(5,2\), which cannot hold NaN"):
        sink.prepare(Target("main", TableSchema(ITEMS.table, (*ITEMS.columns, column), ("id",)), ITEMS.table))
    change(sink, insert({"id": "1"}))
    sink.close()
    assert query(path, "SELECT id FROM public.items") == [(1,)]


def test_parts_too_large_for_a_receipt(path: Path) -> None:
    sink = started(path)
    batch = Batch(AT, Lsn(AT + 16), {"main": Lsn(AT + 16)}, targets=(TARGET,))
    text = [random.randbytes(80).hex() for _ in range(30_000)]
    rows = [{"id": str(n), "a": text[n], "b": None} for n in range(30_000)]
    parts = [[copied_rows_of(ITEMS, rows[k::3])] for k in range(3)]
    receipts = [sink.write(Work(batch, TARGET, n), iter(part)) for n, part in enumerate(parts)]
    spool = path.parent / "work"
    sink.write(Work(batch, TARGET, 1), iter(parts[1]))  # an attempt in vain
    assert len(list(spool.iterdir())) == 4
    sink.commit(batch, receipts)
    assert list(spool.iterdir()) == []
    sink.close()
    assert query(path, "SELECT id, a FROM public.items ORDER BY id") == [(n, text[n]) for n in range(30_000)]


def test_a_first_open_removes_what_a_crash_left(path: Path) -> None:
    started(path).close()
    left = path.parent / "work" / "main.public.items.x.00000.0123.arrows"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    sink = make(path)
    sink.open()
    assert not left.exists()
    left.touch()  # what a lane has under way while another one connects again
    sink.open()
    assert left.exists()
    sink.close()


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (Column("x", 1700, typmod=((10 << 16) | 2) + 4), "DECIMAL(10,2)"),
        (Column("x", 1700), "VARCHAR"),
        (Column("x", 1700, typmod=((3 << 16) | (0x800 - 2)) + 4), "VARCHAR"),
        (Column("x", 1184), "TIMESTAMP WITH TIME ZONE"),
        (Column("x", 16), "BOOLEAN"),
        (Column("x", 99999), "VARCHAR"),
        (Column("x", 1700, type_name="numeric(38,38)"), "DECIMAL(38,38)"),
        (Column("x", 1700, type_name="numeric(2,5)"), "VARCHAR"),
        (Column("x", 1231, type_name="numeric(10,2)[]"), "VARCHAR"),
        (Column("x", 1115, type_name="timestamp without time zone[]"), "VARCHAR"),
        (Column("x", 1266, type_name="time with time zone"), "VARCHAR"),
        (Column("x", 50000, type_name="public.mood"), "VARCHAR"),
        (Column("x", 50000, type_name="integer"), "INTEGER"),
    ],
)
def test_types(column: Column, kind: str) -> None:
    assert duckdb_type(column) == kind


def test_holds_and_widens() -> None:
    assert holds("BIGINT", "SMALLINT")
    assert not holds("SMALLINT", "BIGINT")
    assert holds("VARCHAR", "UUID")
    assert holds("DECIMAL(12,2)", "DECIMAL(10,2)")
    assert not holds("DECIMAL(12,2)", "DECIMAL(12,4)")
    assert holds("DECIMAL(38,0)", "BIGINT")
    assert not holds("BIGINT", "DECIMAL(5,0)")
    assert holds("DOUBLE", "FLOAT")
    assert not holds("TIMESTAMP", "DATE")
    assert widens("INTEGER", "BIGINT")
    assert widens("DECIMAL(10,2)", "DECIMAL(14,4)")
    assert not widens("INTEGER", "VARCHAR")


# -- any net change ----------------------------------------------------------------------------------------------------


def net_change(draw: random.Random, rows: dict[str, dict[str, str | None]]) -> list[Change]:
    """What a batch may do to these rows, each key once: it is deleted, moves to where it is free by then, or stays."""
    made: list[Change] = []
    fates = {key: draw.choice(["stays", "stays", "deleted", "moves", "updated"]) for key in rows}
    free = [str(n) for n in range(12) if fates.get(str(n), "deleted") in ("deleted", "moves")]
    draw.shuffle(free)
    for key, fate in fates.items():
        kept = [name for name in ("a", "b") if draw.random() < 0.4]
        cells = {"a": draw.choice(["x", "y", None]), "b": str(draw.randrange(9))}
        if fate == "updated":
            made.append(update({"id": key, **cells}, unchanged=kept))
        elif fate == "moves":
            made.append(update({"id": free.pop(), **cells}, {"id": key}, kept))
        elif fate == "deleted":
            made.append(delete({"id": key}))
    made += [insert({"id": key, "a": "new", "b": None}) for key in free if draw.random() < 0.3]
    draw.shuffle(made)
    return [one for one in made if not _doubled(one, made)]


def _doubled(one: Change, made: list[Change]) -> bool:
    """A key that is deleted and comes again is no delete in a net change."""
    if one.new is not None or one.old is None:
        return False
    return any(other.new is not None and other.new["id"] == one.old["id"] and other.old is None for other in made)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_any_net_change(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    path = tmp_path_factory.mktemp("net") / "d.duckdb"
    sink = started(path)
    oracle = MemoryTable.like(ITEMS)
    first = [insert({"id": str(n), "a": f"a{n}", "b": str(n)}) for n in range(8)]
    try:
        for step in range(1, 5):
            rows = {str(row["id"]): row for row in oracle.rows}
            changes = first if step == 1 else net_change(draw, rows)
            oracle.apply_net([[changes_of(ITEMS, changes)]])
            change(sink, *changes, step=step)
            with session_of(sink).use() as connection:
                found = connection.execute("SELECT id, a, b FROM public.items").fetchall()
            expected = [(int(r["id"] or 0), r["a"], None if r["b"] is None else int(r["b"])) for r in oracle.rows]
            assert sorted(map(repr, found)) == sorted(map(repr, expected))
    finally:
        sink.close()
