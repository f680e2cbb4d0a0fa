"""The mailbox in which a blocking call waits for its events."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import pytest

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.client.network.mailbox import Mailbox


def test_deadline_moved_during_a_wait_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair whose target fetches many parts of a run was given up after two minutes although all parts arrived."""
    mailbox, event = Mailbox(20.0), act.AddAnswered("b", 0, 7, Positive())
    waits: list[float] = []

    def get(timeout: float) -> act.Event:
        waits.append(timeout)
        if len(waits) == 1:
            # The wait timed out, but another thread has moved the deadline meanwhile.
            mailbox.allow(60.0)
            raise queue.Empty
        return event

    with monkeypatch.context() as patch:
        patch.setattr(mailbox, "_queue", SimpleNamespace(get=get))
        assert mailbox.take() == event
    assert waits[0] <= 20.0 < waits[1] <= 60.0
    mailbox.allow(0.0)
    assert isinstance(mailbox.take(), act.DeadlinePassed)
