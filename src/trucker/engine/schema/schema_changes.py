"""Reads the shapes of tables from the stream and decides what each means for a truck.

A Relation message is in force from where it stands in the log, so the shape a batch is written in is the newest one
that the batch's blocks use. A comparison (`column_identity`) with the table as it was when rows of it were last written
(`written_schema`) shows what it means, so it is judged for each truck: a lane that catches up reads older shapes than
the main lane, at the same time. The catalogue is asked once for each new shape, not for each batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from trucker.engine.schema.column_identity import (
    ColumnNumbers,
    Doubt,
    OwnShapes,
    numbers_of,
    renaming,
    replaced,
    rewritten,
)
from trucker.engine.schema.partitions import Probe, TreeChange, tree_change
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema, says_the_same
from trucker.engine.truck.truck import InputTable
from trucker.errors import SourceError
from trucker.lsn import Lsn
from trucker.pgoutput import Relation, Renames, parse_relation
from trucker.sinks.target import Target
from trucker.source.look import Look, SeenColumn, Sighting
from trucker.source.source_table import SourceType
from trucker.table import Column, Partitions, TableId, TableSchema

log = logging.getLogger("trucker.shapes")

UNKNOWN = "unknown"
"""The former type of a column that the destination has, or may have, from a time that nothing is stored of."""


@dataclass(frozen=True, slots=True)
class CatalogDescription:
    """What the catalogue says now: of the table, and of the types a shape uses."""

    look: Look | None
    types: Mapping[tuple[int, int], SourceType]


Shapes = tuple[tuple[tuple[Column, ...], ColumnNumbers], ...]
"""The shapes of a batch in log order, each with its columns' numbers."""

DescribeTable = Callable[[TableId, tuple[Column, ...]], CatalogDescription]


@dataclass(frozen=True)
class SchemaReading:
    """A table's shapes in a batch as one truck writes them; `numbers` go with the target's columns.

    `known` is what holds once the batch is committed. Where `again` has a reason, the table must be copied again, and
    nothing of the batch is written to it. `remade` says that it is another table, of the same name. `own` is for who
    keeps every change in its own shape, which takes no reading. `merge` names the partitions that were attached with
    rows, which are to be merged into the destination's table (`partitions: keep`); `stays` says of which partitions
    that are gone the rows stay there.
    """

    target: Target
    numbers: ColumnNumbers
    known: WrittenSchema
    shapes: Shapes = ()
    again: str = ""
    remade: bool = False
    own: OwnShapes = field(default_factory=dict)
    merge: tuple[TableId, ...] = ()
    stays: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether nothing is sure but that the table must be copied again."""
        return bool(self.again) and not self.shapes

    @cached_property
    def renames(self) -> Renames:
        """The names to read each shape's columns by, where they are not its own."""
        wanted = dict(zip(self.numbers, self.target.source.names, strict=True))
        renamings = ((tuple(c.name for c in shape), renaming(shape, numbers, wanted)) for shape, numbers in self.shapes)
        return tuple((names, others) for names, others in renamings if names != others)

    def called_as_before(self, names: frozenset[str]) -> SchemaReading:
        """Columns of these names under those the destination has them by."""
        others = {c.name: c.was_name for c in self.target.source.columns if c.name in names and c.was_name}
        if not others:
            return self
        # A new column may have a name that is still another one's there: it has no place.
        clash = frozenset(others.values()) & (frozenset(self.target.source.names) - others.keys())
        if clash:
            return self.without(clash).called_as_before(names)
        source = self.target.source
        columns = tuple(replace(c, name=others.get(c.name, c.name), was_name="") for c in source.columns)
        key = tuple(others.get(name, name) for name in source.key)
        former_names = {n: c.name for n, c in zip(self.numbers, columns, strict=True) if c.name in others.values()}
        return replace(
            self,
            target=replace(self.target, source=TableSchema(source.table, columns, key)),
            known=replace(self.known, names={**self.known.names, **former_names}),
        )

    def without(self, names: frozenset[str]) -> SchemaReading:
        """The columns of these names left out: the destination has no place for them."""
        if not names:
            return self
        pairs = list(zip(self.numbers, self.target.source.columns, strict=True))
        source = self.target.source.only([name for name in self.target.source.names if name not in names])
        return replace(
            self,
            target=replace(self.target, source=source),
            numbers=tuple(number for number, column in pairs if column.name not in names),
            known=replace(
                self.known, left_out=self.known.left_out | {n for n, column in pairs if column.name in names}
            ),
        )


class Schemas:
    """Judges shapes for trucks. `describe` asks the source's catalogue, `probe` a partition."""

    def __init__(self, describe: DescribeTable, schema_store: SchemaStore, probe: Probe = lambda *_: 0) -> None:
        self._describe = describe
        self._probe = probe
        self._schema_store = schema_store
        self._read: dict[tuple[str, TableId], tuple[bytes, SchemaReading]] = {}
        self._lock = threading.Lock()

    def read(
        self,
        truck: str,
        table: InputTable,
        messages: Sequence[bytes],
        xid: Callable[[], int | None],
        *,
        own: bool = False,
    ) -> tuple[SchemaReading, bool]:
        """What the table's Relation messages of a batch mean, in log order; and whether that is news.

        `own` asks for `SchemaReading.own`, which is there though nothing else may be sure.
        Raises `SourceError` where the table has another name now.
        """
        with self._lock:
            cached = self._read.get((truck, table.source))
            if cached is not None and [cached[0]] == list(messages):
                return cached[1], False
            relations = [parse_relation(message) for message in messages]
            described = self._describe(table.source, tuple(c for r in relations for c in r.columns))
            before = self._schema_store.get(truck, table.source) or _baseline(
                truck, table, relations[0], described.look
            )
            return _Judge(truck, table, before, described, xid, self._probe).read(relations, own=own), True

    def settle(self, written: Mapping[tuple[str, TableId], tuple[bytes, SchemaReading]]) -> None:
        """Rows of these trucks' tables have been committed in these shapes, each with its last message."""
        if not written:
            return
        with self._lock:
            self._schema_store.put({truck_table: reading.known for truck_table, (_, reading) in written.items()})
            for truck_table, (message, reading) in written.items():
                last = parse_relation(message).columns
                own_shapes = {columns: schema for columns, schema in reading.own.items() if columns == last}
                self._read[truck_table] = (message, replace(reading, shapes=reading.shapes[-1:], own=own_shapes))

    def examine(self, truck: str, table: InputTable, sighting: Sighting) -> SchemaReading | None:
        """The table as a look shows it, when all that was committed before the look has been applied.

        None where nothing is new to the truck. The destination must follow the reading (`fit`) before it is stored
        (`follow`).
        Raises `SourceError` where a table that the truck names is gone.
        """
        reading, news = self.see(truck, table, sighting)
        return reading if news else None

    def see(self, truck: str, table: InputTable, sighting: Sighting) -> tuple[SchemaReading | None, bool]:
        """As `examine`, but the reading in any case; and whether it is new to the truck."""
        with self._lock:
            written, now = self._schema_store.get(truck, table.source), sighting.look
            if written is None:
                return None, False
            if now is None:
                _lost(truck, table)
                return None, False
            if now.oid != written.look.oid:
                return _remade(truck, table, written), True
            types = {
                (column.type_oid, column.typmod): SourceType(column.type_name, column.definition)
                for column in (seen.column for seen in now.columns)
            }
            baseline = replace(written, look=replace(written.look, horizon=max(written.look.horizon, sighting.since)))
            judge = _Judge(truck, table, baseline, CatalogDescription(now, types), lambda: None, self._probe)
            reading = judge.seen(sighting.sent)
            same = says_the_same(replace(written, left_out=frozenset(), names={}), reading.known)
            return reading, not same or bool(reading.again)

    def truncated(self, truck: str, table: TableId, xid: int) -> None:
        """A TRUNCATE of the whole table has been applied from the stream."""
        with self._lock:
            written = self._schema_store.get(truck, table)
            if written is not None and written.look.partitioned:
                self._schema_store.put({(truck, table): replace(written, truncated=xid)})

    def follow(self, reading: SchemaReading) -> None:
        """The destination's table has the shape of an examined reading now.

        What the stream said last is judged again when it says it again: it may mean less than what was seen since.
        """
        truck_table = reading.target.truck, reading.target.source.table
        if reading.stays:
            facts = {"truck": truck_table[0], "table": str(truck_table[1]), "reason": reading.stays}
            log.warning("rows of partitions stay at the destination", extra=facts)
        with self._lock:
            self._schema_store.put({truck_table: reading.known})
            self._read.pop(truck_table, None)

    def forget(self, truck: str, table: TableId | None = None) -> None:
        """Ask the catalogue again, of one table or all of the truck's, though the stream says nothing new."""
        with self._lock:
            self._read = {
                truck_table: reading
                for truck_table, reading in self._read.items()
                if truck_table[0] != truck or (table is not None and truck_table[1] != table)
            }

    def known(self, truck: str, table: TableId) -> WrittenSchema | None:
        return self._schema_store.get(truck, table)

    def oids(self, truck: str, tables: frozenset[TableId]) -> dict[int, TableId]:
        """The tables by the oid they had when they were copied."""
        return {written.look.oid: table for table in tables if (written := self._schema_store.get(truck, table))}


def fit(reading: SchemaReading, prepare: Callable[[Target], frozenset[str]]) -> SchemaReading:
    """Prepare the destination for what has been read; the reading as far as it has a place there."""
    left_out = prepare(reading.target)
    called = reading.called_as_before(left_out)
    if called is not reading:
        left_out = prepare(called.target)
    return called.without(left_out)


def copied(
    truck: str, table: InputTable, schema: TableSchema, look: Look, before: WrittenSchema | None
) -> SchemaReading:
    """The reading for a copy: the table as it is in the snapshot.

    `before` is what it was when the destination's table was made for it, if it has been: types may have changed since.
    """
    key = table.key_by({number: name for name, number in look.numbers.items()})
    target = table.target(truck, replace(schema, key=key))
    numbers = tuple(look.numbers[name] for name in target.source.names)
    shapes = ((target.source.columns, numbers),)
    written = WrittenSchema(look, frozenset(numbers), key=table.key_numbers)
    if before is not None:
        types = _types_there(before)
        if before.look.oid != look.oid:
            before = WrittenSchema(look)  # the numbers of another table mean nothing in this one
        columns = tuple(_as_it_was(c, n, before, types) for c, n in zip(target.source.columns, numbers, strict=True))
        target = replace(target, source=replace(target.source, columns=columns), stale=True)
        written = replace(written, dropped=frozenset(types) - frozenset(target.source.names))
    return SchemaReading(target, numbers, written, shapes)


def _types_there(before: WrittenSchema) -> dict[str, str]:
    """The columns that the destination has, with the types that were theirs at the source."""
    columns = ((before.name_at_destination(number), seen.column) for number, seen in before.look.by_number.items())
    return {**dict.fromkeys(before.dropped, UNKNOWN), **{name: column.type_name for name, column in columns if name}}


def _as_it_was(column: Column, number: int, before: WrittenSchema, types: Mapping[str, str]) -> Column:
    """The column with the name and the type that it has at the destination, where they are others.

    A name may have been another column's there: it is that one's type that counts then. One that is new since may have
    been added there for rows that were never committed.
    """
    called = before.name_at_destination(number)
    new = UNKNOWN if number not in before.look.by_number else ""
    was_type = types.get(column.name, types.get(called or "", new))
    return replace(
        column,
        was_name=called if called and called != column.name else "",
        was_type=was_type if was_type != column.type_name else "",
    )


def _baseline(truck: str, table: InputTable, relation: Relation, now: Look | None) -> WrittenSchema:
    """Where nothing is stored of a table (it was copied by an older version), it counts as it is found."""
    if now is None:
        columns = tuple(SeenColumn(at, column, False, 0) for at, column in enumerate(relation.columns, 1))
        now = Look(table.source, relation.oid, Lsn(0), table.key, len(columns), columns, {})
    taken = frozenset(seen.number for seen in now.columns if table.takes(seen.column.name))
    return WrittenSchema(now, taken, key=table.key_numbers)


class _Judge:
    """One table's shapes for one truck."""

    def __init__(
        self,
        truck: str,
        table: InputTable,
        before: WrittenSchema,
        described: CatalogDescription,
        xid: Callable[[], int | None],
        probe: Probe,
    ) -> None:
        self._probe = probe
        self._caught_up = False
        self._truck, self._table, self._before = truck, table, before
        now = self._catalog_look = described.look
        self._now = now if now is not None and now.oid == before.look.oid else None
        self._types = described.types
        self._xid = xid

    def read(self, relations: Sequence[Relation], *, own: bool) -> SchemaReading:
        if not all(self._same_table(relation) for relation in relations):
            return _remade(self._truck, self._table, self._before)
        final = relations[-1].columns
        try:
            numbers = [self._numbers(relation.columns) for relation in relations]
            self._check_names(final, numbers[-1])
        except Doubt as doubt:
            numbers = [tuple(-1 - i for i in range(len(relation.columns))) for relation in relations]
            if own:
                self._check_choice(final)
            reading = self._reading(relations[-1], numbers[-1], (), str(doubt))
            return replace(reading, known=self._before, own=self._own_shapes(relations, numbers) if own else {})
        shapes = tuple((relation.columns, each) for relation, each in zip(relations, numbers, strict=True))
        reading = self._reading(relations[-1], numbers[-1], shapes, "")
        reading = self._with_partitions(replace(reading, again=self._why_again(reading, numbers)))
        return replace(reading, own=self._own_shapes(relations, numbers) if own else {})

    def seen(self, sent: frozenset[str]) -> SchemaReading:
        """The shape of the catalogue, of the columns that are `sent`, or were until now: their numbers are certain."""
        assert self._now is not None
        self._caught_up = True
        seen_columns = [
            each for each in self._now.columns if each.number in self._before.taken or each.column.name in sent
        ]
        columns, numbers = tuple(each.column for each in seen_columns), tuple(each.number for each in seen_columns)
        relation = Relation(self._now.oid, self._table.source, "", columns, ())
        reading = self._reading(relation, numbers, ((columns, numbers),), "")
        try:
            self._check_names(columns, numbers)
        except Doubt as doubt:
            return replace(reading, shapes=(), again=str(doubt))
        return self._with_partitions(replace(reading, again=self._why_again(reading, [numbers])))

    def _own_shapes(self, relations: Sequence[Relation], numbers: Sequence[ColumnNumbers]) -> OwnShapes:
        """Every shape as it is, with the types' names: only the key is identified by number."""
        return {
            relation.columns: TableSchema(
                self._table.source,
                tuple(
                    self._typed(column)
                    for column, number in zip(relation.columns, each, strict=True)
                    if column.name in self._key(relation, each) or self._takes(column.name, number)
                ),
                self._key(relation, each),
            )
            for relation, each in zip(relations, numbers, strict=True)
        }

    def _check_choice(self, shape: Sequence[Column]) -> None:
        """Where no number is sure, a column that truck.yml names must be there: it may have another name (I8, I10)."""
        named = self._table.only | self._table.excepted
        missing = named & self._before.look.numbers.keys() - {column.name for column in shape}
        if missing:
            raise SourceError(
                f"truck {self._truck}: column {min(missing)} of {self._table.source}, which its truck.yml names, "
                "was dropped or renamed",
                remedy="write the new name in only_columns or except_columns of its truck.yml, or leave the column out"
                " there; then trucker run",
                code="TRK253",
            )

    def _key(self, relation: Relation, numbers: ColumnNumbers) -> tuple[str, ...]:
        """The key's names in a shape: by number, or, where no number is sure, as the stream or a look has them."""
        table, names = self._table, {n: column.name for n, column in zip(numbers, relation.columns, strict=True)}
        if names.keys() >= frozenset(table.key_numbers):
            return table.key_by(names)
        if relation.identity == "d" and relation.key_columns:
            return relation.key_columns
        looks = [each.by_number for each in (self._before.look, self._now) if each is not None]
        keys = [table.key_by({n: seen.column.name for n, seen in each.items()}) for each in looks]
        return next((key for key in keys if frozenset(key) <= frozenset(names.values())), table.key_by(names))

    def _check_names(self, shape: Sequence[Column], numbers: ColumnNumbers) -> None:
        """A name that the destination has for another column leaves open whether it has been renamed there."""
        numbers_by_name = {self._before.name_at_destination(number): number for number in self._before.taken}
        numbers_by_name = {**dict.fromkeys(self._before.dropped, 0), **numbers_by_name}
        for column, number in zip(shape, numbers, strict=True):
            existed = number in self._before.look.by_number
            if existed and numbers_by_name.get(column.name, number) != number:
                raise Doubt(f"column {column.name} has the former name of another column")

    def _numbers(self, shape: Sequence[Column]) -> ColumnNumbers:
        look = self._before.look
        first = [seen.column for seen in look.columns]
        plain = [(c.name, c.type_oid, c.typmod) for c in first] == [(c.name, c.type_oid, c.typmod) for c in shape]
        return numbers_of(shape, look, self._now, None if plain else self._xid(), self._before.taken)

    def _reading(self, relation: Relation, numbers: ColumnNumbers, shapes: Shapes, again: str) -> SchemaReading:
        before, shape = self._before, relation.columns
        columns, taken = [], []
        for column, number in zip(shape, numbers, strict=True):
            if self._takes(column.name, number):
                columns.append(self._column(column, number))
                taken.append(number)
        passing = {column.name for column, number in zip(columns, taken, strict=True) if number < 0}
        dropped = before.dropped | self._dropped(numbers) | passing
        source = TableSchema(self._table.source, tuple(columns), self._key(relation, numbers))
        here = sorted(dropped - {column.name for column in columns})
        key = self._table.key_numbers if before.key is None else before.key
        look = self._look(shape, numbers)
        written = WrittenSchema(look, frozenset(taken), dropped=dropped, truncated=before.truncated, key=key)
        target = replace(
            self._table.target(self._truck, source),
            source=source,
            dropped=tuple(here),
        )
        return SchemaReading(target, tuple(taken), written, shapes, again)

    def _column(self, column: Column, number: int) -> Column:
        """The column with what the catalogue knows of it, and what it was before."""
        seen = self._now.by_number.get(number) if self._now else None
        before = self._before.look.by_number.get(number)
        named = self._typed(column)
        if seen is not None and seen.column.type_oid == column.type_oid:
            described = seen.column
            named = replace(
                named, not_null=described.not_null, missing_value=described.missing_value, labels=described.labels
            )
        if before is None:
            return named
        called = self._before.name_at_destination(number)
        was_name = called if called and called != column.name else ""
        other = (before.column.type_oid, before.column.typmod) != (column.type_oid, column.typmod)
        return replace(named, was_name=was_name, was_type=before.column.type_name if other else "")

    def _typed(self, column: Column) -> Column:
        kind = self._types.get((column.type_oid, column.typmod), SourceType())
        return replace(column, type_name=kind.name, definition=kind.definition)

    def _takes(self, name: str, number: int) -> bool:
        """A column that is renamed must stay what it was to the truck: in, or out (I8, I10)."""
        takes = number in self._table.key_numbers or self._table.chooses(name)
        seen = self._before.look.by_number.get(number)
        if seen is not None and seen.column.name != name and takes != (number in self._before.taken):
            raise SourceError(
                f"truck {self._truck}: column {seen.column.name} of {self._table.source}, which it "
                f"{'leaves out' if takes else 'reads'}, was renamed to {name}",
                remedy="write the new name in only_columns or except_columns of its truck.yml, then trucker run",
                code="TRK253",
            )
        return takes

    def _dropped(self, numbers: ColumnNumbers) -> frozenset[str]:
        """What the destination has of columns that are no more. Unpublished ones are not taken."""
        dropped = self._before.taken - frozenset(numbers)
        return frozenset(name for number in dropped if (name := self._before.name_at_destination(number)))

    def _look(self, shape: Sequence[Column], numbers: ColumnNumbers) -> Look:
        """The table with the columns of this shape, and all else as the catalogue has it."""
        before, now = self._before.look, self._now or self._before.look
        by_number = {}
        for column, number in zip(shape, numbers, strict=True):
            seen_column = now.by_number.get(number) or before.by_number.get(number)
            if seen_column is not None:
                type_name = self._types.get((column.type_oid, column.typmod), SourceType()).name
                same = seen_column.column.type_oid == column.type_oid
                described = seen_column.column if same else column
                described = replace(
                    described, name=column.name, typmod=column.typmod, type_name=type_name or described.type_name
                )
                by_number[number] = replace(seen_column, column=described)
        for number in before.by_number:
            if number not in by_number and number not in self._before.taken and number in now.by_number:
                by_number[number] = now.by_number[number]
        columns = tuple(by_number[number] for number in sorted(by_number))
        look = replace(now, columns=columns, table=self._table.source)
        return look if self._caught_up or not before.partitioned else look.with_tree_of(before)

    def _why_again(self, reading: SchemaReading, shapes: Sequence[ColumnNumbers]) -> str:
        """Why the rows at the destination are not those of the source, if they are not."""
        before = self._before
        dropped = before.dropped | self._dropped(shapes[-1])
        for number, column in zip(reading.numbers, reading.target.source.columns, strict=True):
            if number > 0 and number not in before.look.by_number and column.name in dropped:
                return f"column {column.name} is not the one whose values the destination has"
        if self._now is None:
            return ""
        names = {before.look.by_number[n].column.name for n in reading.numbers if n in before.look.by_number}
        other = replaced(before.look, self._now, names)
        if other:
            return f"column {other} is not the one whose values the destination has"
        # Columns that no shape has shown yet count too: the look they were added before is what the next one is held
        # against.
        rewrite = rewritten(before.look, self._now, {*reading.numbers, *self._unseen()})
        if rewrite is not None and self._table.is_copied:
            return rewrite.why
        if rewrite is not None:
            facts = {"truck": self._truck, "table": str(self._table.source), "reason": rewrite.why}
            log.warning("rows at the destination stay as they are", extra=facts)
        retyped = {n for n, c in zip(reading.numbers, reading.target.source.columns, strict=True) if c.was_type}
        if len(shapes) > 1 and retyped & {n for each in shapes[:-1] for n in each}:
            return "a column's type was altered within a transaction"
        follows = self._table.partitions is Partitions.FOLLOW and self._table.is_copied
        return str(self._tree_change) if follows else ""

    def _with_partitions(self, reading: SchemaReading) -> SchemaReading:
        """The reading with the change of partitions under `partitions: keep`, or of a table whose rows are not copied,
        where the table is not copied again."""
        if reading.again or (self._table.partitions is Partitions.FOLLOW and self._table.is_copied):
            return reading
        change = self._tree_change
        stays, attached = str(replace(change, attached=())), change.attached if self._table.is_copied else ()
        target = replace(reading.target, awaits_rows=bool(attached))
        return replace(reading, target=target, merge=attached, stays=stays)

    @cached_property
    def _tree_change(self) -> TreeChange:
        """Partitions that came or went since rows were last written. Ask for it only when `_caught_up` is settled."""
        change = None
        if self._now is not None:
            change = tree_change(self._before.look, self._now, self._before.truncated, self._probe)
        if change is None:
            return TreeChange()
        # What the stream tells of truncates may be among the rows in hand.
        return change if self._caught_up else replace(change, emptied=())

    def _unseen(self) -> set[int]:
        """Columns that are there by now, were not when rows were last written, and that the truck takes."""
        now = self._now.columns if self._now else ()
        before = self._before.look.by_number
        return {seen.number for seen in now if seen.number not in before and self._table.chooses(seen.column.name)}

    def _same_table(self, relation: Relation) -> bool:
        """Whether it is the table that was copied; False where another one has its name now.

        Raises `SourceError` where the table has another name, and no other table has taken the one it had.
        """
        if relation.oid == self._before.look.oid and relation.table == self._table.source:
            return True
        taken = self._catalog_look is not None and self._catalog_look.oid != self._before.look.oid
        if relation.table == self._table.source or taken:
            return False
        renamed = f"truck {self._truck}: table {self._table.source} was renamed to {relation.table}"
        back = f"rename it back and run: trucker reset --truck {self._truck}"
        if not self._table.named:
            remedy = (
                f"run `trucker run`, which copies {relation.table} if the truck's patterns match it; rows under the "
                f"old name stay; or {back}"
            )
            raise SourceError(renamed, remedy=remedy, code="TRK252")
        raise SourceError(
            renamed,
            remedy=f"name {relation.table} in the truck's input (it is copied again, to an output table that "
            f"must be empty), or {back}",
            code="TRK252",
        )


def _remade(truck: str, table: InputTable, before: WrittenSchema) -> SchemaReading:
    """The reading for a table that another one has taken the name of: nothing of it is known yet."""
    target = table.target(truck, TableSchema(table.source, (), ()))
    return SchemaReading(target, (), before, again="another table has its name", remade=True)


def _lost(truck: str, table: InputTable) -> None:
    """Raise for a table that is gone; one that a pattern chose is just mentioned."""
    if not table.named:
        log.warning(
            "table was dropped or renamed at the source: its rows stay at the destination",
            extra={"truck": truck, "table": str(table.source)},
        )
        return
    raise SourceError(
        f"truck {truck}: table {table.source} was dropped or renamed at the source",
        remedy="create it again, rename it back or remove it from the truck, then run `trucker run`; its rows "
        "stay at the destination",
        code="TRK254",
    )
