"""Splits SQL into tokens: enough to find the end of a statement and the names in a text.

Handles strings `'…'` and `E'…'`, names `"…"` and `` `…` ``, dollar quotes, `--` and nested `/* */` comments. Spark's
strings may have backslashes and double quotes, PostgreSQL's and DuckDB's not. A quote or comment that is not closed
extends to the end of the text: the database reports it better.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

STRING: Final = "string"
NAME: Final = "name"
QUOTED: Final = "quoted"
COMMENT: Final = "comment"
END: Final = "end"
BLANK: Final = "blank"
OTHER: Final = "other"

_STANDARD: Final = re.compile(
    r"""
    (?P<string> [eE]'(?:[^'\\]|\\.|'')*(?:'|\Z) | '(?:[^']|'')*(?:'|\Z)
              | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z) )
  | (?P<quoted> "(?:[^"]|"")*(?:"|\Z) | `(?:[^`]|``)*` )
  | (?P<name>   [^\W\d][\w$]* )
  | (?P<number> \d[\w.]* )
  | (?P<comment> --[^\n]* | /\* )
  | (?P<end>    ; )
  | (?P<blank>  \s+ )
  | (?P<other>  . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SPARK: Final = re.compile(
    r"""
    (?P<string> [rR]'[^']*(?:'|\Z) | [rR]"[^"]*(?:"|\Z) | '(?:[^'\\]|\\.|'')*(?:'|\Z) | "(?:[^"\\]|\\.|"")*(?:"|\Z) )
  | (?P<quoted> `(?:[^`]|``)*(?:`|\Z) )
  | (?P<name>   [^\W\d][\w$]* )
  | (?P<number> \d[\w.]* )
  | (?P<comment> --[^\n]* | /\* )
  | (?P<end>    ; )
  | (?P<blank>  \s+ )
  | (?P<other>  . )
    """,
    re.VERBOSE | re.DOTALL,
)
_NESTING: Final = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def is_name(self) -> bool:
        return self.kind in (NAME, QUOTED)

    @property
    def name(self) -> str:
        """The name it is, as PostgreSQL reads it: in small letters unless quoted."""
        if self.kind != QUOTED:
            return self.text.lower()
        quote = self.text[0]
        return self.text[1:].removesuffix(quote).replace(quote * 2, quote)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. `offset` is where its text begins in the whole."""

    text: str
    offset: int


def tokens(text: str, *, spark: bool = False) -> Iterator[Token]:
    """The whole text, cut into tokens."""
    pattern = _SPARK if spark else _STANDARD
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        assert match is not None
        kind = match.lastgroup or OTHER
        if kind == "tag":
            kind = STRING
        end = _comment_end(text, at) if match[0] == "/*" else match.end()
        yield Token(kind, at, text[at:end])
        at = end


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for match in _NESTING.finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)


def split_statements(text: str, *, spark: bool = False) -> list[Statement]:
    """The statements of a text, in order, each without its `;` and the blanks and comments around it."""
    statements: list[Statement] = []
    first = last = -1
    for token in [*tokens(text, spark=spark), Token(END, len(text), "")]:
        if token.kind == END:
            if first >= 0:
                statements.append(Statement(text[first:last], first))
            first = last = -1
        elif token.kind not in (BLANK, COMMENT):
            first = token.start if first < 0 else first
            last = token.end
    return statements
