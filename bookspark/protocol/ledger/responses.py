"""The three classes of answers, as types (BP-46, "A note on Response Codes").

Law: *Positive*, explicit *Negative* and *Unknown* are different types, and nothing turns an Unknown into a Negative. Only a
Negative may shorten a ledger, so a function that decides about absence takes a ``Negative`` and nothing else. ``FENCED`` and
``UNAUTHORIZED`` are kinds of Unknown: they give a bookie's reason to refuse, and prove nothing about its entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class NegativeReason(Enum):
    """The two explicit negatives of BP-46."""

    NO_SUCH_ENTRY = "no such entry"
    NO_SUCH_LEDGER = "no such ledger"


class UnknownReason(Enum):
    TIMEOUT = "no answer in time"
    UNREACHABLE = "not reachable"
    IO_ERROR = "I/O error"
    LIMBO = "in limbo after a lossy boot"
    LOST = "lost its copy of the entry"
    TOO_MANY_REQUESTS = "too many requests"
    BAD_REQUEST = "request refused as malformed"
    DIGEST_MISMATCH = "digest mismatch"
    CONFLICT = "holds other content for the entry"
    READ_ONLY = "read-only"
    FENCED = "fenced"
    UNAUTHORIZED = "wrong password"


@dataclass(frozen=True, slots=True)
class Positive:
    """OK. ``value``: the requested value (entries, or a last add confirmed), or None."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Negative:
    """The bookie states that it has no such entry or ledger."""

    reason: NegativeReason = NegativeReason.NO_SUCH_ENTRY


@dataclass(frozen=True, slots=True)
class Unknown:
    """Any other answer: it says nothing about the bookie's entries. ``detail`` is for people."""

    reason: UnknownReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


Response = Positive | Negative | Unknown

FINAL_REASONS = frozenset((UnknownReason.FENCED, UnknownReason.UNAUTHORIZED, UnknownReason.UNREACHABLE))
"""Reasons against a second request: FENCED and UNAUTHORIZED never change; UNREACHABLE needs a new connection first."""

FENCED = Unknown(UnknownReason.FENCED)
UNAUTHORIZED = Unknown(UnknownReason.UNAUTHORIZED)
