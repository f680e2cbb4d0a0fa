"""Requests with another master key than the one that the bookie keeps for their ledger: they wait for the ledger's metadata.

Law: as in ``protocol.bookie.key_meeting``. A thread reads the metadata, once for all waiting requests of the same ledger and
key. A refused key of a ledger is refused without a look for some seconds, and the bookie looks a bounded number of times a
second, so strangers can't make it load the metadata store. Number and bytes of waiting requests are bounded; beyond the bounds
the answer is TOO_MANY_REQUESTS. A storage without a metadata store refuses every other key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from bookspark.protocol.bookie.key_meeting import KEYS_UNDECIDED, KeyMeeting
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.wire.header import Status

KeyCheck = Callable[[int, bytes], Positive | Unknown]
"""``check(ledger_id, master_key)``: ``key_meeting.answer_meeting`` by the current metadata. It may block, but not for ever."""

_THREADS = 4
_REST_SECONDS = 0.04
"""Rest of a thread after a look: 100 looks a second at most."""
_WAITING_MAX = 1000
_WAITING_BYTES_MAX = 16 << 20
_REFUSED_SECONDS = 5.0
_REFUSED_MAX = 10_000

log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    again: Callable[[], None]
    done: Done
    size: int


class KeyMeetings:
    """The waiting requests of one bookie. Owned by the loop."""

    def __init__(self, check: KeyCheck | None, control: ControlState, take_over: Callable[[int, bytes], None]) -> None:
        """``take_over(ledger_id, master_key)``: the metadata decided for this key, so all else about the ledger goes."""
        self._check = check
        self._control = control
        self._take_over = take_over
        self._met: dict[tuple[int, bytes], tuple[KeyMeeting, list[_Waiting]]] = {}
        self._stopped: dict[int, list[_Waiting]] = {}
        """Requests, with any key, to a stopped ledger."""
        self._refused: dict[tuple[int, bytes], float] = {}
        """Keys refused by the metadata, each with the end of its time by the monotonic clock, ascending."""
        self._count = self._bytes = 0
        self._post: Post | None = None
        self._threads: ThreadPoolExecutor | None = None

    def start(self, post: Post) -> None:
        """Read the metadata from now on. Earlier requests are answered TOO_MANY_REQUESTS."""
        self._post = post

    def wait(self, ledger_id: int, master_key: bytes, again: Callable[[], None], done: Done, size: int = 0) -> None:
        """Call ``again`` once the ledger has this key or goes on with the kept one; otherwise ``done`` with UNAUTHORIZED, LIMBO
        or TOO_MANY_REQUESTS. ``size``: bytes of the request."""
        if self._check is None:
            done(Status.UNAUTHORIZED)
            return
        now = time.monotonic()
        while self._refused and (oldest := next(iter(self._refused.items())))[1] <= now:
            del self._refused[oldest[0]]
        if (ledger_id, master_key) in self._refused:
            done(Status.UNAUTHORIZED)
            return
        if self._post is None or self._count >= _WAITING_MAX or self._bytes + size > _WAITING_BYTES_MAX:
            done(Status.TOO_MANY_REQUESTS)
            return
        self._count += 1
        self._bytes += size
        one = _Waiting(again, done, size)
        if ledger_id in self._stopped:
            self._stopped[ledger_id].append(one)
        elif (met := self._met.get((ledger_id, master_key))) is not None:
            met[1].append(one)
        else:
            self._met[ledger_id, master_key] = KeyMeeting(), [one]
            self._look(self._check, ledger_id, master_key)

    def close(self) -> None:
        """Refuse all waiting requests."""
        self._post = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for ledger_id, master_key in list(self._met):
            self._end(ledger_id, master_key, KEYS_UNDECIDED)

    def _look(self, check: KeyCheck, ledger_id: int, master_key: bytes) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookie metadata")
        assert self._post is not None
        self._threads.submit(self._read, check, ledger_id, master_key, self._post)

    def _read(self, check: KeyCheck, ledger_id: int, master_key: bytes, post: Post) -> None:
        try:
            answer = check(ledger_id, master_key)
        except Exception as error:
            answer = Unknown(KEYS_UNDECIDED.reason, f"{KEYS_UNDECIDED.detail}: {error}")
        post(partial(self._looked, ledger_id, master_key, answer))
        time.sleep(_REST_SECONDS)

    def _looked(self, ledger_id: int, master_key: bytes, answer: Positive | Unknown) -> None:
        if (ledger_id, master_key) not in self._met or self._post is None:
            return
        meeting, _ = self._met[ledger_id, master_key]
        decision = meeting.looked(answer)
        if decision is None:
            ledger = self._control.ledgers.get(ledger_id)
            if ledger is None or not ledger.keys_meet(master_key):
                # Forgotten, or decided meanwhile.
                self._end(ledger_id, master_key, Positive())
                return
            ledger.stopped = True
            self._stopped.setdefault(ledger_id, [])
            assert self._check is not None
            self._look(self._check, ledger_id, master_key)
            return
        if meeting.stopped and isinstance(decision, Positive):
            log.warning("ledger %d was begun here with another key than the metadata has: those entries go", ledger_id)
            self._take_over(ledger_id, master_key)
        self._end(ledger_id, master_key, decision)

    def _end(self, ledger_id: int, master_key: bytes, decision: Positive | Unknown) -> None:
        meeting, waiting = self._met.pop((ledger_id, master_key))
        behind: list[_Waiting] = []
        if meeting.stopped:
            behind = self._stopped.pop(ledger_id, [])
            if (ledger := self._control.ledgers.get(ledger_id)) is not None:
                ledger.stopped = False
        if decision == UNAUTHORIZED and len(self._refused) < _REFUSED_MAX:
            self._refused[ledger_id, master_key] = time.monotonic() + _REFUSED_SECONDS
        self._count -= len(waiting) + len(behind)
        self._bytes -= sum(one.size for one in waiting) + sum(one.size for one in behind)
        for one in waiting:
            if isinstance(decision, Positive):
                one.again()
            else:
                one.done(status_of(decision))
        for one in behind:
            one.again()
