"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


@dataclass(slots=True)
class Invocation:
    """What the error handler needs of the command line."""

    debug: bool = False


class SqlChange(StrEnum):
    """What `reload` does with a truck whose SQL or rules changed."""

    REFUSE = "refuse"
    GO_ON = "go-on"


def _remember_debug(context: typer.Context, value: bool) -> bool:
    if value and isinstance(context.obj, Invocation):
        context.obj.debug = True
    return value


ProjectFolder = Annotated[
    Path, typer.Argument(metavar="PROJECT", help="The project's folder.", show_default="the current folder")
]
ProjectOption = Annotated[
    Path,
    typer.Option(
        "--project",
        "-p",
        metavar="PROJECT",
        help="The project's folder.",
        show_default="the current folder",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_remember_debug, help="Log everything, and show errors with their traceback."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
