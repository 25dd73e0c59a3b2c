"""A truck's SQL file as a template: what it uses, its text for a relation of rows, and where each character came from.

A template is Jinja2 with strict names. It knows `rows`, `operation`, `input_table`, `new.<column>`, `old.<column>`,
`env("NAME", "default")` and `file("path")`; Spark's files know `lookups.<name>` too, and those of one operation
`transformed`. Columns are written quoted, and a table's name that could be more than text in a SQL string is refused:
no name can become SQL.

A file is rendered where the project is, in the driver: `env` and `file` mean its environment and its disk.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, meta, nodes

from trucker.config.problems import nearest
from trucker.config.sql.sql_files import BY_OPERATION, ON_SPARK, SqlFile
from trucker.config.sql.sql_lexer import COMMENT, QUOTED, Statement, Token, split_statements, tokens
from trucker.config.template import CODE, FAILURES, MissingValueError, Rendering, column_of, line_and_column, line_of
from trucker.errors import ConfigError, Place
from trucker.table import OLD, OPERATION

ANY_COLUMN: Final = "*"
"""In `SqlTemplate.old_columns`: a column is chosen as the template runs, so that it may be any."""

UNKNOWN_COLUMN: Final = "TRK130"
ODD_NAME: Final = "TRK131"

_EVERYWHERE: Final = ("rows", OPERATION, "input_table", "new", "old", "env", "file")
_PLAIN: Final = re.compile(r"(?:[\w. ]|-(?!-))*")
_HARMLESS: Final = "letters, digits, _, spaces and single - "


@dataclass(frozen=True, slots=True)
class TemplateRelation:
    """What `{{ rows }}` or `{{ transformed }}` becomes: its text, alias included, and the names of its columns."""

    sql: str
    columns: tuple[str, ...]
    quote: str = '"'

    def column(self, name: str) -> str:
        """A column of it, for SQL."""
        return f"r.{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"


@dataclass(frozen=True, slots=True)
class RenderedSql:
    """A file after its template ran. Offsets are of characters in `text`; see `place`."""

    file: SqlFile
    text: str
    _anchors: tuple[tuple[int, int, bool], ...]
    """Offset in `text`, offset in the file, and whether the text that follows comes from a `{{ … }}` at that offset."""

    def place(self, offset: int) -> Place:
        """File, line and column of an offset in `text`; for the text of a `{{ … }}`, where that begins."""
        source = normal(self.file.text)
        index = bisect_right(self._anchors, offset, key=lambda anchor: anchor[0]) - 1
        at = 0
        if index >= 0:
            rendered, written, fixed = self._anchors[index]
            at = min(written + (0 if fixed else offset - rendered), len(source))
        return Place(self.file.label, *line_and_column(source, at))

    def replaced(self, old: str, new: str) -> RenderedSql:
        """The same with every `old` replaced by `new`; `place` still gives the places in the file."""
        spots = [match.start() for match in re.finditer(re.escape(old), self.text)]
        longer = len(new) - len(old)
        anchors = tuple((at + longer * bisect_left(spots, at), written, fixed) for at, written, fixed in self._anchors)
        return RenderedSql(self.file, self.text.replace(old, new), anchors)

    def statements(self) -> list[Statement]:
        """Its statements, in order, cut at each `;` outside quotes and comments."""
        return split_statements(self.text, spark=self.file.name in ON_SPARK)


@dataclass(frozen=True, slots=True)
class SqlTemplate:
    """A file whose template can be parsed; otherwise its construction raises a ConfigError with file, line and column.

    `old_columns` are the columns whose old values it mentions, as `old.x` or `old__x`; `lookups` the names of the
    lookups that it mentions; `mentions_operation`: it uses the operation, as variable or as column.
    """

    file: SqlFile
    variables: frozenset[str] = field(init=False)
    old_columns: frozenset[str] = field(init=False)
    lookups: frozenset[str] = field(init=False)
    mentions_operation: bool = field(init=False)

    def __post_init__(self) -> None:
        rendering = _SqlRendering(self.file, {})
        tree = rendering.tree()
        written = list(_written_names(rendering.plain_sql(), self.file.name in ON_SPARK))
        old = {name.removeprefix(OLD) for name in written if name.startswith(OLD) and name != OLD}
        object.__setattr__(self, "variables", rendering.variables(tree))
        object.__setattr__(self, "old_columns", frozenset(old) | _members(tree, "old"))
        object.__setattr__(self, "lookups", _members(tree, "lookups"))
        object.__setattr__(self, "mentions_operation", self.uses_operation or OPERATION in written)

    @property
    def uses_operation(self) -> bool:
        """Whether the text depends on the operation: the file then runs for each operation separately."""
        return self.uses(OPERATION)

    def uses(self, variable: str) -> bool:
        """Whether the template names this variable."""
        return variable in self.variables

    def render(
        self,
        rows: TemplateRelation,
        *,
        operation: str = "",
        input_table: str = "",
        transformed: TemplateRelation | None = None,
        lookups: Mapping[str, str] | None = None,
    ) -> RenderedSql:
        """The SQL for these rows. Raises a ConfigError, for example for a column that `rows` does not have."""
        if self.uses("input_table") and not _PLAIN.fullmatch(input_table):
            raise self._odd_name()
        row_columns = [name for name in rows.columns if not name.startswith(OLD) and name != OPERATION]
        names: dict[str, Any] = {
            "rows": rows.sql,
            OPERATION: operation,
            "input_table": input_table,
            "new": _Members("new", {name: rows.column(name) for name in row_columns}),
            "old": _Members(
                "old", {name[len(OLD) :]: rows.column(name) for name in rows.columns if name.startswith(OLD)}
            ),
            "lookups": _Members("lookups", lookups or {}),
        }
        if transformed is not None:
            names["transformed"] = transformed.sql
        return _SqlRendering(self.file, names).sql()

    def _odd_name(self) -> ConfigError:
        text = normal(self.file.text)
        return ConfigError(
            "the template uses input_table, and the name of an input table could be read as SQL",
            place=Place(self.file.label, *line_and_column(text, max(text.find("input_table"), 0))),
            remedy=f"remove input_table, or leave out the tables whose names have characters other than {_HARMLESS}",
            code=ODD_NAME,
        )


def normal(text: str) -> str:
    """A file's text with the line ends that Jinja2 gives it, and no byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


class _UnknownMember(ValueError):
    """A column or lookup that does not exist. Not a LookupError: Jinja2 catches those and tries the attribute."""

    def __init__(self, kind: str, name: str, texts: Mapping[str, str]) -> None:
        super().__init__(name)
        self.kind = kind
        self.name = name
        self.available = texts


class _Members:
    """The value of `new`, `old` and `lookups`: texts by name. A loop over it gives the texts."""

    def __init__(self, kind: str, texts: Mapping[str, str]) -> None:
        self._kind = kind
        self._texts = texts

    def __getitem__(self, name: object) -> str:
        if not isinstance(name, str) or name not in self._texts:
            raise _UnknownMember(self._kind, str(name), self._texts)
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts.values())

    def __str__(self) -> str:
        raise MissingValueError(f"{self._kind} is used without a name", f"write {self._kind}.<name>", self._kind)


class _Names(Environment):
    """Jinja2 that looks up `new.x` as a member only, never as an attribute of the Python object."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return obj[attribute] if isinstance(obj, _Members) else super().getattr(obj, attribute)


class _SqlRendering(Rendering):
    """Renders one SQL file. The output of `{{ … }}` stands between two marks, and is inserted as it is."""

    language, comment = "SQL", "--"
    later_names = frozenset()

    def __init__(self, file: SqlFile, names: Mapping[str, Any]) -> None:
        super().__init__(normal(file.text), file.label, file.folder)
        self.file = file
        functions = self.jinja.globals
        self.jinja = _Names(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_as_text)
        self.jinja.globals = {**functions, **names}
        self.marks = self.pattern("([vep])")

    @property
    def available(self) -> tuple[str, ...]:
        """The names that a template of this file may use."""
        more: tuple[str, ...] = ("lookups",) if self.file.name in ON_SPARK else ()
        return (*_EVERYWHERE, *more, *(("transformed",) if self.file.name in BY_OPERATION.values() else ()))

    def tree(self) -> nodes.Template:
        """The template, parsed. A name that no file of its kind knows is an error here."""
        try:
            self.with_marks()
            tree = self.jinja.parse(self.source)
        except FAILURES as error:
            raise self.explain(error) from None
        for name in sorted(meta.find_undeclared_variables(tree) - {*self.available}):
            raise self._unknown_variable(name, tree)
        return tree

    def variables(self, tree: nodes.Template) -> frozenset[str]:
        return frozenset(meta.find_undeclared_variables(tree))

    def plain_sql(self) -> str:
        """The file with each template replaced by blanks, so that offsets stay."""
        pieces: list[str] = []
        at = 0
        for _, kind, value in self.jinja.lex(self.source):
            start = self.source.index(value, at)
            pieces.append(" " * (start - at) + (value if kind == "data" else " " * len(value)))
            at = start + len(value)
        return "".join(pieces)

    def sql(self) -> RenderedSql:
        try:
            text = self.jinja.from_string(self.with_marks()).render()
        except _UnknownMember as error:
            raise self._unknown_member(error) from None
        except FAILURES as error:
            raise self.explain(error) from None
        anchors: list[tuple[int, int, bool]] = []
        removed = 0
        for match in self.marks.finditer(text):
            anchors.append((match.start() - removed, int(match[2]), match[1] == "v"))
            removed += len(match[0])
        return RenderedSql(self.file, self.marks.sub("", text), tuple(anchors))

    def marked(self, kind: str, value: str, start: int) -> str:
        """The marks of a value are expressions, not text, so that Jinja2's whitespace control works as usual."""
        if kind == "variable_begin":
            return f'{value} "{self.mark("v", start)}" }}}}{{{{'
        if kind == "variable_end":
            end = start + value.index("}}") + 2
            return f'}}}}{{{{ "{self.mark("e", end)}" {value}'
        return super().marked(kind, value, start)

    def _unknown_variable(self, name: str, tree: nodes.Template) -> ConfigError:
        line = next((node.lineno for node in tree.find_all(nodes.Name) if node.name == name), 0)
        return self._error(
            f"the template uses {name}, which is not defined", line, name, self._suggestion(name, self.available)
        )

    def _unknown_member(self, error: _UnknownMember) -> ConfigError:
        line = line_of(error)
        what = {"new": "column", "old": "column", "lookups": "lookup"}[error.kind]
        needle = f"{error.kind}.{error.name}"
        if column_of(self.source, line, needle) == 0:
            needle = error.kind
        message = f"unknown {what} {error.kind}.{error.name}"
        remedy = self._suggestion(error.name, error.available, "there are")
        return self._error(message, line, needle, remedy, UNKNOWN_COLUMN)

    @staticmethod
    def _suggestion(
        name: str, names: Mapping[str, str] | tuple[str, ...], there_are: str = "templates here know"
    ) -> str:
        suggestion = nearest(name, names)
        return f'did you mean "{suggestion}"?' if suggestion else f"{there_are} {', '.join(names) or 'none'}"

    def _error(self, message: str, line: int, needle: str, remedy: str, code: str = CODE) -> ConfigError:
        place = Place(self.name, line, column_of(self.source, line, needle))
        return ConfigError(message, place=place, remedy=remedy, code=code)


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _members(tree: nodes.Template, variable: str) -> frozenset[str]:
    """The member names used with `new`, `old` or `lookups`; `ANY_COLUMN` too where the template computes a name."""
    names: set[str] = set()
    if variable not in meta.find_undeclared_variables(tree):
        return frozenset(names)
    with_name = 0
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        if not isinstance(node.node, nodes.Name) or node.node.name != variable:  # type: ignore[attr-defined]
            continue
        if isinstance(node, nodes.Getattr):
            names.add(node.attr)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            names.add(str(node.arg.value))
        else:
            continue
        with_name += 1
    mentioned = sum(node.name == variable and node.ctx == "load" for node in tree.find_all(nodes.Name))
    return frozenset(names | {ANY_COLUMN} if mentioned > with_name else names)


def _written_names(sql: str, spark: bool) -> Iterator[str]:
    """The names in the SQL, without those in its comments."""
    for token in tokens(sql, spark=spark):
        if token.is_name and token.kind != COMMENT:
            yield _folded(token, spark)


def _folded(token: Token, spark: bool) -> str:
    """Spark ignores case, in quoted names too."""
    return token.name.lower() if spark and token.kind == QUOTED else token.name
