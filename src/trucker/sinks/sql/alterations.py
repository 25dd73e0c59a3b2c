"""How a destination's table follows the source's: what is added and widened, and the statements for the rest.

Additions and widenings lose nothing and are done; everything else is for a person to run, who knows who else reads the
table. Nothing is ever dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from trucker.errors import SinkError
from trucker.sinks import strict
from trucker.sinks.target import Target
from trucker.table import Column, SchemaChanges, quote_identifier
from trucker.types import Unfit


class PresentColumn(Protocol):
    """A column that the table has. `fills_itself` says that it needs no value: it has a default, or is computed."""

    @property
    def bare_type(self) -> str:
        """Its type as SQL, without a collation."""

    @property
    def not_null(self) -> bool: ...

    @property
    def fills_itself(self) -> bool: ...


C = TypeVar("C", bound=PresentColumn)


class Alterations(ABC, Generic[C]):
    """What the table of a target needs to take its rows, where it has these `columns`. Changes nothing."""

    retype: ClassVar[str] = "TYPE"
    """What stands between a column and its new type."""
    text: ClassVar[str] = "text"
    place: ClassVar[str] = "at the destination"
    """Where a person runs statements."""

    def __init__(self, target: Target, columns: Mapping[str, C]) -> None:
        self.target = target
        self.columns = columns

    # -- what a store says --------------------------------------------------------------------------------------------

    @abstractmethod
    def wanted(self, column: Column) -> str:
        """The type that the column is to have here."""

    @abstractmethod
    def holds(self, kind: str, other: str) -> bool:
        """Whether a column of type `kind` takes every value of type `other`, as it is."""

    @abstractmethod
    def widens(self, kind: str, other: str) -> bool:
        """Whether a column of type `other` may be altered to `kind`: every value stays what it is."""

    @abstractmethod
    def missing_value(self, column: Column) -> str:
        """The SQL of what rows that are there hold in a column that is added."""

    def constraint(self, column: Column) -> str:
        """What follows the type of a column that is added."""
        return ""

    def check_name(self, column: Column, columns: Mapping[str, C]) -> None:
        """Raise for a column that cannot be added under its name to a table that has these."""

    def widened(self, column: Column, present: C) -> Iterator[str]:
        """The actions on a column whose type does not hold the source's values."""
        wanted = self.wanted(column)
        if column.was_type and self.widens(wanted, present.bare_type):
            yield f"ALTER COLUMN {quote_identifier(column.name)} {self.retype} {wanted}"

    def further(self, column: Column, present: C) -> Iterator[str]:
        """Other actions on a column that is there."""
        yield from ()

    # -- what is due --------------------------------------------------------------------------------------------------

    def refuse_other_columns(self) -> None:
        """Raise for a table that must have just the target's columns, and has others."""
        optional = [name for name, column in self.columns.items() if column.fills_itself]
        strict.refuse_columns(self.target, self.columns, optional)

    def called_otherwise(self) -> bool:
        """Whether the table has a column by the name it had before; it is then asked for by that."""
        names = self.columns.keys()
        return any(column.was_name in names and column.name not in names for column in self.target.source.columns)

    def due(self) -> list[str]:
        """The actions that are to be done to the table and may be; raises `SinkError` with the statements for those
        that may not."""
        moves = self.target.renames(self.columns)
        renames = [f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}" for old, new in moves]
        columns = dict(self.columns)
        for old, new in moves:
            columns[new] = columns.pop(old)
        due = [*self._additions(columns), *self._releases(columns)]
        manual = [*renames, *self._retypings(columns)]
        if self.target.schema_changes is SchemaChanges.STOP:
            gone = [quote_identifier(name) for name in self.target.dropped if name in columns]
            due = [each for each in due if each not in {f"ALTER COLUMN {name} DROP NOT NULL" for name in gone}]
            manual, due = [*manual, *due, *(f"DROP COLUMN {name}" for name in gone)], []
        if manual:
            raise self._statements(manual)
        return due

    def statement(self, action: str) -> str:
        """The whole statement; most actions are of the table."""
        whole = action.startswith(("ALTER TYPE", "TRUNCATE"))
        return action if whole else f"ALTER TABLE {self.target.table.quoted} {action}"

    def _additions(self, columns: Mapping[str, C]) -> Iterator[str]:
        for column in self.target.source.columns:
            present = columns.get(column.name)
            if present is None:
                self.check_name(column, columns)
                yield from self._added(column)
                continue
            if not self.holds(present.bare_type, self.wanted(column)):
                yield from self.widened(column, present)
            yield from self.further(column, present)

    def _added(self, column: Column) -> Iterator[str]:
        """Rows that are there get what the source shows for them; rows that come bring their own."""
        name, kind = quote_identifier(column.name), self.wanted(column)
        if column.missing_value is None:
            yield f"ADD COLUMN {name} {kind}"
            return
        yield f"ADD COLUMN {name} {kind}{self.constraint(column)} DEFAULT {self.missing_value(column)}"
        yield f"ALTER COLUMN {name} DROP DEFAULT"

    def _releases(self, columns: Mapping[str, C]) -> Iterator[str]:
        """Columns that the source does not have must not demand a value."""
        for name, present in columns.items():
            if present.not_null and not present.fills_itself and name not in self.target.source.names:
                yield f"ALTER COLUMN {quote_identifier(name)} DROP NOT NULL"

    def _retypings(self, columns: Mapping[str, C]) -> Iterator[str]:
        """The type changes that a person has to make."""
        stale = self.target.stale
        for column in self.target.source.columns:
            present, wanted = columns.get(column.name), self.wanted(column)
            if present is None or not column.was_type or self.target.unfit_of(column.name) is Unfit.TEXT:
                continue
            if self.holds(present.bare_type, wanted) or self.widens(wanted, present.bare_type):
                continue
            name = quote_identifier(column.name)
            # Rows that come again need not be converted, which may well fail; an empty table never does.
            if stale and present.not_null:
                yield f"TRUNCATE {self.target.table.quoted}"
            value = "NULL" if stale and not present.not_null else f"{name}::{self.text}::{wanted}"
            yield f"ALTER COLUMN {name} {self.retype} {wanted} USING {value}"

    def _statements(self, actions: Sequence[str]) -> SinkError:
        source, table = self.target.source.table, self.target.table
        return SinkError(
            f"the columns of {source} changed at the source, and {table} must be altered",
            remedy=f"run {self.place}: {'; '.join(map(self.statement, actions))}; then trucker run",
            code="TRK425",
        )
