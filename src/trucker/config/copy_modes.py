"""The value of `input.copy`: a mode for all tables, or modes by names and patterns of tables."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from trucker.config.patterns import PatternError, parse_pattern
from trucker.config.values import refuse
from trucker.table import CopyMode

_MODES = [mode.value for mode in CopyMode]
_MODE_REMEDY = f"write one of {', '.join(_MODES)}"
_MAPPING_REMEDY = f"{_MODE_REMEDY}, or a mapping of tables to modes, such as {{public.events: none}}"


def _copy_modes(value: Any) -> Any:
    if not isinstance(value, dict):
        return _mode(value, "", _MAPPING_REMEDY)
    if not value:
        raise refuse("the mapping names no table", remedy=_MAPPING_REMEDY)
    for text in value:
        _check_pattern(text)
    return {text: _mode(mode, text, _MODE_REMEDY) for text, mode in value.items()}


def _check_pattern(text: Any) -> None:
    remedy = "write schema.table, or a pattern such as public.*"
    try:
        if not parse_pattern(str(text)).excludes:
            return
    except PatternError as error:
        raise refuse(str(error), key=str(text), remedy=remedy) from None
    raise refuse("no table is excluded here: the first pattern that matches counts", key=str(text), remedy=remedy)


def _mode(value: Any, key: str, remedy: str) -> CopyMode:
    if value not in _MODES:
        raise refuse("this is not a mode of copying", key=key, remedy=remedy)
    return CopyMode(value)


CopyModes = Annotated[
    CopyMode | dict[str, CopyMode],
    BeforeValidator(_copy_modes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": _MODES},
                {
                    "type": "object",
                    "additionalProperties": {"type": "string", "enum": _MODES},
                    "minProperties": 1,
                },
            ],
            "title": "mode or mapping of tables to modes",
        }
    ),
]
