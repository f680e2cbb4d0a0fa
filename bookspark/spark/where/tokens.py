"""The words, operators and literals of a predicate's text.

Law: a text that Spark's lexer would cut otherwise, or cut as a setting of the session says, is refused: a backslash in a string,
``"`` (a string or a name), comments. Nothing is guessed.

Source: ``SqlBaseLexer.g4`` of Spark 4.2.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from bookspark.errors import ConfigurationError

TEXT_MAX = 1 << 20
"""The longest text, in characters."""
_SHOWN_MAX = 200
"""How much of a part an error shows, in characters."""
SUPPORTED = (
    "supported are: a column beside a literal with = == <> != < <= > >= <=>, [NOT] IN (literals), [NOT] BETWEEN, [NOT] LIKE, "
    "IS [NOT] NULL, columns of booleans, AND, OR, NOT and parentheses; literals are numbers, 'text', X'0A', DATE'2026-01-31', "
    "TIMESTAMP'2026-01-31 12:00:00Z', TIMESTAMP_NTZ'2026-01-31 12:00:00', TRUE, FALSE and NULL"
)


class Kind(Enum):
    """What a token is."""

    NAME = "a name"
    QUOTED = "a name in backticks"
    STRING = "a string"
    NUMBER = "a number"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """A part of the text."""

    kind: Kind
    text: str
    """The token as it is written; of strings and quoted names without their quotes."""
    at: int
    """Its first character, from 0."""

    @property
    def word(self) -> str:
        """In capitals if it may be a keyword, else empty."""
        return self.text.upper() if self.kind is Kind.NAME else ""


_TOKEN = re.compile(
    r"""
    [ \t\r\n]+
  | (?P<number> (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?:[eE][+-]?[0-9]+)? [A-Za-z0-9_]* )
  | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<quoted> ` (?: [^`] | `` )+ ` )
  | (?P<string> ' (?: [^'\\] | '' )* ' )
  | (?P<sign> <=> | == | <> | != | <= | >= | [<>=!(),.-] )
    """,
    re.VERBOSE,
)


def tokens(text: str) -> list[Token]:
    """The tokens of ``text``, and END behind them. Raises ConfigurationError."""
    if len(text) > TEXT_MAX:
        raise ConfigurationError(f"option where has {len(text)} characters, and {TEXT_MAX} are the most")
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text.startswith("--", at):
            raise unsupported(_what(text, at), at)
        end = match.end()
        group = match.lastgroup
        if group is not None:
            part = match[group]
            if group == "string":
                part = part[1:-1].replace("''", "'")
            elif group == "quoted":
                part = part[1:-1].replace("``", "`")
            found.append(Token(Kind[group.upper()], part, at))
        at = end
    return [*found, Token(Kind.END, "", len(text))]


def _what(text: str, at: int) -> str:
    if text[at] == '"':
        return "\" (a string or a name, as the session is set: write 'text', and `name`)"
    if text[at] == "'":
        return "a string without an end, or with a backslash in it,"
    return repr(text[at : at + 12])


def unsupported(what: str, at: int) -> ConfigurationError:
    """The error for a part of the text, which begins at character ``at``."""
    if len(what) > _SHOWN_MAX:
        what = f"{what[:_SHOWN_MAX]}…"
    return ConfigurationError(f"option where: {what} at character {at + 1} is not supported; {SUPPORTED}")
