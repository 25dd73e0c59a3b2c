"""Templates in the project's files: Jinja2 with strict names, `env("NAME", "default")` and `file("path")`.

What `{{ … }}` gives is always one value, never YAML: it travels through the YAML parser as a token and is put
in its place afterwards. So a password may hold quotes, colons or line breaks and needs no care, and nothing in the
environment can change a file's structure.

Conditions, loops and `set` work as usual. What captures text instead of writing it (macro, call, filter, a `set`
block) is refused, because the tokens would show.

Expressions that use `schema`, `table` or `truck` are not run here: they name things that differ from table to table.
They stay as they are written, for the few settings that take such a template (`config.name_template`).

Every position in the rendered text is traced back to the file as written, through conditions and loops.
"""

from __future__ import annotations

import os
import re
import secrets
import traceback
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError

from trucker.config.name_template import NAMES
from trucker.errors import ConfigError, Place
from trucker.file_errors import reason_and_remedy

_FILE: Final = "<template>"
# Of Unicode's private use area, so that no file has them; the nonce of a rendering excludes the rest.
_OPEN, _CLOSE = "\ue000", "\ue001"
CODE: Final = "TRK103"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A file after its template ran. `text` holds tokens where values go, see `fill`."""

    text: str
    source: str
    _values: tuple[str, ...]
    _token: re.Pattern[str]
    _anchors: tuple[tuple[int, int], ...]
    _later: frozenset[int] = frozenset()

    def fill(self, text: str) -> str:
        """The text with the values in the place of their tokens."""
        return self._token.sub(lambda match: self._values[int(match[1])], text)

    def has_value(self, text: str) -> bool:
        """Whether a template gave a part of it."""
        return self._token.search(text) is not None

    def runs_later(self, text: str) -> str:
        """The first expression in the text that was left as it is written; empty where there is none."""
        numbers = (int(match[1]) for match in self._token.finditer(text))
        return next((self._values[number] for number in numbers if number in self._later), "")

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, in the file as written, of an offset in `text`."""
        index = bisect_right(self._anchors, (offset, len(self.source))) - 1
        at = 0
        if index >= 0:
            rendered, written = self._anchors[index]
            at = min(written + offset - rendered, len(self.source))
        return line_and_column(self.source, at)


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of an offset."""
    head = text[:offset]
    return head.count("\n") + 1, offset - (head.rfind("\n") + 1) + 1


_LATER: Final = "_run_later"


class _Expression(str):
    """An expression of a template that is run later."""

    __slots__ = ()


FAILURES: Final = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
"""What running a template may raise."""


class MissingValueError(ValueError):
    """A variable or file that a template asks for is not there. `needle` is what to look for in its line."""

    def __init__(self, message: str, remedy: str, needle: str) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.needle = needle


class Rendering:
    """Renders one file, with tokens in place of values. `names` is the sentence of errors about unknown names."""

    names = 'templates know env("NAME", "default") and file("path")'
    language, comment = "YAML", "#"
    later_names: frozenset[str] = NAMES

    def __init__(self, source: str, name: str, folder: Path) -> None:
        self.source = source
        self.name = name
        self.folder = folder
        self.values: list[str] = []
        self.later: dict[int, str] = {}
        self.nonce = secrets.token_hex(8)
        self.token = self.pattern("v")
        self.marks = self.pattern("p")
        self.jinja = Environment(undefined=StrictUndefined, keep_trailing_newline=True, finalize=self.keep)
        self.jinja.globals = {"env": self._env, "file": self._file, _LATER: self._run_later}

    def render(self) -> Rendered:
        text = self.jinja.from_string(self.with_marks()).render()
        anchors: list[tuple[int, int]] = []
        removed = 0
        for match in self.marks.finditer(text):
            anchors.append((match.start() - removed, int(match[1])))
            removed += len(match[0])
        later = frozenset(number for number, value in enumerate(self.values) if isinstance(value, _Expression))
        return Rendered(self.marks.sub("", text), self.source, tuple(self.values), self.token, tuple(anchors), later)

    def pattern(self, kind: str) -> re.Pattern[str]:
        return re.compile(f"{_OPEN}{self.nonce}{kind}(\\d+){_CLOSE}")

    def mark(self, kind: str, number: int) -> str:
        return f"{_OPEN}{self.nonce}{kind}{number}{_CLOSE}"

    def with_marks(self) -> str:
        """The source with a mark before the first character of every line of plain text, which holds its offset.

        Blanks get no mark, so that Jinja2's whitespace control works as usual.
        """
        pieces: list[str] = []
        at = 0
        tag: list[str] = []
        expression, names, bound = 0, set[str](), set[str]()
        for line, kind, value in self.jinja.lex(self.source):
            start = self.source.index(value, at)
            tag = [] if kind == "block_begin" else [*tag, value.strip()]
            if kind == "block_end" and _captures(tag):
                raise self._refusal(line, tag)
            pieces.append(self.source[at:start])
            at = start + len(value)
            if kind == "variable_begin":
                expression, names = len(pieces), set()
            elif kind == "name":
                names.add(value)
            elif kind == "block_end" and {"set", "for"} & {*tag}:
                bound |= {*tag}  # a name that the file itself gives a value is its own
            pieces.append(self.marked(kind, value, start))
            if kind == "variable_end" and names & self.later_names and not names & bound:
                pieces[expression:] = [self._left("".join(pieces[expression:]))]
        return "".join([*pieces, self.source[at:]])

    def _left(self, expression: str) -> str:
        """An expression that gives another one as it is written."""
        self.later[len(self.later)] = expression
        return f"{{{{ {_LATER}({len(self.later) - 1}) }}}}"

    def _run_later(self, number: int) -> str:
        return _Expression(self.later[number])

    def _refusal(self, line: int, tag: list[str]) -> ConfigError:
        word = next(filter(None, tag))
        return ConfigError(
            f"the template uses {{% {word} %}} in a way that is not supported",
            place=Place(self.name, line, column_of(self.source, line, word)),
            remedy="use if, for and {% set name = … %}, and write values out",
            code=CODE,
        )

    def marked(self, kind: str, value: str, start: int) -> str:
        """A token of the template with the marks it gets."""
        if kind != "data":
            return value
        return re.sub(
            r"(?:\A|(?<=\n))([^\S\n]*)(?=\S)",
            lambda match: match[1] + self.mark("p", start + match.end()),
            value,
        )

    def keep(self, value: Any) -> str:
        if isinstance(value, _Expression):
            self.values.append(value)
            return self.mark("v", len(self.values) - 1)
        text = "" if value is None else self.marks.sub("", str(value))
        text = self.token.sub(lambda match: self.values[int(match[1])], text)
        self.values.append(text)
        return self.mark("v", len(self.values) - 1)

    def _env(self, name: str, default: str | None = None) -> str:
        value = os.environ.get(name, default)
        if value is None:
            raise MissingValueError(
                f"the environment variable {name} is not set",
                f'set {name}, or give a default: env("{name}", "…")',
                name,
            )
        return value

    def _file(self, path: str) -> str:
        return read_value(self.folder, path)

    def explain(self, error: Exception) -> ConfigError:
        """What one of `FAILURES` means, with its place. No value is quoted."""
        if isinstance(error, ConfigError):
            return error
        line, needle = line_of(error), "{"
        if isinstance(error, TemplateSyntaxError):
            line = error.lineno
            message, remedy = "the template cannot be read", "close every {{ and {%, and quote the text inside them"
        elif isinstance(error, MissingValueError):
            needle, message, remedy = error.needle, str(error), error.remedy
        elif isinstance(error, UndefinedError):
            needle = _undefined_name(str(error))
            message = f"the template uses {needle or 'a name'}, which is not defined"
            remedy = self.names
        else:
            message, remedy = f"the template failed with {type(error).__name__}", "correct the expression"
        remedy += self._about_comment(line)
        place = Place(self.name, line, column_of(self.source, line, needle or "{"))
        return ConfigError(message, place=place, remedy=remedy, code=CODE)

    def _about_comment(self, line: int) -> str:
        if not _text_of(self.source, line).lstrip().startswith(self.comment):
            return ""
        return (
            f"; the line is a {self.language} comment, in which templates run too; write a template comment as {{# "
            "… #}"
        )


def read_value(folder: Path, path: str) -> str:
    """The content of a file that holds one value, stripped of blanks. The path is relative to the project's folder."""
    try:
        file = folder / Path(path).expanduser()
        return file.read_bytes().decode().strip()
    except OSError as error:
        reason, remedy = reason_and_remedy(error, file)
        raise MissingValueError(f'the file "{path}" cannot be read: {reason}', remedy, path) from None
    except RuntimeError:
        raise MissingValueError(
            f'the path "{path}" names the home folder of an account that does not exist',
            "write the full path",
            path,
        ) from None
    except UnicodeDecodeError:
        raise MissingValueError(f'the file "{path}" is not UTF-8 text', "save it as UTF-8", path) from None
    except ValueError:
        raise MissingValueError("the path of a file has an invalid character", "remove the character", "file") from None


def render(source: str, name: str, folder: Path) -> Rendered:
    """Run a file's template. `name` is what errors call the file, `folder` what `file()`'s paths are relative to."""
    rendering = Rendering(source, name, folder)
    try:
        return rendering.render()
    except FAILURES as error:
        raise rendering.explain(error) from None


def _captures(tag: list[str]) -> bool:
    """Whether a tag, as a list of its words, captures the text up to its end tag."""
    words = [word for word in tag if word]
    return words[0] in ("macro", "call", "filter") or (words[0] == "set" and "=" not in words)


def line_of(error: Exception) -> int:
    """The line of the template that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == _FILE), 0)


def column_of(source: str, line: int, needle: str) -> int:
    return _text_of(source, line).find(needle) + 1


def _text_of(source: str, line: int) -> str:
    lines = source.split("\n")
    return lines[line - 1] if 0 < line <= len(lines) else ""


def _undefined_name(message: str) -> str:
    match = re.fullmatch(r"'(\w+)' is undefined", message)
    return match[1] if match else ""
