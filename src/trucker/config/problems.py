"""Mistakes in a project's settings, as sentences with a place and a next step.

TRK101  a file is missing or cannot be read     TRK107  a connection that does not exist
TRK102  not YAML                                TRK108  a name given twice
TRK103  the template failed                     TRK109  an adapter that cannot do this
TRK104  an unknown key                          TRK111  no truck
TRK105  a wrong value                           TRK130  a name that a SQL file's template does not have
TRK106  a missing key
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trucker.config.document import Item
from trucker.errors import ConfigError

_SYNONYMS: Final = {
    "db": "database",
    "dbname": "database",
    "destination": "output",
    "dsn": "url",
    "from": "input",
    "hostname": "host",
    "password": "pass",
    "source": "input",
    "sslmode": "ssl",
    "to": "output",
    "type": "adapter",
    "uri": "url",
    "username": "user",
}

_WRONG: Final = {
    "bool_parsing": "must be true or false",
    "dict_type": "must contain keys and values",
    "float_parsing": "must be a number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must contain keys and values",
    "path_type": "must be a path",
    "string_pattern_mismatch": "must have at most 63 letters, digits, _, - and ., and must not begin with - or .",
    "string_too_long": "is too long",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
}

_LIMITS: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


class ConfigErrors(ConfigError):
    """Everything that is wrong with a project's settings, in `errors`."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(f"the project has {len(errors)} errors", place=None, code=errors[0].code)
        self.errors = tuple(errors)
        self.place = errors[0].place

    def __str__(self) -> str:
        return "\n".join([self.message, *(str(error) for error in self.errors)])


def raise_if_any(errors: Sequence[ConfigError]) -> None:
    """Raise the collected errors: one as itself, several as `ConfigErrors`, in the order of files and lines."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        files = list(dict.fromkeys(_spot(error)[0] for error in errors))
        raise ConfigErrors(sorted(errors, key=lambda error: (files.index(_spot(error)[0]), *_spot(error)[1:])))


def _spot(error: ConfigError) -> tuple[str, int, int]:
    return (error.place.file, error.place.line, error.place.column) if error.place else ("", 0, 0)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant; None where none is close."""
    names = list(candidates)
    if _SYNONYMS.get(name) in names:
        return _SYNONYMS[name]
    return next(iter(difflib.get_close_matches(name, names, 1, 0.6)), None)


def key_of(name: str, field: FieldInfo) -> str:
    """How a field is written in YAML."""
    return str(field.validation_alias or name)


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys a model takes, as written in YAML."""
    return [key_of(name, field) for name, field in model.model_fields.items()]


def unknown_key(item: Item, key: str, keys: Sequence[str]) -> ConfigError:
    suggestion = nearest(key, keys)
    remedy = f'did you mean "{suggestion}"?' if suggestion else f"use one of the keys {', '.join(keys)}"
    return ConfigError(f'unknown key "{key}"', place=item.key_place, remedy=remedy, code="TRK104")


def explain(error: ValidationError, item: Item, model: type[BaseModel]) -> Iterator[ConfigError]:
    """A model's errors about the value at `item`. No value is quoted."""
    details = error.errors(include_url=False, include_input=False)
    unknown = {tuple(detail["loc"]) for detail in details if detail["type"] == "extra_forbidden"}
    for detail in details:
        loc = tuple(detail["loc"])
        if detail["type"] == "missing" and _misspelt(loc, unknown, model):
            continue  # the misspelt key is reported, with this one as the suggestion
        extra = _unknown_siblings(loc, item, model) if detail["type"] == "trucker" else []
        yield from extra or [_explain_one(detail["type"], loc, detail.get("ctx", {}), item, model)]


def _misspelt(loc: tuple[str | int, ...], unknown: Iterable[tuple[str | int, ...]], model: type[BaseModel]) -> bool:
    """Whether an unknown key beside a missing one is likely meant to be that key."""
    keys = keys_of(_model_at(model, loc[:-1]))
    return any(path[:-1] == loc[:-1] and nearest(str(path[-1]), keys) == loc[-1] for path in unknown)


def _unknown_siblings(loc: tuple[str | int, ...], top: Item, model: type[BaseModel]) -> list[ConfigError]:
    """The unknown keys of a mapping that a model validator refuses: a misspelt key may be the reason."""
    item = top
    for step in loc:
        inner = item.at((step,))
        field = _field(model, step)
        if inner is item or field is None or not _models_of(field):
            return []
        item, model = inner, _model_at(model, (step,))
    keys = keys_of(model)
    return [unknown_key(entry, key, keys) for key, entry in item.entries.items() if key not in keys]


def _explain_one(
    kind: str, loc: tuple[str | int, ...], context: dict[str, Any], top: Item, model: type[BaseModel]
) -> ConfigError:
    item = top.at(loc)
    if item is top and loc and kind not in ("extra_forbidden", "missing") and "url" in top.entries:
        item = top.entries["url"]
    key = next((str(step) for step in reversed(loc) if isinstance(step, str)), "this")
    if kind == "extra_forbidden":
        return unknown_key(item, key, keys_of(_model_at(model, loc[:-1])))
    if kind == "missing":
        about = _describe(model, loc)
        return ConfigError(f'"{key}" is missing', place=item.place, remedy=f"add {key}{about}", code="TRK106")
    if kind == "trucker":
        inner = item.at((context["key"],))
        return ConfigError(
            context["message"],
            place=inner.key_place if inner is not item else item.place,
            remedy=context["remedy"],
            code="TRK105",
        )
    if item.value is None and loc:
        return ConfigError(
            f'"{key}" has no value', place=item.key_place, remedy="add a value, or remove the key", code="TRK105"
        )
    remedy = f"correct {key}{_describe(model, loc)}"
    return ConfigError(f'"{key}" {_reason(kind, context)}', place=item.place, remedy=remedy, code="TRK105")


def _reason(kind: str, context: dict[str, Any]) -> str:
    if kind in _LIMITS:
        words, bound = _LIMITS[kind]
        return f"must be {words} {context[bound]:g}"
    if kind in ("literal_error", "enum"):
        return f"must be one of {context['expected']}".replace("'", "")
    return _WRONG.get(kind, "has an invalid value")


def _field(model: type[BaseModel], key: str | int) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if key == (key_of(name, field))), None)


def _model_at(model: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel]:
    """The model that checks what a path leads to."""
    for step in path:
        field = _field(model, step)
        if field is not None:
            model = next(iter(_models_of(field)), model)
    return model


def _models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """The models that check a field's value; none for texts and for mappings with any keys."""
    kinds = (field.annotation, *typing.get_args(field.annotation))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _describe(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    """What a key is for, in brackets: the first sentence of its description."""
    named = [step for step in loc if isinstance(step, str)]
    field = _field(_model_at(model, tuple(named[:-1])), named[-1]) if named else None
    text = (field.description or "") if field else ""
    first = re.split(r"[.:;] |\.$", text, maxsplit=1)[0]
    return f" ({first[0].lower()}{first[1:]})" if first else ""
