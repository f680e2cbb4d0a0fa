"""Parses the text of a predicate: a subset of Spark SQL.

Law: an accepted text means the same as in Spark's parser. Texts with another meaning there, or outside of the subset, are refused
with the part and its place.

::

    predicate  = both {OR both}
    both       = one {AND one}
    one        = {NOT | !} test
    test       = operand
               | operand (= | == | <> | != | < | <= | > | >= | <=>) operand
               | operand [NOT] IN "(" literal {"," literal} ")"
               | operand [NOT] BETWEEN literal AND literal
               | operand [NOT] LIKE literal
               | operand IS [NOT] NULL
    operand    = column | literal | "(" predicate ")"
    literal    = [-] number | 'text' | X'hex' | DATE'…' | TIMESTAMP'…' | TIMESTAMP_LTZ'…' | TIMESTAMP_NTZ'…' | TRUE | FALSE | NULL

Source: ``SqlBaseParser.g4`` of Spark 4.2 (booleanExpression, predicate, comparison).
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import Enum
from typing import NamedTuple

from bookspark.errors import ConfigurationError

# -- Tokens: the words, operators and literals of a predicate's text
#
# Law: a text that Spark's lexer would split in another way, or by a setting of the session, is refused: a backslash in a string,
# ``"`` (a string or a name), comments. There are no guesses.
#
# Source: ``SqlBaseLexer.g4`` of Spark 4.2.


TEXT_MAX = 1 << 20
"""Longest text, in characters."""
_SHOWN_MAX = 200
SUPPORTED = (
    "supported are: a column beside a literal with = == <> != < <= > >= <=>, [NOT] IN (literals), [NOT] BETWEEN, [NOT] LIKE, "
    "IS [NOT] NULL, columns of booleans, AND, OR, NOT and parentheses; literals are numbers, 'text', X'0A', DATE'2026-01-31', "
    "TIMESTAMP'2026-01-31 12:00:00Z', TIMESTAMP_NTZ'2026-01-31 12:00:00', TRUE, FALSE and NULL"
)


class Kind(Enum):
    NAME = "a name"
    QUOTED = "a name in backticks"
    STRING = "a string"
    NUMBER = "a number"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    kind: Kind
    text: str
    """The token as written; strings and quoted names without their quotes."""
    at: int
    """Position of the token's first character, from 0."""

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
    """The tokens of ``text``, with END behind them. Raises ConfigurationError."""
    if len(text) > TEXT_MAX:
        raise ConfigurationError(f"option where has {len(text)} characters, and {TEXT_MAX} are the most")
    result, at = [], 0
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
            result.append(Token(Kind[group.upper()], part, at))
        at = end
    return [*result, Token(Kind.END, "", len(text))]


def _what(text: str, at: int) -> str:
    if text[at] == '"':
        return "\" (a string or a name, as the session is set: write 'text', and `name`)"
    if text[at] == "'":
        return "a string without an end, or with a backslash in it,"
    return repr(text[at : at + 12])


def unsupported(what: str, at: int) -> ConfigurationError:
    """The error for a part of the text that begins at character ``at``."""
    if len(what) > _SHOWN_MAX:
        what = f"{what[:_SHOWN_MAX]}…"
    return ConfigurationError(f"option where: {what} at character {at + 1} is not supported; {SUPPORTED}")


# -- The parser


DEPTH_MAX = 100
"""Limit of nested parentheses and NOTs."""
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!=", "<=>": "<=>"}
_SAME = {"==": "=", "<>": "!="}
_KEYWORDS = ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE")
_TYPED = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "X")
_NUMBER = re.compile(r"(?P<digits>[0-9.]+)(?P<exponent>[eE][+-]?[0-9]+)?(?P<suffix>BD|[DLSY])?", re.IGNORECASE)
_INTEGERS = {"L": 1 << 63, "S": 1 << 15, "Y": 1 << 7}


class Of(Enum):
    EXACT = "a whole or decimal number"
    DOUBLE = "a double"
    STRING = "a string"
    BINARY = "bytes"
    DATE = "a date"
    TIMESTAMP = "a timestamp"
    TIMESTAMP_NTZ = "a timestamp without a time zone"
    BOOLEAN = "a boolean"
    NULL = "NULL"


class Literal(NamedTuple):
    """A literal as written: ``value`` is a Decimal, float, str (strings and times), bytes, bool or None."""

    of: Of
    value: Decimal | float | str | bytes | bool | None
    at: int


class Column(NamedTuple):
    name: str
    at: int


class Comparison(NamedTuple):
    """``column op literal``; ``op``: = != < <= > >= <=>"""

    column: Column
    op: str
    literal: Literal


class InList(NamedTuple):
    column: Column
    literals: tuple[Literal, ...]


class Like(NamedTuple):
    column: Column
    pattern: Literal


class IsNull(NamedTuple):
    column: Column


class Not(NamedTuple):
    part: Node


class And(NamedTuple):
    parts: tuple[Node, ...]


class Or(NamedTuple):
    parts: tuple[Node, ...]


Node = Comparison | InList | Like | IsNull | Not | And | Or | Column | Literal
"""A predicate. A Column or a Literal alone stands for its boolean."""


def parsed(text: str) -> Node:
    """The predicate of ``text``. Raises ConfigurationError."""
    return _Parser(tokens(text)).whole()


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens, self._next, self._depth = found, 0, 0

    def whole(self) -> Node:
        node = self._any()
        if self._token.kind is not Kind.END:
            raise self._refused()
        return node

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    @property
    def _following(self) -> Token:
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _takes(self, *words: str) -> bool:
        """Take the next token if it is one of these keywords or signs."""
        token = self._token
        if token.word in words or (token.kind is Kind.SIGN and token.text in words):
            self._next += 1
            return True
        return False

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            raise self._refused()

    def _refused(self) -> Exception:
        token = self._token
        return unsupported("the end of the text" if token.kind is Kind.END else repr(token.text), token.at)

    def _any(self) -> Node:
        parts = [self._all()]
        while self._takes("OR"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _all(self) -> Node:
        parts = [self._one()]
        while self._takes("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self) -> Node:
        if not self._takes("NOT", "!"):
            return self._test()
        with_it = self._deeper()
        part = self._one()
        self._depth = with_it - 1
        return Not(part)

    def _deeper(self) -> int:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise unsupported(f"nesting of more than {DEPTH_MAX} parentheses and NOTs", self._token.at)
        return self._depth

    def _test(self) -> Node:
        left = self._operand()
        token = self._token
        if token.kind is Kind.SIGN and (op := _SAME.get(token.text, token.text)) in _FLIPPED:
            self._take()
            right = self._operand()
            match left, right:
                case Column(), Literal():
                    return Comparison(left, op, right)
                case Literal(), Column():
                    return Comparison(right, _FLIPPED[op], left)
            raise unsupported(f"{token.text} between anything but a column and a literal", token.at)
        negated = self._token.word == "NOT" and self._following.word in ("IN", "BETWEEN", "LIKE")
        if negated:
            self._take()
        if self._token.word in ("IN", "BETWEEN", "LIKE", "IS"):
            node = self._behind(left)
            return Not(node) if negated else node
        return left

    def _behind(self, left: Node) -> Node:
        """The test on ``left`` that begins with the next word."""
        token = self._take()
        if not isinstance(left, Column):
            raise unsupported(f"{token.word} behind anything but a column", token.at)
        if token.word == "IN":
            self._needs("(")
            literals = [self._literal()]
            while self._takes(","):
                literals.append(self._literal())
            self._needs(")")
            return InList(left, tuple(literals))
        if token.word == "BETWEEN":
            low = self._literal()
            self._needs("AND")
            return And((Comparison(left, ">=", low), Comparison(left, "<=", self._literal())))
        if token.word == "LIKE":
            return Like(left, self._literal())
        negated = self._takes("NOT")
        self._needs("NULL")
        return Not(IsNull(left)) if negated else IsNull(left)

    def _operand(self) -> Node:
        if self._takes("("):
            before = self._deeper()
            node = self._any()
            self._depth = before - 1
            self._needs(")")
            return node
        token = self._token
        is_name = token.kind is Kind.QUOTED or (token.kind is Kind.NAME and token.word not in _KEYWORDS)
        if not is_name or (token.word in _TYPED and self._following.kind is Kind.STRING):
            return self._literal()
        self._take()
        if self._token.text == "(" and self._token.kind is Kind.SIGN:
            raise unsupported(f"the function {token.text!r}", token.at)
        if self._token.text == "." and self._token.kind is Kind.SIGN:
            raise unsupported(f"a field of {token.text!r}", token.at)
        return Column(token.text, token.at)

    def _literal(self) -> Literal:
        minus = self._takes("-")
        token = self._token
        if token.kind is Kind.NUMBER:
            self._take()
            return _number(token, minus)
        if minus:
            raise self._refused()
        if token.kind is Kind.STRING:
            self._take()
            return Literal(Of.STRING, token.text, token.at)
        if token.word in ("TRUE", "FALSE"):
            self._take()
            return Literal(Of.BOOLEAN, token.word == "TRUE", token.at)
        if token.word == "NULL":
            self._take()
            return Literal(Of.NULL, None, token.at)
        if token.word in _TYPED and self._following.kind is Kind.STRING:
            self._take()
            return _typed(token, self._take().text)
        raise self._refused()


def _number(token: Token, minus: bool) -> Literal:
    match = _NUMBER.fullmatch(token.text)
    if match is None:
        raise unsupported(f"the number {token.text}", token.at)
    suffix = (match["suffix"] or "").upper()
    sign = "-" if minus else ""
    digits = sign + match["digits"] + (match["exponent"] or "")
    if suffix == "D" or match["exponent"]:
        value = float(digits)
        if suffix not in ("", "D") or value in (float("inf"), float("-inf")):
            raise unsupported(f"the number {token.text}", token.at)
        return Literal(Of.DOUBLE, value, token.at)
    exact = Decimal(digits)
    limit = _INTEGERS.get(suffix)
    if limit is not None and ("." in digits or not -limit <= exact < limit):
        raise unsupported(f"the number {token.text}", token.at)
    _, number_digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    if max(len(number_digits), -exponent, len(number_digits) + exponent) > 38:
        raise unsupported(f"the number {token.text}, of more than 38 digits,", token.at)
    return Literal(Of.EXACT, exact, token.at)


def _typed(token: Token, text: str) -> Literal:
    if token.word == "X":
        if len(text) % 2 or not re.fullmatch("[0-9A-Fa-f]*", text):
            raise unsupported(f"X'{text}' (two hexadecimal digits a byte)", token.at)
        return Literal(Of.BINARY, bytes.fromhex(text), token.at)
    of = {"DATE": Of.DATE, "TIMESTAMP_NTZ": Of.TIMESTAMP_NTZ}.get(token.word, Of.TIMESTAMP)
    return Literal(of, text, token.at)
