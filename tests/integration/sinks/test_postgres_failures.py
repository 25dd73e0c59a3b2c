"""What goes wrong at a PostgreSQL destination: whose fault it is, what is said of it, and that nothing is lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.pg import Database
from fixtures.postgres_sink import PostgresDestination
from trucker.adapters.postgres import PostgresConnection, Timeouts
from trucker.change import Lsn, TableId
from trucker.errors import SinkError, SinkRefused, SinkUnavailable, TruckFailed
from trucker.finding import Level
from trucker.sinks.base import Workspace
from trucker.sinks.postgres import PostgresSink, session
from trucker.testing.handmade import Change, copied_rows_of, delete, insert, schema_of, truncate, update
from trucker.testing.server import Server
from trucker.testing.suites.sink_suite import BAG, ITEMS, START, TargetLoad, Work, target_of
from trucker.testing.suites.table_suite import item

PARENTS = schema_of(TableId("public", "parents"), {"id": "integer not null", "name": "text"}, ["id"])
CHILDREN = schema_of(TableId("public", "children"), {"id": "integer not null", "parent": "integer"}, ["id"])
FAMILY = "alter table children add foreign key (parent) references parents deferrable initially deferred"
LONG = "0123456789abcdef" * 16
"""Enough of these make a part that is staged in a table."""


def large() -> list[Change]:
    return [insert(item(n, LONG)) for n in range(8_000)]


def test_a_deferred_constraint_is_the_fault_of_one_truck(place: PostgresDestination) -> None:
    """It fails at COMMIT, which does not say whose: the truck without which the others can be committed."""
    good, bad, other = target_of(PARENTS, "a"), target_of(CHILDREN, "b"), target_of(ITEMS, "c")
    sink = place.started(good, bad, other)
    place.database.execute(FAMILY)
    load: TargetLoad = {
        other: [[place.values(ITEMS, insert(item(1)))]],
        bad: [[place.values(CHILDREN, insert({"id": "1", "parent": "404"}))]],
        good: [[place.values(PARENTS, insert({"id": "1", "name": "x"}))]],
    }
    batch = place.batch([other, bad, good])
    receipts = place.write(batch, load)
    with pytest.raises(TruckFailed) as failed:
        sink.commit(batch, receipts)
    assert failed.value.truck == "b"
    assert "23503" in str(failed.value)
    assert "404" not in str(failed.value)
    place.holds(good)
    place.holds(other)
    rest = replace(batch, positions={"a": batch.end, "c": batch.end}, targets=(other, good))
    sink.commit(rest, [receipt for receipt in receipts if receipt.truck != "b"])
    place.holds(good, {"id": "1", "name": "x"})
    place.holds(other, item(1))


def test_trucks_that_need_each_other_are_committed_together(place: PostgresDestination) -> None:
    """The child comes first, in another truck: with a deferred constraint that is no one's fault."""
    parents, children = target_of(PARENTS, "b"), target_of(CHILDREN, "a")
    sink = place.started(parents, children)
    place.database.execute(FAMILY)
    place.apply(
        sink,
        {
            children: [[place.values(CHILDREN, insert({"id": "1", "parent": "1"}))]],
            parents: [[place.values(PARENTS, insert({"id": "1", "name": "x"}))]],
        },
    )
    place.holds(children, {"id": "1", "parent": "1"})


def test_tables_that_refer_to_each_other_are_truncated_together(place: PostgresDestination) -> None:
    parents, children = target_of(PARENTS), target_of(CHILDREN)
    sink = place.started(parents, children)
    place.database.execute(FAMILY)
    rows: TargetLoad = {
        parents: [[place.values(PARENTS, insert({"id": "1", "name": "x"}))]],
        children: [[place.values(CHILDREN, insert({"id": "1", "parent": "1"}))]],
    }
    place.apply(sink, rows)
    emptied: TargetLoad = {t: [[place.values(t.source, truncate(), step=2)]] for t in (parents, children)}
    place.apply(sink, emptied, step=2)
    place.holds(parents)
    place.holds(children)


def test_a_copy_is_not_begun_under_a_foreign_key(place: PostgresDestination) -> None:
    """Parts are committed one by one, children before parents: no constraint would hold. I11: said beforehand."""
    place.database.execute(
        "create table parents (id int primary key, name text)",
        "create table children (id int primary key, parent int)",
        FAMILY,
    )
    parents, children = target_of(PARENTS), target_of(CHILDREN)
    with pytest.raises(TruckFailed) as refused:
        place.started(parents, children)
    assert refused.value.code == "TRK427"
    drop, add = re.findall(r"ALTER TABLE .*?(?=  |$)", refused.value.remedy)
    place.database.execute(drop)
    sink = place.started(parents, children)
    place.database.execute(add)
    rows: TargetLoad = {
        children: [[place.values(CHILDREN, insert({"id": "1", "parent": "1"}))]],
        parents: [[place.values(PARENTS, insert({"id": "1", "name": "x"}))]],
    }
    place.apply(sink, rows)
    place.holds(children, {"id": "1", "parent": "1"})


def test_a_foreign_key_that_is_not_deferred_is_kept_by_order(place: PostgresDestination) -> None:
    """The child's table comes first in the batch; what is refused for good is named, with the statement to run."""
    parents, children = target_of(PARENTS), target_of(CHILDREN)
    sink = place.started(parents, children)
    place.database.execute("alter table children add foreign key (parent) references parents")
    rows: TargetLoad = {
        children: [[place.values(CHILDREN, insert({"id": "1", "parent": "1"}))]],
        parents: [[place.values(PARENTS, insert({"id": "1", "name": "x"}))]],
    }
    place.apply(sink, rows)
    place.holds(children, {"id": "1", "parent": "1"})
    gone: TargetLoad = {
        children: [[place.values(CHILDREN, delete({"id": "1"}), step=2)]],
        parents: [[place.values(PARENTS, delete({"id": "1"}), step=2)]],
    }
    place.apply(sink, gone, step=2)
    place.holds(parents)
    orphan: TargetLoad = {children: [[place.values(CHILDREN, insert({"id": "2", "parent": "404"}), step=3)]]}
    with pytest.raises(TruckFailed, match=r"row \(id = 2\) of table public.children.*23503") as refused:
        place.apply(sink, orphan, step=3)
    (statement,) = re.findall(r"ALTER TABLE .*?(?=  )", refused.value.remedy)
    place.database.execute(statement)


def test_messages_name_the_constraint_and_not_the_data(place: PostgresDestination) -> None:
    items = target_of(ITEMS)
    sink = place.filled(items, item(1, "secret"))
    place.database.execute("create unique index one_name on items (name)")
    with pytest.raises(TruckFailed) as failed:
        place.change(sink, items, insert(item(2, "secret")))
    assert "unique violation" in failed.value.message
    assert "23505" in failed.value.message
    assert "constraint one_name" in failed.value.message
    assert "secret" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__ or failed.value.__context__ is None


def test_a_column_that_cannot_take_the_value_is_named(place: PostgresDestination) -> None:
    sink = place.started(target_of(ITEMS))
    with pytest.raises(TruckFailed, match="column qty") as failed:
        place.change(sink, target_of(ITEMS), insert({"id": "1", "qty": "secret"}))
    assert "secret" not in str(failed.value)
    assert "ALTER COLUMN" in failed.value.remedy


def test_bad_values_in_a_large_part(place: PostgresDestination) -> None:
    """The executor stages text then, and the commit says which row it is; nothing is left of the staging."""
    items = target_of(ITEMS)
    sink = place.started(items)
    bad = insert({"id": "77777", "name": LONG, "qty": "secret"})
    batch = place.batch([items])
    receipts = place.write(batch, {items: [[place.values(ITEMS, *large(), bad)]]})
    with pytest.raises(TruckFailed, match=r"row \(id = 77777\) of table public.items.*column qty") as failed:
        sink.commit(batch, receipts)
    assert "secret" not in str(failed.value)
    place.holds(items)
    place.committer().open()
    assert place.stages() == 0


TERMINATE = """create function public.die() returns trigger language plpgsql as
    'begin perform pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()); return new; end'"""


@pytest.mark.parametrize(
    "trigger",
    [
        "create trigger t after insert on items for each row execute function public.die()",
        "create constraint trigger t after insert on items deferrable initially deferred"
        " for each row execute function public.die()",
    ],
    ids=["while applying", "while committing"],
)
def test_a_connection_cut_during_commit(place: PostgresDestination, trigger: str) -> None:
    items = target_of(ITEMS)
    sink = place.started(items)
    place.database.execute(TERMINATE, trigger)
    batch = place.batch([items])
    receipts = place.write(batch, {items: [[place.values(ITEMS, *large())]]})
    with pytest.raises(SinkUnavailable):
        sink.commit(batch, receipts)
    place.holds(items)
    place.database.execute("drop trigger t on items")
    sink.commit(batch, receipts)
    assert len(place.rows(ITEMS.table)) == 8_000
    assert place.stages() == 0


def test_a_connection_that_died_while_idle_is_replaced(place: PostgresDestination) -> None:
    items = target_of(ITEMS)
    sink = place.started(items)
    place.database.execute(
        "select pg_terminate_backend(pid, 20000) from pg_stat_activity where application_name = 'trucker'"
        f" and datname = '{place.database.name}'"
    )
    place.change(sink, items, insert(item(1)))
    place.holds(items, item(1))


def test_a_lock_held_by_someone_else_passes(place: PostgresDestination) -> None:
    hurried = place.database.connection.model_copy(update={"timeouts": Timeouts(lock=0.05)})
    place.database = replace(place.database, connection=hurried)
    items = target_of(ITEMS)
    sink = place.started(items)
    with place.database.connect() as other, other.transaction():
        other.execute("lock table items in access exclusive mode")
        with pytest.raises(SinkUnavailable, match="55P03"):
            place.change(sink, items, insert(item(1)))
    place.change(sink, items, insert(item(1)))
    place.holds(items, item(1))


def test_staged_rows_lost_in_a_crash_are_staged_again(own_server: Server) -> None:
    """A crash empties unlogged tables: that must not be taken for nothing to do."""
    own_server.create_database("crashed")
    place = PostgresDestination(Database(own_server, "crashed", own_server.connection("destination", "crashed")))
    items = target_of(ITEMS)
    sink = place.started(items)
    batch = place.batch([items])
    load: TargetLoad = {items: [[place.values(ITEMS, *large())]]}
    receipts = place.write(batch, load)
    assert place.stages() == 1
    own_server.kill()
    with pytest.raises(SinkUnavailable):
        sink.commit(batch, receipts)
    own_server.start()
    assert place.stages() == 1
    with pytest.raises(SinkUnavailable, match="are missing"):
        sink.commit(batch, receipts)
    assert sink.open()["main"].lsn == START
    sink.commit(batch, place.write(batch, load))
    assert len(place.rows(ITEMS.table)) == 8_000
    sink.close()


def test_what_a_crash_left_goes_at_the_next_open(place: PostgresDestination) -> None:
    items = target_of(ITEMS)
    sink = place.started(items)
    batch = place.batch([items])
    receipts = place.write(batch, {items: [[place.values(ITEMS, *large())]]})
    assert place.stages() == 1
    place.committer("another").open()
    assert place.stages() == 1
    place.committer().open()
    assert place.stages() == 0
    with pytest.raises(SinkUnavailable, match="are missing"):
        sink.commit(batch, receipts)


def test_a_repeated_large_part_leaves_nothing_behind(place: PostgresDestination) -> None:
    items = target_of(ITEMS)
    sink = place.started(items)
    batch = place.batch([items])
    load: TargetLoad = {items: [[place.values(ITEMS, *large())]]}
    place.write(batch, load)
    sink.commit(batch, place.write(batch, load))
    sink.commit(batch, place.write(batch, load))
    assert place.stages() == 0
    assert len(place.rows(ITEMS.table)) == 8_000


def test_many_updates_of_rows_some_of_which_are_missing(place: PostgresDestination) -> None:
    """Whole rows are written whether they are there or not; someone else's delete is made good."""
    items = target_of(ITEMS)
    sink = place.filled(items, *(item(n) for n in range(2_000)))
    place.database.execute("delete from items where id % 3 = 0")
    place.change(sink, items, *(update(item(n, "new")) for n in range(2_000)))
    place.holds(items, *(item(n, "new") for n in range(2_000)))


def test_a_straggler_cannot_write_into_the_next_copy(place: PostgresDestination) -> None:
    items = target_of(ITEMS)
    sink = place.committer()
    sink.open()
    place.begin_copy(sink, [items], name="old")
    place.begin_copy(sink, [items], name="new")
    late = Work(place.copied([items], name="old"), items, 0)
    with pytest.raises(SinkError, match="replaced"):
        place.write_part(late, [copied_rows_of(ITEMS, [item(1)])])
    place.holds(items)


def test_two_at_once_commit_a_batch_once(place: PostgresDestination) -> None:
    """The position's row is the lock: whoever comes second finds the batch applied (I4)."""
    bag = target_of(BAG)
    place.started(bag)
    batch = place.batch([bag])
    receipts = place.write(batch, {bag: [[place.values(BAG, *[insert({"a": "1", "b": "x"})] * 100)]]})
    barrier = threading.Barrier(4)
    failures: list[Exception] = []

    def commit() -> None:
        sink = place.committer()
        barrier.wait(20)
        try:
            sink.commit(batch, receipts)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(place.rows(BAG.table)) == 100


def test_open_waits_for_a_commit_that_is_still_under_way(
    place: PostgresDestination, wait_until: Callable[..., object]
) -> None:
    """Its connection may be lost, its transaction goes on: the position before it must not be gone by (I4)."""
    place.started(target_of(ITEMS))
    found: list[Lsn] = []
    opening = threading.Thread(target=lambda: found.append(place.committer().open()["main"].lsn))
    with place.database.connect() as other, other.transaction():
        other.execute("update trucker.positions set lsn = '0/2000'")
        opening.start()
        wait_until(lambda: place.database.query("select 1 from pg_stat_activity where wait_event_type = 'Lock'"))
        assert not found
    opening.join(20)
    assert found == [Lsn(0x2000)]


def test_projects_share_a_destination(place: PostgresDestination) -> None:
    """Same truck, same source table, other project and other output: neither disturbs the other."""
    one, two = target_of(ITEMS), target_of(ITEMS, table=TableId("second", "items"))
    first, second = place.committer("one"), place.committer("two")
    for sink, target, row in ((first, one, item(1)), (second, two, item(2))):
        sink.open()
        place.begin_copy(sink, [target])
        done = place.copied([target])
        receipt = sink.write(Work(done, target, 0), iter([copied_rows_of(ITEMS, [row])]))
        sink.commit(done, [receipt])
    place.holds(one, item(1))
    place.holds(two, item(2))
    assert first.open() == second.open()


# -- before anything is touched (I11) ---------------------------------------------------------------------------------


def role(place: PostgresDestination, name: str) -> PostgresConnection:
    unique = f"{name}_{place.database.name[-8:]}"
    place.database.execute(f"create role {unique} login password 'pw-{unique}'")
    return place.database.as_user(unique, f"pw-{unique}")


def drop(place: PostgresDestination, connection: PostgresConnection) -> None:
    session.close_idle(connection)
    place.database.execute(f"drop owned by {connection.user} cascade", f"drop role {connection.user}")


def test_a_role_without_privileges_gets_the_grant_to_run(place: PostgresDestination) -> None:
    connection = role(place, "clerk")
    sink = PostgresSink(connection, Workspace("suite", Path("unused")))
    try:
        found = sink.check()
        assert [finding.level for finding in found] == [Level.OK, Level.ERROR]
        with pytest.raises(SinkError) as refused:
            sink.open()
        assert refused.value.remedy == found[-1].remedy
        statement = refused.value.remedy.removeprefix("run at the destination: ")
        assert statement.startswith("GRANT CREATE ON DATABASE")
        place.database.execute(statement)
        assert [finding.level for finding in sink.check()] == [Level.OK, Level.OK]
        assert place.database.query("select to_regnamespace('trucker')") == [(None,)]
        sink.open()
        sink.prepare(target_of(ITEMS, table=TableId("own", "items")))
        place.database.execute("create table theirs (id int primary key, name text, qty int)")
        theirs = target_of(ITEMS, table=TableId("public", "theirs"))
        ((_, expected),) = sink.examine([theirs], ())
        assert expected.code == "TRK404"
    finally:
        drop(place, connection)


def test_a_schema_made_by_someone_else(place: PostgresDestination) -> None:
    place.committer().open()
    connection = role(place, "guest")
    try:
        found = PostgresSink(connection, Workspace("suite", Path("unused"))).check()
        assert found[-1].level is Level.ERROR
        assert (
            found[-1].remedy == f'run at the destination: GRANT USAGE, CREATE ON SCHEMA trucker TO "{connection.user}"'
        )
    finally:
        drop(place, connection)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"password": "wrong-pw"}, SinkRefused, "password"),
        ({"database": "no_such_db"}, SinkRefused, "the database does not exist"),
        ({"port": 1}, SinkUnavailable, "cannot be reached"),
    ],
)
def test_no_connection(
    place: PostgresDestination, change: dict[str, object], kind: type[SinkError], words: str
) -> None:
    right = place.database.connection
    given = {**right.model_dump(), "password": right.password, **change}
    connection = PostgresConnection.model_validate(given)
    sink = PostgresSink(connection, Workspace("suite", Path("unused")))
    with pytest.raises(SinkError, match=words) as refused:
        sink.open()
    assert type(refused.value) is kind
    assert "wrong-pw" not in str(refused.value)
    assert right.password.get_secret_value() not in str(refused.value)
    assert [finding.level for finding in sink.check()] == [Level.ERROR]


def test_a_newer_format_is_left_alone(place: PostgresDestination) -> None:
    place.committer().open()
    place.database.execute("update trucker.format set version = 99")
    with pytest.raises(SinkError, match="format 99"):
        place.committer().open()


def test_own_tables_can_be_read(place: PostgresDestination) -> None:
    """Positions are where anybody can look them up."""
    sink = place.started(target_of(ITEMS))
    place.change(sink, target_of(ITEMS), insert(item(1)))
    assert place.database.query("select project, truck, lsn::text from trucker.positions") == [
        ("suite", "main", str(Lsn(START + 0x100)))
    ]
    assert place.database.query("select phase, target_table from trucker.tables") == [("streaming", "items")]
    assert place.database.query("select count(*) from trucker.chunks") == [(0,)]
