"""Bookies' answers to one question: counted by kind, and in words for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bookspark.errors import UnauthorizedAccessError
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason


def count_kinds(answers: Collection[Response]) -> tuple[int, int, int]:
    """(Positive, Negative, Unknown)"""
    kinds = [type(answer) for answer in answers]
    return kinds.count(Positive), kinds.count(Negative), kinds.count(Unknown)


def nothing_came(following: Response) -> Response:
    """The answer for the first entry of an empty read. OK without an entry does not prove that the bookie has it."""
    if isinstance(following, Positive):
        return Unknown(UnknownReason.BAD_REQUEST, "an answer without entries or a reason")
    return following


def is_wrong_password(response: Response) -> bool:
    return isinstance(response, Unknown) and response.reason is UnknownReason.UNAUTHORIZED


def wrong_password(what: str) -> UnauthorizedAccessError:
    return UnauthorizedAccessError(f"{what}: wrong password; use the one that the ledger was created with")


def in_words(answers: Mapping[str, Response]) -> str:
    """Each bookie with its answer, for error messages."""
    return ", ".join(f"{bookie}: {_word(answer)}" for bookie, answer in answers.items()) or "none"


def _word(response: Response) -> str:
    match response:
        case Positive():
            return "ok"
        case Negative():
            return response.reason.value
        case Unknown():
            return str(response)
