"""Reads of the LAC (last add confirmed) of a ledger, and long polls, which wait for it.

Law: a read with FENCE is answered after the fence is durable, and has no Negative. A long poll is answered when the LAC reaches
the entry that it waits for, or when its time is up, whichever comes first; also for a ledger that the bookie does not know yet.

A long poll that waits costs the bookie next to nothing. So it does not count as a request under way, which would keep the adds of
the same connection waiting; as many long polls as requests may wait.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import answer_last_add_confirmed
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.bookie.serving.answers import Answers
from bookspark.store.bookie.serving.entry_reads import EntryReads
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.decisions.seam import decided
from bookspark.store.wire.header import Flag, Header, Status

_FENCE, _ENTRY = int(Flag.FENCE), int(Flag.ENTRY)
_OK = int(Status.OK)
_LONG_POLL_MS_MAX = 300_000


class LacReads:
    """Answers the READ_LAC requests of one connection."""

    def __init__(self, bookie: ServedBookie, answers: Answers, entries: EntryReads) -> None:
        self._storage = bookie.storage
        self._polls_max = bookie.requests_in_flight_max
        self._answers = answers
        self._entries = entries
        self._loop = asyncio.get_running_loop()
        self._timers = bookie.poll_timers
        self._polls: dict[int, tuple[Header, tuple[int, int]]] = {}
        """The long polls that wait, by their numbers in ``storage.long_polls``."""

    def end(self) -> None:
        """The connection has ended: forget its long polls."""
        for poll, (header, timer) in self._polls.items():
            self._timers.remove(timer)
            self._storage.long_polls.remove(header.ledger_id, poll)
        self._polls.clear()

    def read(self, header: Header) -> None:
        """Answer a READ_LAC, now or when its long poll is over."""
        if header.flags & _FENCE:
            self._storage.fence(header.ledger_id, header.master_key, partial(self._answer, header))
        elif not self._storage.may_read(header.ledger_id, header.master_key):
            self._answers.answer(header._replace(last_entry_id=NO_ENTRY), Status.UNAUTHORIZED)
        else:
            ledger = self._storage.ledger(header.ledger_id)
            confirmed = NO_ENTRY if ledger is None else ledger.last_add_confirmed
            if header.limit and confirmed < header.first_entry_id:
                self._poll(header)
            else:
                self._answer(header, _OK)

    def _answer(self, header: Header, status: int) -> None:
        last = self._storage.last_entry_id(header.ledger_id)
        if last is None:
            self._loop.call_soon(self._answer, header, status)
            return
        ledger = self._storage.ledger(header.ledger_id)
        if status == Status.OK:
            status = status_of(
                self._storage.absent(header.ledger_id) if ledger is None else decided(answer_last_add_confirmed, ledger)
            )
        if status == _OK and header.flags & _ENTRY and ledger is not None:
            wanted = header.first_entry_id
            if 0 <= wanted <= ledger.last_add_confirmed:
                self._entries.send_along(header, wanted)
        self._answers.answer(header, status, value=last)

    def _poll(self, header: Header) -> None:
        def finish() -> None:
            _, timer = self._polls.pop(poll)
            self._timers.remove(timer)
            self._storage.long_polls.remove(header.ledger_id, poll)
            self._answers.under_way += 1
            self._answer(header, _OK)

        if len(self._polls) >= self._polls_max:
            self._answers.answer(header, Status.TOO_MANY_REQUESTS)
            return
        self._answers.under_way -= 1
        poll = self._storage.long_polls.add(header.ledger_id, header.first_entry_id, finish)
        self._polls[poll] = (header, self._timers.add(min(header.limit, _LONG_POLL_MS_MAX) / 1000, finish))
