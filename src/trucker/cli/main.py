"""The `trucker` command: the group of commands, the one error handler and the exit codes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trucker import __version__
from trucker.cli import commands
from trucker.cli.exits import ExitCode, exit_code
from trucker.cli.options import Invocation
from trucker.cli.output import complain, say
from trucker.errors import TruckerError
from trucker.file_errors import unexplained

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "init": commands.init,
    "check": commands.check,
    "run": commands.run,
    "status": commands.status,
    "pause": commands.pause,
    "resume": commands.resume,
    "reload": commands.reload,
    "stop": commands.stop,
    "refresh": commands.refresh,
    "verify": commands.verify,
    "replay": commands.replay,
    "peek": commands.peek,
    "try": commands.try_,
    "redrive": commands.redrive,
    "reset": commands.reset,
    "accept": commands.accept,
    "demo": commands.demo,
}

_UNEXPECTED: Final = "run the command again with --debug for a traceback, and report it"

app = typer.Typer(
    name="trucker",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        say(f"trucker {__version__}")
        raise typer.Exit(ExitCode.FINE)


@app.callback()
def _trucker(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Move changes out of PostgreSQL and keep other stores in step with them.

    `trucker PROJECT` runs the project in that folder. `trucker init` writes a starter project.
    """


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    invocation = Invocation()
    try:
        app(args=with_command(sys.argv[1:] if arguments is None else arguments), prog_name="trucker", obj=invocation)
    except SystemExit as end:
        return _as_code(end.code)
    except Exception as error:
        explained = error if isinstance(error, TruckerError) else _explained(error)
        if invocation.debug:
            traceback.print_exception(error)
        complain(explained)
        return exit_code(explained)
    return ExitCode.FINE


def with_command(arguments: Sequence[str]) -> list[str]:
    """`trucker PROJECT …` means `trucker run PROJECT …`, where PROJECT is a folder and no command."""
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-") and first not in COMMANDS and Path(first).is_dir():
        return ["run", *arguments]
    return list(arguments)


def _as_code(code: Any) -> int:
    return code if isinstance(code, int) else ExitCode.FINE if code is None else ExitCode.FAILED


def _explained(error: Exception) -> TruckerError:
    return (isinstance(error, OSError) and unexplained(error)) or _unexpected(error)


def _unexpected(error: Exception) -> TruckerError:
    """Shows the message of OSError and ImportError only: other messages may hold a row's data (I10)."""
    reason = f": {error}" if isinstance(error, OSError | ImportError) else ""
    return TruckerError(f"unexpected {type(error).__name__}{reason}", remedy=_UNEXPECTED)


if __name__ == "__main__":
    sys.exit(main())
