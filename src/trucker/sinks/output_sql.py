"""A truck's output.sql over staged rows: in which order, with which text, and what it may not do.

Whatever the destination, rows are staged as `n` (the number of their run), `k` (the operation, as in `change`) and
`c0`, `c1`, … (the cells, typed). Parts are taken in order, in each the runs, and in a run the truck's tables. The
statements are part of the batch's transaction (I3), so none of them may end it, or leave anything behind in the session
that outlives it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from trucker.change import DELETE, INSERT, OPERATIONS, TRUNCATE, UPDATE, Changes, CopiedRows, quote_identifier
from trucker.config.problems import nearest
from trucker.config.sql.sql_files import SqlFile
from trucker.config.sql.sql_lexer import Statement
from trucker.config.sql.sql_template import RenderedSql, SqlTemplate, TemplateRelation
from trucker.errors import ConfigError, Place, SinkError
from trucker.rows import OPERATION
from trucker.sinks.target import Target
from trucker.slow_sql import SlowQueries

FAILED: Final = "TRK480"
NOT_ALLOWED: Final = "TRK481"
TRUNCATED: Final = "TRK482"
TIMED_OUT: Final = "TRK485"

ORDER: Final = (DELETE, UPDATE, INSERT)
_CASES: Final = " ".join(f"when {code} then '{OPERATIONS[code]}'" for code in ORDER)

# Stands for the number of the run in a statement that is made once for all of them. As wide as what replaces it, so
# that places in the text stay what they are.
_RUN: Final = "8446744073709551629"
_NAME: Final = re.compile(r'(?:"(?:[^"]|"")*"|\w+)(?:\s*\.\s*(?:"(?:[^"]|"")*"|\w+))*')
_PART: Final = re.compile(r'"((?:[^"]|"")*)"|(\w+)')

Counts = Sequence[tuple[int, int, int]]
"""What a staged part holds: run, operation, rows."""


@dataclass(frozen=True, slots=True)
class Share:
    """One target's rows in one part. `staged` is where they are, for SQL, and `where` what else is to be asked."""

    target: Target
    staged: str
    counts: Counts
    where: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A statement of the file as it is to be run; `statement` has its place in `rendered`."""

    rendered: RenderedSql
    statement: Statement
    text: str

    def place(self, offset: int = 0) -> Place:
        """Where in the file an offset in the statement is."""
        return self.rendered.place(self.statement.offset + offset)


Run = Callable[[Target, Piece], None]
"""Runs a statement; raises trucker's errors."""


@lru_cache(maxsize=256)
def template_of(file: SqlFile) -> SqlTemplate:
    """The file as a template, made once."""
    return SqlTemplate(file)


def refuse_names(target: Target) -> None:
    """Raise for a column that would hide what `operation` says."""
    if OPERATION in target.source.names:
        raise SinkError(
            f"{_label(target)}: the rows of {target.source.table} have a column {OPERATION!r}, a name that "
            "output.sql reserves for the kind of change",
            remedy="rename the column with a rule or in earlier SQL, or leave it out with except_columns",
            code=FAILED,
        )


def refuse_truncate(target: Target, changes: Changes) -> None:
    """Raise where a table whose rows are mixed with others, or were written by a statement, was truncated (I8)."""
    if not np.any(changes.op == TRUNCATE):
        return
    where = (
        "output.sql cannot apply a truncate" if target.statement else (f"{target.table} also has rows of other tables")
    )
    raise SinkError(
        f"truck {target.truck}: table {target.source.table} was truncated at the source, and {where}",
        remedy="delete the rows at the destination, write on_truncate: ignore in truck.yml, and run again; or "
        f"empty the truck's output and run `trucker reset --truck {target.truck}`",
        code=TRUNCATED,
    )


def as_rows(values: Iterable[Changes | CopiedRows]) -> Iterator[Changes]:
    """Every value with its runs. Rows as COPY gave them are one."""
    for value in values:
        if isinstance(value, CopiedRows):
            changes = value.to_changes()
            yield replace(changes, ordinal=np.zeros(len(changes), np.int64))
        else:
            yield value


def refuse_partial(target: Target, changes: Changes) -> None:
    """SQL is given whole rows (I7)."""
    if changes.unchanged:
        raise SinkError(f"{_label(target)}: a row arrived without all of its values", code=FAILED)


def relation(target: Target, staged: str, where: str = "") -> TemplateRelation:
    """`{{ rows }}` over what is staged: the target's columns under their names, and the operation."""
    names = target.source.names
    cells = [f"c{number} as {quote_identifier(name)}" for number, name in enumerate(names)]
    columns = ", ".join([*cells, f"case k {_CASES} end as {OPERATION}"])
    chosen = f" where {where}" if where else ""
    return TemplateRelation(f"(select {columns} from {staged}{chosen}) as r", (*names, OPERATION))


def renderings(target: Target, staged: str) -> Iterator[RenderedSql]:
    """Every text the file may have, to be checked over an empty stage."""
    template = _template(target)
    for code in ORDER if template.uses_operation else (None,):
        yield _render(template, relation(target, staged), code, str(target.source.table))


def run_part(shares: Sequence[Share], run: Run) -> None:
    """Run a truck's file over one part: run by run, in each table by table, operation by operation if it tells them
    apart. Slow statements are logged."""
    by_run: dict[int, list[tuple[_Prepared, dict[int, int]]]] = defaultdict(list)
    for share in shares:
        prepared = _Prepared(share)
        counts: dict[int, dict[int, int]] = defaultdict(dict)
        for number, code, rows in share.counts:
            counts[number][code] = rows
        for number, operations in counts.items():
            by_run[number].append((prepared, operations))
    for number in sorted(by_run):
        for prepared, operations in by_run[number]:
            prepared.run(number, operations, run)


class _Prepared:
    """The statements for one share, made once for all its runs."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._template = _template(share.target)
        self._runs = len({number for number, _, _ in share.counts})
        self._codes = {code for _, code, _ in share.counts}
        self._cache: dict[int | None, Sequence[Piece]] = {}

    def run(self, number: int, operations: dict[int, int], run: Run) -> None:
        if not self._template.uses_operation:
            self._run(number, None, sum(operations.values()), run)
            return
        for code in ORDER:
            if code in operations:
                self._run(number, code, operations[code], run)

    def _run(self, number: int, code: int | None, rows: int, run: Run) -> None:
        target = self._share.target
        for piece in self._pieces(code):
            text = piece.text.replace(_RUN, f"{number:0{len(_RUN)}}") if self._runs > 1 else piece.text
            with _watched(target, rows):
                run(target, Piece(piece.rendered, piece.statement, text))

    def _pieces(self, code: int | None) -> Sequence[Piece]:
        if code not in self._cache:
            share = self._share
            asked = [share.where] if share.where else []
            if self._runs > 1:
                asked.append(f"n = {_RUN}")
            if code is not None and len(self._codes) > 1:
                asked.append(f"k = {code}")
            rows = relation(share.target, share.staged, " and ".join(asked))
            self._cache[code] = _cached_pieces(self._template, rows, code, str(share.target.source.table))
        return self._cache[code]


def _watched(target: Target, rows: int) -> AbstractContextManager[object]:
    """A line in the log if what is inside takes long."""
    if target.slow_ms is None:
        return nullcontext()
    return SlowQueries(target.truck, target.slow_ms).watch(_label(target), rows)


def pieces(rendered: RenderedSql) -> list[Piece]:
    return [Piece(rendered, statement, statement.text) for statement in rendered.statements()]


def _template(target: Target) -> SqlTemplate:
    assert target.statement is not None
    return template_of(target.statement)


def _render(template: SqlTemplate, rows: TemplateRelation, code: int | None, table: str) -> RenderedSql:
    return template.render(rows, operation="" if code is None else OPERATIONS[code], input_table=table)


@lru_cache(maxsize=256)
def _cached_pieces(template: SqlTemplate, rows: TemplateRelation, code: int | None, table: str) -> Sequence[Piece]:
    """The pieces, cached: small batches are staged under the same names again and again, and rendering takes some
    milliseconds, more than most statements on a few rows."""
    return pieces(_render(template, rows, code, table))


# -- what is wrong ----------------------------------------------------------------------------------------------------


def refuse_empty(target: Target, statements: Iterable[Piece]) -> None:
    """A file that writes nothing whatever the operation is a mistake (I8)."""
    if not any(True for _ in statements):
        raise ConfigError(
            "the file has no statement, so nothing would be written",
            place=Place(_label(target)),
            remedy="write the statements, or remove the file: rows are then written by column name",
            code=FAILED,
        )


def not_allowed(piece: Piece, what: str) -> SinkError:
    """The statement must not be there: it would end the transaction, or outlive it."""
    return SinkError(
        f"{piece.place()}: {what} is not allowed in output.sql, which runs in the transaction of the batch",
        remedy="remove the statement: the file is committed with the batch",
        code=NOT_ALLOWED,
    )


def ended(piece: Piece) -> SinkError:
    """After the statement the transaction was another one, or none."""
    return SinkError(
        f"{piece.place()}: the statement ended the transaction of the batch; earlier statements may have been "
        "committed",
        remedy="remove the statement that ends the transaction, correct the destination, then run `trucker "
        "reset --truck NAME`",
        code=NOT_ALLOWED,
    )


def timed_out(piece: Piece, seconds: float) -> SinkError:
    return SinkError(
        f"{piece.place()}: the statement took longer than {seconds:g} s",
        remedy="make it faster (an index?), or raise timeouts.statement of the connection",
        code=TIMED_OUT,
    )


def failed(piece: Piece, message: str, *, offset: int = 0, hint: str = "") -> SinkError:
    """A statement failed. `message` is the database's, without data; `offset` is where in the statement."""
    return SinkError(
        f"{piece.place(offset)}: {message}",
        remedy=hint or "correct the statement, then run `trucker check`",
        code=FAILED,
    )


def meant(target: Target, text: str, offset: int) -> str:
    """What the name at this place may have been meant to be, as a remedy; nothing where none is near."""
    match = _NAME.match(text, offset)
    parts = [quoted or plain for quoted, plain in _PART.findall(match[0])] if match else []
    near = nearest(parts[-1], (*target.source.names, OPERATION)) if parts else None
    return f'did you mean "{near}"?' if near and near != parts[-1] else ""


def _label(target: Target) -> str:
    return target.statement.label if target.statement else str(target.table)
