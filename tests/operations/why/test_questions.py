"""Questions of ``bookspark why``, as people type them."""

from __future__ import annotations

import pytest

from bookspark.errors import ConfigurationError
from bookspark.operations.why.questions import Kind, Question, question_of


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("under-replicated 17", Question(Kind.UNDER_REPLICATED, "17")),
        ("is ledger 17 under replicated?", Question(Kind.UNDER_REPLICATED, "17")),
        ("not closed 17", Question(Kind.NOT_CLOSED, "17")),
        ("is bookie-1 read-only", Question(Kind.READ_ONLY, "bookie-1")),
        ("is bookie-1 read only?", Question(Kind.READ_ONLY, "bookie-1")),
        ("is this disk of bookie-1 not freed", Question(Kind.NOT_FREED, "bookie-1")),
        ("is a behind", Question(Kind.BEHIND, "a")),
        ("is stop behind?", Question(Kind.BEHIND, "stop")),
        ("can't I stop log", Question(Kind.CANT_STOP, "log")),
        ("is orders behind ?", Question(Kind.BEHIND, "orders")),
        ("can't I stop bookie-1", Question(Kind.CANT_STOP, "bookie-1")),
        ("cant-stop bookie-1", Question(Kind.CANT_STOP, "bookie-1")),
    ],
)
def test_spoken_and_short_forms_of_a_question_are_understood(words: str, expected: Question) -> None:
    assert question_of(words.split()) == expected


@pytest.mark.parametrize(
    "words", ["", "bookie-1", "behind", "stop x y", "not closed", "stop a behind", "not closed abc"]
)
def test_unknown_question_is_refused_with_the_list_of_questions(words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bookspark why not closed LEDGER|bookspark ledger list"):
        question_of(words.split())


def test_usage_text_of_every_question_is_understood() -> None:
    for kind in Kind:
        words = kind.value.replace("LEDGER", "17").replace("BOOKIE", "bookie-1").replace("LOG", "orders")
        assert question_of(words.split()).kind is kind
