"""Unrequested answers: to another request, of another bookie, for other entries, or repeated.

Law: a machine refuses such an answer (IllegalEventError) or ignores it, and is unchanged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    ChooseBookies,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    ReadMetadata,
    SendAdd,
    SendRead,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import IllegalEventError
from tests.histories.repair_schedules.truth import holds

Asked = Sequence[tuple[Any, Any]]
"""Outstanding requests, each with its bookie."""


def stray(
    random: Random, step: Callable[[Any], list[Any]], asked: Asked, record: LedgerMetadata, names: Collection[str]
) -> None:
    """Give the machine with the method ``step`` one answer that matches no request in ``asked``."""
    strays = list(_strays(random, asked, record, list(names)))
    event, before = random.choice(strays), pickle.dumps(step.__self__)  # type: ignore[attr-defined]
    try:
        actions = step(event)
    except IllegalEventError:
        actions = []
    holds(not actions, "a repair acts on an answer that it did not ask for")
    holds(
        pickle.dumps(step.__self__) == before,  # type: ignore[attr-defined]
        "an answer that was not asked for changed a repair",
    )


def _strays(random: Random, asked: Asked, record: LedgerMetadata, names: Sequence[str]) -> Iterator[Any]:
    silent, somebody, entry_id = Unknown(UnknownReason.TIMEOUT), random.choice(names), random.randrange(500)
    reads = {(one.bookie, one.first) for one, _ in asked if isinstance(one, SendRead)}
    adds = {(target, one.first, one.last) for one, target in asked if isinstance(one, SendAdd)}
    if (somebody, entry_id) not in reads:
        yield ReadAnswered(somebody, entry_id, entry_id - 1, silent)
    if (somebody, entry_id, entry_id) not in adds:
        yield AddAnswered(somebody, entry_id, entry_id, random.choice((silent, Positive())))
    if not any(isinstance(one, ReadMetadata | WriteMetadata) for one, _ in asked):
        yield MetadataRead(record, 99)
    if not any(isinstance(one, WriteMetadata) for one, _ in asked):
        yield from (MetadataWritten(99), MetadataConflict())
    if not any(isinstance(one, ChooseBookies) for one, _ in asked):
        yield BookiesChosen((somebody,))
    for one, target in asked:
        match one:
            case SendRead(bookie, first, last):
                ids = list(range(first, last + 1))
                yield ReadAnswered(bookie, first, first - 2, silent)
                yield ReadAnswered(bookie, first, last + 1, Positive(), [*ids, last + 1])
                yield ReadAnswered(bookie, first, first, Positive(), [first], ahead=((first, [first]),))
                yield ReadAnswered(bookie, first, first, Positive(), [first], ahead=((last + 1, [last + 1]),))
                if (somebody, first) not in reads:
                    yield ReadAnswered(somebody, first, last, Positive(), ids)
            case SendAdd(_, first, last):
                wrong = [(somebody, first, last), (target, first, last + 1), (target, first - 1, last)]
                yield from (AddAnswered(*each, Positive()) for each in wrong if each not in adds)
            case ChooseBookies(ensemble, replaced):
                free = [name for name in names if name not in ensemble]
                yield BookiesChosen(tuple(free[: len(replaced) - 1]))
                yield BookiesChosen(tuple(free[: len(replaced) + 1]) if len(free) > len(replaced) else ())
                yield BookiesChosen((*free[: len(replaced) - 1], random.choice(ensemble)))
            case ReadMetadata():
                yield MetadataRead(replace(record, ledger_id=record.ledger_id + 1), 99)
