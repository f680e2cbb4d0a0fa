"""Tokens: stand-ins for immutable values in frozen forms (``values``).

Law: equal values have the same token while any frozen form keeps it. The token is freed with the last such form, because
nothing can be compared with it later: a long run keeps only the tokens of its worlds.

A module of its own, which is not compiled: nothing can refer weakly to an object of a compiled class.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary


class Token:
    """Equal to itself only."""

    __slots__ = ("__weakref__",)


_TOKENS: WeakValueDictionary[Any, Token] = WeakValueDictionary()


def token_of(value: Any) -> Token:
    """The token of a hashable value."""
    token = _TOKENS.get(value)
    if token is None:
        token = _TOKENS[value] = Token()
    return token


def tokens_kept() -> int:
    return len(_TOKENS)
