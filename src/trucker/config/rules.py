"""Rules of a truck, as truck.yml has them: what is done to rows before any SQL, in the order written.

    rules:
      - mask: {column: email, keep_first: 1, keep_last: 4}
      - filter: {column: country, in: [DE, AT]}
        tables: shop.*
      - constant: {region: eu}

What a rule means for a table is decided by `engine.transform.rules`; here is what can be checked without a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from trucker.config.cast_types import TypeNameError, parse_type
from trucker.config.document import Item
from trucker.config.model import Model, Text
from trucker.config.patterns import PatternError, parse_pattern, parse_table, select_tables
from trucker.config.values import Texts, one_or_many, refuse
from trucker.errors import Place
from trucker.table import TableId

RuleOperation = Literal["insert", "update", "delete"]

ANY_OPERATION: Final = frozenset({"insert", "update", "delete"})
_WHOLE_TABLE: Final = {
    "exclude": "a table has the same columns in every change",
    "rename": "a column has the same name in every change",
    "cast": "a column has the same type in every change",
    "route": "all rows of a table are written to one table",
}
_PATTERN_REMEDY: Final = "write schema.table or patterns such as public.*"


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise refuse("no operation is listed", remedy="list some of insert, update and delete, or remove operations")
    return value


Operations = Annotated[
    tuple[RuleOperation, ...],
    AfterValidator(_some),
    BeforeValidator(one_or_many),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["insert", "update", "delete"]},
                {"type": "array", "items": {"enum": ["insert", "update", "delete"]}, "minItems": 1},
            ],
            "title": "operation or list of operations",
        }
    ),
]

_SCALAR: Final = {"type": ["string", "number", "boolean"]}
Scalar = Annotated[str, WithJsonSchema(_SCALAR)]
"""A value whose meaning the column's type gives."""
Literals = Annotated[
    Texts, WithJsonSchema({"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}], "title": "values"})
]


def _type(value: str) -> str:
    try:
        parse_type(value)
    except TypeNameError as error:
        raise refuse(str(error), remedy="write one of those types, or use SQL (input.sql) for others") from None
    return value


TypeName = Annotated[str, AfterValidator(_type)]


class _OnColumns(Model):
    """A rule for one column or several."""

    column: Text | None = Field(default=None, description="The column.")
    columns: Texts = Field(default=(), description="Instead of column: several columns.")

    @model_validator(mode="before")
    @classmethod
    def _column_or_columns(cls, data: Any) -> Any:
        """`columns` always says which: a `column` is a list of one."""
        if not isinstance(data, dict):
            return data
        one, many = data.get("column"), data.get("columns")
        if one is None and many is None:
            raise refuse("the rule names no column", remedy="add column: or columns:")
        if one is not None and many is not None and many not in ([one], (one,)):
            raise refuse("the rule has both column and columns", key="columns", remedy="remove one of them")
        return data if one is None else {**data, "columns": [one if isinstance(one, str) and one else "?"]}


class MaskRule(_OnColumns):
    """Replaces characters, except some at both ends. A value that is not longer than those is masked as a whole."""

    keep_first: int = Field(default=0, ge=0, description="How many characters to keep at the beginning.")
    keep_last: int = Field(default=0, ge=0, description="How many characters to keep at the end.")
    with_: Text = Field(
        default="*",
        max_length=1,
        validation_alias="with",
        serialization_alias="with",
        description="The character that replaces each of the others.",
    )


class HashRule(_OnColumns):
    """Replaces values by their HMAC-SHA256 under a key, as 64 hexadecimal digits."""

    key: SecretStr = Field(min_length=1, description="The secret key. `key_path` reads it from a file.")


class RegexRule(_OnColumns):
    """Replaces every match of a regular expression (RE2 syntax)."""

    pattern: Text = Field(description="The regular expression.")
    replacement: str = Field(
        description=r"The replacement for each match; `\1` is the first group, `\0` the match itself."
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        import pyarrow as pa  # takes a moment, and few projects have such a rule
        import pyarrow.compute as pc

        try:
            pc.replace_substring_regex(pa.array([""]), pattern=self.pattern, replacement=self.replacement)
        except pa.ArrowInvalid as error:
            raise _bad_regex(str(error), self.pattern) from None
        return self


class FilterRule(Model):
    """Keeps only rows whose value matches the comparison; NULL never does. A row must pass every filter."""

    column: Text = Field(description="The column.")
    eq: Scalar | None = Field(default=None, description="Equal to this.")
    ne: Scalar | None = Field(default=None, description="Not equal to this.")
    gt: Scalar | None = Field(default=None, description="Greater than this.")
    gte: Scalar | None = Field(default=None, description="Greater than this, or equal.")
    lt: Scalar | None = Field(default=None, description="Less than this.")
    lte: Scalar | None = Field(default=None, description="Less than this, or equal.")
    contains: Text | None = Field(default=None, description="Contains this text.")
    in_: Literals | None = Field(
        default=None, validation_alias="in", serialization_alias="in", description="Equal to one of these."
    )
    is_null: bool | None = Field(default=None, description="`true`: NULL; `false`: any value.")

    @model_validator(mode="before")
    @classmethod
    def _one_comparison(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        comparisons = [name for name in COMPARISONS if name in data]
        if len(comparisons) != 1:
            raise refuse(
                "the filter has no comparison" if not comparisons else "the filter has more than one comparison",
                key=comparisons[1] if comparisons else "",
                remedy=f"write one of {', '.join(COMPARISONS)}; write a filter for each further condition",
            )
        if data[comparisons[0]] is None:
            raise refuse(f'"{comparisons[0]}" has no value', key=comparisons[0], remedy="for NULL, write is_null: true")
        return data

    @property
    def comparison(self) -> str:
        """The one that is given, by its name in YAML."""
        return next(name for name in COMPARISONS if getattr(self, _field(name)) is not None)

    @property
    def literals(self) -> tuple[str, ...]:
        """What is compared with."""
        value = getattr(self, _field(self.comparison))
        if isinstance(value, bool):
            return ()
        return (value,) if isinstance(value, str) else tuple(value)


COMPARISONS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "contains", "in", "is_null")


class ConstantValue(Model):
    """A value for a new column."""

    value: Scalar = Field(description="The value, as PostgreSQL writes it.")
    type: TypeName = Field(default="text", description="The new column's type.")


class RouteRule(Model):
    """Writes to another destination table than the output names."""

    table: Text | None = Field(default=None, description="The input table; or give `tables` next to `route`.")
    to: Text = Field(description="The destination table, `schema.table`; `schema.*` keeps the table's name.")

    @field_validator("table")
    @classmethod
    def _one_table(cls, value: str | None) -> str | None:
        if value is not None:
            _checked(parse_table, value, "write schema.table; write patterns under tables, next to route")
        return value

    @field_validator("to")
    @classmethod
    def _somewhere(cls, value: str) -> str:
        pattern = _checked(parse_pattern, value, "write schema.table, or schema.*")
        if pattern.excludes or (pattern.exact is None and not (pattern.schema.exact and value.endswith(".*"))):
            raise refuse("this is not a table to write to", remedy="write schema.table, or schema.*")
        return value

    def output(self, source: TableId) -> TableId:
        """Where the rows of a table go."""
        pattern = parse_pattern(self.to)
        return pattern.exact or TableId(pattern.schema.exact or source.schema, source.name)


def _constant(value: Any) -> Any:
    """A text is a value of type text."""
    return {"value": value} if isinstance(value, str) else value


Constant = Annotated[ConstantValue, BeforeValidator(_constant)]


class RuleConfig(Model):
    """One rule: what it does, and for which tables and operations."""

    mask: MaskRule | None = Field(default=None, description="Replace characters: `mask: {column: email}`.")
    hash: HashRule | None = Field(default=None, description="Replace values by keyed hashes.")
    regex: RegexRule | None = Field(default=None, description="Replace what a regular expression matches.")
    filter: FilterRule | None = Field(default=None, description="Keep only some rows.")
    exclude: Texts | None = Field(default=None, description="Leave columns out: `exclude: [notes, photo]`.")
    rename: dict[Text, Text] | None = Field(
        default=None, min_length=1, description="Give columns other names: `rename: {old: new}`."
    )
    cast: dict[Text, TypeName] | None = Field(
        default=None, min_length=1, description="Give columns another type: `cast: {amount: text}`."
    )
    constant: dict[Text, Constant] | None = Field(
        default=None,
        min_length=1,
        description="Add columns: `constant: {region: eu}`, `constant: {level: {value: 3, type: integer}}`.",
    )
    route: RouteRule | None = Field(default=None, description="Write a table's rows to another table.")
    tables: Texts | None = Field(
        default=None,
        description="Only for these input tables, as names and patterns; the default is all tables that have "
        "the columns.",
    )
    operations: Operations | None = Field(
        default=None,
        description="Only for changes of these operations: `insert`, `update`, `delete`. Rows of the first "
        "copy are inserts.",
    )

    _places: Mapping[tuple[str, ...], Place] = PrivateAttr(default={})

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kinds = [kind for kind in KINDS if kind in data]
        if len(kinds) == 1:
            return data
        if not kinds and (data.keys() - {"tables", "operations"}):
            return data  # the unknown key is reported
        raise refuse(
            "the rule has no action" if not kinds else "the rule has more than one action",
            key=kinds[1] if kinds else "",
            remedy=f"write one rule for each of {', '.join(KINDS)}",
        )

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for index, text in enumerate(value or ()):
            _checked(parse_pattern, text, _PATTERN_REMEDY, str(index))
        if value and all(parse_pattern(text).excludes for text in value):
            raise refuse("tables has only exclusions", remedy="add a pattern of tables for the rule")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if all(getattr(self, kind) is None for kind in KINDS):
            empty = next((kind for kind in KINDS if kind in self.model_fields_set), "")
            raise refuse(f'"{empty}" has no value', key=empty, remedy="add a value")
        if self.operations and self.kind in _WHOLE_TABLE:
            raise refuse(
                f"{self.kind} cannot be limited to operations: {_WHOLE_TABLE[self.kind]}",
                key="operations",
                remedy="remove operations",
            )
        if self.route and self.route.table and self.tables:
            raise refuse("the route has both table and tables", key="tables", remedy="remove one of them")
        return self

    @property
    def kind(self) -> str:
        """What it does, by its name in YAML."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def applies_to(self) -> frozenset[str]:
        """The operations it is for."""
        return frozenset(self.operations) if self.operations else ANY_OPERATION

    def concerns(self, table: TableId) -> bool:
        """Whether the rule is for a table, by the table's name."""
        if self.route and self.route.table:
            return parse_table(self.route.table) == table
        return self.tables is None or bool(select_tables(self.tables, [table]))

    def names(self, table: TableId) -> bool:
        """Whether the rule names the table without a wildcard, so that it must fit it."""
        return any(parse_pattern(text).exact == table for text in self.tables or ())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs in a table."""
        for rule in (self.mask, self.hash, self.regex):
            if rule is not None:
                return rule.columns
        if self.filter is not None:
            return (self.filter.column,)
        return tuple(self.exclude or self.rename or self.cast or ())

    def place(self, *path: str) -> Place | None:
        """The place of a part of it in truck.yml; of the nearest part around it where that has no place."""
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path)

    def placed(self, item: Item) -> None:
        """Store the places of its parts."""
        self._places = dict(_places(item, ()))


KINDS: Final = ("mask", "hash", "regex", "filter", "exclude", "rename", "cast", "constant", "route")


def _places(item: Item, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Place]]:
    yield path, item.place
    for key, entry in item.entries.items():
        yield from _places(entry, (*path, key))
    if isinstance(item.value, tuple):
        for index, entry in enumerate(item.value):
            yield from _places(entry, (*path, str(index)))


def _field(name: str) -> str:
    return "in_" if name == "in" else name


def _checked(parse: Any, text: str, remedy: str, key: str = "") -> Any:
    try:
        return parse(text)
    except PatternError as error:
        raise refuse(str(error), key=key, remedy=remedy) from None


def _bad_regex(message: str, pattern: str) -> Exception:
    """RE2's message with the place in the pattern: RE2 quotes the offending part at its end."""
    kind, _, reason = message.partition(": ")
    if "replacement" in kind:
        return refuse(
            "the replacement uses a group that the pattern does not have, or has an extra backslash",
            key="replacement",
            remedy=r"write \1 to \9 for groups of the pattern, and \\ for a backslash",
        )
    what, _, fragment = reason.partition(": ")
    at = pattern.find(fragment)
    # Arrow encloses the pattern in a group, so that RE2 may quote a parenthesis that the pattern does not have.
    where = f"at character {at + 1}" if at >= 0 else "at the end"
    return refuse(
        f"invalid regular expression: {what}, {where}",
        key="pattern",
        remedy="correct the pattern; the syntax is that of RE2, without look-around and back-references",
    )
