"""Rules where executors apply them: keys that become equal are folded again, columns keep their policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.fake_source import FakeSource
from trucker.change import OPERATIONS, Lsn, TableId
from trucker.config.models import TruckConfig
from trucker.config.rules import RuleConfig
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.fold import Fold
from trucker.engine.transform.recipe import Recipe
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.transform.row_transform import make
from trucker.engine.transform.rules import compile_rules
from trucker.engine.truck.truck import InputTable, Truck
from trucker.sinks.target import Target
from trucker.testing.handmade import Change, changes_of, delete, insert, schema_of, update
from trucker.types import Unfit

TABLE = TableId("public", "t")
SCHEMA = schema_of(TABLE, {"id": "text", "n": "integer", "word": "text"}, ["id"])


def made(fold: Fold, *changes: Change, **rule: Any) -> list[tuple[str, str | None, str | None]]:
    rules = compile_rules([RuleConfig.model_validate(rule)], SCHEMA)
    target = Target("truck", rules.schema, TABLE)
    assignment = Assignment("there", target, Lsn(0), recipe=Recipe(SCHEMA, fold, rules))
    (found,) = make([(assignment, [changes_of(SCHEMA, changes)])], None, 0)
    return [
        (OPERATIONS[op], new["id"] or old["id"], new["n"])
        for each in found.changes
        for op, new, old in zip(each.op.tolist(), each.new.to_pylist(), each.old.to_pylist(), strict=True)
    ]


def test_of_keys_that_become_equal_the_last_change_counts() -> None:
    """A sink gets at most one row for a key, whatever the rules do to it."""
    changes = [insert({"id": "ab", "n": "1"}), insert({"id": "cb", "n": "2"}), insert({"id": "xx", "n": "3"})]
    mask = {"column": "id", "keep_last": 1}
    assert made(Fold.NET, *changes, mask=mask) == [("insert", "*b", "2"), ("insert", "*x", "3")]
    assert len(made(Fold.NONE, *changes, mask=mask)) == 3


def test_rows_that_no_rule_lets_pass_leave_nothing() -> None:
    changes = [insert({"id": "a", "n": "1"}), delete({"id": "b"}), update({"id": "c", "n": "5"})]
    assert made(Fold.NET, *changes, filter={"column": "n", "gt": "4"}) == [("delete", "b", None), ("insert", "c", "5")]
    assert made(Fold.NET, changes[0], filter={"column": "n", "gt": "4"}) == []


def test_columns_have_their_policies_under_the_names_that_rules_give() -> None:
    config = TruckConfig.model_validate(
        {
            "name": "truck",
            "folder": Path("x"),
            "input": {"connection": "source", "table": "t"},
            "output": {"connection": "there", "columns": {"number": {"unfit": "text"}, "n": {"unfit": "null"}}},
            "rules": [{"rename": {"n": "number"}}],
        }
    )
    policies = (("n", Unfit.NULL), ("number", Unfit.TEXT))
    table = InputTable(TABLE, TABLE, ("id",), unfit=policies)
    truck = Truck("truck", "source", "there", {TABLE: table}, config=config)
    recipes = Recipes(FakeSource(), {"there": False}, 1000)
    found = recipes.of(truck, replace(table.target("truck", SCHEMA), dropped=("gone", "n")))
    assert found is not None
    assert found[0].dropped == ("gone", "number")
    assert found[0].unfit == (("number", Unfit.TEXT),)
    assert found[0].source.names == ("id", "number", "word")
