"""`trucker.dead_letters` at a PostgreSQL destination: letters as rows (see `sinks.letters`)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from trucker.errors import TruckFailed
from trucker.lsn import Lsn
from trucker.sinks.letters import Choice, Letter, Pending, Reason, log_set_aside, to_json, too_many
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.state_tables import LETTER_COUNT, LOCK
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId

_COLUMNS: Final = """id, truck, source_schema, source_table, target_schema, target_table, operation, lsn::text, ordinal,
    key::text, data::text, sqlstate, reason, constraint_name, column_name, tries"""
_TAKEN: Final = """truck, source_schema, source_table, target_schema, target_table, operation, lsn, ordinal, key, data,
    sqlstate, reason, constraint_name, column_name, tries"""


def count(session: Session, project: str) -> dict[str, int]:
    """How many letters each truck of the project has; none where the table does not exist."""
    if session.run("select to_regclass('trucker.dead_letters') is null").fetchone() == (True,):
        return {}
    return dict(session.run("select truck, count(*) from trucker.dead_letters where project = $1 group by 1", project))


def load(session: Session, project: str, trucks: Collection[str]) -> list[Letter]:
    """The letters of these trucks, in the order of their positions."""
    rows = session.run(
        f"select {_COLUMNS} from trucker.dead_letters where project = $1 and truck = any($2::text[])"
        " order by lsn, ordinal, id",
        project,
        sorted(trucks),
    )
    return [_letter(row) for row in rows]


def choose(session: Session, project: str, choice: Choice) -> list[Letter]:
    return [letter for letter in load(session, project, choice.trucks) if choice.takes(letter)]


def _letter(row: Sequence[Any]) -> Letter:
    number, truck, schema, table, to_schema, to_table, operation, lsn, ordinal, key, data, *reason, tries = row
    return Letter(
        truck,
        TableId(schema, table),
        TableId(to_schema, to_table),
        tuple(json.loads(key)),
        operation,
        json.loads(data),
        Lsn.parse(lsn),
        ordinal,
        Reason(*reason),
        tries,
        number,
    )


def _values(letter: Letter) -> list[object]:
    reason = letter.reason
    return [
        letter.truck,
        letter.source.schema,
        letter.source.name,
        letter.target.schema,
        letter.target.name,
        letter.operation,
        str(letter.lsn),
        letter.ordinal,
        to_json(letter.key_row),
        to_json(letter.data),
        reason.sqlstate,
        reason.message,
        reason.constraint,
        reason.column,
        letter.tries,
    ]


def store(session: Session, project: str, pending: Pending, most: int | None) -> None:
    """Inside the caller's transaction: store a truck's changed letters. Raises where the truck exceeds its limit."""
    if pending.gone:
        session.run("delete from trucker.dead_letters where id = any($1::bigint[])", sorted(pending.gone))
    new = [letter for letter in pending.changed if not letter.number]
    if new and most is not None:
        refuse_more(session, project, new[-1], len(new), most)
    for letter in pending.changed:
        _put(session, project, letter)
    log_set_aside(new)


def add(session: Session, project: str, letters: Sequence[Letter], most: int) -> None:
    """Inside the caller's transaction: add new letters. Raises where the truck exceeds its limit."""
    if letters:
        refuse_more(session, project, letters[-1], len(letters), most)
        for letter in letters:
            _put(session, project, letter)
        log_set_aside(letters)


def refuse_more(session: Session, project: str, last: Letter, more: int, most: int) -> None:
    # Parts of a copy add letters at the same time; the one that counts holds a lock until it has committed.
    session.run(LOCK, f"letters {project} {last.truck}")
    row = session.run(LETTER_COUNT, project, [last.truck]).fetchone()
    if (row[1] if row else 0) + more > most:
        raise TruckFailed(last.truck, too_many(last.truck, most, last.reason))


def _put(session: Session, project: str, letter: Letter) -> None:
    values = _values(letter)
    if letter.number:
        places = ", ".join(f"${place}" for place in range(2, 2 + len(values)))
        statement = f"update trucker.dead_letters set ({_TAKEN}, updated_at) = ({places}, now()) where id = $1"
        session.run(statement, letter.number, *values)
        return
    places = ", ".join(f"${place}" for place in range(2, 2 + len(values)))
    session.run(f"insert into trucker.dead_letters (project, {_TAKEN}) values ($1, {places})", project, *values)


def forget(session: Session, project: str, truck_tables: Iterable[TruckTable]) -> None:
    """A copy of these tables begins: it will have the rows as they are."""
    for truck, table in truck_tables:
        session.run(
            """delete from trucker.dead_letters
            where project = $1 and truck = $2 and source_schema = $3 and source_table = $4""",
            project,
            truck,
            table.schema,
            table.name,
        )


def reshape(session: Session, project: str, target: Target) -> None:
    """Columns have been added to the table, which its letters must have, too."""
    for letter in load(session, project, [target.truck]):
        data = letter.reshaped(target.source)
        if data != letter.data:
            statement = "update trucker.dead_letters set data = $2::json where id = $1"
            session.run(statement, letter.number, to_json(data))
