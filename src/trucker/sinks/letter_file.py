"""Dead letters of events in a file of the state folder, a small database.

    event_letters   one row for each event that was refused: the event as it was, why, and how often it was tried

A letter is written before the ledger that passes its event, in a state in which it does not count: `passed_by` has an
item of that ledger by which it is known (`witness`). `settle`, which is given the ledger that is stored, has the letter
count, or removes it where its ledger was never stored: its event then comes again. So after a crash each refused event
is a letter once, or comes again, and never both.

A connection is opened for each operation, so that commands may read and remove letters while the project runs.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trucker import private
from trucker.errors import SinkError, SinkUnavailable
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.sinks.event import Event
from trucker.sinks.ledger import Entry, Ledger, Plan
from trucker.sinks.letters import Choice, Reason
from trucker.sinks.target import TruckTable
from trucker.table import TableId

# The seconds for which an operation waits for another process.
_PATIENCE: Final = 30.0
_FORMAT: Final = 1

_TABLE: Final = """
CREATE TABLE event_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, truck TEXT NOT NULL, id TEXT NOT NULL,
    source_schema TEXT NOT NULL, source_table TEXT NOT NULL, target_schema TEXT NOT NULL, target_table TEXT NOT NULL,
    operation TEXT NOT NULL, commit_lsn TEXT NOT NULL, ordinal INTEGER NOT NULL, snapshot INTEGER NOT NULL,
    key BLOB, value BLOB, code TEXT NOT NULL, reason TEXT NOT NULL, tries INTEGER NOT NULL, passed_by TEXT NOT NULL,
    created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    UNIQUE (truck, id)
)
"""
_PUT: Final = """
INSERT INTO event_letters (truck, id, source_schema, source_table, target_schema, target_table, operation, commit_lsn,
                           ordinal, snapshot, key, value, code, reason, tries, passed_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)
ON CONFLICT (truck, id) DO UPDATE SET code = excluded.code, reason = excluded.reason, passed_by = excluded.passed_by,
                                      tries = tries + 1, updated_at = CURRENT_TIMESTAMP
"""
_READ: Final = """
SELECT number, source_schema, source_table, target_schema, target_table, operation, commit_lsn, ordinal, snapshot,
       key, value, id, code, reason, tries
FROM event_letters WHERE number = ?
"""


@dataclass(frozen=True, slots=True)
class EventLetter:
    """An event that was refused. `source` is the table that it comes from, `event.table` the one that it names."""

    number: int
    truck: str
    source: TableId
    event: Event
    reason: Reason
    tries: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that the store has just refused."""

    event: Event
    source: TableId
    reason: Reason


class LetterFile:
    """The letters of one connection. Nothing is open between two calls, so it pickles."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[tuple[int, int, int], dict[str, int]] | None = None
        self._may_wait: bool = True

    # -- while events are sent -------------------------------------------------------------------------------------

    def put(self, truck: str, refusals: Iterable[Refusal], *, passed_by: str, most: int) -> bool:
        """Store refused events of a truck, durably: they count with the ledger that has the `witness` `passed_by`.

        False, and nothing is stored, where the truck would have more letters than `most`.
        """
        self._may_wait = True
        rows = ((truck, *_cells(refusal), passed_by) for refusal in refusals)
        reach("letters.put.before")
        with self._writing(make=True) as database:
            database.executemany(_PUT, rows)
            count = database.execute("SELECT count(*) FROM event_letters WHERE truck = ?", (truck,)).fetchone()[0]
            if count > most:
                database.rollback()
                return False
        reach("letters.put.after")
        return True

    def settle(self, stored: Ledger) -> None:
        """Have the letters count that the stored ledger has passed, and remove those that it has not."""
        if not self._may_wait or not self.path.exists():
            self._may_wait = False
            return
        with self._writing() as database:
            waiting = database.execute("SELECT DISTINCT truck, passed_by FROM event_letters WHERE passed_by != ''")
            for truck, passed_by in waiting.fetchall():
                done = (
                    "UPDATE event_letters SET passed_by = ''"
                    if has_witness(stored, truck, passed_by)
                    else "DELETE FROM event_letters"
                )
                database.execute(f"{done} WHERE truck = ? AND passed_by = ?", (truck, passed_by))
        self._may_wait = False

    def remove_copied(self, truck_tables: Collection[TruckTable], trucks: Collection[str] = ()) -> int:
        """Remove the letters of these tables, and of all tables of these trucks, which are copied from the beginning;
        how many there were."""
        if not (truck_tables or trucks) or not self.path.exists():
            return 0
        removed = 0
        with self._writing() as database:
            for truck in trucks:
                removed += database.execute("DELETE FROM event_letters WHERE truck = ?", (truck,)).rowcount
            for truck, table in truck_tables:
                removed += database.execute(
                    "DELETE FROM event_letters WHERE truck = ? AND source_schema = ? AND source_table = ?",
                    (truck, table.schema, table.name),
                ).rowcount
        return removed

    # -- afterwards ------------------------------------------------------------------------------------------------

    def count(self) -> Mapping[str, int]:
        """How many each truck has. Creates nothing, and reads only where the file has changed."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            return {}
        version = (state.st_ino, state.st_mtime_ns, state.st_size)
        if self._seen is None or self._seen[0] != version:
            with self._open() as database:
                counts = dict(database.execute("SELECT truck, count(*) FROM event_letters GROUP BY truck").fetchall())
            self._seen = version, counts
        return self._seen[1]

    @property
    def last_count(self) -> Mapping[str, int]:
        """What `count` gave last."""
        return self._seen[1] if self._seen else {}

    def chosen(self, choice: Choice) -> dict[str, list[int]]:
        """The numbers of the letters that count and are chosen, in order, by truck."""
        if not self.path.exists():
            return {}
        numbers: dict[str, list[int]] = {}
        with self._open() as database:
            for number, truck, *table in database.execute(
                "SELECT number, truck, source_schema, source_table, target_schema, target_table FROM event_letters "
                "WHERE passed_by = '' ORDER BY number"
            ):
                tables = (None, TableId(*table[:2]), TableId(*table[2:]))
                if (
                    truck in choice.trucks
                    and choice.table in tables
                    and (choice.numbers is None or number in choice.numbers)
                ):
                    numbers.setdefault(truck, []).append(number)
        return numbers

    def read(self, truck: str, numbers: Sequence[int], nbytes: int) -> Iterator[list[EventLetter]]:
        """These letters as far as they are still there, in lists of about so many bytes."""
        letters: list[EventLetter] = []
        size = 0
        for number in numbers:
            letter = self._one(truck, number)
            if letter is None:
                continue
            letters.append(letter)
            size += len(letter.event.value or b"")
            if size >= nbytes:
                yield letters
                letters, size = [], 0
        if letters:
            yield letters

    def remove(self, numbers: Collection[int]) -> None:
        """These have been delivered."""
        if not numbers:
            return
        with self._writing() as database:
            database.executemany("DELETE FROM event_letters WHERE number = ?", [(number,) for number in numbers])

    def refused_again(self, reasons: Mapping[int, Reason]) -> None:
        """These were refused once more."""
        if not reasons:
            return
        rows = [(reason.sqlstate, reason.message, number) for number, reason in reasons.items()]
        with self._writing() as database:
            database.executemany(
                "UPDATE event_letters SET code = ?, reason = ?, tries = tries + 1, updated_at = CURRENT_TIMESTAMP "
                "WHERE number = ?",
                rows,
            )

    def _one(self, truck: str, number: int) -> EventLetter | None:
        with self._open() as database:
            row = database.execute(_READ, (number,)).fetchone()
        if row is None:
            return None
        _, schema, table, to_schema, to_table, operation, lsn, ordinal, snapshot, key, value, id_, *why, tries = row
        event = Event(
            value=value,
            key=key,
            table=TableId(to_schema, to_table),
            operation=operation,
            commit_lsn=int(Lsn.parse(lsn)),
            ordinal=ordinal,
            id=id_,
            snapshot=bool(snapshot),
        )
        return EventLetter(number, truck, TableId(schema, table), event, Reason(*why), tries)

    # -- the file --------------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, *, make: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            if make and not self.path.exists():
                private.make_folder(self.path.parent)
                with contextlib.suppress(FileExistsError):
                    private.create(self.path)  # before the library does, whose modes are those of the umask
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)) as database:
                # After a loss of power, too, a transaction that was reported as committed is one.
                database.execute("PRAGMA synchronous = EXTRA")
                self._create_table(database)
                yield database
        except (OSError, sqlite3.OperationalError) as error:
            raise SinkUnavailable(
                f"the dead letters in {self.path} cannot be read or written: {error}",
                remedy="free disk space for, or give trucker access to, the project's state folder; trucker retries",
                code="TRK710",
            ) from None
        except sqlite3.DatabaseError as error:
            raise SinkError(
                f"the dead letters in {self.path} cannot be read: {type(error).__name__}",
                remedy=f"restore the file from a backup, or give its letters up: move {self.path} away",
                code="TRK711",
            ) from None

    @contextmanager
    def _writing(self, *, make: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction."""
        with self._open(make=make) as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                if database.in_transaction:
                    database.rollback()
                raise
            if database.in_transaction:
                database.commit()

    def _create_table(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == _FORMAT:
            return
        if version > _FORMAT:
            raise SinkError(
                f"{self.path} was written by a newer version of trucker",
                remedy="use that version",
                code="TRK711",
            )
        database.execute("BEGIN IMMEDIATE")
        if database.execute("PRAGMA user_version").fetchone() == (0,):  # another process may have been first
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version = {_FORMAT}")
        database.commit()


def witness(plan: Plan, truck: str) -> str:
    """An item of the ledger that is stored with this plan, and of no earlier one: the truck's position, or else the
    state of one of its tables. A ledger is stored as a whole, so that one item tells."""
    if truck in plan.positions:
        return json.dumps([str(plan.positions[truck])])
    table, entry = min(
        ((table, entry) for (name, table), entry in plan.entries.items() if name == truck), key=lambda item: item[0]
    )
    return json.dumps([table.schema, table.name, *_state(entry)])


def has_witness(stored: Ledger, truck: str, text: str) -> bool:
    """Whether the ledger has the item."""
    item = json.loads(text)
    if len(item) == 1:
        return truck in stored.positions and str(stored.positions[truck]) == item[0]
    entry = stored.entries.get((truck, TableId(*item[:2])))
    return entry is not None and _state(entry) == item[2:]


def _state(entry: Entry) -> list[str]:
    return [entry.phase.value, str(entry.lsn), entry.snapshot]


def _cells(refusal: Refusal) -> tuple[object, ...]:
    event, source, reason = refusal.event, refusal.source, refusal.reason
    return (
        event.id,
        source.schema,
        source.name,
        event.table.schema,
        event.table.name,
        event.operation,
        str(Lsn(event.commit_lsn)),
        event.ordinal,
        int(event.snapshot),
        event.key,
        event.value,
        reason.sqlstate,
        reason.message,
    )
