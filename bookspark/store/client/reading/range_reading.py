"""Running a ``RangeRead``: requests out, answers in, another replica asked beside one that is late.

Law: the machine decides; this module only has the clock. While the caller uses the entries of one answer, the next request is
under way, and no other. Every wait ends, because each request has its own time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bookspark.errors import ReadError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.client.network.mailbox import Mailbox
from bookspark.store.wire.entry_batch import EntryBatch

_SPARE_SECONDS = 5.0


class Delivered(NamedTuple):
    """Consecutive entries, and a last add confirmed (LAC) that came with them."""

    entries: list[EntryBatch]
    last_add_confirmed: int


def read_range(
    machine: RangeRead,
    requests: LedgerRequests,
    read_metadata: Callable[[], act.MetadataRead | act.MetadataFailed],
    config: ClientConfig,
) -> Iterator[Delivered]:
    """Yield what the machine delivers, until it has finished. Raises the error that the machine fails with.

    ``read_metadata`` reads the ledger's metadata again and waits for it.
    """
    # A request ends by itself within its own time limit. This longer one only guards against a defect.
    longest = config.answer_timeout_seconds + config.connect_timeout_seconds + _SPARE_SECONDS
    delay = config.speculative_read_delay_ms / 1000 or longest
    mailbox = Mailbox(longest)
    actions = machine.start()
    confirmed = NO_ENTRY
    while True:
        for action in actions:
            if isinstance(action, act.SendRead):
                requests.read(action, mailbox.put)
        for action in actions:
            match action:
                case act.Deliver():
                    yield Delivered(action.entries, confirmed)
                case act.ReadMetadata():
                    mailbox.put(read_metadata())
                case act.Fail():
                    raise action.error
                case act.Finish():
                    return
        mailbox.allow(delay)
        event = mailbox.take()
        if isinstance(event, act.DeadlinePassed):
            actions = machine.step(act.ReadIsLate(machine.next_entry_id)) if delay < longest else []
            if actions:
                continue
            mailbox.allow(longest)
            event = mailbox.take()
        if not isinstance(event, act.ReadAnswered | act.MetadataRead | act.MetadataFailed):
            raise ReadError(f"entry {machine.next_entry_id}: no replica answered within {longest:g} s; try again")
        if isinstance(event, act.ReadAnswered) and isinstance(event.following, Positive) and event.following.value:
            confirmed = max(confirmed, event.following.value.last_add_confirmed)
        actions = machine.step(event)
