"""A copy in a shadow table: the rows of an earlier copy stay readable until the new one is complete (I6).

The copied rows wait in a table of trucker's own, which refuses what the destination's table would. The commit that
makes the copy count brings the destination's table in line with it, in the same transaction as everything else: rows
that are no more are deleted, those that differ are updated, new ones inserted, and those that are the same are not
touched. The table itself stays, and with it whatever stands on it: views, triggers, privileges, rows elsewhere that
refer to its rows.

The shadow table itself is the record of a copy under way: it comes with the entry into COPYING and goes with
the copy's end, each in its transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.stage_store import digest, drop_stages, list_stages, stage_name
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId, quote_identifier

_REFERENCES = """
select n.nspname, c.relname, pn.nspname, p.relname
from pg_constraint f
join pg_class c on c.oid = f.conrelid join pg_namespace n on n.oid = c.relnamespace
join pg_class p on p.oid = f.confrelid join pg_namespace pn on pn.oid = p.relnamespace
where f.contype = 'f' and f.conrelid <> f.confrelid"""


@dataclass(frozen=True, slots=True)
class WaitingCopy:
    """A target whose complete copy waits in the shadow table `waiting` (a name for SQL). One that `adds` shares its
    table with others, whose rows stay."""

    target: Target
    table: DestinationTable
    waiting: str
    adds: bool = False

    @property
    def _names(self) -> list[str]:
        return [name for name in self.target.source.names if self.table.writable(name)]

    @property
    def _same(self) -> str:
        return " and ".join(f"t.{q} = s.{q}" for q in map(quote_identifier, self.target.source.key))

    def contains_row(self) -> str:
        """The condition that the waiting copy has the row `t` of the table."""
        return f"exists (select from {self.waiting} s where {self._same})"

    def arrivals(self) -> list[str]:
        """Rows that differ, then those that are new. Compared as text, which exists for every type and tells apart
        what is equal but not the same (1.0 and 1.00)."""
        into, quoted = self.target.table.quoted, [quote_identifier(name) for name in self._names]
        names = ", ".join(quoted)
        insert = f"insert into {into} ({names}) overriding system value select {names} from {self.waiting} s"
        if not self.target.source.key:
            return [insert]
        insert += f" where not exists (select from {into} t where {self._same})"
        settable = [quote_identifier(n) for n in self._names if self.table.columns[n].identity != "a"]
        if not settable:
            return [insert]
        old, new = (f"row({', '.join(f'{letter}.{q}' for q in quoted)})::text" for letter in "ts")
        update = (
            f"update {into} t set {', '.join(f'{q} = s.{q}' for q in settable)} from {self.waiting} s"
            f" where {self._same} and {old} is distinct from {new}"
        )
        return [update, insert]


def find(session: Session, project: str, truck_table: TruckTable) -> str | None:
    """Where the table's copy waits, as a name for SQL; None where it goes straight into its table."""
    name = _name(project, truck_table)
    return stage_name(name) if name in list_stages(session, name) else None


def begin(session: Session, project: str, target: Target, columns: str = "") -> None:
    """Create an empty shadow table to copy into. It survives a crash: parts that were copied stay copied.

    With `columns` it is one of these, for rows that belong into no table (`output_stage`).
    """
    truck_table = (target.truck, target.source.table)
    end(session, project, [truck_table])
    like = (
        f"like {target.table.quoted} including constraints including defaults including generated including identity"
        " including indexes"
    )
    session.run(
        f"create table {stage_name(_name(project, truck_table))} ({columns or like}) with (autovacuum_enabled = off)"
    )


def end(session: Session, project: str, truck_tables: Iterable[TruckTable]) -> None:
    """Drop the shadow tables of these tables."""
    drop_stages(session, (_name(project, truck_table) for truck_table in truck_tables))


def sweep(session: Session, project: str, copying: Iterable[TruckTable]) -> None:
    """Drop the shadow tables of tables that are not being copied, such as those of a removed truck."""
    wanted = {_name(project, truck_table) for truck_table in copying}
    drop_stages(session, set(list_stages(session, _prefix(project))) - wanted)


def settle(session: Session, copies: Sequence[WaitingCopy]) -> Iterable[tuple[WaitingCopy, str]]:
    """The statements that bring the tables in line, each with its copy: a table that refers to others loses its rows
    first and gets them last."""
    ordered = _referring_last(session, copies)
    for copy in ordered:
        yield copy, f"analyze {copy.waiting}"
    done: set[TableId] = set()
    for copy in reversed(ordered):
        table = copy.target.table
        if not copy.adds and table not in done:
            yield copy, _removal([each for each in ordered if each.target.table == table])
        done.add(table)
    for copy in ordered:
        for statement in copy.arrivals():
            yield copy, statement


def _removal(copies: Sequence[WaitingCopy]) -> str:
    """Rows that are no more in any of the copies that go into one table; without a key every row, since equal
    rows cannot be distinguished."""
    into = copies[0].target.table.quoted
    if not copies[0].target.source.key:
        return f"delete from {into}"
    return f"delete from {into} t where not ({' or '.join(copy.contains_row() for copy in copies)})"


def _referring_last(session: Session, copies: Sequence[WaitingCopy]) -> list[WaitingCopy]:
    """In the order of the foreign keys among them; as they come where those go in a circle."""
    if len(copies) < 2:
        return list(copies)
    by_table: dict[TableId, list[WaitingCopy]] = {}
    for copy in copies:
        by_table.setdefault(copy.target.table, []).append(copy)
    sorter = TopologicalSorter[TableId](dict.fromkeys(by_table, ()))
    for schema, name, parent_schema, parent in session.run(_REFERENCES):
        child, parent_table = TableId(schema, name), TableId(parent_schema, parent)
        if child in by_table and parent_table in by_table:
            sorter.add(child, parent_table)
    try:
        return [copy for table in sorter.static_order() for copy in by_table[table]]
    except CycleError:
        return list(copies)


def _prefix(project: str) -> str:
    return f"c_{digest(project)}_"


def _name(project: str, truck_table: TruckTable) -> str:
    truck, table = truck_table
    return f"{_prefix(project)}{digest(truck, table.schema, table.name)}"
