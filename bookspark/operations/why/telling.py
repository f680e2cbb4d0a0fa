"""Answers to questions about a live cluster, as values, text and documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bookspark.errors import MetadataStoreError
from bookspark.operations.why.answers import (
    why_behind,
    why_cant_stop,
    why_not_closed,
    why_not_freed,
    why_read_only,
    why_under_replicated,
)
from bookspark.operations.why.facts import Answer, Health, Severity
from bookspark.operations.why.gathering import gather, gather_disk, gather_ledger, gather_log
from bookspark.operations.why.questions import Kind, Question
from bookspark.operations.why.troubles import health_of
from bookspark.store.client import BookKeeper


def answer(bookkeeper: BookKeeper, question: Question, password: bytes = b"") -> Answer:
    """The answer to a question. ``password``: of a log.

    Raises NoSuchLedgerError, NoSuchLogError, UnauthorizedAccessError, MetadataStoreError, ReadError if the question's bookie does
    not answer, ConfigurationError for an unknown bookie."""
    facts, name = gather(bookkeeper), question.name
    if facts.zookeeper_problem:
        raise MetadataStoreError(facts.zookeeper_problem)
    match question.kind:
        case Kind.UNDER_REPLICATED:
            return why_under_replicated(facts, bookkeeper.get_ledger_metadata(int(name)))
        case Kind.NOT_CLOSED:
            return why_not_closed(facts, gather_ledger(bookkeeper, int(name)))
        case Kind.READ_ONLY:
            return why_read_only(facts, name)
        case Kind.NOT_FREED:
            return why_not_freed(facts, name, gather_disk(bookkeeper, facts, name))
        case Kind.BEHIND:
            return why_behind(facts, gather_log(bookkeeper, name, password), health_of(facts).troubles)
        case Kind.CANT_STOP:
            return why_cant_stop(facts, name)


def lines(found: Answer) -> Iterator[str]:
    yield found.verdict
    for cause in found.causes:
        yield f"  because {cause}" if found.found else f"  {cause}"
    if found.mend:
        yield f"  so: {found.mend}"
    if found.command:
        yield f"  $ {found.command}"


def health_lines(found: Health) -> Iterator[str]:
    yield found.sentence
    for number, trouble in enumerate(found.troubles, 1):
        first, *rest = lines(trouble)
        yield f"{number}. {trouble.severity.name.lower().replace('_', ' ')}: {first}"
        yield from rest
    if found.command:
        yield f"next: {found.command}"


def document(found: Answer | Health) -> dict[str, Any]:
    """An answer or health for programs: all fields, severities as words, and the next command of a health."""
    if isinstance(found, Health):
        troubles = [document(one) for one in found.troubles]
        return {"sentence": found.sentence, "troubles": troubles, "command": found.command}
    return {**msgspec.to_builtins(found), "severity": Severity(found.severity).name.lower()}
