"""Copies at a bookie: a lost copy differs from a copy that can't be read at the moment."""

from __future__ import annotations

from typing import Any

import pytest

from bookspark.errors import ReadError
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.client.inspection import copies
from bookspark.store.client.inspection.copies import Unreadable, copies_on
from bookspark.store.client.network.connections import Answer
from bookspark.store.wire.header import Header, Kind

LOST, FAILED = Unknown(UnknownReason.LOST), Unknown(UnknownReason.IO_ERROR)
CONTEXT: Any = None


def read(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, Any]) -> list[Any]:
    """Read copies; ``answers``: (last entry id covered by the answer, response about the next entry)."""
    waiting = list(answers)

    def ask(context: Any, bookie_id: str, kind: Kind, *, ledger_id: int, first_entry_id: int, **fields: int) -> Answer:
        end, response = waiting.pop(0)
        return Answer(response, Header(kind, 1, ledger_id, first_entry_id, end))

    monkeypatch.setattr(copies, "ask", ask)
    found = list(copies_on(CONTEXT, "bookie-1", 5, [(0, 9), (20, 29), (40, 49)]))
    assert not waiting
    return found


def test_copy_lost_by_its_bookie_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, (-1, LOST), (24, LOST), (49, Positive())) == [Unreadable(0, 9), Unreadable(25, 29)]


def test_temporary_read_failure_is_not_reported_as_a_damaged_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit reported divergent and damaged copies because a bookie had run out of file descriptors."""
    assert read(monkeypatch, (19, FAILED), (22, FAILED), (22, FAILED), (49, Positive())) == []
    each_brings_one = [(end, FAILED) for end in range(19, 25)]
    assert read(monkeypatch, *each_brings_one, (49, Positive())) == []
    with pytest.raises(ReadError, match=r"bookie-1 could not read entry 23 of ledger 5 now.*try again"):
        read(monkeypatch, (19, FAILED), *[(22, FAILED)] * 3)


def test_answers_about_entries_between_the_requested_ranges_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, (9, FAILED), (39, Positive()), (49, Positive())) == []
    assert read(monkeypatch, (12, FAILED), (30, LOST), (49, Positive())) == []
