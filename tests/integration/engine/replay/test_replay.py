"""The change log is applied again: tables as they were at a moment, and events once more (I1, I4, I7, I8)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import checksum
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import TABLES, RandomDml, chosen_seed
from fixtures.waiting import wait_until
from trucker.change import TableId
from trucker.control.answers import Replay
from trucker.errors import ChangeLogError, ControlError, LockedError, SourceError, TruckerError
from trucker.project import Project

pytestmark = pytest.mark.spark

TO_REPLICA = {"connection": "replica"}

Take = Callable[[], None]
CopyTo = Callable[[str], Database]


@pytest.fixture
def shop(project: ProjectFolder, destination: Database) -> ProjectFolder:
    project.connect(postgres("replica", destination))
    project.config["log"] = {"keep": 3600}
    return project.save()


@pytest.fixture
def take(shop: ProjectFolder, spark: Any) -> Take:
    """All that is there is applied, and nothing is connected to afterwards."""

    def run() -> None:
        assert Project.load(shop.folder).run(once=True, spark=spark).failures == ()

    return run


@pytest.fixture
def copy_to(shop: ProjectFolder, destination: Database) -> Iterator[CopyTo]:
    """A copy of the destination as it is now, as a connection of the project."""
    copies: list[Database] = []

    def copy(name: str) -> Database:
        unique = f"{name}_{destination.name}"
        with destination.server.connect() as connection:  # tasks keep theirs
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", [destination.name]
            )
        destination.server.create_database(unique, model=destination.name)
        copies.append(Database(destination.server, unique, destination.server.connection(name, unique)))
        shop.connect(postgres(name, copies[-1]))
        return copies[-1]

    yield copy
    for each in copies:
        destination.server.drop_database(each.name)


def _replay(shop: ProjectFolder, spark: Any, truck: str = "all", **options: Any) -> Replay:
    return Project.load(shop.folder).replay(truck, spark=spark, **options)


def _sums(database: Database, *tables: str) -> Mapping[str, Any]:
    return {table: checksum(database, TableId("public", table)) for table in tables or TABLES}


def _now(database: Database) -> str:
    return str(database.query("select pg_current_wal_insert_lsn()::text")[0][0])


def _time(database: Database) -> str:
    return str(database.query("select to_json(clock_timestamp())#>>'{}'")[0][0])


def test_tables_are_as_they_were_at_each_moment(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any
) -> None:
    """A copy of the destination is brought forward to one moment after the other, by LSN and by time; without the
    source, which has gone on."""
    dml = RandomDml(database, chosen_seed(), rare=0.0)
    dml.create()
    for _ in range(40):
        dml.transaction()
    shop.truck("all", ["public.*"], TO_REPLICA)
    take()
    rescue = copy_to("rescue")
    moments: list[tuple[str, Mapping[str, Any]]] = []
    for number in range(6):
        for _ in range(25):
            dml.transaction()
        if number == 3:
            database.execute("truncate keyed, bag")
        moments.append((_time(database) if number % 2 else _now(database), _sums(database)))
        dml.touch()
    dml.close()
    take()
    shop.config["connections"][0]["port"] = 1  # the source is gone
    shop.save()
    for moment, expected in moments:
        replayed = _replay(shop, spark, end=moment, into="rescue")
        assert replayed.complete
        assert _sums(rescue) == expected, moment
        assert rescue.query("select lsn::text from trucker.positions") == [(replayed.end,)], "I1, I3"


def test_rows_of_a_known_moment_are_brought_forward(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any
) -> None:
    """A database that trucker has not written to: a restored backup of the source, say."""
    database.execute(
        "create table item (id int primary key, n int, name text)",
        "insert into item select i, 0, 'n' || i from generate_series(1, 20) i",
    )
    shop.truck("all", ["public.*"], TO_REPLICA)
    take()
    known = _now(database)
    rescue = copy_to("rescue")
    rescue.execute("drop schema trucker cascade")
    database.execute(
        "update item set n = 1 where id < 5", "delete from item where id = 6", "insert into item values (21)"
    )
    wanted, moment, time = _sums(database, "item"), _now(database), _time(database)
    database.execute("update item set n = 2, id = id + 100")
    later = _now(database)
    take()
    _refused(shop, spark, "TRK652", "no copy of truck all", into="rescue")
    stop = threading.Event()
    stop.set()
    stopped = _replay(shop, spark, start=known, end=moment, into="rescue", stop=stop)
    assert (stopped.rows, stopped.complete, stopped.end) == (0, False, stopped.start)
    assert _replay(shop, spark, end=moment, into="rescue").rows == 6, "it begins where it was told to begin at first"
    assert _sums(rescue, "item") == wanted
    _refused(shop, spark, "TRK652", "would be missing", start=later, into="rescue")
    assert _replay(shop, spark, into="rescue").complete
    assert _sums(rescue, "item") == _sums(database, "item")
    assert _replay(shop, spark, into="rescue").rows == 0, "there is nothing more"
    for end in (moment, time):
        _refused(shop, spark, "TRK652", "which is after --to", end=end, into="rescue")


def test_events_are_written_again_as_a_series_of_their_own(
    shop: ProjectFolder, database: Database, take: Take, spark: Any, tmp_path: Path
) -> None:
    """The same lines in the same order, to the truck's destination and to another one; with the shapes of then."""
    for name in ("audit", "other"):
        shop.connect({"name": name, "adapter": "jsonl", "path": str(tmp_path / name)})
    database.execute("create table item (id int primary key, n int, long text)")
    shop.truck("all", ["public.*"], {"connection": "audit"})
    take()
    start = _now(database)
    database.execute(
        "insert into item values (1, 1, repeat('x', 9000)), (2, 2, 'y')",
        "update item set n = 3 where id = 1",
        "alter table item add column more int default 7",
        "update item set id = 5 where id = 2",
        "alter table item drop column n",
        "delete from item where id = 1",
        "truncate item",
    )
    end = _now(database)
    take()
    database.execute("insert into item values (9, 'later', 1)")
    take()
    written = _lines(tmp_path / "audit" / "all")
    again = _replay(shop, spark, start=start, end=end)
    assert _lines(tmp_path / "audit" / again.truck) == written[:-1]
    assert (again.rows, again.complete) == (6, True)
    other = _replay(shop, spark, start=start, into="other")
    assert _lines(tmp_path / "other" / other.truck) == written
    assert _lines(tmp_path / "audit" / "all") == written, "what the truck has written stays as it is"
    twice = _replay(shop, spark, start=start, into="other")
    assert _lines(tmp_path / "other" / twice.truck) == written
    _refused(shop, spark, "TRK650", "where the replay begins")
    database.execute("insert into item values (10, 'after', 1)")
    take()
    assert len(_lines(tmp_path / "audit" / "all")) == len(written) + 1, "the truck goes on from its own position"


def test_rules_and_sql_apply(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any, tmp_path: Path
) -> None:
    shop.connect({"name": "audit", "adapter": "jsonl", "path": str(tmp_path / "audit")})
    database.execute(
        "create table item (id int primary key, name text)",
        "create table owner (id int primary key, who text)",
        "insert into item select i, 'n' || i from generate_series(1, 5) i",
        "insert into owner select i, 'w' || i from generate_series(1, 9) i",
    )
    masked = {**TO_REPLICA, "table": "masked"}
    shop.truck(
        "masked",
        ["public.item"],
        masked,
    )
    shop.sql("masked", {}, rules=[{"mask": {"column": "name", "keep_first": 1}}])
    shop.truck("upper", ["public.item"], {**TO_REPLICA, "table": "uppered"})
    shop.sql("upper", {"transform": "select id, upper(name) as name from {{ rows }}"})
    shop.truck("owned", ["public.item"], {"connection": "audit"})
    shop.sql("owned", {"input": "select r.id, o.who from {{ rows }} join owner o on o.id = r.id"})
    take()
    rescue, start = copy_to("rescue"), _now(database)
    database.execute("insert into item values (6, 'six'), (7, 'seven')", "delete from item where id = 1")
    end = _now(database)
    database.execute("update item set name = 'later'")
    take()
    expected = {"masked": [("s****",), ("s**",)], "upper": [("SEVEN",), ("SIX",)]}
    for truck, table in (("masked", "masked"), ("upper", "uppered")):
        _replay(shop, spark, truck, end=end, into="rescue")
        names = rescue.query(f"select name from {table} where id > 5 order by name")
        assert sorted(names) == sorted(expected[truck]), truck
        assert rescue.query(f"select count(*) from {table}") == [(6,)]
    events = _replay(shop, spark, "owned", start=start, end=end)
    lines = _lines(tmp_path / "audit" / events.truck)
    assert [line["new"] for line in lines if line["new"]] == [{"id": 6, "who": "w6"}, {"id": 7, "who": "w7"}]


def test_shapes_of_then_are_followed_as_far_as_the_log_tells(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any
) -> None:
    """Added columns are followed, with their defaults; before a column goes the replay can end, and not later."""
    database.execute(
        "create table item (id int primary key, old text, n int)",
        "insert into item select i, 'o' || i, i from generate_series(1, 9) i",
    )
    shop.truck("all", ["public.*"], TO_REPLICA)
    take()
    rescue = copy_to("rescue")
    database.execute(
        "update item set n = 10 where id = 1",
        "alter table item add column plain text",
        "alter table item add column filled int default 7",
        "update item set plain = 'p', n = 20 where id = 2",
    )
    wanted, moment = _sums(database, "item"), _now(database)
    database.execute("update item set n = 30 where id = 3")
    take()
    assert _replay(shop, spark, end=moment, into="rescue").complete
    assert _sums(rescue, "item") == wanted

    database.execute("update item set old = 'last' where id = 4")
    wanted = _sums(database, "item")
    last = _now(database)
    database.execute("alter table item drop column old", "update item set n = 40 where id = 4")
    take()
    refused = _refused(shop, spark, "TRK653", "the columns of public.item were changed", into="rescue")
    to = refused.remedy.partition("--to ")[2].partition(";")[0]
    assert _replay(shop, spark, end=to, into="rescue").end == to
    assert _sums(rescue, "item") == wanted, "the column that is gone by now has its values"
    assert _replay(shop, spark, end=last, into="rescue").rows == 0


def test_a_column_that_the_copy_lacks_is_named(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any
) -> None:
    """I8: rows that do not change would have NULL where the source has the default."""
    database.execute("create table item (id int primary key)", "insert into item select generate_series(1, 9)")
    shop.truck("all", ["public.*"], TO_REPLICA)
    take()
    rescue = copy_to("rescue")
    database.execute("alter table item add column n int default 7", "insert into item values (10, 8)")
    take()
    _refused(shop, spark, "TRK652", "no column n", into="rescue")
    assert rescue.query("select count(*) from item") == [(9,)]
    rescue.execute("alter table item add column n int default 7")
    assert _replay(shop, spark, into="rescue").complete
    assert _sums(rescue, "item") == _sums(database, "item")


def test_values_that_the_log_does_not_have_are_an_error(
    shop: ProjectFolder, database: Database, take: Take, spark: Any, copy_to: CopyTo
) -> None:
    """I7: they are not read at the source, where they are those of now."""
    database.execute(
        "create table item (id int primary key, n int, long text)",
        "alter table item alter long set storage external",
        "insert into item values (1, 1, repeat('x', 9000))",
    )
    shop.truck("all", ["public.*"], TO_REPLICA, copy="none")
    take()
    copy_to("rescue")
    database.execute("update item set n = 2")
    take()
    with pytest.raises(SourceError, match=r"does not have all values of a row of public\.item") as caught:
        _replay(shop, spark, into="rescue")
    assert caught.value.code == "TRK653"


def test_what_the_log_does_not_have_is_refused(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any, tmp_path: Path
) -> None:
    """Nothing is changed, and the message names what there is."""
    shop.connect({"name": "audit", "adapter": "jsonl", "path": str(tmp_path / "audit")})
    database.execute("create table item (id int primary key)")
    shop.truck("all", ["public.*"], TO_REPLICA)
    with pytest.raises(ChangeLogError, match="no change log"):
        _replay(shop, spark, start="0/1", into="audit")
    take()
    rescue = copy_to("rescue")
    database.execute("insert into item values (1)")
    take()
    before = _refused(shop, spark, "TRK313", "before what the change log has: it begins at", start="0/1", into="audit")
    _refused(shop, spark, "TRK313", "before what", start="2001-01-01T00:00:00Z", into="audit")
    _refused(shop, spark, "TRK313", "after what the change log has: its last commit is", end="FFFF/0", into="rescue")
    _refused(shop, spark, "TRK313", "after what", end="2999-01-01", into="rescue")
    assert _replay(shop, spark, start=before.remedy.split()[1], into="audit").rows == 1, "as the remedy says"
    _refused(shop, spark, "TRK650", "is the destination of truck all")
    _refused(shop, spark, "TRK650", "which the truck reads from", into="source")
    for options, said in (
        ({"into": "nowhere"}, "there is no connection 'nowhere'"),
        ({"into": "rescue", "end": "yesterday"}, "neither an LSN nor a time"),
        ({"truck": "none"}, "there is no truck 'none'"),
    ):
        with pytest.raises(TruckerError, match=said):
            _replay(shop, spark, **options)
    assert rescue.query("select count(*) from item") == [(0,)]


def test_an_instance_runs_meanwhile(
    shop: ProjectFolder, database: Database, take: Take, copy_to: CopyTo, spark: Any, tmp_path: Path
) -> None:
    """It goes on; what it writes to itself is refused."""
    shop.connect({"name": "audit", "adapter": "jsonl", "path": str(tmp_path / "audit")})
    database.execute("create table item (id int primary key, n int)", "insert into item values (1, 1)")
    shop.truck("all", ["public.*"], TO_REPLICA).truck("events", ["public.*"], {"connection": "audit"})
    take()
    rescue = copy_to("rescue")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("update item set n = 2", "insert into item values (2, 2)")
        moment = _now(database)
        database.execute("update item set n = 3")
        wait_until(lambda: _replayed(shop, spark, moment))
        assert rescue.query("select * from item order by id") == [(1, 2), (2, 2)]
        with pytest.raises(LockedError, match="already running"):
            _replay(shop, spark, "events", start=moment)
        run.wait_streaming()


def _replayed(shop: ProjectFolder, spark: Any, moment: str) -> bool:
    """Whether the log has the moment by now, and was replayed up to it."""
    try:
        return _replay(shop, spark, end=moment, into="rescue").complete
    except ChangeLogError:
        return False


def _refused(shop: ProjectFolder, spark: Any, code: str, said: str, **options: Any) -> TruckerError:
    with pytest.raises((ControlError, ChangeLogError)) as caught:
        _replay(shop, spark, **options)
    error: TruckerError = caught.value
    assert (error.code, said in error.message) == (code, True), error
    return error


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
