"""From rules and a table's shape to the steps that apply them, and the shape that comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from trucker.change import Changes, Column, TableSchema
from trucker.config.cast_types import CastType, parse_type
from trucker.config.problems import nearest
from trucker.config.rules import RuleConfig
from trucker.engine.transform.rules.casts import cast, castable
from trucker.engine.transform.rules.compare import Literal, comparison_of, is_text
from trucker.engine.transform.rules.filters import Filter, settled
from trucker.engine.transform.rules.steps import (
    Cast,
    ConstantStep,
    Frame,
    Hashed,
    Masked,
    Replaced,
    Reshape,
    RewriteStep,
    RuleStep,
)
from trucker.errors import ConfigError, SourceError

TEXT: Final = CastType("text")
_TEXTS: Final = frozenset({25, 1043})
_ORDERS: Final = ("gt", "gte", "lt", "lte")
_MERGING: Final = ("mask", "regex", "cast")


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules for one shape of one table. Pickles.

    `origin` has, for each column of `schema` that the input has too, its name there. `altered` has the schema's columns
    whose values rules change, with the kinds of these rules. `judged` are the input's columns that filters use.
    `skipped` are columns that rules name and the table does not have, with the rule's number. `renames` has the new
    names of each rule `rename`, in order.
    """

    input: TableSchema
    schema: TableSchema
    steps: tuple[RuleStep, ...]
    origin: dict[str, str]
    altered: dict[str, frozenset[str]]
    judged: frozenset[str] = frozenset()
    skipped: tuple[tuple[int, str], ...] = ()
    renames: tuple[dict[str, str], ...] = ()

    def called(self, name: str) -> str:
        """The name of a column after the rules, whether the table has it or not."""
        for names in self.renames:
            name = names.get(name, name)
        return name

    @property
    def filters(self) -> bool:
        """Whether rows may be left out."""
        return any(isinstance(step, Filter) for step in self.steps)

    @property
    def merging(self) -> tuple[str, ...]:
        """The columns whose values may be equal where the source's are not."""
        return tuple(name for name, kinds in self.altered.items() if not kinds.isdisjoint(_MERGING))

    @property
    def merges_keys(self) -> bool:
        """Whether rows of different keys may get the same key: net changes have to be folded again then."""
        return not set(self.merging).isdisjoint(self.schema.key)

    @property
    def needs(self) -> frozenset[str]:
        """The input's columns that are needed: for the output, and for filters."""
        return self.judged | frozenset(self.origin.values())

    def apply(self, changes: Changes) -> Changes:
        """The changes after the rules. `changes.schema` is `input`. Raises `DataError` for a value that is unfit."""
        frame = Frame.of(changes)
        for step in self.steps:
            frame = step.apply(frame)
        changes = settled(frame)
        return changes if changes.schema == self.schema else replace(changes, schema=self.schema)


def compile_rules(rules: Sequence[RuleConfig], schema: TableSchema) -> RuleSet:
    """The rules for a table of this shape; `ConfigError` where one does not fit it, with its place in truck.yml.

    A rule for a column that the table does not have is skipped (`rules.check` checks that every rule applies to a
    table). A filter is never skipped, nor a rule for a column that was renamed at the source (I10).
    """
    return _Compiling(schema).compile(rules)


class _Compiling:
    """The table's shape as it is after the rules so far."""

    def __init__(self, schema: TableSchema) -> None:
        self.input = schema
        self.schema = schema
        self.steps: list[RuleStep] = []
        self.origin = {name: name for name in schema.names}
        self.altered: dict[str, frozenset[str]] = {}
        self.judged: set[str] = set()
        self.skipped: list[tuple[int, str]] = []
        self.constants: set[str] = set()
        self.renames: list[dict[str, str]] = []

    def compile(self, rules: Sequence[RuleConfig]) -> RuleSet:
        for number, rule in enumerate(rules):
            if rule.route is None and rule.concerns(self.input.table):
                getattr(self, f"_{rule.kind}")(number, rule)
        hides_key = any(not kinds.isdisjoint({"mask", "hash", "regex"}) for kinds in self._of_key())
        steps = (replace(s, names_key=False) if hides_key and isinstance(s, Cast) else s for s in self.steps)
        return RuleSet(
            self.input,
            self.schema,
            tuple(steps),
            self.origin,
            self.altered,
            frozenset(self.judged),
            tuple(self.skipped),
            tuple(self.renames),
        )

    def _of_key(self) -> list[frozenset[str]]:
        return [self.altered.get(name, frozenset()) for name in self.schema.key or self.schema.names]

    # -- values ---------------------------------------------------------------------------------------------------

    def _mask(self, number: int, rule: RuleConfig) -> None:
        assert rule.mask is not None
        mask = rule.mask
        for column in self._columns(number, rule):
            masked = column if _keeps_type(column) else _typed(column, TEXT)
            self._rewrite(rule, masked, Masked, mask.keep_first, mask.keep_last, mask.with_)

    def _hash(self, number: int, rule: RuleConfig) -> None:
        assert rule.hash is not None
        for column in self._columns(number, rule):
            self._rewrite(rule, _typed(column, TEXT), Hashed, rule.hash.key)

    def _regex(self, number: int, rule: RuleConfig) -> None:
        assert rule.regex is not None
        for column in self._columns(number, rule):
            self._rewrite(rule, _typed(column, TEXT), Replaced, rule.regex.pattern, rule.regex.replacement)

    def _rewrite(self, rule: RuleConfig, rewritten: Column, kind: type[RewriteStep], *settings: Any) -> None:
        name = rewritten.name
        if rule.operations and (name in self.schema.key or not self.schema.key):
            raise ConfigError(
                (
                    f"{rule.kind} of column {name} cannot be limited to operations: the column is part of the key of "
                    f"{self.input.table}"
                )
                if self.schema.key
                else f"{rule.kind} of column {name} cannot be limited to operations: {self.input.table} has no key, "
                "so its rows are identified by all columns",
                place=rule.place("operations"),
                remedy="remove operations: a row must have the same key in every change",
                code="TRK142",
            )
        step = kind(name, rule.applies_to, self._with(rewritten), *settings)
        if rewritten.missing_value is not None and "insert" in rule.applies_to:
            value = step.cells(pa.array([rewritten.missing_value], pa.string()))[0].as_py()
            step = replace(step, schema=self._with(replace(rewritten, missing_value=value)))
        self._add(step, step.schema)
        self._alter(name, rule.kind)

    def _cast(self, number: int, rule: RuleConfig) -> None:
        for column in self._columns(number, rule):
            to = parse_type((rule.cast or {})[column.name])
            if not castable(column, to):
                raise ConfigError(
                    f"column {column.name} of {self.input.table} is {_type_of(column)}, whose text is not of type "
                    f"{to.type_name}",
                    place=rule.place("cast", column.name),
                    remedy="cast it to text, or convert it with SQL (input.sql)",
                    code="TRK143",
                )
            converted = _typed(column, to)
            if column.missing_value is not None:
                value, bad = cast(pa.array([column.missing_value], pa.string()), column, to)
                converted = replace(converted, missing_value=None if bad.any() else value[0].as_py())
            self._add(Cast(column, to, self._with(converted)), self._with(converted))
            if to != TEXT:
                self._alter(column.name, rule.kind)

    def _constant(self, number: int, rule: RuleConfig) -> None:
        for name, value_and_type in (rule.constant or {}).items():
            to = parse_type(value_and_type.type)
            value, bad = cast(pa.array([value_and_type.value], pa.string()), Column(name, 25, type_name="text"), to)
            if bad.any() or not castable(Column(name, 25, type_name="text"), to):
                raise ConfigError(
                    f"the constant for {name} is not of type {to.type_name}",
                    place=rule.place("constant", name),
                    remedy="correct the value, or its type",
                    code="TRK141",
                )
            text = str(value[0].as_py())
            column = _typed(Column(name, 25, missing_value=text if "insert" in rule.applies_to else None), to)
            self._place_for(name, column, rule)
            again = name in self.schema.names
            schema = self.schema if again else replace(self.schema, columns=(*self.schema.columns, column))
            self.constants.add(name)
            self._add(ConstantStep(name, text, rule.applies_to, schema), schema)

    def _place_for(self, name: str, column: Column, rule: RuleConfig) -> None:
        """Refuse a constant for a column of the table. Constants of one name may differ by operation."""
        if name not in self.schema.names:
            return
        existing = self.schema.column(name)
        if name not in self.constants or existing.type_name != column.type_name:
            raise ConfigError(
                f"{self.input.table} already has a column {name}",
                place=rule.place("constant", name),
                remedy="rename the constant, or exclude or rename that column in an earlier rule",
                code="TRK142",
            )

    # -- rows -----------------------------------------------------------------------------------------------------

    def _filter(self, number: int, rule: RuleConfig) -> None:
        condition = rule.filter
        assert condition is not None
        column = self._find(rule, condition.column)
        if column is None:
            raise self._no_column(rule, condition.column)
        if condition.comparison == "is_null":
            step = Filter(column, "is_null", (), rule.applies_to, bool(condition.is_null))
        else:
            step = Filter(column, condition.comparison, self._literals(rule, column), rule.applies_to)
        self.steps.append(step)
        self.judged.add(self.origin.get(column.name, column.name))

    def _literals(self, rule: RuleConfig, column: Column) -> tuple[Literal, ...]:
        condition = rule.filter
        assert condition is not None
        name, how = condition.comparison, comparison_of(column)
        if name == "contains":
            if not is_text(column):
                raise self._cannot(
                    rule, column, "contains works only on text", "cast the column to text before the filter"
                )
            return condition.literals
        if name in _ORDERS and not how.ordered:
            raise self._cannot(
                rule,
                column,
                "values of such a type are only told apart here, and have no order",
                "use eq, ne, in or is_null; or SQL (input.where, input.sql)",
            )
        parsed = [how.read(text) for text in condition.literals]
        for index, literal in enumerate(parsed):
            if literal is None:
                path = ("filter", name, str(index)) if name == "in" else ("filter", name)
                raise ConfigError(
                    f"column {column.name} of {self.input.table} is {_type_of(column)}: this is not {how.what}",
                    place=rule.place(*path),
                    remedy=f"write {how.what}, such as {how.example}",
                    code="TRK141",
                )
        return tuple(literal for literal in parsed if literal is not None)

    def _cannot(self, rule: RuleConfig, column: Column, why: str, remedy: str) -> ConfigError:
        assert rule.filter is not None
        return ConfigError(
            f"column {column.name} of {self.input.table} is {_type_of(column)}, which {rule.filter.comparison} cannot"
            f" compare: {why}",
            place=rule.place("filter", rule.filter.comparison),
            remedy=remedy,
            code="TRK141",
        )

    # -- shape ----------------------------------------------------------------------------------------------------

    def _exclude(self, number: int, rule: RuleConfig) -> None:
        excluded = {column.name for column in self._columns(number, rule)}
        for name in excluded & set(self.schema.key):
            raise ConfigError(
                f"column {name} is part of the key of {self.input.table}",
                place=rule.place("exclude"),
                remedy="keep the column: rows are identified by their key; hash or mask it instead",
                code="TRK142",
            )
        if not excluded:
            return
        remaining = tuple(name for name in self.schema.names if name not in excluded)
        if not remaining:
            raise ConfigError(
                f"no column of {self.input.table} is left",
                place=rule.place("exclude"),
                remedy="keep a column, or leave the table out of the truck",
                code="TRK142",
            )
        schema = self.schema.only(remaining)
        for name in excluded:
            self.origin.pop(name, None)
            self.altered.pop(name, None)
        self._add(Reshape(remaining, schema), schema)

    def _rename(self, number: int, rule: RuleConfig) -> None:
        self.renames.append(rule.rename or {})
        new_names = {column.name: (rule.rename or {})[column.name] for column in self._columns(number, rule)}
        if not new_names:
            return
        names = self.schema.names
        names_after = [new_names.get(name, name) for name in names]
        for old, new in new_names.items():
            if names_after.count(new) > 1:
                raise ConfigError(
                    f"{self.input.table} would have two columns with the name {new}",
                    place=rule.place("rename", old),
                    remedy="choose another name, or exclude or rename the other column in an earlier rule",
                    code="TRK142",
                )
        columns = tuple(
            replace(column, name=new_names[column.name], was_name="") if column.name in new_names else column
            for column in self.schema.columns
        )
        key = tuple(new_names.get(name, name) for name in self.schema.key)
        self.origin = {new_names.get(name, name): origin for name, origin in self.origin.items()}
        self.altered = {new_names.get(name, name): kinds for name, kinds in self.altered.items()}
        self.constants = {new_names.get(name, name) for name in self.constants}
        schema = TableSchema(self.schema.table, columns, key)
        self._add(Reshape(names, schema), schema)

    # -- all ------------------------------------------------------------------------------------------------------

    def _columns(self, number: int, rule: RuleConfig) -> list[Column]:
        """Those of the rule's columns that the table has."""
        present = []
        for name in rule.columns:
            column = self._find(rule, name)
            if column is None:
                self.skipped.append((number, name))
            else:
                present.append(column)
        return present

    def _find(self, rule: RuleConfig, name: str) -> Column | None:
        if name in self.schema.names:
            return self.schema.column(name)
        renamed = next((column.name for column in self.input.columns if column.was_name == name), None)
        if renamed is not None:
            raise SourceError(
                f"column {name} of {self.input.table}, used by a rule `{rule.kind}`, was renamed to {renamed}",
                remedy="write the new name in the rules of its truck.yml, then trucker run",
                code="TRK253",
            )
        return None

    def _no_column(self, rule: RuleConfig, name: str) -> ConfigError:
        return no_column(rule, name, self.schema)

    def _with(self, column: Column) -> TableSchema:
        columns = tuple(column if other.name == column.name else other for other in self.schema.columns)
        return replace(self.schema, columns=columns)

    def _add(self, step: RuleStep, schema: TableSchema) -> None:
        self.steps.append(step)
        self.schema = schema

    def _alter(self, name: str, kind: str) -> None:
        self.altered[name] = self.altered.get(name, frozenset()) | {kind}


def no_column(rule: RuleConfig, name: str, schema: TableSchema) -> ConfigError:
    """A rule for a column that is not there."""
    suggestion = nearest(name, schema.names)
    path = ("filter", "column") if rule.filter else (rule.kind, *((name,) if rule.rename or rule.cast else ()))
    return ConfigError(
        f"{schema.table} has no column {name} when this rule runs",
        place=rule.place(*path),
        remedy=(f"did you mean {suggestion}? " if suggestion else "")
        + f"its columns are {', '.join(schema.names)}; `tables` limits a rule to some tables",
        code="TRK140",
    )


def _keeps_type(column: Column) -> bool:
    """Whether a masked value fits its type: a text of the same length does."""
    if not column.type_name:
        return column.type_oid in _TEXTS
    return is_text(column) and column.type_name.startswith(("text", "character varying"))


def _typed(column: Column, to: CastType) -> Column:
    """The column as one of another type."""
    return replace(
        column,
        type_oid=to.oid,
        typmod=to.typmod,
        type_name=to.type_name,
        definition="",
        labels=(),
        was_type="",
    )


def _type_of(column: Column) -> str:
    return column.type_name or f"of the type with oid {column.type_oid}"
