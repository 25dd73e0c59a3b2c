"""What each rule does to changes, and what is refused because a table cannot have it."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any

import numpy as np
import pytest

from trucker.change import DELETE, INSERT, NO_OLD, OLD_KEY, OPERATIONS, UPDATE, Changes, Column, TableId, TableSchema
from trucker.config.rules import RuleConfig
from trucker.engine.spark.secret_pickle import seal, unseal
from trucker.engine.transform.rules import RuleSet, compile_rules
from trucker.errors import ConfigError, DataError, SourceError, TruckerError
from trucker.testing.handmade import changes_of, delete, insert, schema_of, truncate, update

TABLE = TableId("public", "users")
SCHEMA = schema_of(
    TABLE,
    {
        "id": "integer not null",
        "email": "text",
        "age": "integer",
        "amount": "numeric(10,2)",
        "mood": "public.mood",
        "at": "timestamp with time zone",
        "fine": "boolean",
        "doc": "jsonb",
    },
    ["id"],
)


def ruled(*rules: dict[str, Any], schema: TableSchema = SCHEMA) -> RuleSet:
    made = compile_rules([RuleConfig.model_validate(rule) for rule in rules], schema)
    again: RuleSet = pickle.loads(pickle.dumps(made))
    assert again.schema == made.schema
    return again


def changes(*rows: Any, schema: TableSchema = SCHEMA) -> Changes:
    return changes_of(schema, rows)


def shown(found: Changes) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """Operation, and the cells that are not NULL, new and old."""
    assert found.new.schema.names == list(found.schema.names) == found.old.schema.names
    rows = zip(found.op.tolist(), found.new.to_pylist(), found.old.to_pylist(), strict=True)
    return [(OPERATIONS[op], _given(new), _given(old)) for op, new, old in rows]


def _given(row: dict[str, Any]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if cell is not None}


def test_mask_keeps_the_ends_and_hides_short_values_whole() -> None:
    rules = ruled({"mask": {"column": "email", "keep_first": 1, "keep_last": 2, "with": "#"}})
    texts = ["anna@x.de", "abc", "abcd", "", "żółw🐢!", None]
    found = rules.apply(changes(*(insert({"id": "1", "email": text}) for text in texts)))
    assert found.new.column("email").to_pylist() == ["a######de", "###", "a#cd", "", "ż###🐢!", None]
    assert rules.schema.column("email").type_name == "text"
    whole = ruled({"mask": {"column": "email"}}).apply(changes(insert({"id": "1", "email": "żx"})))
    assert whole.new.column("email").to_pylist() == ["**"]


def test_values_that_are_no_texts_become_texts() -> None:
    rules = ruled(
        {"mask": {"columns": ["age", "mood"], "keep_last": 1}},
        {"hash": {"column": "amount", "key": "k"}},
        {"regex": {"column": "at", "pattern": "-.*", "replacement": ""}},
    )
    assert {
        c.name: c.type_name for c in rules.schema.columns if c.name in ("age", "mood", "amount", "at")
    } == dict.fromkeys(("age", "mood", "amount", "at"), "text")
    row = {"id": "1", "age": "42", "mood": "happy", "amount": "1.50", "at": "2024-01-01 00:00:00+00"}
    ((_, new, _),) = shown(rules.apply(changes(insert(row))))
    digest = hmac.new(b"k", b"1.50", hashlib.sha256).hexdigest()
    assert new == {"id": "1", "age": "*2", "mood": "****y", "amount": digest, "at": "2024"}


def test_old_and_new_are_treated_alike_and_the_key_keeps_its_names() -> None:
    rules = ruled(
        {"hash": {"column": "id", "key": "k"}},
        {"rename": {"id": "user_id", "email": "mail"}},
        {"regex": {"column": "mail", "pattern": "@.*", "replacement": ""}},
    )
    assert rules.schema.key == ("user_id",)
    assert rules.origin["user_id"] == "id"
    first = hmac.new(b"k", b"1", hashlib.sha256).hexdigest()
    second = hmac.new(b"k", b"2", hashlib.sha256).hexdigest()
    found = rules.apply(
        changes(
            update({"id": "2", "email": "b@x"}, {"id": "1"}),
            update({"id": "1", "email": "c@x"}, {"id": "1", "email": "b@y"}),
            delete({"id": "2"}),
        )
    )
    assert shown(found) == [
        ("update", {"user_id": second, "mail": "b"}, {"user_id": first}),
        ("update", {"user_id": first, "mail": "c"}, {"user_id": first, "mail": "b"}),
        ("delete", {}, {"user_id": second}),
    ]
    assert found.old_kind.tolist() == [OLD_KEY, ord("O"), OLD_KEY]


def test_names_may_change_places() -> None:
    rules = ruled({"rename": {"email": "age", "age": "email"}}, {"rename": {"age": "mail", "gone": "lost"}})
    ((_, new, _),) = shown(rules.apply(changes(insert({"id": "1", "email": "a@x", "age": "3"}))))
    assert new == {"id": "1", "mail": "a@x", "email": "3"}
    assert [rules.called(name) for name in ("email", "age", "gone", "id")] == ["mail", "email", "lost", "id"]


def test_values_that_were_not_sent_stay_so() -> None:
    """I7: never NULL."""
    rules = ruled({"mask": {"column": "email"}}, {"rename": {"email": "mail"}}, {"cast": {"doc": "text"}})
    found = rules.apply(changes(update({"id": "1"}, unchanged=["email", "doc"]), insert({"id": "2", "email": "ab"})))
    assert {name: mask.tolist() for name, mask in found.unchanged.items()} == {
        "mail": [True, False],
        "doc": [True, False],
    }
    assert found.new.column("mail").to_pylist() == [None, "**"]
    gone = ruled({"exclude": ["email", "doc"]}).apply(changes(update({"id": "1"}, unchanged=["email", "doc"])))
    assert gone.unchanged == {}
    assert gone.schema.names == ("id", "age", "amount", "mood", "at", "fine")


def test_rules_run_in_the_order_written() -> None:
    row = insert({"id": "1", "email": "anna"})
    one = ruled({"mask": {"column": "email"}}, {"filter": {"column": "email", "eq": "anna"}})
    other = ruled({"filter": {"column": "email", "eq": "anna"}}, {"mask": {"column": "email"}})
    assert len(one.apply(changes(row))) == 0
    assert shown(other.apply(changes(row))) == [("insert", {"id": "1", "email": "****"}, {})]


def test_rules_for_some_operations() -> None:
    rules = ruled(
        {"mask": {"column": "email"}, "operations": ["insert", "delete"]},
        {"constant": {"how": "made"}, "operations": "insert"},
        {"constant": {"how": "changed"}, "operations": "update"},
    )
    found = rules.apply(
        changes(
            insert({"id": "1", "email": "ab"}),
            update({"id": "1", "email": "cd"}, {"id": "1", "email": "ab"}),
            delete({"id": "1", "email": "cd"}),
            truncate(),
        )
    )
    assert shown(found) == [
        ("insert", {"id": "1", "email": "**", "how": "made"}, {}),
        ("update", {"id": "1", "email": "cd", "how": "changed"}, {"id": "1", "email": "ab", "how": "changed"}),
        ("delete", {}, {"id": "1", "email": "**"}),
        ("truncate", {}, {}),
    ]


def test_rules_for_some_tables() -> None:
    rules = [
        {"mask": {"column": "email"}, "tables": "public.u*"},
        {"exclude": "age", "tables": "shop.*"},
        {"filter": {"column": "nowhere", "eq": "1"}, "tables": ["public.*", "!public.users"]},
        {"route": {"to": "a.b"}},
    ]
    found = ruled(*rules)
    assert "age" in found.schema.names
    assert len(found.steps) == 1


def test_constants_are_typed_and_fill_what_is_older_than_they_are() -> None:
    rules = ruled({"constant": {"level": {"value": "007", "type": "int"}, "region": "eu"}})
    level = rules.schema.column("level")
    assert (level.type_name, level.type_oid, level.missing_value) == ("integer", 23, "7")
    found = rules.apply(changes(insert({"id": "1"}), delete({"id": "1", "age": "3"}), delete({"id": "1"})))
    assert shown(found) == [
        ("insert", {"id": "1", "level": "7", "region": "eu"}, {}),
        ("delete", {}, {"id": "1", "age": "3", "level": "7", "region": "eu"}),
        ("delete", {}, {"id": "1"}),
    ]


def test_what_older_rows_have_follows_the_rules() -> None:
    columns = (*SCHEMA.columns, Column("note", 25, type_name="text", missing_value="none"))
    schema = TableSchema(TABLE, columns, ("id",))
    assert ruled({"mask": {"column": "note"}}, schema=schema).schema.column("note").missing_value == "****"
    limited = ruled({"mask": {"column": "note"}, "operations": "update"}, schema=schema)
    assert limited.schema.column("note").missing_value == "none"


def test_a_value_that_does_not_fit_names_the_column_and_the_key_but_no_data() -> None:
    """I10."""
    rules = ruled({"cast": {"email": "integer"}})
    with pytest.raises(DataError) as caught:
        rules.apply(changes(insert({"id": "1", "email": "7"}), insert({"id": "2", "email": "s3cret"})))
    text = str(caught.value)
    assert "row (id = 2) of table public.users" in text
    assert "column email" in text
    assert "s3cret" not in text
    hidden = ruled({"cast": {"email": "integer"}}, {"hash": {"column": "id", "key": "k"}})
    with pytest.raises(DataError) as caught:
        hidden.apply(changes(insert({"id": "2", "email": "s3cret"})))
    assert "id" not in str(caught.value).split(":")[0].split()


def test_rows_that_a_filter_leaves_out_are_not_cast() -> None:
    rules = ruled(
        {"filter": {"column": "age", "gt": "0"}},
        {"cast": {"email": "integer"}},
    )
    bad = {"id": "1", "age": "0", "email": "x"}
    good = {"id": "1", "age": "1", "email": "7"}
    found = rules.apply(changes(insert(bad), update(good, bad), update(bad, good), delete(bad)))
    assert shown(found) == [("insert", good, {}), ("delete", {}, good)]


@pytest.mark.parametrize(
    ("rule", "code", "message"),
    [
        ({"exclude": "id"}, "TRK142", "column id is part of the key"),
        ({"exclude": list(SCHEMA.names)}, "TRK142", "column id is part of the key"),
        ({"rename": {"email": "age"}}, "TRK142", "would have two columns with the name age"),
        ({"constant": {"age": "1"}}, "TRK142", "already has a column age"),
        ({"constant": {"n": {"value": "x", "type": "int"}}}, "TRK141", "the constant for n is not of type integer"),
        ({"mask": {"column": "id"}, "operations": "insert"}, "TRK142", "cannot be limited to operations"),
        ({"cast": {"mood": "integer"}}, "TRK143", "is public.mood, whose text is not of type integer"),
        ({"cast": {"fine": "date"}}, "TRK143", "is boolean, whose text is not of type date"),
        ({"filter": {"column": "agee", "eq": "1"}}, "TRK140", "has no column agee"),
        ({"filter": {"column": "age", "eq": "1.5"}}, "TRK141", "this is not an integer"),
        ({"filter": {"column": "age", "in": ["1", "99999999999"]}}, "TRK141", "this is not an integer"),
        ({"filter": {"column": "amount", "gt": "1,5"}}, "TRK141", "this is not a numeric"),
        ({"filter": {"column": "at", "gt": "yesterday"}}, "TRK141", "this is not a timestamp"),
        ({"filter": {"column": "at", "gt": "2023-02-29"}}, "TRK141", "this is not a timestamp"),
        ({"filter": {"column": "fine", "eq": "maybe"}}, "TRK141", "this is not a boolean"),
        ({"filter": {"column": "doc", "lt": "{}"}}, "TRK141", "have no order"),
        ({"filter": {"column": "mood", "gte": "sad"}}, "TRK141", "have no order"),
        ({"filter": {"column": "age", "contains": "1"}}, "TRK141", "contains works only on text"),
    ],
)
def test_refused(rule: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ruled(rule)
    assert caught.value.code == code
    assert message in caught.value.message
    assert caught.value.remedy


def test_labels_of_an_enum_are_known() -> None:
    mood = Column("mood", 90000, type_name="public.mood", labels=("sad", "happy"))
    schema = TableSchema(TABLE, (Column("id", 23, type_name="integer"), mood), ("id",))
    found = ruled({"filter": {"column": "mood", "in": ["happy"]}}, schema=schema)
    assert len(found.apply(changes(insert({"id": "1", "mood": "sad"}), schema=schema))) == 0
    with pytest.raises(ConfigError, match=r"one of its labels \(sad, happy\)"):
        ruled({"filter": {"column": "mood", "eq": "glad"}}, schema=schema)


def test_a_column_that_was_renamed_is_not_let_through_unmasked() -> None:
    """I10: neither does a filter lose its column."""
    columns = tuple(
        Column("mail", 25, type_name="text", was_name="email") if c.name == "email" else c for c in SCHEMA.columns
    )
    schema = TableSchema(TABLE, columns, ("id",))
    rules: list[dict[str, Any]] = [
        {"mask": {"column": "email"}},
        {"exclude": "email"},
        {"filter": {"column": "email", "is_null": "false"}},
    ]
    for rule in rules:
        with pytest.raises(SourceError, match="was renamed to mail"):
            ruled(rule, schema=schema)


def test_without_a_key_the_whole_row_is_one() -> None:
    schema = TableSchema(TABLE, SCHEMA.columns, ())
    with pytest.raises(TruckerError, match="has no key"):
        ruled({"mask": {"column": "email"}, "operations": "insert"}, schema=schema)
    rules = ruled({"mask": {"column": "email"}}, {"filter": {"column": "age", "gt": "1"}}, schema=schema)
    found = rules.apply(
        changes(
            delete({"id": "1", "email": "a", "age": "2"}), delete({"id": "1", "email": "a", "age": "1"}), schema=schema
        )
    )
    assert shown(found) == [("delete", {}, {"id": "1", "email": "*", "age": "2"})]


def test_keys_that_may_become_equal_are_detected() -> None:
    assert ruled({"mask": {"column": "id"}}, {"rename": {"id": "n"}}).merges_keys
    assert ruled({"cast": {"id": "bigint"}}).merges_keys
    assert not ruled({"cast": {"id": "text"}}, {"hash": {"column": "id", "key": "k"}}).merges_keys
    assert not ruled({"mask": {"column": "email"}}).merges_keys
    assert ruled({"mask": {"column": "email"}}, {"rename": {"email": "m"}}).merging == ("m",)


def test_a_row_whose_value_was_not_sent_cannot_enter() -> None:
    """I8: the value is nowhere to be had."""
    rules = ruled({"filter": {"column": "age", "gt": "1"}})
    with pytest.raises(SourceError, match="REPLICA IDENTITY FULL") as caught:
        rules.apply(changes(update({"id": "1", "age": "2"}, unchanged=["email"])))
    assert caught.value.code == "TRK216"
    own = ruled({"filter": {"column": "email", "eq": "x"}})
    with pytest.raises(SourceError, match="column email"):
        own.apply(changes(update({"id": "1", "age": "2"}, unchanged=["email"])))
    older = rules.apply(changes(update({"id": "1", "age": "2"}, unchanged=["fine"])))  # older than the column
    assert shown(older) == [("insert", {"id": "1", "age": "2"}, {})]


def test_filters_on_the_key_know_what_was() -> None:
    rules = ruled({"filter": {"column": "id", "lt": "10"}})
    found = rules.apply(
        changes(
            update({"id": "1", "age": "2"}),
            update({"id": "11", "age": "2"}),
            update({"id": "2", "age": "2"}, {"id": "12"}),
            update({"id": "13", "age": "2"}, {"id": "3"}),
            delete({"id": "14"}),
            delete({"id": "4"}),
        )
    )
    assert shown(found) == [
        ("update", {"id": "1", "age": "2"}, {}),
        ("insert", {"id": "2", "age": "2"}, {}),
        ("delete", {}, {"id": "3"}),
        ("delete", {}, {"id": "4"}),
    ]


def test_a_row_that_may_have_been_there_under_another_key_leaves_it() -> None:
    rules = ruled({"filter": {"column": "age", "gt": "1"}})
    found = rules.apply(changes(update({"id": "2", "age": "2"}, {"id": "1"}), insert({"id": "5", "age": "7"})))
    assert shown(found) == [
        ("delete", {}, {"id": "1"}),
        ("insert", {"id": "2", "age": "2"}, {}),
        ("insert", {"id": "5", "age": "7"}, {}),
    ]
    assert found.op.tolist() == [DELETE, INSERT, INSERT]
    assert found.old_kind.tolist() == [OLD_KEY, NO_OLD, NO_OLD]


def test_filters_for_some_operations_let_the_others_pass() -> None:
    rules = ruled({"filter": {"column": "age", "gt": "1"}, "operations": "insert"})
    found = rules.apply(
        changes(insert({"id": "1", "age": "1"}), update({"id": "1", "age": "1"}), delete({"id": "1"}), truncate())
    )
    assert [op for op, _, _ in shown(found)] == ["update", "delete", "truncate"]


def test_nothing_to_do_costs_nothing() -> None:
    given = changes(insert({"id": "1"}))
    assert ruled().apply(given) is given
    empty = given.take(np.zeros(1, np.bool_))
    rules = ruled(
        {"mask": {"column": "email", "keep_last": 1}},
        {"hash": {"column": "age", "key": "k"}},
        {"filter": {"column": "amount", "gt": "1"}},
        {"cast": {"at": "timestamp", "fine": "text", "amount": "double precision"}},
        {"constant": {"x": "y"}},
    )
    assert len(rules.apply(empty)) == 0
    assert UPDATE not in empty.op


def test_a_key_travels_apart_from_what_spark_writes_into_files() -> None:
    """I10."""
    rules = ruled({"hash": {"column": "email", "key": "s3cret-key"}})
    (sealed,), secrets = seal([rules])
    assert secrets == ("s3cret-key",)
    assert b"s3cret-key" not in sealed
    assert "s3cret-key" not in repr(rules)
    given = changes(insert({"id": "1", "email": "a"}))
    assert shown(unseal(sealed, secrets).apply(given)) == shown(rules.apply(given))
