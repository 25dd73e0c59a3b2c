"""Everything wrong is one clear message with the remedy and a non-zero exit, before anything is created (I11, I10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres, run_cli

Change = Callable[[ProjectFolder, Database, Database], None]


def _connection(number: int, **changed: Any) -> Change:
    def change(project: ProjectFolder, _: Database, __: Database) -> None:
        project.config["connections"][number].update(changed)
        project.save()

    return change


def _truck(**changed: Any) -> Change:
    def change(project: ProjectFolder, _: Database, __: Database) -> None:
        project.truck("t", changed.pop("tables", ["public.t"]), {"connection": "replica", **changed})

    return change


def _sql(statement: str) -> Change:
    return lambda _, database, __: database.execute(statement)


def _loop(project: ProjectFolder, database: Database, _: Database) -> None:
    project.config["connections"][1] = postgres("replica", database)
    project.save()


def _view(project: ProjectFolder, database: Database, _: Database) -> None:
    database.execute("create view v as select 1 as id")
    project.truck("t", ["public.v"], {"connection": "replica"})


def _nowhere(project: ProjectFolder, _: Database, __: Database) -> None:
    project.truck("t", ["public.t"], {"connection": "nowhere"})


def _uncopied_bag(project: ProjectFolder, database: Database, _: Database) -> None:
    database.execute("alter table t drop constraint t_pkey", "alter table t replica identity full")
    project.truck("t", ["public.t"], {"connection": "replica"}, copy="none")


CASES: dict[str, tuple[Change, str, int]] = {
    "wrong password": (_connection(0, **{"pass": "s3cret-wrong"}), "pass", 3),
    "unreachable host": (_connection(0, port=1), "port", 3),
    "unknown database": (_connection(0, database="no_such_db"), "no_such_db", 3),
    "wrong password at the destination": (_connection(1, **{"pass": "s3cret-wrong"}), "pass", 3),
    "unreachable destination": (_connection(1, port=1), "replica", 3),
    "absent table": (_truck(tables=["public.nothing"]), "public.nothing", 3),
    "no table matches": (_truck(tables=["public.zzz*"]), "zzz", 3),
    "no replica identity": (_sql("alter table t drop constraint t_pkey"), "REPLICA IDENTITY", 3),
    "a view": (_view, "view", 3),
    "unlogged": (_sql("alter table t set unlogged"), "unlogged", 3),
    "a loop": (_loop, "loop", 3),
    "no key, and its rows are not copied": (_uncopied_bag, "ADD PRIMARY KEY", 3),
    "unknown key": (_connection(0, hots="x"), "hots", 2),
    "unknown connection": (_nowhere, "nowhere", 2),
}


@pytest.mark.parametrize("case", CASES)
def test_is_refused_with_a_remedy(case: str, project: ProjectFolder, database: Database, destination: Database) -> None:
    change, word, code = CASES[case]
    database.execute("create table t (id int primary key)")
    project.connect(postgres("replica", destination))
    project.truck("t", ["public.t"], {"connection": "replica"})
    change(project, database, destination)
    for command in ("run", "check"):
        result = run_cli(command, str(project.folder))
        text = result.stdout + result.stderr
        assert result.returncode == (code if command == "run" or code == 2 else 1), text
        assert word in text
        assert "Traceback" not in text
        assert "s3cret" not in text
        assert database.connection.password.get_secret_value() not in text
    assert database.query("select 1 from pg_publication") == []
    assert database.query(f"select 1 from pg_replication_slots where database = '{database.name}'") == []
    assert destination.query("select 1 from pg_namespace where nspname = 'trucker'") == []


def test_check_is_content_with_a_good_project(
    project: ProjectFolder, database: Database, destination: Database
) -> None:
    database.execute("create table t (id int primary key)")
    project.connect(postgres("replica", destination))
    project.truck("t", ["public.t"], {"connection": "replica"})
    result = run_cli("check", str(project.folder))
    assert result.returncode == 0, result.stdout + result.stderr
    assert database.query("select 1 from pg_publication") == []


def test_rows_of_others_do_not_matter_where_none_are_copied(
    project: ProjectFolder, database: Database, destination: Database
) -> None:
    """A table that holds rows is no place for a copy, and a good one for the changes alone."""
    for each in (database, destination):
        each.execute("create table t (id int primary key)", "insert into t values (1)")
    project.connect(postgres("replica", destination))
    project.truck("t", ["public.t"], {"connection": "replica"})
    refused = run_cli("check", str(project.folder))
    assert refused.returncode == 1
    assert "TRK410" in refused.stdout
    project.truck("t", ["public.t"], {"connection": "replica"}, copy={"t": "none"})
    accepted = run_cli("check", str(project.folder))
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert "not copied, only their changes are applied: public.t" in accepted.stdout
    for _ in range(2):
        result = run_cli("run", str(project.folder), "--once")
        assert result.returncode == 0, result.stdout + result.stderr
        database.execute("insert into t select max(id) + 1 from t")
    assert destination.query("select id from t order by id") == [(1,), (2,)]
