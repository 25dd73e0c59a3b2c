"""Letters applied again, truck by truck, each in a transaction of its own."""

from __future__ import annotations

from dataclasses import replace

import psycopg

from trucker.errors import TruckFailed
from trucker.sinks.letters import Choice, Redriven
from trucker.sinks.postgres import state_tables
from trucker.sinks.postgres.failure import explain
from trucker.sinks.postgres.letters import letter_table
from trucker.sinks.postgres.letters.postgres_isolation import Describe, PostgresIsolation
from trucker.sinks.postgres.session import Session


def redrive(session: Session, project: str, choice: Choice, describe: Describe, *, dry_run: bool) -> list[Redriven]:
    """Redrive the chosen letters; returns the outcome of each, in the order of their positions.

    Waits for a commit of the truck under way, and is waited for: while it lasts the truck's position is locked.
    """
    if not letter_table.letters_of(project).count(session):
        return []
    outcomes: list[Redriven] = []
    for truck in choice.trucks:
        try:
            state_tables.lock(session, project, [truck])
            outcomes += _redrive(session, project, replace(choice, trucks=(truck,)), describe)
            session.run("rollback" if dry_run else "commit")
        except psycopg.Error as error:
            _roll_back(session)
            raise explain(error, f"redriving dead letters of truck {truck}") from None
        except TruckFailed as error:
            _roll_back(session)
            raise error.reason from None
        except BaseException:
            _roll_back(session)
            raise
    return outcomes


def _redrive(session: Session, project: str, choice: Choice, describe: Describe) -> list[Redriven]:
    stored = letter_table.load(session, project, choice.trucks)
    chosen = [replace(letter, tries=letter.tries + 1) for letter in stored if choice.takes(letter)]
    if not chosen:
        return []
    isolation = PostgresIsolation(session, choice.trucks[0], describe, chosen, None)
    isolation.redrive(chosen)
    letter_table.store(session, project, isolation.pending, None)
    remaining = {letter.number: letter for letter in isolation.pending.changed}
    return [Redriven(remaining.get(letter.number, letter), letter.number not in remaining) for letter in chosen]


def _roll_back(session: Session) -> None:
    session.staging.clear()
    if not session.connection.closed:
        session.run("rollback")
