"""Rules in truck.yml: how they are written, and what is said of those that are written wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from trucker.change import TableId
from trucker.config.cast_types import CastType, TypeNameError, parse_type
from trucker.config.models import ProjectConfig
from trucker.config.rules import RuleConfig
from trucker.errors import ConfigError

Load = Callable[..., ProjectConfig]
Mistakes = Callable[..., list[ConfigError]]

PROJECT = "connections:\n  - name: main\n  - {name: duck, adapter: duckdb, path: out.duckdb}\n"
TRUCK = "input: {connection: main, table: public.orders}\noutput: {connection: duck}\nrules:\n"


def rules(load: Load, text: str) -> tuple[RuleConfig, ...]:
    return load(PROJECT, TRUCK + text).trucks[0].rules


def test_every_rule_can_be_written(load: Load) -> None:
    found = rules(
        load,
        """\
  - mask: {column: email, keep_first: 1, keep_last: 4, with: "#"}
    operations: insert
  - hash: {columns: [phone, name], key: secret}
  - regex: {column: note, pattern: '\\d+', replacement: '<\\0>'}
  - filter: {column: age, gte: 18}
  - filter: {column: country, in: [DE, AT]}
    tables: ["shop.*", "!shop.audit"]
  - exclude: photo
  - rename: {id: user_id}
  - cast: {amount: "Numeric ( 10 , 2 )"}
  - constant: {region: eu, level: {value: 3, type: int}}
  - route: {table: shop.users, to: archive.people}
""",
    )
    kinds = [rule.kind for rule in found]
    assert kinds == ["mask", "hash", "regex", "filter", "filter", "exclude", "rename", "cast", "constant", "route"]
    mask, hashing, _, age, country, exclude, rename, cast, constant, route = found
    assert mask.mask is not None
    assert (mask.mask.columns, mask.mask.with_, mask.applies_to) == (("email",), "#", {"insert"})
    assert hashing.columns == ("phone", "name")
    assert age.filter is not None
    assert (age.filter.comparison, age.filter.literals) == ("gte", ("18",))
    assert country.filter is not None
    assert (country.filter.comparison, country.filter.literals) == ("in", ("DE", "AT"))
    assert country.concerns(TableId("shop", "users"))
    assert not country.concerns(TableId("shop", "audit"))
    assert (exclude.columns, rename.columns, cast.columns) == (("photo",), ("id",), ("amount",))
    assert constant.constant is not None
    assert constant.constant["level"].type == "int"
    assert constant.constant["region"].type == "text"
    assert route.route is not None
    assert route.concerns(TableId("shop", "users"))
    assert not route.concerns(TableId("public", "users"))
    assert route.route.output(TableId("shop", "users")) == TableId("archive", "people")


def test_a_rule_knows_its_place(load: Load) -> None:
    (rule,) = rules(load, "  - filter:\n      column: age\n      in: [1,\n           2]\n")
    for kept in (rule, pickle.loads(pickle.dumps(rule))):
        assert str(kept.place("filter", "in", "1")).endswith("truck.yml:7:12")
        assert str(kept.place("filter", "column", "x")).endswith("truck.yml:5:15")
        assert str(kept.place()).endswith("truck.yml:4:5")


def test_a_route_may_keep_the_name(load: Load) -> None:
    (rule,) = rules(load, "  - route: {to: archive.*}\n    tables: shop.*\n")
    assert rule.route is not None
    assert rule.route.output(TableId("shop", "Users")) == TableId("archive", "Users")


def test_a_key_comes_from_a_file_and_is_never_shown(load: Load) -> None:
    truck = TRUCK + "  - hash: {column: email, key_path: keys/hash}\n"
    config = load(PROJECT, truck, files={"keys/hash": "s3cret-key\n"})
    (rule,) = config.trucks[0].rules
    assert rule.hash is not None
    assert rule.hash.key.get_secret_value() == "s3cret-key"
    assert "s3cret-key" not in repr(config) + str(config.model_dump_json())


@pytest.mark.parametrize(
    ("text", "place", "message", "remedy"),
    [
        ("  - masc: {column: a}", "4:5", 'unknown key "masc"', 'did you mean "mask"?'),
        ("  - mask: {column: a, zzz: 1}", "4:23", 'unknown key "zzz"', "use one of the keys column"),
        ("  - mask: {}", "4:11", "the rule names no column", "add column: or columns:"),
        ("  - mask: {column: a, columns: [b]}", "4:23", "the rule has both column and columns", "remove one of them"),
        ("  - mask: {column: a, keep_first: -1}", "4:35", '"keep_first" must be at least 0', "correct keep_first"),
        ("  - mask: {column: a, with: ab}", "4:29", '"with" is too long', "correct with"),
        ("  - mask:", "4:5", '"mask" has no value', "add a value"),
        ("  - tables: a", "4:5", "the rule has no action", "write one rule for each of mask, hash"),
        (
            "  - mask: {column: a}\n    exclude: b",
            "5:5",
            "the rule has more than one action",
            ("write one rule for each of"),
        ),
        ("  - mask: {column: a}\n    operations: upsert", "5:17", '"operations" must be one of', "correct operations"),
        ("  - mask: {column: a}\n    tables: a.b.c", "5:13", "this has more parts than", "write schema.table or"),
        ("  - mask: {column: a}\n    tables: '!a'", "5:13", "tables has only exclusions", "add a pattern of tables"),
        ("  - hash: {column: a}", "4:11", '"key" is missing', "add key (the secret key"),
        ("  - hash: {column: a, key: ''}", "4:28", '"key" must not be empty', "correct key"),
        ("  - hash: {column: a, key: k, key_path: p}", "4:31", 'the rule has both "key" and "key_path"', "remove one"),
        ("  - hash: {column: a, key_path: p}", "4:33", 'the file "p" cannot be read', "create "),
        (
            "  - regex: {column: a, pattern: 'ab[z-a]', replacement: ''}",
            "4:24",
            "invalid regular expression: invalid character class range, at character 4",
            "correct the pattern; the syntax is that of RE2",
        ),
        (
            "  - regex: {column: a, pattern: '(a', replacement: ''}",
            "4:24",
            "missing ), at the end",
            ("correct the pattern"),
        ),
        (
            "  - regex: {column: a, pattern: 'a(?=b)', replacement: ''}",
            "4:24",
            "invalid perl operator, at character 2",
            "without look-around",
        ),
        (
            "  - regex: {column: a, pattern: a, replacement: '\\2'}",
            "4:36",
            "the replacement uses a group",
            "write \\1 to \\9",
        ),
        ("  - filter: {column: a}", "4:13", "the filter has no comparison", "write one of eq, ne, gt"),
        ("  - filter: {column: a, eq: 1, lt: 3}", "4:32", "the filter has more than one comparison", "write one of"),
        ("  - filter: {column: a, eq: }", "4:25", '"eq" has no value', "for NULL, write is_null: true"),
        ("  - filter: {column: a, is_null: maybe}", "4:34", '"is_null" must be true or false', "correct is_null"),
        ("  - filter: {eq: 1}", "4:13", '"column" is missing', "add column"),
        (
            "  - rename: {a: b}\n    operations: insert",
            "5:5",
            "rename cannot be limited to operations: a column has",
            "",
        ),
        ("  - cast: {a: b}\n    operations: insert", "4:15", "a rule cannot cast to this type", "write one of"),
        ("  - cast: {a: 'integer(3)'}", "4:15", "this type does not take these numbers in parentheses", "write one"),
        (
            "  - route: {to: a.b}\n    operations: insert",
            "5:5",
            "route cannot be limited to operations: all rows of a table are written to one table",
            "remove operations",
        ),
        ("  - route: {to: '*.b'}", "4:17", "this is not a table to write to", "write schema.table, or schema.*"),
        (
            "  - route: {table: 'a.*', to: a.b}",
            "4:20",
            "a single table is required",
            ("write schema.table; write patterns"),
        ),
        ("  - route: {table: a.b, to: a.c}\n    tables: a.b", "5:5", "the route has both table and tables", "remove"),
        ("  - constant: {a: }", "4:16", '"a" has no value', "add a value"),
        ("  - constant: {a: {value: 1, type: cat}}", "4:36", "a rule cannot cast to this type", "write one"),
        ("  mask: 1", "4:3", '"rules" must be a list', "correct rules"),
    ],
)
def test_mistakes_are_reported_with_their_place(
    mistakes: Mistakes, text: str, place: str, message: str, remedy: str
) -> None:
    (error,) = mistakes(PROJECT, TRUCK + text + "\n")
    assert str(error.place).endswith(f"truck.yml:{place}"), error
    assert message in error.message
    assert remedy in error.remedy


def test_a_missing_key_file_names_no_secret(mistakes: Mistakes, tmp_path: Path) -> None:
    (error,) = mistakes(PROJECT, TRUCK + "  - hash: {column: a, key_path: nowhere}\n")
    assert error.code == "TRK101"


@pytest.mark.parametrize(
    ("written", "name", "typmod"),
    [
        ("TEXT", "text", -1),
        ("varchar(20)", "character varying(20)", 24),
        ("int", "integer", -1),
        ("decimal(10,2)", "numeric(10,2)", (10 << 16 | 2) + 4),
        ("numeric(5)", "numeric(5,0)", (5 << 16) + 4),
        ("timestamptz", "timestamp with time zone", -1),
        ("double  precision", "double precision", -1),
    ],
)
def test_types_have_postgresqls_names(written: str, name: str, typmod: int) -> None:
    found = parse_type(written)
    assert (found.type_name, found.typmod) == (name, typmod)
    assert parse_type(found.type_name) == found


@pytest.mark.parametrize("written", ["", "money", "varchar(0)", "numeric(2,3)", "text(3)", "int[]", "a; drop table b"])
def test_other_types_are_refused(written: str) -> None:
    with pytest.raises(TypeNameError):
        parse_type(written)
    assert CastType("text").type_name == "text"
