"""Templates of names at a destination: `{{ schema }}.{{ table }}`.

    topic: "shop.{{ schema }}.{{ table }}"

Jinja2 with strict names: `schema` and `table` of the destination table, `truck`. A setting with one of the names in
`KEYS` takes such a template, and trucker.yml leaves these expressions alone there; in any other key they are an error.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Final

from jinja2 import Environment, StrictUndefined, Template, TemplateError
from pydantic import AfterValidator, Field

from trucker.config.values import refuse
from trucker.table import TableId

NAMES: Final = frozenset({"schema", "table", "truck"})
KEYS: Final = frozenset({"topic", "transaction_topic", "subject"})
_ENVIRONMENT: Final = Environment(undefined=StrictUndefined, autoescape=False)
_SAMPLE: Final = TableId("public", "item")


@cache
def _compiled(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


def name_of(template: str, table: TableId, truck: str) -> str:
    """The name that the template gives to a table of a truck."""
    return _compiled(template).render(schema=table.schema, table=table.name, truck=truck)


def _usable(template: str) -> str:
    try:
        name_of(template, _SAMPLE, "truck")
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        raise refuse(
            "the template cannot be used", remedy="write text with {{ schema }}, {{ table }} and {{ truck }} in it"
        ) from None
    return template


NameTemplate = Annotated[str, Field(min_length=1), AfterValidator(_usable)]
