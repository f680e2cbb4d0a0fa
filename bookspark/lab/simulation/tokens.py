"""What stands for immutable values in frozen forms (``values``).

Law: equal values have the same token as long as anybody keeps it, and it stands for nothing else. A value is forgotten with the
last frozen form that its token is in, since nothing is compared with it then: a run of any length keeps what its worlds keep.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary


class Token:
    """Equal to itself only."""

    __slots__ = ("__weakref__",)


_TOKENS: WeakValueDictionary[Any, Token] = WeakValueDictionary()


def token_of(value: Any) -> Token:
    """What stands for a hashable value."""
    token = _TOKENS.get(value)
    if token is None:
        token = _TOKENS[value] = Token()
    return token


def tokens_kept() -> int:
    """How many values have a token now."""
    return len(_TOKENS)
