"""Resolves trucks as configured against the source: names, patterns, keys, columns. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.patterns import missing_tables, parse_table, select_tables
from trucker.config.sql.sql_files import OUTPUT
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import ConfigError, SourceError
from trucker.source.base import Source, SourceTables
from trucker.source.publication import PublishedTable
from trucker.source.source_table import SourceTable
from trucker.table import TableId
from trucker.types import Unfit

OWN_SCHEMA = "trucker"


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """One source, and the trucks that read from it."""

    source: Source
    trucks: tuple[Truck, ...]
    tables: Mapping[TableId, SourceTable]
    published: tuple[PublishedTable, ...]

    @property
    def publication(self) -> str:
        return self.source.publication

    @property
    def slot(self) -> str:
        return self.source.slot

    @property
    def name(self) -> str:
        """What the source is called, in the state folder too."""
        return self.source.name


def resolve_source(config: ProjectConfig, source: Source, session: SourceTables) -> ResolvedSource:
    """The trucks and tables of one source; raises `SourceError` or `ConfigError` where they do not match it."""
    # Trucker's own tables are never an input: where this database is a destination too, each commit would make the
    # next.
    available = [table for table in session.list_tables() if table.schema != OWN_SCHEMA]
    tables: dict[TableId, SourceTable] = {}
    trucks = []
    for truck in config.trucks:
        if truck.input.connection != source.name:
            continue
        names = _select(truck, available, session)
        tables |= {name: session.load_table(name) for name in names if name not in tables}
        trucks.append(truck_of(truck, [tables[name] for name in names]))
    return ResolvedSource(source, tuple(trucks), tables, published_tables(trucks, tables))


def _select(truck: TruckConfig, available: Sequence[TableId], session: SourceTables) -> list[TableId]:
    selected = select_tables(truck.input.tables, available)
    for missing in missing_tables(truck.input.tables, available):
        session.load_table(missing)  # says why it cannot be read: it does not exist, is a view, is unlogged …
        raise SourceError(
            f"truck {truck.name}: {missing} is one of trucker's own tables",
            remedy="leave it out of the truck",
            code="TRK218",
        )
    if not selected:
        raise SourceError(
            f"truck {truck.name}: no table of connection {truck.input.connection} matches"
            f" {', '.join(truck.input.tables)}",
            remedy="write existing tables as schema.table, or patterns that match tables",
            code="TRK210",
        )
    return selected


def truck_of(config: TruckConfig, tables: Sequence[SourceTable]) -> Truck:
    """The truck with these input tables. Raises where its settings do not match them."""
    resolved = {}
    for table in tables:
        name = table.schema.table
        _check_columns(config, table)
        resolved[name] = InputTable(
            name,
            _output_table(config, name),
            table.schema.key,
            frozenset(config.input.only_columns or ()),
            frozenset(config.input.except_columns or ()),
            config.input.where,
            tuple(sorted((column, settings.unfit) for column, settings in config.output.columns.items())),
            config.schema_changes,
            config.partitions,
            config.input.copy_mode(name),
            named=name in missing_tables(config.input.tables, ()),
            key_numbers=table.key_numbers,
        )
    letters = config.dead_letters_max if config.on_error == "dead_letter" else None
    shared = len({table.output for table in resolved.values()}) < len(resolved)
    truck_config = config if config.does_more or shared else None
    by_table = config.on_table_failure == "table" and not config.files
    return Truck(
        config.name, config.input.connection, config.output.connection, resolved, letters, truck_config, by_table
    )


def _output_table(config: TruckConfig, source: TableId) -> TableId:
    output = config.output
    for rule in config.rules:
        if rule.route is not None and rule.concerns(source):
            return rule.route.output(source)
    if output.table:
        return parse_table(output.table, source.schema)
    return TableId(output.schema_ or source.schema, source.name)


def _check_columns(config: TruckConfig, table: SourceTable) -> None:
    names = table.schema.names
    for column, settings in config.output.columns.items():
        if column in table.schema.key and settings.unfit is Unfit.NULL:
            raise SourceError(
                f"truck {config.name}: column {column!r} is part of the key of {table.schema.table}, which "
                "cannot be NULL",
                remedy="write unfit: text or error for it",
                code="TRK212",
            )
    # With rules or SQL the output's columns are known only after compilation, where `output.columns` is checked.
    written = () if config.rules or config.files else config.output.columns
    mentioned = (config.input.only_columns or (), config.input.except_columns or (), written)
    for column in (name for each in mentioned for name in each):
        if column not in names and not config.input.is_many:
            raise SourceError(
                f"truck {config.name}: {table.schema.table} has no column {column!r}",
                remedy=f"its columns are {', '.join(names)}",
                code="TRK211",
            )
        if column in table.schema.key and column in (config.input.except_columns or ()):
            raise SourceError(
                f"truck {config.name}: column {column!r} is part of the key of {table.schema.table}",
                remedy="remove it from except_columns: rows are identified by their key",
                code="TRK212",
            )


def published_tables(trucks: Sequence[Truck], tables: Mapping[TableId, SourceTable]) -> tuple[PublishedTable, ...]:
    """The tables that the publication must have: all columns that trucks read, and their common condition."""
    published = []
    for name, table in sorted(tables.items()):
        readers = [(truck, truck.tables[name]) for truck in trucks if name in truck.tables]
        conditions = {reader.where for _, reader in readers}
        if len(conditions) > 1:
            raise ConfigError(
                f"trucks {', '.join(truck.name for truck, _ in readers)} read {name} with different input.where",
                remedy="give them the same condition: rows are filtered once, at the source",
                code="TRK120",
            )
        names = [c.name for c in table.schema.columns if any(reader.takes(c.name) for _, reader in readers)]
        columns = None if len(names) == len(table.schema.columns) else tuple(names)
        published.append(PublishedTable(name, columns, conditions.pop()))
    return tuple(published)


def check_outputs(trucks: Sequence[Truck], databases: Mapping[str, tuple[str, str]], shared: AbstractSet[str]) -> None:
    """Refuse two trucks for one output table, and an output table that is an input (a loop).

    Several tables of one truck may go into one. Where output.sql writes is not known.

    `databases` gives what a PostgreSQL connection really is: its cluster's identifier and database. `shared` names
    the destinations that keep every change as it is, where inputs may well meet.
    """
    inputs = {
        (databases[truck.source], table): truck.name
        for truck in trucks
        for table in truck.tables
        if truck.source in databases
    }
    writers: dict[tuple[object, TableId], tuple[Truck, InputTable]] = {}
    for truck in trucks:
        place: object = databases.get(truck.destination, truck.destination)
        for table in truck.tables.values():
            reader = inputs.get((place, table.output))  # type: ignore[arg-type]
            if reader:
                raise ConfigError(
                    f"truck {truck.name} writes {table.output} of {truck.destination}, which truck {reader} "
                    "reads: changes would loop forever",
                    remedy="write to another table, schema or database (output.table, output.schema)",
                    code="TRK121",
                )
            if truck.destination in shared or (truck.config and truck.config.file(OUTPUT)):
                continue
            other, input_ = writers.setdefault((place, table.output), (truck, table))
            if input_ is not table and other is not truck:
                raise ConfigError(
                    f"truck {truck.name} from {table.source} and truck {other.name} from {input_.source}"
                    f" both write {table.output} of {truck.destination}",
                    remedy="write each input to its own table (output.table, output.schema)",
                    code="TRK122",
                )
