"""Kinds of value that several settings share: sizes, durations, paths in the project, one text or many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from trucker.types import Unfit

_BYTES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _BYTES |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def refuse(message: str, *, remedy: str = "", key: str = "") -> PydanticCustomError:
    """The error for a validator to raise: a message without the value, a remedy, and the key it is about."""
    return PydanticCustomError("trucker", "{message}", {"message": message, "remedy": remedy, "key": key})


def parse_bytes(value: Any) -> int:
    """`64 MiB`, `500kB` or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _BYTES:
        raise refuse("this is not a size", remedy="write a number of bytes, or a size such as 64 MiB or 2 GB")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def parse_seconds(value: Any) -> float:
    """`500ms`, `30s`, `12h`, `7d` or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SECONDS:
        raise refuse("this is not a duration", remedy="write a number of seconds, or a duration such as 30s, 12h or 7d")
    return float(match[1]) * _SECONDS[match[2].lower()]


def one_or_many(value: Any) -> Any:
    """A single text counts as a list of one."""
    return (value,) if isinstance(value, str) else value


def policy_word(value: Any) -> Any:
    """YAML reads a bare `null` as None; here it is a policy's name."""
    return Unfit.NULL.value if value is None else value


def in_project(path: Path, info: ValidationInfo) -> Path:
    """The path relative to the project's folder, which the loader gives as context."""
    folder: Path | None = (info.context or {}).get("folder")
    if "\0" in str(path):
        raise refuse("the path has an invalid character", remedy="remove the character")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise refuse("the path names the home folder of an account that does not exist") from None
    return folder / path if folder else path


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    if len(set(values)) != len(values):
        raise refuse("the same name is listed twice", remedy="remove one of them")
    return tuple(values)


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"type": ["integer", "string"], "title": "size"}),
]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    WithJsonSchema({"type": ["number", "string"], "title": "duration"}),
]
UnfitPolicy = Annotated[
    Unfit,
    BeforeValidator(policy_word),
    WithJsonSchema({"enum": [*(word.value for word in Unfit), None], "title": "policy"}),
]
ProjectPath = Annotated[Path, AfterValidator(in_project)]
Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1),
    AfterValidator(_distinct),
    BeforeValidator(one_or_many),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
            ],
            "title": "text or list of texts",
        }
    ),
]
