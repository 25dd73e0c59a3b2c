"""A class of the user's as a destination: the handler.py of each truck that writes to the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, PrivateAttr

from trucker.abilities import Abilities, Visible
from trucker.config.adapter import Adapter, Connection, HandlerCode
from trucker.config.model import Model
from trucker.types import ColumnKind, Form, Kind, TypeForms

_GUARANTEE: Final = "at least once, in order per key; exactly once where the handler stores the position"

EVENTS_ABILITIES: Final = Abilities(
    every_change=True, exactly_once=False, dead_letters=True, guarantee=f"every change, {_GUARANTEE}"
)
BATCHES_ABILITIES: Final = Abilities(
    visible=Visible.TABLE,
    keyless=False,
    partial_rows=False,
    exactly_once=False,
    dead_letters=True,
    guarantee=f"net changes, {_GUARANTEE}",
)


class BatchOfRows(Model):
    """How many rows a batcher gets at once."""

    rows: int = Field(default=1000, ge=1, description="The most rows, or keys, in one call of a batcher.")


class PythonConnection(Connection):
    """The classes of handler.py files as a destination: every truck that writes to it has one beside its truck.yml."""

    adapter: Literal["python"] = Field(description="The kind of store.")
    batch: BatchOfRows = Field(default=BatchOfRows(), description="The size of a batcher's calls.")
    parallel: int = Field(
        default=1,
        ge=1,
        description="The most changes that an `async` handler is given at once, all of different keys.",
    )
    tries: int = Field(
        default=10,
        ge=1,
        description="How often a call is tried that raises an exception; after that it counts as refused, and the "
        "truck's `on_error` decides.",
    )
    _handlers: dict[str, HandlerCode] = PrivateAttr(default_factory=dict)
    _batches: bool = PrivateAttr(default=False)

    @property
    def batches(self) -> bool:
        """Whether its trucks' handlers are batchers."""
        return self._batches

    def handler(self, truck: str) -> HandlerCode | None:
        """What a truck's handler is made of."""
        return self._handlers.get(truck)

    @property
    def trucks(self) -> list[str]:
        """The trucks whose handlers it has."""
        return sorted(self._handlers)

    def with_handlers(self, handlers: Mapping[str, HandlerCode]) -> PythonConnection:
        connection = self.model_copy()
        connection._handlers = dict(handlers)
        connection._batches = any(each.batches for each in handlers.values())
        return connection

    def carried(self) -> Mapping[str, object]:
        return {each.label: each for each in self._handlers.values()}

    def __getstate__(self) -> dict[Any, Any]:
        """Without the handlers: they run in the driver, and need not be importable elsewhere."""
        state = super().__getstate__()
        private = state["__pydantic_private__"]
        return {**state, "__pydantic_private__": {**(private or {}), "_handlers": {}}}


_EXACT: Final = "values that Python's type cannot hold stay PostgreSQL's text, such as `infinity`"


class PythonTypes(TypeForms):
    """Python's own types, as psycopg gives them."""

    title: ClassVar[str] = "Python"
    text: ClassVar[Form] = Form("str")
    forms: ClassVar[Mapping[Kind, Form]] = {
        Kind.SMALLINT: Form("int"),
        Kind.INTEGER: Form("int"),
        Kind.BIGINT: Form("int"),
        Kind.REAL: Form("float"),
        Kind.DOUBLE: Form("float"),
        Kind.NUMERIC: Form("decimal.Decimal"),
        Kind.BOOLEAN: Form("bool"),
        Kind.BYTES: Form("bytes"),
        Kind.DATE: Form("datetime.date", _EXACT),
        Kind.TIME: Form("datetime.time", _EXACT),
        Kind.TIMESTAMP: Form("datetime.datetime", _EXACT),
        Kind.TIMESTAMPTZ: Form("datetime.datetime", _EXACT),
        Kind.UUID: Form("uuid.UUID"),
        Kind.JSON: Form("json.loads"),
    }

    def of(self, column: ColumnKind) -> Form:
        return Form("list") if column.array else super().of(column)


PYTHON: Final = Adapter(
    name="python",
    connection=PythonConnection,
    sink="trucker.sinks.python:python_sink",
    abilities=Abilities(visible=Visible.TABLE, exactly_once=False, dead_letters=True, guarantee=_GUARANTEE),
    takes_handlers=True,
    types=PythonTypes(),
)
