"""Conditions on what kinds of destinations are able to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from trucker.abilities import Abilities, Visible
from trucker.config.sql.sql_files import OUTPUT
from trucker.engine.project.conditions.condition import failure, fine
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.snapshot.interrupted_copy import CONTINUED_BYTES
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import ConfigError
from trucker.finding import Finding
from trucker.sinks.committer import unable_to_keep
from trucker.table import CopyMode, TableId

MOST_NAMED: Final = 5


def sufficient(situation: Situation) -> Iterator[Finding]:
    """Every destination can keep the tables of its trucks; where it does less than others, a user reads what."""
    for source in situation.sources.values():
        for truck in source.trucks:
            sink = situation.sinks[truck.destination]
            for name, table in truck.tables.items():
                target = table.target(truck.name, source.tables[name].schema)
                if truck.config is None and (error := unable_to_keep(sink, target)) is not None:
                    yield failure(f"truck {truck.name}, table {name}", error)
            yield from _limits(truck, sink.abilities, reads_unsent=sink.reads_unsent)
            yield from _uncopied(truck, sink.abilities)
            yield from _copied_whole(truck, sink.abilities)
            sizes = {name: source.tables[name].bytes for name in truck.tables}
            yield from _copied_anew(truck, sizes, sink.abilities)


def _uncopied(truck: Truck, abilities: Abilities) -> Iterator[Finding]:
    """Tables whose rows are not copied. Without a key a change that names a whole row cannot be told to be about one
    that was never at the destination."""
    uncopied = [table for table in truck.tables.values() if not table.is_copied]
    if uncopied:
        yield fine(f"truck {truck.name}", f"not copied, only their changes are applied: {_names(uncopied)}")
    if abilities.every_change or (truck.config is not None and truck.config.file(OUTPUT)):
        return
    for name in (table.source for table in uncopied if not table.key):
        error = ConfigError(
            f"table {name} has no key, and its rows are not copied (copy: none): a deleted row that was never at the "
            "destination cannot be told from one that is missing there",
            remedy=f"run at the source: ALTER TABLE {name.quoted} ADD PRIMARY KEY (…); or give the table another mode "
            "in input.copy",
            code="TRK123",
        )
        yield failure(f"truck {truck.name}, table {name}", error)


def _copied_whole(truck: Truck, abilities: Abilities) -> Iterator[Finding]:
    """Tables that are copied in one go, though the truck says `copy: incremental`."""
    tables = [table for table in truck.tables.values() if table.copy_mode is CopyMode.INCREMENTAL]
    for why, whole in _by_reason(truck, tables, abilities).items():
        yield fine(f"truck {truck.name}", f"copied in one go, not incrementally, because {why}: {_names(whole)}")


def _copied_anew(truck: Truck, sizes: Mapping[TableId, int], abilities: Abilities) -> Iterator[Finding]:
    """Large tables whose first copy begins anew when it is interrupted."""
    tables = [t for t in truck.tables.values() if t.is_copied and sizes[t.source] >= CONTINUED_BYTES]
    letters = "" if truck.dead_letters is None else "refused rows are set aside"
    for why, anew in _by_reason(truck, tables, abilities, letters).items():
        yield fine(
            f"truck {truck.name}", f"a first copy that is interrupted begins anew, because {why}: {_names(anew)}"
        )


def _by_reason(
    truck: Truck, tables: Sequence[InputTable], abilities: Abilities, otherwise: str = ""
) -> Mapping[str, Sequence[InputTable]]:
    """The tables that are not copied by chunks, by the reason."""
    reasons: dict[str, list[InputTable]] = defaultdict(list)
    for table in tables:
        every = "its destination keeps every change" if abilities.every_change else ""
        if why := every or truck.copied_whole_because(table.source) or otherwise:
            reasons[why].append(table)
    return reasons


def _names(tables: Sequence[InputTable]) -> str:
    """The first few of these tables."""
    names = sorted(table.source for table in tables)
    return ", ".join(map(str, names[:MOST_NAMED])) + (", …" if len(names) > MOST_NAMED else "")


def _limits(truck: Truck, abilities: Abilities, *, reads_unsent: bool) -> Iterator[Finding]:
    if abilities.visible is Visible.TABLE and len(truck.tables) > 1:
        yield fine(f"truck {truck.name}", "transactions over several tables become visible table by table")
    if (not abilities.partial_rows and not abilities.every_change) or reads_unsent:
        yield fine(f"truck {truck.name}", "large values that PostgreSQL does not send again are read at the source")
