"""Write the documentation that is made from the code: JSON schemas, configuration, command line and types.

python tools/gen_docs.py            write what differs
python tools/gen_docs.py --check    write nothing; exit code 1 where something differs
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trucker.cli.exits import MEANINGS
from trucker.cli.main import COMMANDS, main
from trucker.config import lookups, models, rules
from trucker.config.model import MIB, Model
from trucker.config.problems import key_of
from trucker.config.registry import installed
from trucker.config.schema import project_schema, truck_schema
from trucker.types import BUILT_IN, LARGEST_PRECISION, BuiltIn, ColumnKind, Kind, TypeForms

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTICE = "<!-- Made by tools/gen_docs.py from the code. Change it there. -->\n"
WIDTH = "100"
ADAPTERS = installed().built_in()

INTRODUCTION = """\
# Configuration

A project is a folder with a `trucker.yml` and, for each truck, `trucks/<name>/truck.yml`
(`<name>/truck.yml` directly in the folder is found too). An unknown key is an error. Editors can complete and check
both files with [trucker.schema.json](trucker.schema.json) and [truck.schema.json](truck.schema.json).

Both files are templates (Jinja2). `{{ env("NAME", "default") }}` is an environment variable; without a default it
must be set. `{{ file("/run/secrets/x") }}` is what a file holds, without the blanks around it. What a template gives is
always one value: a password may hold quotes, colons or `#` and needs no quotes around it, and nothing in it can change
the file's structure.

Relative paths are seen from the project's folder. A size is a number of bytes or a text such as `64 MiB` or `2 GB`,
a duration a number of seconds or a text such as `500ms`, `30s`, `12h` or `7d`.

"""

CONNECTIONS = """\
A connection names a store. Its `adapter` says of which kind it is, and what it can be used for:

| adapter | input | output | `output.sql` | dead letters | lookups | installed with |
|---|---|---|---|---|---|---|
{offers}
Other packages can bring more adapters: [write a sink](../howto/write_a_sink.md).

Every key of a connection has a second form, `<key>_path`: the path of a file that holds the value, such as
`pass_path: /run/secrets/password`. Giving both forms is an error.

"""

TABLES = """\
### Tables and patterns

| written | means |
|---|---|
| `orders` | table `orders` of schema `public` |
| `shop.orders` | table `orders` of schema `shop` |
| `shop.*`, `public.order_?` | every table that matches; `*` is any text, `?` any one character |
| `"odd.name"."a*b"` | in double quotes every character stands for itself |
| `!shop.audit_*` | not these, whatever else chooses them (in YAML, quote what begins with `!`) |

Names are taken as written; letters keep their case without quotes.

### SQL files

Each is optional, and stands beside `truck.yml` in the truck's folder.

| file | runs on | |
|---|---|---|
| `input.sql` | the source database | gives the rows, joined with any table there: [enrich](../howto/enrich.md) |
| `transform.sql` | Spark SQL | reshapes the rows: [Spark SQL](../howto/spark_sql.md) |
| `insert.sql`, `update.sql`, `delete.sql` | Spark SQL | the same for the rows of one operation |
| `output.sql` | the destination database | writes the rows itself: [output.sql](../howto/output_sql.md) |

`functions.py` beside them has Python functions for Spark SQL. Another file whose name is much like one of these is not
used; `trucker check` and `trucker run` warn of it.
"""


_LOOKUPS = "[lookups](../howto/spark_sql.md#lookups-tables-of-other-connections).\n\n"
_DECIMAL = f"`numeric(p,s)` with 0 ≤ s ≤ p ≤ {LARGEST_PRECISION}"

TYPES = """\
# Types

Inside trucker a value is PostgreSQL's own text of it, in an Arrow column of type `string`, whatever its type: that is
exact for every type there is, and it is what a sink of your own is given. Copy and stream give the same text, whatever
the database's, the role's or the server's settings are (`DateStyle`, `IntervalStyle`, `TimeZone`, `bytea_output`,
`extra_float_digits`, `lc_monetary`, `array_nulls`, `search_path`). What a destination makes of the text:

"""

UNFIT = """
`VARCHAR` and *string* hold PostgreSQL's text as it is, blanks, quotes and braces included. JSON numbers have all of
PostgreSQL's digits (`1.10` stays `1.10`); `json` and `jsonb` are embedded as they are, line breaks between their tokens
becoming blanks. In a table that you made yourself the columns' own types count.

## PostgreSQL to PostgreSQL

The destination's `::text` is the source's, to the byte. A table that trucker makes has the source's types. A type that
is not PostgreSQL's own is looked for under its full name, schema included: create it, or its extension, there first,
and the column has it. Where the destination has no such type the column is `text`, and the log says so, with the
statements that would make it. Where it has one of that name that would read the text as something else (other fields
of a composite type, another subtype of a range) the truck is refused with the statements that make the right one
(`TRK409`). An enum that lacks a label gets it when the first value with it comes, or stops the truck where
`schema_changes` is not `apply`.

`regclass`, `regtype`, `regrole` and their kin name objects of the source, which the destination need not have: their
columns are `text`, names qualified with their schema.

## What does not fit

A value that the destination's type cannot hold stops the truck (I8), with the table, the column and the kind of value,
and nothing of the batch is written. What else is to become of such values is said for each column:

```yaml
output:
  connection: lake
  columns:
    price: {unfit: text}
    seen_at: {unfit: null}
```

| policy | |
|---|---|
| `error` | the truck stops; the default |
| `null` | such a value becomes NULL, all others stay what they are; not for columns of the key |
| `text` | the whole column is text at the destination, so that every value is there, as PostgreSQL writes it |

With `text` a column that exists already is altered, and the values in it keep their text. DuckDB writes floating-point
numbers in another way than PostgreSQL, so such a column is refused instead (`TRK438`); it holds every value anyway.
In JSON lines `text` makes a column a string whatever its type. There `NaN` and the infinities, for which JSON has no
numbers, are strings as long as no policy is given; `error` and `null` are followed where they are.
At a PostgreSQL destination `null` asks the server whether it can read a value, which PostgreSQL 16 and newer can tell.
A policy holds for every table of the truck that has a column of that name.
"""


def configuration() -> str:
    parts = [NOTICE, INTRODUCTION, "## trucker.yml\n\n", _table(models.ProjectFile)]
    for title, model in (
        ("spark", models.SparkConfig),
        ("log", models.LogConfig),
        ("batch", models.BatchConfig),
        ("copy", models.CopyConfig),
        ("retry", models.RetryConfig),
    ):
        parts += [f"### {title}\n\n{_summary(model)}\n\n", _table(model)]
    parts += ["### connections\n\n", CONNECTIONS.format(offers=_offers())]
    for adapter in ADAPTERS:
        parts += [f"#### adapter: {adapter.name}\n\n{_summary(adapter.connection)}\n\n", _table(adapter.connection)]
    for key, model in _sections().items():
        parts += [f"#### {key}\n\n{_summary(model)}\n\n", _table(model)]
    parts += ["## truck.yml\n\n", _table(models.TruckFile)]
    for title, model in (("input", models.InputConfig), ("output", models.OutputConfig)):
        parts += [f"### {title}\n\n{_summary(model)}\n\n", _table(model)]
    parts += ["#### output.columns.*name*\n\n", f"{_summary(models.ColumnConfig)} See [types](TYPES.md).\n\n"]
    parts += [_table(models.ColumnConfig)]
    parts += [f"### lookups.*name*\n\n{_summary(lookups.LookupConfig)} How to use them: ", _LOOKUPS]
    parts += [_table(lookups.LookupConfig)]
    parts += [f"### rules\n\n{_summary(rules.RuleConfig)} How to use them: [rules](../howto/rules.md).\n\n"]
    parts += [_table(rules.RuleConfig)]
    for title, model in (
        ("mask", rules.MaskRule),
        ("hash", rules.HashRule),
        ("regex", rules.RegexRule),
        ("filter", rules.FilterRule),
        ("constant.*name*", rules.ConstantValue),
        ("route", rules.RouteRule),
    ):
        parts += [f"#### rules.{title}\n\n{_summary(model)}\n\n", _table(model)]
    return "".join([*parts, TABLES])


def command_line() -> str:
    parts = [NOTICE, "# Command line\n\n", _block("trucker --help")]
    for name in COMMANDS:
        parts += [f"## trucker {name}\n\n", _block(f"trucker {name} --help")]
    parts += ["## Exit codes\n\n| code | meaning |\n|---|---|\n"]
    parts += [f"| {code.value} | {meaning} |\n" for code, meaning in MEANINGS.items()]
    return "".join(parts)


def _offers() -> str:
    """What each adapter can be used for, and with which command its driver is installed."""
    rows = []
    for adapter in ADAPTERS:
        facts = (
            adapter.source,
            adapter.sink,
            adapter.abilities.output_sql,
            adapter.abilities.dead_letters,
            adapter.lookup,
        )
        marks = " | ".join("yes" if fact else "" for fact in facts)
        rows.append(f"| `{adapter.name}` | {marks} | {f'`{adapter.install}`' if adapter.install else 'trucker'} |\n")
    return "".join(rows)


def _summary(model: type[BaseModel]) -> str:
    """What a model is, in one line."""
    return " ".join((model.__doc__ or "").split())


def _sections() -> dict[str, type[Model]]:
    """The mappings inside connections, by key. Adapters share a key: the one with the most keys describes it."""
    sections: dict[str, type[Model]] = {}
    for adapter in ADAPTERS:
        for name, field in adapter.connection.model_fields.items():
            kind, key = field.annotation, key_of(name, field)
            if isinstance(kind, type) and issubclass(kind, Model):
                sections[key] = max(sections.get(key, kind), kind, key=lambda model: len(model.model_fields))
    return sections


def types() -> str:
    """Every built-in type and its form in each destination."""
    forms = list(dict.fromkeys(adapter.types for adapter in ADAPTERS if adapter.types))
    titles = " | ".join(each.title for each in forms)
    head = f"| PostgreSQL | Arrow | {titles} | does not fit |\n|---|---|{'---|' * len(forms)}---|\n"
    rows = [row for each in BUILT_IN for row in _type_rows(each, forms)]
    rows += [_row("arrays of all of these", forms, ColumnKind(Kind.TEXT, array=True))]
    rows += [_words("a domain, also over a domain or an array", [each.domain for each in forms])]
    user_types = [each.user_type or each.shown(each.text) for each in forms]
    rows += [
        _words("an array of a domain", [f"an array of {f.domain}" if f.user_type else f.shown(f.text) for f in forms])
    ]
    rows += [_words("an enum, a composite type, a range type of your own, and arrays of them", user_types)]
    rows += [_words("a type of an extension (`hstore`, `vector`, `geometry` …)", user_types)]
    return "".join([NOTICE, TYPES, head, *rows, UNFIT])


def _type_rows(each: BuiltIn, forms: list[TypeForms]) -> Iterator[str]:
    if each.kind is not Kind.NUMERIC:
        yield _row(f"`{each.name}`", forms, ColumnKind(each.kind))
        return
    yield _row("`numeric`", forms, ColumnKind(each.kind))
    yield _row(_DECIMAL, forms, ColumnKind(each.kind, 12, 2)).replace("(12,2)", "(p,s)")


def _row(name: str, forms: list[TypeForms], kind: ColumnKind) -> str:
    shown_forms = [(each, each.of(kind)) for each in forms]
    unfit = "; ".join(f"{each.title}: {form.unfit}" for each, form in shown_forms if form.unfit)
    return _words(name, [each.shown(form) for each, form in shown_forms], unfit)


def _words(name: str, forms: list[str], unfit: str = "") -> str:
    return f"| {name} | `string` | {' | '.join(forms)} | {unfit} |\n"


def _block(command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(command.split()[1:])
    text = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    return f"```\n$ {command}\n{text}\n```\n\n"


def _table(model: type[BaseModel]) -> str:
    rows = [
        f"| `{key_of(name, field)}` | {_kind(field)} | {_default(field)} | {field.description or ''} |\n"
        for name, field in model.model_fields.items()
    ]
    return "".join(["| key | value | default | |\n|---|---|---|---|\n", *rows, "\n"])


def _kind(field: FieldInfo) -> str:
    return " or ".join(dict.fromkeys(_names(_with_metadata(field)))).replace("|", "\\|")


def _with_metadata(field: FieldInfo) -> Any:
    return typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _names(kind: Any) -> Iterator[str]:
    """A type in words. Sizes, durations and lists are told by their validators."""
    base = _unwrapped(kind)
    special = {
        "parse_bytes": "size",
        "parse_seconds": "duration",
        "one_or_many": "text or list of texts",
    }
    named = next((special[mark] for mark in _validators(kind) if mark in special), None)
    if named:
        yield named
    elif isinstance(base, UnionType) or typing.get_origin(base) is typing.Union:
        members = [member for member in typing.get_args(base) if member is not type(None)]
        yield from (name for member in members for name in _names(member))
    elif typing.get_origin(base) is typing.Literal:
        yield from (f"`{value}`" for value in typing.get_args(base))
    elif isinstance(base, type) and issubclass(base, BaseModel):
        yield from ("text", "mapping") if getattr(base, "shorthand", None) else ("mapping",)
    elif typing.get_origin(base) is tuple:
        yield "list of rules" if typing.get_args(base)[0] is models.RuleConfig else "list of connections"
    elif typing.get_origin(base) is dict:
        value_type = _unwrapped(typing.get_args(base)[1])
        yield "mapping" if isinstance(value_type, type) and issubclass(value_type, BaseModel) else "mapping of texts"
    elif isinstance(base, type) and issubclass(base, StrEnum):
        yield from (f"`{word.value}`" for word in base)
    else:
        words = {str: "text", SecretStr: "text", int: "whole number", float: "number", Path: "path"}
        yield {**words, bool: "`true` or `false`"}[base]


def _unwrapped(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _validators(kind: Any) -> list[str]:
    marks = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
    return [mark.func.__name__ for mark in marks if hasattr(mark, "func")]


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "required"
    if default is None or default in ((), {}) or isinstance(default, BaseModel):
        return ""
    if isinstance(default, SecretStr):
        return ""
    kind = _kind(field)
    if kind == "size":
        return f"`{default // MIB} MiB`"
    return f"`{default:g}s`" if kind == "duration" else f"`{default}`"


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "trucker.schema.json": lambda: _json(project_schema(ADAPTERS)),
    "truck.schema.json": lambda: _json(truck_schema()),
    "configuration.md": configuration,
    "cli.md": command_line,
    "TYPES.md": types,
}


def generate(folder: Path, *, check: bool) -> list[Path]:
    """The pages that differed from what the code says; they are written unless only checked."""
    os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = WIDTH
    stale = []
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the documentation that is made from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where something differs")
    only_check = parser.parse_args().check
    pages = generate(REFERENCE, check=only_check)
    for page in pages:
        sys.stdout.write(f"{'differs' if only_check else 'wrote'}: {page}\n")
    sys.exit(1 if only_check and pages else 0)
