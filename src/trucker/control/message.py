"""What travels over the control socket: one line with a request, one line with the answer, both JSON.

    {"format": 1, "command": "pause", "arguments": {"trucks": ["orders"]}}
    {"format": 1, "answer": …}
    {"format": 1, "errors": [{"kind": "ControlError", "code": "TRK612", "message": "…", "remedy": "…"}]}

A field that a reader does not know is ignored, so that a later version may add one. Neither line has a row or a secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trucker import errors
from trucker.errors import ControlError, TruckerError

FORMAT: Final = 1
MOST_BYTES: Final = 1 << 20
"""So long a line may be."""

_UPGRADE: Final = "use the trucker that the instance was started with, or restart the instance"
_KINDS: Final[Mapping[str, type[TruckerError]]] = {
    kind.__name__: kind
    for kind in (
        errors.ChangeLogError,
        errors.CheckFailed,
        errors.ConfigError,
        errors.ControlError,
        errors.EngineError,
        errors.FileError,
        errors.SinkError,
        errors.SourceError,
    )
}


@dataclass(frozen=True, slots=True)
class Request:
    """A command by its name, with its arguments as JSON values."""

    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class ControlErrors(ControlError):
    """Several errors for which a command was refused, in `errors`."""

    def __init__(self, singles: tuple[TruckerError, ...]) -> None:
        super().__init__(f"{len(singles)} errors", code=singles[0].code)
        self.errors = singles


def request_line(request: Request) -> bytes:
    return _line({"command": request.command, "arguments": dict(request.arguments)})


def answer_line(answer: object) -> bytes:
    return _line({"answer": answer})


def error_line(error: TruckerError) -> bytes:
    return _line({"errors": [_fields(single) for single in getattr(error, "errors", (error,))]})


def parse_request(line: bytes) -> Request:
    """Raises `ControlError` for what is no request of this format."""
    content = _content(line)
    command, arguments = content.get("command"), content.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, dict):
        raise ControlError("the control socket got a line that is no request", remedy=_UPGRADE, code="TRK615")
    return Request(command, arguments)


def parse_answer(line: bytes) -> Any:
    """The answer; raises the error, or the errors, that came instead."""
    content = _content(line)
    singles = tuple(_error(entry) for entry in content.get("errors", ()))
    if len(singles) > 1:
        raise ControlErrors(singles)
    if singles:
        raise singles[0]
    return content.get("answer")


def _line(content: Mapping[str, object]) -> bytes:
    return json.dumps({"format": FORMAT, **content}, ensure_ascii=False).encode() + b"\n"


def _content(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ControlError("the other side of the control socket is another version", remedy=_UPGRADE, code="TRK615")
    return content


def _fields(error: TruckerError) -> dict[str, str]:
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS), "")
    return {"kind": kind, "code": error.code, "message": error.message, "remedy": error.remedy}


def _error(entry: Mapping[str, str]) -> TruckerError:
    kind = _KINDS.get(entry.get("kind", ""), TruckerError)
    return kind(entry.get("message", ""), remedy=entry.get("remedy", ""), code=entry.get("code"))
