"""PostgreSQL's types in JSON lines, for the stores that are written as such."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

from trucker.types import ColumnKind, Form, Kind, TypeForms


class JsonForm(StrEnum):
    """How JSON lines write a cell. A NUMBER has PostgreSQL's digits; one without digits (NaN) is a string."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    EMBEDDED = "the JSON itself"
    STRING = "string"


_NUMBER: Final = Form(JsonForm.NUMBER)
_FLOAT: Final = Form(JsonForm.NUMBER, "`NaN`, `Infinity`, `-Infinity` (strings by default)")


class JsonTypes(TypeForms):
    """JSON has four kinds of value that a cell can be."""

    title: ClassVar[str] = "JSON lines"
    text: ClassVar[Form] = Form(JsonForm.STRING)
    forms: ClassVar[Mapping[Kind, Form]] = {
        Kind.SMALLINT: _NUMBER,
        Kind.INTEGER: _NUMBER,
        Kind.BIGINT: _NUMBER,
        Kind.REAL: _FLOAT,
        Kind.DOUBLE: _FLOAT,
        Kind.NUMERIC: _FLOAT,
        Kind.BOOLEAN: Form(JsonForm.BOOLEAN),
        Kind.JSON: Form(JsonForm.EMBEDDED),
    }

    def json_form(self, column: ColumnKind) -> JsonForm:
        """The form of a column, as one of JSON's."""
        return JsonForm(self.of(column).type)

    def shown(self, form: Form) -> str:
        return "number (PostgreSQL's digits)" if form.type == JsonForm.NUMBER else str(form.type)


TYPES: Final = JsonTypes()
