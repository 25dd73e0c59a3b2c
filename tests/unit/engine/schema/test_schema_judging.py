"""What a shape means for a truck, given what its destination has: renamed, retyped, to be copied again, refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from trucker.change import Column, Lsn, SchemaChanges, TableId, TableSchema
from trucker.changelog.document import FileDocument
from trucker.engine.schema.schema_changes import CatalogDescription, SchemaReading, Schemas, copied
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema
from trucker.engine.truck.truck import InputTable
from trucker.errors import TruckerError
from trucker.source.look import Look, SeenColumn

T = TableId("public", "t")
INT, BIGINT = 23, 20


def message(*columns: tuple[str, int], table: str = "t", oid: int = 7, key: str = "", identity: str = "d") -> bytes:
    """A Relation message of `(name, type)` columns."""
    flags = {name: b"\1" if name == key or identity == "f" else b"\0" for name, _ in columns}
    body = b"".join(flags[name] + name.encode() + b"\0" + struct.pack(">Ii", kind, -1) for name, kind in columns)
    head = b"R" + struct.pack(">I", oid) + b"public\0" + table.encode() + b"\0" + identity.encode()
    return head + struct.pack(">H", len(columns)) + body


def look(*columns: tuple[int, str, int, int], file: int = 1) -> Look:
    """Columns by number, name, type and the transaction that altered them last."""
    seen = tuple(SeenColumn(n, Column(name, kind, type_name=str(kind)), False, at) for n, name, kind, at in columns)
    return Look(T, 7, Lsn(1), ("id",), max(n for n, *_ in columns), seen, {7: file})


BEFORE = look((1, "id", INT, 1), (2, "n", INT, 1))
KNOWN = WrittenSchema(
    look((1, "id", INT, 1), (2, "n", INT, 1), (3, "o", BIGINT, 1)), frozenset({1, 2, 3}), dropped=frozenset({"p"})
)


def read(
    folder: Path,
    now: Look,
    *messages: bytes,
    table: InputTable | None = None,
    known: WrittenSchema | None = None,
    own: bool = False,
) -> SchemaReading:
    tables = SchemaStore(FileDocument(folder / "shapes.json"))
    tables.put({("truck", T): known or WrittenSchema(BEFORE, frozenset({1, 2}))})
    schemas = Schemas(lambda *_: CatalogDescription(now, {}), tables)
    table = table or InputTable(T, T, ("id",), key_numbers=(1,))
    reading, news = schemas.read("truck", table, messages, lambda: 50, own=own)
    assert news
    return reading


def refused(folder: Path, now: Look, *messages: bytes, table: InputTable | None = None) -> str:
    try:
        read(folder, now, *messages, table=table)
    except TruckerError as error:
        return error.code
    raise AssertionError("nothing was refused")


def test_a_renamed_column(tmp_path: Path) -> None:
    reading = read(tmp_path, look((1, "id", INT, 1), (2, "m", INT, 9)), message(("id", INT), ("m", INT)))
    assert [(c.name, c.was_name) for c in reading.target.source.columns] == [("id", ""), ("m", "n")]
    assert (reading.again, reading.renames) == ("", ())
    kept = reading.called_as_before(frozenset({"m"}))
    assert kept.target.source.names == ("id", "n")
    assert kept.renames == ((("id", "m"), ("id", "n")),)
    assert kept.known.name_at_destination(2) == "n"


def test_a_renamed_key(tmp_path: Path) -> None:
    now = look((1, "key", INT, 9), (2, "n", INT, 1))
    reading = read(tmp_path, now, message(("key", INT), ("n", INT)), table=InputTable(T, T, ("key",), key_numbers=(1,)))
    assert reading.target.source.key == ("key",)
    reading = read(tmp_path, now, message(("id", INT), ("n", INT)), table=InputTable(T, T, ("key",), key_numbers=(1,)))
    assert reading.target.source.key == ("id",)


def test_a_key_that_was_renamed_twice_since_the_run_began(tmp_path: Path) -> None:
    """Neither look has the name that it had at the start."""
    now = look((1, "last", INT, 9), (2, "n", INT, 1))
    known = WrittenSchema(look((1, "id", INT, 1), (2, "n", INT, 1)), frozenset({1, 2}))
    first = InputTable(T, T, ("first",), key_numbers=(1,))
    reading = read(tmp_path, now, message(("last", INT), ("n", INT)), table=first, known=known)
    assert reading.target.source.key == ("last",)


def test_a_rewrite_of_a_column_that_no_shape_has_shown_yet(tmp_path: Path) -> None:
    """The look becomes what the next shape is held against, by which the file is no other one any more."""
    now = look((1, "id", INT, 1), (2, "n", INT, 1), (3, "made", INT, 9), file=2)
    assert read(tmp_path, now, message(("id", INT), ("n", INT))).again
    left_out = InputTable(T, T, ("id",), key_numbers=(1,), excepted=frozenset({"made"}))
    assert not read(tmp_path, now, message(("id", INT), ("n", INT)), table=left_out).again
    same_file = replace(now, files={7: 1})
    assert not read(tmp_path, same_file, message(("id", INT), ("n", INT))).again


def test_a_wider_type_and_a_rewrite(tmp_path: Path) -> None:
    wide = message(("id", INT), ("n", BIGINT))
    reading = read(tmp_path, look((1, "id", INT, 1), (2, "n", BIGINT, 9), file=2), wide)
    assert reading.target.source.column("n").was_type == str(INT)
    assert reading.again
    assert not read(tmp_path, look((1, "id", INT, 1), (2, "n", BIGINT, 9)), wide).again


def test_a_column_that_is_another_one_under_its_name(tmp_path: Path) -> None:
    now = look((1, "id", INT, 1), (3, "n", INT, 9))
    assert read(tmp_path, now, message(("id", INT), ("n", INT))).again
    dropped = WrittenSchema(look((1, "id", INT, 1)), frozenset({1}), dropped=frozenset({"n"}))
    assert read(tmp_path, now, message(("id", INT), ("n", INT)), known=dropped).again


def test_a_dropped_column_is_named(tmp_path: Path) -> None:
    reading = read(tmp_path, look((1, "id", INT, 1)), message(("id", INT)))
    assert reading.target.dropped == ("n",)
    assert reading.target.schema_changes is SchemaChanges.APPLY
    assert reading.known.dropped == {"n"}


def test_rows_of_another_table(tmp_path: Path) -> None:
    assert refused(tmp_path, BEFORE, message(("id", INT), ("n", INT), table="u")) == "TRK252"
    made_again = read(tmp_path, BEFORE, message(("id", INT), ("n", INT), oid=8))
    assert made_again.remade
    assert made_again.again


def test_a_column_that_slips_in_or_out(tmp_path: Path) -> None:
    now = look((1, "id", INT, 1), (2, "m", INT, 9))
    renamed = message(("id", INT), ("m", INT))
    only = InputTable(T, T, ("id",), key_numbers=(1,), only=frozenset({"n"}))
    assert refused(tmp_path, now, renamed, table=only) == "TRK253"
    key = message(("key", INT), ("n", INT))
    assert read(tmp_path, look((1, "key", INT, 9), (2, "n", INT, 1)), key, table=only).target.source.key == ("key",)


def copy(now: Look, known: WrittenSchema) -> SchemaReading:
    schema = TableSchema(T, tuple(seen.column for seen in now.columns), ("id",))
    return copied("truck", InputTable(T, T, ("id",), key_numbers=(1,)), schema, now, known)


def test_a_copy_knows_what_the_destination_calls_its_columns() -> None:
    """A column that was renamed is renamed there, the key too; one that was dropped still has its name there."""
    reading = copy(look((1, "key", INT, 9), (2, "m", BIGINT, 9), (4, "x", INT, 9)), KNOWN)
    columns = {c.name: (c.was_name, c.was_type) for c in reading.target.source.columns}
    assert columns == {"key": ("id", ""), "m": ("n", str(INT)), "x": ("", "unknown")}
    assert reading.target.source.key == ("key",)
    assert reading.target.renames(["id", "n", "o", "p"]) == [("id", "key"), ("n", "m")]
    assert reading.known.dropped >= {"o", "p"}
    kept = reading.called_as_before(frozenset({"key", "m"}))
    assert kept.renames == ((("key", "m", "x"), ("id", "n", "x")),)


def test_a_copy_of_columns_that_have_exchanged_their_names() -> None:
    """The type that counts is that of the column which had the name."""
    reading = copy(look((1, "id", INT, 1), (2, "o", INT, 9), (3, "n", BIGINT, 9)), KNOWN)
    columns = {c.name: (c.was_name, c.was_type) for c in reading.target.source.columns}
    assert columns == {"id": ("", ""), "o": ("n", str(BIGINT)), "n": ("o", str(INT))}
    assert reading.target.renames(["id", "n", "o"]) == []


def test_names_that_move_on_are_renamed_from_the_last() -> None:
    reading = copy(look((1, "id", INT, 1), (2, "o", INT, 9), (3, "q", BIGINT, 9)), KNOWN)
    assert reading.target.renames(["id", "n", "o"]) == [("o", "q"), ("n", "o")]


def test_a_column_that_takes_the_name_of_one_that_was_dropped(tmp_path: Path) -> None:
    """The destination still has that one: its values are not those of the renamed column."""
    now = look((1, "id", INT, 1), (2, "p", INT, 9), (3, "o", BIGINT, 1))
    assert read(tmp_path, now, message(("id", INT), ("p", INT), ("o", BIGINT)), known=KNOWN).again


def test_a_new_column_under_a_name_that_is_still_another_ones_there() -> None:
    """Under `ignore` the renamed column keeps its name there, and the new one has no place."""
    reading = copy(look((1, "id", INT, 1), (2, "m", INT, 9), (3, "o", BIGINT, 1), (4, "n", INT, 9)), KNOWN)
    kept = reading.called_as_before(frozenset({"m"}))
    assert (kept.target.source.names, kept.known.left_out) == (("id", "n", "o"), {4})
    assert kept.renames[0][1] == ("id", "n", "o", "n (was 4)")


def test_who_keeps_changes_has_them_in_their_own_shapes_though_nothing_is_sure(tmp_path: Path) -> None:
    """The key is the one that the stream tells, not the one of when the run began (I8)."""
    known = WrittenSchema(look((1, "id", INT, 1), (2, "n", INT, 1), (3, "o", INT, 1)), frozenset({1, 2, 3}))
    now = look((1, "last", INT, 9), (2, "n", INT, 1))
    first = message(("id", INT), ("n", INT), ("o", INT), key="id")
    second = message(("mid", INT), ("n", INT), key="mid")
    last = InputTable(T, T, ("last",), key_numbers=(1,))
    reading = read(tmp_path, now, first, second, table=last, known=known, own=True)
    assert reading.doubtful
    assert [(own.names, own.key) for own in reading.own.values()] == [
        (("id", "n", "o"), ("id",)),
        (("mid", "n"), ("mid",)),
    ]
    assert reading.target.source.key == ("mid",)
    assert reading.known == known


def test_the_key_of_whole_old_rows_where_nothing_is_sure(tmp_path: Path) -> None:
    """The stream does not mark it then: it is called as in one of the looks."""
    known = WrittenSchema(look((1, "id", INT, 1), (2, "n", INT, 1), (3, "o", INT, 1)), frozenset({1, 2, 3}))
    now = look((1, "last", INT, 9), (2, "n", INT, 1))
    full = message(("id", INT), ("n", INT), identity="f")
    reading = read(tmp_path, now, full, table=InputTable(T, T, ("last",), key_numbers=(1,)), known=known, own=True)
    assert [own.key for own in reading.own.values()] == [("id",)]


def test_a_column_that_is_left_out_by_name_is_not_let_in_by_another(tmp_path: Path) -> None:
    """I8, I10: where nothing is sure, a column that truck.yml names must be there."""
    known = WrittenSchema(look((1, "id", INT, 1), (2, "n", INT, 1), (3, "secret", INT, 1)), frozenset({1, 2}))
    now = look((1, "last", INT, 9), (2, "n", INT, 1), (3, "open", INT, 9))
    shape = message(("mid", INT), ("n", INT), ("other", INT), key="mid")
    table = InputTable(T, T, ("last",), key_numbers=(1,), excepted=frozenset({"secret"}))
    with pytest.raises(TruckerError) as refused:
        read(tmp_path, now, shape, table=table, known=known, own=True)
    assert refused.value.code == "TRK253"
