"""`trucker.dead_letters` at a PostgreSQL destination, which several sessions write at a time (see `sinks.letters`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from trucker.errors import TruckFailed
from trucker.sinks.letters import Letter, Pending, log_set_aside, too_many
from trucker.sinks.postgres.dialect import PostgresDialect
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.state_tables import LETTER_COUNT, LOCK
from trucker.sinks.sql.letter_table import LetterTable

_DIALECT: Final = PostgresDialect()


def letters_of(project: str) -> LetterTable[Session]:
    """The letters of a project."""
    return LetterTable(_DIALECT, project)


def load(session: Session, project: str, trucks: Collection[str]) -> list[Letter]:
    """The letters of these trucks, those of each in the order of their positions."""
    return [letter for truck in sorted(trucks) for letter in letters_of(project).read(session, truck)]


def store(session: Session, project: str, pending: Pending, most: int | None) -> None:
    """Inside the caller's transaction: store a truck's changed letters. Raises where the truck exceeds its limit."""
    letters = letters_of(project)
    letters.remove(session, pending.gone)
    new = [letter for letter in pending.changed if not letter.number]
    if new and most is not None:
        refuse_more(session, project, new[-1], len(new), most)
    for letter in pending.changed:
        letters.put(session, letter)
    log_set_aside(new)


def add(session: Session, project: str, letters: Sequence[Letter], most: int) -> None:
    """Inside the caller's transaction: add new letters. Raises where the truck exceeds its limit."""
    if letters:
        refuse_more(session, project, letters[-1], len(letters), most)
        for letter in letters:
            letters_of(project).put(session, letter)
        log_set_aside(letters)


def refuse_more(session: Session, project: str, last: Letter, more: int, most: int) -> None:
    # Parts of a copy add letters at the same time; the one that counts holds a lock until it has committed.
    session.run(LOCK, f"letters {project} {last.truck}")
    row = session.run(LETTER_COUNT, project, [last.truck]).fetchone()
    if (row[1] if row else 0) + more > most:
        raise TruckFailed(last.truck, too_many(last.truck, most, last.reason))
