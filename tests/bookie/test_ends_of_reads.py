"""However a read ends, its connection hears of that: over stand-ins for the storage and the peer."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from bookspark.bookie.disk.index import location
from bookspark.bookie.holdings.reads import Fetched, Piece, ReadPlan
from bookspark.bookie.serving.entry_reads import EntryReads
from bookspark.wire.header import Header, Kind, Status


class ReadOf:
    """A read of entry 0 of ledger 5 by a peer that counts. ``takes``: has the peer taken all that was sent? ``plan`` and ``run``
    stand for the storage's."""

    def __init__(self, *, takes, plan=None, run=None):
        self.reads = self.parts = 0
        self.statuses = []
        found = ReadPlan([Piece(5, 0, 0, location(1, 0), 8, None)], 0, None)
        storage = SimpleNamespace(
            traffic=SimpleNamespace(reads=SimpleNamespace(observe=lambda seconds: None), entries_out=0, bytes_out=0),
            may_read=lambda ledger_id, key: True,
            ledger=lambda ledger_id: None,
            plan_read=plan or (lambda *arguments, **options: found),
            files=SimpleNamespace(fetch=self._fetch, is_open=lambda number: True),
            holdings=SimpleNamespace(lose_unreadable=lambda pieces, stop: False),
            has_moved=lambda piece: False,
            disk_threads=SimpleNamespace(run=run or self._run),
        )
        self._takes = takes
        self._answers = SimpleNamespace(answer=self._answer)
        self._bookie = SimpleNamespace(storage=storage, incarnation=1)

    @staticmethod
    def _run(where, fetch):
        told = Future()
        told.set_result(fetch())
        return told

    def _fetch(self, pieces, *, cached_only, bytes_max):
        return None if cached_only and not self._takes else Fetched([bytes(8)])

    def _answer(self, header, status, *, value=0):
        self.statuses.append(status)
        self._answered.set()

    def _count(self, reads, parts):
        self.reads += reads
        self.parts += parts

    def _when_it_takes(self, size, begin):
        self._count(0, size)
        begin(size)

    async def ended(self):
        peer = SimpleNamespace(
            peer="here",
            read_begins=lambda: self._count(1, 0),
            read_ends=lambda: self._count(-1, 0),
            takes=lambda size: self._takes,
            when_it_takes=self._when_it_takes,
            part_ends=lambda size: self._count(0, -size),
            flush=lambda: None,
        )
        self._answered = asyncio.Event()
        EntryReads(self._bookie, peer, self._answers).read(Header(Kind.READ, 1, 5, 0, 0))
        await asyncio.wait_for(self._answered.wait(), 60)
        return self.statuses, self.reads, self.parts


def _raises(error):
    def trip(*arguments, **options):
        raise error

    return trip


def _failed(where, fetch):
    told = Future()
    told.set_exception(OSError("on purpose"))
    return told


@pytest.mark.parametrize(
    ("takes", "options", "status"),
    [
        (True, {}, Status.OK),
        (False, {}, Status.OK),
        (True, {"plan": _raises(ValueError("on purpose"))}, Status.IO_ERROR),
        (False, {"run": _raises(ValueError("on purpose"))}, Status.IO_ERROR),
        (False, {"run": _raises(RuntimeError("no thread"))}, Status.TOO_MANY_REQUESTS),
        (False, {"run": _failed}, Status.IO_ERROR),
    ],
    ids=["at once", "in a thread", "no plan", "a defect", "no thread", "a thread that failed"],
)
def test_however_a_read_ends_it_is_answered_once_and_counts_as_under_way_no_more(takes, options, status):
    """A connection has some hundred reads under way at most: with those that ended and were not told it would take no more."""
    assert asyncio.run(ReadOf(takes=takes, **options).ended()) == ([status], 0, 0)
