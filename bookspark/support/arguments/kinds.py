"""Kinds of arguments that many calls take, and what an annotation may say besides its type.

Law: a bound has one place. What several functions and options take alike has a name here, so it is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta


@dataclass(frozen=True)
class Rule:
    """For an annotation: what else has to hold. ``words`` say what is taken. ``holds`` returns what is true, or raises ValueError
    with the reason."""

    words: str
    holds: Callable[[Any], object]


class Hidden:
    """For an annotation: the value is a secret, or a user's data, and no error shows it."""


Seconds = Annotated[float, Meta(ge=0.001, le=1e6)]
"""A time to wait, in seconds. A longer one would not fit the milliseconds that the system counts in."""
SecondsOrNone = Annotated[float, Meta(ge=0, le=1e6)]
"""A time in seconds, or 0: the meaning of 0 stands at the option."""
WaitSeconds = Annotated[float, Meta(ge=0, le=1e9)]
"""How long a call may wait, in seconds. 0: it does not wait."""
IntervalSeconds = Annotated[float, Meta(ge=0.001, le=1e9)]
"""The time between two runs of something that is repeated, in seconds."""
AtLeastOne = Annotated[int, Meta(ge=1)]
"""A number of things, or of bytes."""
BytesOrNone = Annotated[int, Meta(ge=0)]
"""A number of bytes, or 0: the meaning of 0 stands at the option."""
EntryId = Annotated[int, Meta(ge=0)]
"""The id of an entry."""
LastEntryId = Annotated[int, Meta(ge=-1)]
"""The id of a last entry; −1: there is none."""
Name = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""
Password = Annotated[bytes, Hidden]
"""The password of a ledger or log; empty: it has none."""
PasswordText = Annotated[str, Hidden]
"""The same as text."""
Payload = Annotated[bytes, Hidden]
"""What an entry holds."""
