"""Parser of questions: ``why not closed 17``, ``why is bookie-1 read-only``, ``why can't I stop bookie-1``.

Law: a question in the words of its kind has its name where the capital letters stand, also a log named ``a`` or ``stop``. In any
other, filler words are skipped, and the remaining words are the question's kind and one name. An unknown question is refused with
the list of all kinds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from bookspark.errors import ConfigurationError


class Kind(Enum):
    """The questions as they are spoken. A word in capital letters stands for a name."""

    UNDER_REPLICATED = "under-replicated LEDGER"
    NOT_CLOSED = "not closed LEDGER"
    READ_ONLY = "is BOOKIE read-only"
    NOT_FREED = "is disk of BOOKIE not freed"
    BEHIND = "is LOG behind"
    CANT_STOP = "can't I stop BOOKIE"


class Question(NamedTuple):
    """One question. ``name``: a ledger id, a bookie id, or the name of a log, query or group."""

    kind: Kind
    name: str


_FORMS = {kind: re.compile(re.sub("[A-Z]{2,}", r"(\\S+)", kind.value), re.IGNORECASE) for kind in Kind}
_SIGNS = {
    Kind.UNDER_REPLICATED: {"under-replicated", "underreplicated", "under", "replicated"},
    Kind.NOT_CLOSED: {"not-closed", "closed"},
    Kind.READ_ONLY: {"read-only", "readonly", "read", "only"},
    Kind.NOT_FREED: {"not-freed", "freed"},
    Kind.BEHIND: {"behind"},
    Kind.CANT_STOP: {"cant-stop", "stop"},
}
_FILLING = {
    "is",
    "not",
    "the",
    "this",
    "a",
    "i",
    "can't",
    "cant",
    "can",
    "of",
    "on",
    "disk",
    "ledger",
    "bookie",
    "log",
    "query",
}


def question_of(words: Sequence[str]) -> Question:
    """The question in the words. Raises ConfigurationError unless they have one kind and one name."""
    left = [word for word in words if word.strip("?")]
    left = [word.rstrip("?") for word in left]
    exact = [(kind, form[1]) for kind in Kind if (form := _FORMS[kind].fullmatch(" ".join(left)))]
    kinds = [kind for kind, signs in _SIGNS.items() if any(word.lower() in signs for word in left)]
    all_signs = set().union(*(_SIGNS[kind] for kind in kinds))
    names = [word for word in left if word.lower() not in all_signs | _FILLING]
    if not exact and (len(kinds) != 1 or len(names) != 1):
        known = "; ".join(f"bookspark why {kind.value}" for kind in Kind)
        raise ConfigurationError(f"{' '.join(words)!r} is no question that can be answered; ask one of: {known}")
    kind, name = exact[0] if exact else (kinds[0], names[0])
    if kind in (Kind.UNDER_REPLICATED, Kind.NOT_CLOSED) and not re.fullmatch(r"[0-9]{1,19}", name):
        raise ConfigurationError(f"{name!r} is no id of a ledger; `bookspark ledger list` prints them")
    return Question(kind, name)
