"""Where a blocking call waits for its events."""

from __future__ import annotations

import threading
import time

from bookspark.client.network.mailbox import Mailbox
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive


def test_a_deadline_that_is_moved_while_somebody_waits_holds() -> None:
    """A repair whose target fetches many parts of a run was given up after two minutes, although each of them came."""
    mailbox, event = Mailbox(0.1), act.AddAnswered("b", 0, 7, Positive())
    began = time.monotonic()
    moved = threading.Timer(0.05, mailbox.allow, (60.0,))
    told = threading.Timer(0.3, mailbox.put, (event,))
    moved.start()
    told.start()
    assert mailbox.take() == event and time.monotonic() - began < 30
    mailbox.allow(0.0)
    assert isinstance(mailbox.take(), act.DeadlinePassed)
