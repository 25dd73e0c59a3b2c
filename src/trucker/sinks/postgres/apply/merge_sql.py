"""The statements that bring one staged value into its table.

Order: what a move keeps is taken from the row as it is, then deletes and the old places of moves go, then whole rows
are written, then single cells. Doing the moves as a set lets keys swap and shift along a chain without ever
meeting a unique constraint half-way; for other unique constraints than the key's see `unique_indexes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trucker.sinks.postgres.ddl.destination_table import DestinationTable, literal
from trucker.sinks.postgres.ddl.unique_indexes import PARKED, UniqueIndex
from trucker.sinks.sql.merge_steps import Step
from trucker.sinks.sql.staged_text import DELETE_ROW, REPLACE_ROW, UPSERT_ROW, Contents, Group
from trucker.sinks.target import Target
from trucker.table import quote_identifier

MANY: Final = 500


def staging_columns(contents: Contents, target: Target, table: DestinationTable) -> str:
    """The column definitions of a staging table for such contents."""
    lines = [f"k int2 default {UPSERT_ROW}"]
    lines += [f"c{i} {table.type_of(name)}" for i, name in enumerate(contents.columns)]
    if contents.moves:
        lines += [f"o{i} {table.type_of(name)}" for i, name in enumerate(target.source.key)]
    return ", ".join([*lines, *(["l numeric", "n bigint"] if contents.placed else [])])


def steps(
    contents: Contents, target: Target, table: DestinationTable, staged: str, *, sure: bool = False
) -> list[Step]:
    """What to run, in order, for a value whose rows are in the staging table `staged`.

    With `sure`, new rows are inserted and changed ones updated, which is cheaper than to look first which they are.
    """
    sure = sure and not (target.awaits_rows or target.uncopied)
    statements = _Statements(contents, target, table, staged, sure=sure)
    return statements.keyed() if target.source.key else statements.bag()


def straight(contents: Contents, target: Target, table: DestinationTable) -> str | None:
    """What to COPY a bare value's text into, where it can go straight into the target's table."""
    statements = _Statements(contents, target, table, "")
    return statements.copied_into() if contents.bare else None


class _Statements:
    def __init__(
        self, contents: Contents, target: Target, table: DestinationTable, staged: str, *, sure: bool = False
    ) -> None:
        self._sure = sure
        self._contents = contents
        self._target = target
        self._table = table
        self._staged = staged
        self._into = target.table.quoted
        self._key = target.source.key
        self._equals = table.key(target.source.key) or {}
        self._number = {name: i for i, name in enumerate(contents.columns)}
        self._writable = [name for name in contents.columns if table.writable(name)]

    def copied_into(self) -> str | None:
        names = self._contents.columns
        if len(self._writable) < len(names) or self._missing():
            return None
        return f"{self._into} ({', '.join(map(quote_identifier, names))})"

    def _step(self, statement: str, *parameters: object, expected: int | None, purpose: str, **flags: bool) -> Step:
        columns = self._contents.columns
        return Step(self._target, statement, parameters, expected, purpose, columns=columns, **flags)

    # -- tables with a key ----------------------------------------------------------------------------------------

    def keyed(self) -> list[Step]:
        if not self._target.awaits_rows:
            return self._keyed()
        removals = [self._leave_out(group.code, "c") for group in self._contents.patches]
        removals += [self._leave_out(group.code, "o") for group in self._contents.moves]
        return [*removals, *(replace(step, expected=None) for step in self._keyed())]

    def _leave_out(self, code: int, letter: str) -> Step:
        """Remove staged rows with unchanged cells whose own rows are still to come (`Target.awaits_rows`)."""
        existing = f"select from {self._into} t where {self._at(letter)}"
        statement = f"delete from {self._staged} s where s.k = $1 and not exists ({existing})"
        return self._step(statement, code, expected=None, purpose="find rows")

    def _keyed(self) -> list[Step]:
        removals = [self._fill(move) for move in self._contents.moves]
        if self._contents.deletes:
            removals.append(
                self._step(
                    f"delete from {self._into} t using {self._staged} s where s.k = $1 and {self._at('c')}",
                    DELETE_ROW,
                    expected=None,
                    purpose="delete",
                )
            )
        if self._contents.moves:
            removals.append(
                self._step(
                    f"delete from {self._into} t using {self._staged} s where s.k >= $1 and {self._at('o')}",
                    self._contents.moves[0].code,
                    expected=sum(move.rows for move in self._contents.moves),
                    purpose="move",
                )
            )
        indexes = self._in_the_way()
        return removals + (self._make_way(indexes) if indexes else self._writes(sure=self._sure))

    def _writes(self, *, sure: bool) -> list[Step]:
        """Rows that are to be as staged, and cells of such."""
        writes: list[Step] = []
        replaces = self._contents.replaces if self._contents.replaces >= MANY else 0
        writes += self._replace(replaces, sure=sure) if replaces else []
        if self._contents.upserts or self._contents.moves or self._contents.replaces > replaces:
            writes.append(self._upsert(self._contents.replaces - replaces, sure=sure))
        return writes + [self._patch(patch) for patch in self._contents.patches]

    # -- rows in each other's way ---------------------------------------------------------------------------------

    def _in_the_way(self) -> list[UniqueIndex]:
        """The unique indexes in which rows of this value may be in each other's way; see `unique_indexes`."""
        changed = self._contents.replaces or self._contents.patches
        if not changed or self._contents.written < 2 or self._table.referred:
            return []
        if any(self._table.writable(name) and name not in self._number for name in self._table.columns):
            return []
        key, columns = frozenset(self._key), frozenset(self._writable)
        return [i for i in self._table.other_unique(key) if i.columns <= columns and not i.columns <= key]

    def _make_way(self, indexes: Sequence[UniqueIndex]) -> list[Step]:
        """Take out what is in the way, put it back as it is to be, and write the others; their sum must be right."""
        away = f"delete from {self._into} t using {self._staged} s where s.k = $1 and {self._at('c')}"
        parking = [self._step(self._park(index), expected=None, purpose="write") for index in indexes]
        parking.append(self._step(away, PARKED, expected=None, purpose="write"))
        back = self._step(f"{self._insert()} where s.k = $1", PARKED, expected=None, purpose="write")
        chain = [back, *(replace(step, expected=None, rest=True) for step in self._writes(sure=False))]
        return [*parking, *chain[:-1], replace(chain[-1], expected=self._contents.written)]

    def _park(self, index: UniqueIndex) -> str:
        """Mark the staged rows whose own rows are in the way of others, having filled in what was not sent."""
        final = self._final()
        cells = ", ".join(f"{sql} as {quote_identifier(name)}" for name, sql in final.items())
        rows = f"{self._staged} s left join {self._into} t on {self._at('c')} where s.k <> {DELETE_ROW}"
        wanted = index.seen(self._key, f"(select {cells} from {rows})")
        fill = [f"k = {PARKED}", *(f"c{self._number[name]} = {final[name]}" for name in self._unsent())]
        places = [(i, quote_identifier(name), self._equals[name]) for i, name in enumerate(self._key)]
        held = " and ".join(f"t.{name} {equal} h.q{i}" for i, name, equal in places)
        itself = " and ".join(f"h.q{i} {equal} w.q{i}" for i, _, equal in places)
        return (
            f"with h as ({index.seen(self._key, self._into)}), w as ({wanted})"
            f" update {self._staged} s set {', '.join(fill)} from {self._into} t, h, w"
            f" where s.k not in ({DELETE_ROW}, {PARKED}) and {self._at('c')} and {held}"
            f" and {index.meets('h', 'w')} and not ({itself})"
        )

    def _unsent(self) -> dict[str, list[int]]:
        """The columns that some rows do not bring, with the codes of these."""
        codes: dict[str, list[int]] = {}
        for patch in self._contents.patches:
            for name in self._contents.columns:
                if name not in patch.columns:
                    codes.setdefault(name, []).append(patch.code)
        return codes

    def _final(self) -> dict[str, str]:
        """By column the SQL of what a staged row `s`, whose row in the table is `t`, will have in it."""
        cells = {name: f"s.c{number}" for name, number in self._number.items()}
        for name, codes in self._unsent().items():
            current = f"t.{quote_identifier(name)}"
            cells[name] = f"case when s.k in ({', '.join(map(str, codes))}) then {current} else {cells[name]} end"
        return cells

    # -- parts of statements --------------------------------------------------------------------------------------

    def _at(self, letter: str) -> str:
        """The target's row `t` is the one the staged row `s` means, by its key or (`o`) by its old key."""
        places = enumerate(self._key) if letter == "o" else ((self._number[name], name) for name in self._key)
        return " and ".join(
            f"t.{quote_identifier(name)} {self._equals.get(name, '=')} s.{letter}{number}" for number, name in places
        )

    def _fill(self, move: Group) -> Step:
        taken = ", ".join(f"c{self._number[name]} = t.{quote_identifier(name)}" for name in move.columns)
        return self._step(
            f"update {self._staged} s set {taken} from {self._into} t where s.k = $1 and {self._at('o')}",
            move.code,
            expected=move.rows,
            purpose="move a row with unchanged cells",
        )

    def _replace(self, rows: int, *, sure: bool) -> list[Step]:
        """Many rows that should be there are updated faster than upserted; those that are not are inserted after."""
        changed = [name for name in self._writable if name not in self._key]
        cells = ", ".join(f"{quote_identifier(name)} = s.c{self._number[name]}" for name in changed)
        existing = f"select from {self._into} t where {self._at('c')}"
        update = f"update {self._into} t set {cells} from {self._staged} s where s.k = $1 and {self._at('c')}"
        if sure and changed:
            return [self._step(update, REPLACE_ROW, expected=rows, purpose="write", sure=True)]
        insert = f"{self._insert()} where s.k = $1 and not exists ({existing})"
        updates = [self._step(update, REPLACE_ROW, expected=None, purpose="write")] if changed else []
        expected = rows if changed else None
        return [*updates, self._step(insert, REPLACE_ROW, expected=expected, purpose="write", rest=True)]

    def _upsert(self, replaces: int, *, sure: bool) -> Step:
        changed = [quote_identifier(name) for name in self._writable if name not in self._key]
        conflict = f"update set {', '.join(f'{name} = excluded.{name}' for name in changed)}" if changed else "nothing"
        moves = self._contents.moves
        rows, codes = "s.k = $1", [UPSERT_ROW]
        if replaces:
            rows, codes = "s.k in ($1, $2)", [UPSERT_ROW, REPLACE_ROW]
        if moves:
            rows, codes = f"({rows} or s.k >= ${len(codes) + 1})", [*codes, moves[0].code]
        if sure and not replaces and not moves:
            statement, expected = f"{self._insert()} where {rows}", self._contents.upserts
            return self._step(statement, *codes, expected=expected, purpose="write", sure=True)
        key = ", ".join(map(quote_identifier, self._key))
        return self._step(
            f"{self._insert()} where {rows} on conflict ({key}) do {conflict}",
            *codes,
            expected=self._contents.upserts + replaces + sum(move.rows for move in moves) if changed else None,
            purpose="write",
        )

    def _patch(self, patch: Group) -> Step:
        sent = [name for name in patch.columns if name not in self._key and self._table.writable(name)]
        purpose = "update a row with unchanged cells"
        if not sent:
            looked = f"select from {self._into} t, {self._staged} s where s.k = $1 and {self._at('c')}"
            return self._step(looked, patch.code, expected=patch.rows, purpose=purpose)
        cells = ", ".join(f"{quote_identifier(name)} = s.c{self._number[name]}" for name in sent)
        return self._step(
            f"update {self._into} t set {cells} from {self._staged} s where s.k = $1 and {self._at('c')}",
            patch.code,
            expected=patch.rows,
            purpose=purpose,
        )

    # -- tables without ---------------------------------------------------------------------------------------------

    def bag(self) -> list[Step]:
        contents = self._contents
        writes = []
        both = bool(contents.upserts and contents.deletes)
        if both:
            writes.append(self._step(self._cancel(), expected=None, purpose="", cancels=True))
        if contents.deletes:
            writes.append(
                self._step(self._remove(), DELETE_ROW, expected=contents.deletes, purpose="delete", after_cancel=both)
            )
        if contents.upserts:
            writes.append(
                self._step(
                    f"{self._insert()} where s.k = $1",
                    UPSERT_ROW,
                    expected=contents.upserts,
                    purpose="insert",
                    after_cancel=both,
                )
            )
        return writes

    def _cancel(self) -> str:
        """Take away pairs of a row inserted and the same row deleted. The text of a row is what rows are compared
        by: it exists for every type, where equality does not (json, point, xml), and tells NULL from empty."""
        form = f"row({', '.join(f's.c{self._number[name]}' for name in self._writable)})::text"
        return f"""with r as (select s.ctid as place, s.k, {form} as form,
                row_number() over (partition by s.k, {form}) as i from {self._staged} s)
            delete from {self._staged} where ctid = any(array(
                select unnest(array[a.place, b.place]) from r a join r b on a.form = b.form and a.i = b.i
                where a.k = {UPSERT_ROW} and b.k = {DELETE_ROW}))"""

    def _remove(self) -> str:
        """Exactly one row for every staged one, however many are equal."""
        names = self._writable
        wanted = f"row({', '.join(f's.c{self._number[name]}' for name in names)})::text"
        actual = f"row({', '.join(f't.{quote_identifier(name)}' for name in names)})::text"
        return f"""with w as (select {wanted} as form, count(*) as n from {self._staged} s where s.k = $1 group by 1),
            f as (select t.tableoid as part, t.ctid as place, w.n, row_number() over (partition by w.form) as i
                from {self._into} t join w on w.form = {actual})
            delete from {self._into} t using f where t.tableoid = f.part and t.ctid = f.place and f.i <= f.n"""

    # -- both -------------------------------------------------------------------------------------------------------

    def _insert(self) -> str:
        """Rows that predate a column hold what the source gave all older rows in it."""
        names = [quote_identifier(name) for name in self._writable]
        cells = [f"s.c{self._number[name]}" for name in self._writable]
        for name, value in self._missing():
            names.append(quote_identifier(name))
            cells.append(f"{literal(value)}::{self._table.type_of(name)}")
        return (
            f"insert into {self._into} ({', '.join(names)}) overriding system value"
            f" select {', '.join(cells)} from {self._staged} s"
        )

    def _missing(self) -> Sequence[tuple[str, str]]:
        return [
            (column.name, column.missing_value)
            for column in self._target.source.columns
            if column.missing_value is not None
            and column.name not in self._number
            and self._table.writable(column.name)
        ]
