"""Everything a source must be and have, looked at before anything is made: `trucker check` for the source.

Creates and changes nothing. What is found wanting comes with the exact statement or setting that mends it; the rest is
reported as fine, so that a reader sees what was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import psycopg
from psycopg import errors

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceError, TruckerError
from trucker.finding import Finding, Level
from trucker.pg.connection import PgConnection
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.catalog import identity_problem, load_table
from trucker.postgres.connect import connect, translated
from trucker.postgres.publication import outside_identity, unmanageable, unserved
from trucker.postgres.slot import PLUGIN, find_slot, in_use
from trucker.postgres.standby_check import check_slots, check_standby, prevention, standby_name
from trucker.source.publication import PublishedTable
from trucker.source.slot import SlotInfo
from trucker.source.source_table import SourceTable
from trucker.table import TableId, quote_identifier

_SETTINGS = """
    select name, case unit when 'min' then (setting::int * 60)::text else setting end
      from pg_settings
     where name in ('wal_level', 'max_replication_slots', 'max_wal_senders', 'max_slot_wal_keep_size',
                    'idle_replication_slot_timeout', 'server_encoding')"""

_ROLE = """
    select r.rolreplication or r.rolsuper, r.rolsuper or r.rolbypassrls, current_user,
           exists (select from pg_roles m where m.rolname = 'rds_replication' and pg_has_role(m.oid, 'MEMBER'))
      from pg_roles r where r.rolname = current_user"""

_IN_USE = """
    select (select count(*) from pg_replication_slots),
           (select count(*) from pg_stat_replication)"""

_READABLE = """
    select c.oid::regclass::text, has_schema_privilege(c.relnamespace, 'USAGE'), n.nspname
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.oid = any (%(oids)s::oid[])
       and not (has_schema_privilege(c.relnamespace, 'USAGE')
                and (has_table_privilege(c.oid, 'SELECT')
                     or not exists (select from unnest(%(columns)s::text[]) as wanted(name)
                                     where not has_column_privilege(c.oid, wanted.name, 'SELECT'))))
     order by 1"""

_PROTECTED = """
    select c.oid::regclass::text
      from pg_class c
     where c.oid = any (%s::oid[]) and c.relrowsecurity
       and (c.relforcerowsecurity or not pg_has_role(c.relowner, 'USAGE'))
     order by 1"""

_LOW_WAL_KEEP_MIB = 1024
_SHORT_IDLE_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Needed:
    """A slot, and the publication it streams with the tables that trucks take from it together."""

    publication: str
    slot: str
    tables: Sequence[PublishedTable]


@dataclass(frozen=True, slots=True)
class _Look:
    """What all checks look at: the server that writes, and `reads`, where slot and copies are (the same, mostly).

    `instance` is the project's own running instance, where there is one.
    """

    config: PostgresConnection
    connection: PgConnection
    version: ServerFeatures
    tables: Sequence[PublishedTable]
    publication: str
    slot: str
    settings: dict[str, str]
    reads: _Look | None = None
    standby: bool = False
    instance: str = ""

    @property
    def managed(self) -> bool:
        return self.config.publication is None

    @property
    def reader(self) -> _Look:
        return self.reads or self

    @property
    def subject(self) -> str:
        return standby_name(self.config) if self.standby else self.config.name

    @property
    def grant(self) -> str:
        """How a remedy that changes the catalog begins."""
        return "run on the primary" if self.standby else "run"

    def ok(self, message: str, subject: str = "") -> Finding:
        return Finding(Level.OK, subject or self.subject, message)

    def warning(self, message: str, remedy: str, code: str, subject: str = "") -> Finding:
        return Finding(Level.WARNING, subject or self.subject, message, remedy, code)

    def error(self, message: str, remedy: str, code: str, subject: str = "") -> Finding:
        return Finding(Level.ERROR, subject or self.subject, message, remedy, code)

    def failure(self, error: TruckerError, subject: str = "") -> Finding:
        return self.error(error.message, error.remedy, error.code, subject)


def check_source(config: PostgresConnection, needed: Needed, *, instance: str = "") -> list[Finding]:
    """All findings, good and bad.

    `instance` describes the project's own running instance: it is the one that reads from the slot then.
    """
    with ExitStack() as stack:
        try:
            look = replace(_look(stack, config, needed), instance=instance)
        except SourceError as error:
            return [Finding(Level.ERROR, config.name, error.message, error.remedy, error.code)]
        findings = [look.ok(f"connected to PostgreSQL {look.version} as {config.user}")]
        findings += _run(look, _server)
        if config.replica is not None:
            try:
                reads = _look(stack, config.replica, needed)
            except SourceError as error:
                return [*findings, look.failure(error, standby_name(config.replica))]
            look = replace(look, reads=replace(reads, standby=True, instance=instance))
            findings += _run(look, _reads_from_standby)
        for check in (_role, _keeping, _slot, _room, _replication_access):
            findings += _run(look.reader, check)
        findings += _run(look, _tables_and_publication)
    return findings


def _look(stack: ExitStack, config: PostgresConnection, needed: Needed) -> _Look:
    connection = stack.enter_context(connect(config, application="trucker check"))
    version = ServerFeatures.of(connection)
    return _Look(config, connection, version, needed.tables, needed.publication, needed.slot, _settings(connection))


def _run(look: _Look, check: Callable[[_Look], Iterator[Finding]]) -> list[Finding]:
    """A check's findings; one that cannot be carried out is a finding itself, and the others go on."""
    findings: list[Finding] = []
    try:
        with translated("checking the source"):
            findings.extend(check(look))
    except TruckerError as error:
        findings.append(look.failure(error))
    return findings


@translated("reading the server's settings")
def _settings(connection: PgConnection) -> dict[str, str]:
    return dict(connection.execute(_SETTINGS).fetchall())


def _server(look: _Look) -> Iterator[Finding]:
    level = look.settings["wal_level"]
    if level == "logical":
        yield look.ok("wal_level is logical")
    else:
        yield look.error(
            f"wal_level is {level}; logical is needed",
            "run: ALTER SYSTEM SET wal_level = 'logical'  and restart the server"
            "  (on Amazon RDS: set rds.logical_replication = 1 in the parameter group)",
            "TRK233",
        )
    yield from _standby(look)
    if look.settings["server_encoding"] == "SQL_ASCII":
        yield look.warning(
            "the database's encoding is SQL_ASCII: text may not be UTF-8, and a row with such text is refused",
            "make sure that all text is UTF-8, or move to a database with ENCODING 'UTF8'",
            "TRK235",
        )


def _keeping(look: _Look) -> Iterator[Finding]:
    """What makes the server give up a slot."""
    keep = int(look.settings["max_slot_wal_keep_size"])
    if 0 <= keep < _LOW_WAL_KEEP_MIB:
        yield look.warning(
            f"max_slot_wal_keep_size is {keep} MB: the server invalidates a slot that lags more, and all tables "
            "must be copied again",
            f"run: ALTER SYSTEM SET max_slot_wal_keep_size = '{_LOW_WAL_KEEP_MIB * 10}MB'; SELECT pg_reload_conf()",
            "TRK234",
        )
    idle = int(look.settings.get("idle_replication_slot_timeout", "0"))
    if 0 < idle < _SHORT_IDLE_SECONDS:
        yield look.warning(
            f"idle_replication_slot_timeout is {idle} s: the server invalidates the slot when trucker is "
            "stopped for longer",
            "run: ALTER SYSTEM SET idle_replication_slot_timeout = '7d'; SELECT pg_reload_conf()",
            "TRK234",
        )


def _standby(look: _Look) -> Iterator[Finding]:
    """Decoding works on a standby since 16, but its publication can only be made on the primary."""
    row = look.connection.execute("select pg_is_in_recovery()").fetchone()
    if not row or not row[0]:
        return
    if not look.version.standby_decoding:
        yield look.error(
            f"the server is a standby; {look.version.explain('standby_decoding')}", "connect to the primary", "TRK206"
        )
    elif look.managed:
        yield look.error(
            "the server is a standby, where no publication can be created",
            "connect to the primary, or create the publication there and set `publication` to its name",
            "TRK240",
        )


def _reads_from_standby(look: _Look) -> Iterator[Finding]:
    reads = look.reader
    yield from check_standby(look.config, look.connection, reads.config, reads.connection)
    yield from check_slots(look.config, look.connection, reads.connection, look.slot)


def _role(look: _Look) -> Iterator[Finding]:
    row = look.connection.execute(_ROLE).fetchone()
    assert row is not None
    replicates, _, user, on_rds = row
    if replicates or on_rds:
        yield look.ok(f"user {user} may replicate")
    else:
        yield look.error(
            f"user {user} may not replicate",
            f"{look.grant}: ALTER ROLE {quote_identifier(user)} REPLICATION"
            f"  (on Amazon RDS: GRANT rds_replication TO {quote_identifier(user)})",
            "TRK220",
        )


def _replication_access(look: _Look) -> Iterator[Finding]:
    """pg_hba.conf and proxies may treat a replication connection otherwise, so that it is tried."""
    try:
        connect(look.config, application="trucker check", replication=True).close()
    except SourceError as error:
        if error.code != "TRK220":  # the role's lack has been reported
            yield look.failure(error)


def _slot(look: _Look) -> Iterator[Finding]:
    slot = find_slot(look.connection, look.slot)
    if slot is None:
        if look.config.slot is not None:
            yield look.error(
                f"replication slot {look.slot} does not exist",
                f"run: SELECT pg_create_logical_replication_slot('{look.slot}', '{PLUGIN}')",
                "TRK230",
            )
        return
    problem = _slot_problem(look, slot)
    if problem is not None:
        yield problem
    elif slot.active_pid is not None and look.instance:
        yield look.ok(f"replication slot {look.slot} is in use by this project's running instance ({look.instance})")
    elif slot.active_pid is not None:
        # A run waits for a while: the connection of an instance that was killed may outlive it.
        yield replace(look.failure(in_use(look.connection, look.slot, look.config.name)), waits=True)
    else:
        yield look.ok(f"replication slot {look.slot} is at {slot.confirmed_flush_lsn}")


def _slot_problem(look: _Look, slot: SlotInfo) -> Finding | None:
    drop = f"run: SELECT pg_drop_replication_slot('{look.slot}')"
    if slot.plugin != PLUGIN:
        plugin = slot.plugin or "none: it is a physical slot"
        return look.error(f"replication slot {look.slot} is not trucker's: its plugin is {plugin}", drop, "TRK232")
    if slot.database != look.connection.info.dbname:
        return look.error(
            f"replication slot {look.slot} belongs to database {slot.database}, not {look.connection.info.dbname}",
            "give the project another `unique_id`, or set `database` of the connection to the slot's database",
            "TRK232",
        )
    if slot.lost and look.config.on_slot_loss == "resnapshot":
        return look.warning(
            f"replication slot {look.slot} was invalidated by the server ({slot.invalidation}): the next start "
            "copies all tables again",
            f"raise max_slot_wal_keep_size or idle_replication_slot_timeout{prevention(slot.invalidation)}",
            "TRK232",
        )
    if slot.lost:
        return look.error(
            f"replication slot {look.slot} was invalidated by the server ({slot.invalidation}): changes are lost",
            f"run: trucker reset  and then trucker run, which copies the tables again{prevention(slot.invalidation)}",
            "TRK232",
        )
    return None


def _room(look: _Look) -> Iterator[Finding]:
    """One slot for good and one for the time of a copy; a sender for each."""
    row = look.connection.execute(_IN_USE).fetchone()
    assert row is not None
    slot = find_slot(look.connection, look.slot)
    needed_slots = 1 if slot else 2
    needed_senders = 1 if slot and slot.active_pid else 2
    rooms = (
        ("max_replication_slots", "replication slots", int(row[0]), needed_slots),
        ("max_wal_senders", "WAL senders", int(row[1]), needed_senders),
    )
    for setting, what, used, needed in rooms:
        limit = int(look.settings[setting])
        if limit - used >= needed:
            yield look.ok(f"{limit - used} of {limit} {what} are free")
            continue
        yield look.error(
            f"{used} of {limit} {what} are in use; {needed} more are needed (one to stream, one while copying)",
            f"run: ALTER SYSTEM SET {setting} = {used + needed + 2}  and restart the server",
            "TRK230",
        )


def _tables_and_publication(look: _Look) -> Iterator[Finding]:
    sources: dict[TableId, SourceTable] = {}
    for wanted in look.tables:
        try:
            source = load_table(look.connection, wanted.table, publication=look.config.publication)
        except SourceError as error:
            yield look.failure(error, f"{look.subject}.{wanted.table}")
            continue
        sources[wanted.table] = source
        findings = list(_table(look, wanted, source))
        yield from findings or [look.ok("can be copied and streamed", f"{look.subject}.{wanted.table}")]
    yield from _publication(look, sources)


def _table(look: _Look, wanted: PublishedTable, source: SourceTable) -> Iterator[Finding]:
    subject = f"{look.subject}.{wanted.table}"
    problem = identity_problem(source) or _condition_problem(look, wanted, source)
    if problem is not None:
        yield look.failure(problem, subject)
    yield from _readable(look.reader, wanted, source, subject)
    if source.partitioned and source.full and not source.schema.key:
        yield look.warning(
            "the table has no primary key: set REPLICA IDENTITY FULL on each new partition before rows are "
            "written to it",
            f"add a primary key to {wanted.table.quoted}",
            "TRK212",
            subject,
        )
    if source.generated and wanted.columns is None:
        yield look.warning(
            f"generated columns are not replicated: {', '.join(source.generated)}",
            "compute them at the destination, or ignore this",
            "TRK214",
            subject,
        )


def _readable(look: _Look, wanted: PublishedTable, source: SourceTable, subject: str) -> Iterator[Finding]:
    """A copy reads the partitions themselves, so that each needs SELECT."""
    user = quote_identifier(look.connection.info.user)
    names = list(wanted.columns or source.schema.names)
    oids = [leaf.oid for leaf in source.leaves] or [source.oid]
    arguments = {"oids": oids, "columns": names}
    for table, enters, schema in look.connection.execute(_READABLE, arguments).fetchall():
        grant = f"GRANT SELECT ON {table} TO {user}"
        if not enters:
            grant = f"GRANT USAGE ON SCHEMA {quote_identifier(schema)} TO {user}; {grant}"
        yield look.error(f"user {user} may not read {table}", f"{look.grant}: {grant}", "TRK220", subject)
    row = look.connection.execute(_ROLE).fetchone()
    if row is not None and row[1]:
        return
    for (table,) in look.connection.execute(_PROTECTED, [oids]).fetchall():
        yield look.error(
            f"row-level security would hide rows of {table} from user {user}",
            f"{look.grant}: ALTER ROLE {user} BYPASSRLS",
            "TRK220",
            subject,
        )


def _condition_problem(look: _Look, wanted: PublishedTable, source: SourceTable) -> SourceError | None:
    """What is wrong with `where`: PostgreSQL is asked to plan it, over all columns and over the identity's alone."""
    if not wanted.where:
        return None
    try:
        look.version.require("row_filters", f"table {wanted.table}", "remove `where`, or upgrade the server")
        _explain(look.connection, wanted, source.schema.names)
    except SourceError as error:
        return error
    except errors.InsufficientPrivilege:
        return None  # reported with its remedy as what cannot be read
    except psycopg.Error as error:
        reason = error.diag.message_primary or type(error).__name__
        return SourceError(
            f"table {wanted.table}: `where` is not a valid condition: {reason}",
            remedy="correct `where`: it must be an SQL condition on the columns of the table",
            code="TRK213",
        )
    outside = [name for name in source.schema.names if name not in source.identity_columns]
    used = [name for name in outside if not _plans(look.connection, wanted, source, name)]
    return outside_identity(source, used)


def _plans(connection: PgConnection, wanted: PublishedTable, source: SourceTable, without: str) -> bool:
    """Whether the condition makes sense for a table that lacks this column."""
    try:
        _explain(connection, wanted, [name for name in source.schema.names if name != without])
    except errors.UndefinedColumn:
        return False
    return True


def _explain(connection: PgConnection, wanted: PublishedTable, columns: Sequence[str]) -> None:
    names = ", ".join(quote_identifier(name) for name in columns)
    rows = f"(select {names} from only {wanted.table.quoted}) as {quote_identifier(wanted.table.name)}"
    connection.execute(f"explain select from {rows} where ({wanted.where}\n)".encode())


def _publication(look: _Look, sources: dict[TableId, SourceTable]) -> Iterator[Finding]:
    existing = [wanted for wanted in look.tables if wanted.table in sources]
    examine = unmanageable if look.managed else unserved
    problems = examine(look.connection, look.publication, existing, sources)
    yield from (look.failure(problem) for problem in problems)
    if not problems:
        usage = "without changes" if not look.managed else "for all trucks"
        yield look.ok(f"publication {look.publication} can be used {usage}")
