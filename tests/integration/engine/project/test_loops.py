"""Outputs that would feed themselves, or each other, are refused before anything is made (I11)."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from trucker.errors import CheckFailed
from trucker.project import Project

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(project: ProjectFolder, database: Database) -> ProjectFolder:
    database.execute("create table item (id int primary key)", "create table tag (id int primary key)")
    return project


def _refused(project: ProjectFolder, spark: Any, code: str) -> None:
    found = [finding.code for finding in Project.load(project.folder).check()]
    assert code in found
    with pytest.raises(CheckFailed) as refused:
        InThread(project, spark).join()
    assert refused.value.code == code


def _untouched(database: Database) -> None:
    assert database.query("select count(*) from pg_publication") == [(0,)]
    assert database.query("select to_regnamespace('trucker')") == [(None,)]
    assert database.query(f"select 1 from pg_replication_slots where database = '{database.name}'") == []


def test_a_table_into_itself(shop: ProjectFolder, database: Database, spark: Any) -> None:
    shop.truck("round", ["public.*"], {"connection": "source"})
    _refused(shop, spark, "TRK121")
    _untouched(database)


def test_the_same_database_under_another_name(shop: ProjectFolder, database: Database, spark: Any) -> None:
    """What counts is what a connection leads to, not what it is called or how its host is written."""
    shop.connect(postgres("mirror", database))
    shop.truck("round", ["public.item"], {"connection": "mirror"})
    _refused(shop, spark, "TRK121")
    _untouched(database)


def test_two_inputs_into_one_table(shop: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    shop.connect(postgres("replica", destination))
    shop.truck("items", ["public.item"], {"connection": "replica", "schema": "one"})
    shop.truck("again", ["public.item"], {"connection": "replica", "schema": "one"})
    _refused(shop, spark, "TRK122")
    _untouched(database)


def test_within_one_database_but_apart(shop: ProjectFolder, database: Database, spark: Any) -> None:
    """Source and destination may be one database, as long as no output is an input."""
    shop.truck("copy", ["public.*"], {"connection": "source", "schema": "copies"})
    database.execute("insert into item values (1), (2)")
    InThread(shop, spark, once=True).join()
    assert database.query("select count(*) from copies.item") == [(2,)]
    InThread(shop, spark, once=True).join()
    assert database.query("select count(*) from copies.item") == [(2,)]


def test_truckers_own_tables_are_never_an_input(shop: ProjectFolder, database: Database, spark: Any) -> None:
    """With them every commit would make a change, and every change a commit."""
    shop.truck("copy", ["*.*", "!copies.*"], {"connection": "source", "schema": "copies"})
    for _ in range(2):
        InThread(shop, spark, once=True).join()
    assert database.query("select tablename from pg_tables where schemaname = 'copies' order by 1") == [
        ("item",),
        ("tag",),
    ]
    shop.truck("copy", ["public.item", "trucker.positions"], {"connection": "source", "schema": "copies"})
    _refused(shop, spark, "TRK218")


def test_a_pattern_must_not_take_its_own_output(shop: ProjectFolder, database: Database, spark: Any) -> None:
    shop.truck("copy", ["*.*"], {"connection": "source", "schema": "copies"})
    database.execute("create schema copies", "create table copies.item (id int primary key)")
    _refused(shop, spark, "TRK121")
