"""Answers of ``bookspark why`` as HTML.

Law: the words are those of ``why``, and each answer has its command.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookspark.operations.console.pages import command, text
from bookspark.operations.why.facts import Answer, Severity

CLASSES = {Severity.UNDER_WAY: "busy", Severity.TROUBLE: "busy", Severity.DANGER: "bad"}
_WORDS = {Severity.UNDER_WAY: "under way", Severity.TROUBLE: "trouble", Severity.DANGER: "danger"}


def answers(found: Iterable[Answer]) -> str:
    """A list of the answers in their order, or "None."."""
    told = "".join(map(answer, found))
    return f"<ol>{told}</ol>" if told else '<p class="good">None.</p>'


def answer(one: Answer) -> str:
    kind = f'<b class="{CLASSES[one.severity]}">{_WORDS[one.severity]}</b> ' if one.found else ""
    causes = "".join(f"<li>{text(cause)}</li>" for cause in one.causes)
    mend = f"<p>So: {text(one.mend)}</p>" if one.mend else ""
    follow = f"<p>{command(one.command)}</p>" if one.command else ""
    return f"<li>{kind}{text(one.verdict)}<ul>{causes}</ul>{mend}{follow}</li>"
