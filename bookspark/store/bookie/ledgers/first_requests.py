"""Requests that would make a ledger known without an entry: they wait for the ledger's metadata.

Law: as in ``protocol.bookie.first_request``. A thread reads the metadata, once for all waiting requests of the same ledger and
key. The number of waiting requests is bounded; beyond the bound the answer is TOO_MANY_REQUESTS. A storage without a metadata
store grants every request.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.protocol.bookie.first_request import METADATA_UNREADABLE
from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.packed_dict import PackedDict
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.wire.header import Status

FirstRequestCheck = Callable[[int, bytes], Positive | Unknown]
"""``check(ledger_id, master_key)``: ``first_request.answer_first_request`` by the current metadata. It may block, but not for
ever."""

_THREADS = 4
_WAITING_MAX = 1000


class FirstRequests:
    """The waiting requests of one bookie. Owned by the loop."""

    def __init__(self, check: FirstRequestCheck | None, ledgers: PackedDict[BookieLedger]) -> None:
        self._check = check
        self._ledgers = ledgers
        self._waiting: dict[tuple[int, bytes], list[tuple[Callable[[], None], Done]]] = {}
        self._count = 0
        self._post: Post | None = None
        self._threads: ThreadPoolExecutor | None = None

    def start(self, post: Post) -> None:
        """Read the metadata from now on. Earlier requests of unknown ledgers are answered TOO_MANY_REQUESTS."""
        self._post = post

    def when_granted(self, ledger_id: int, master_key: bytes, go_on: Callable[[], None], done: Done) -> None:
        """Call ``go_on`` if the ledger is known, or once the metadata granted the request; otherwise ``done`` with UNAUTHORIZED,
        LIMBO or TOO_MANY_REQUESTS."""
        if self._check is None or self._is_known(ledger_id):
            go_on()
            return
        if self._post is None or self._count >= _WAITING_MAX:
            done(Status.TOO_MANY_REQUESTS)
            return
        self._count += 1
        waiting = self._waiting.setdefault((ledger_id, master_key), [])
        waiting.append((go_on, done))
        if len(waiting) > 1:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookie metadata")
        self._threads.submit(self._read, self._check, ledger_id, master_key, self._post)

    def _is_known(self, ledger_id: int) -> bool:
        ledger = self._ledgers.look(ledger_id)
        return ledger is not None and ledger.master_key is not None

    def close(self) -> None:
        """Refuse all waiting requests."""
        self._post = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for ledger_id, master_key in list(self._waiting):
            self._answered(ledger_id, master_key, METADATA_UNREADABLE)

    def _read(self, check: FirstRequestCheck, ledger_id: int, master_key: bytes, post: Post) -> None:
        try:
            answer = check(ledger_id, master_key)
        except Exception as error:
            answer = Unknown(METADATA_UNREADABLE.reason, f"{METADATA_UNREADABLE.detail}: {error}")
        post(partial(self._answered, ledger_id, master_key, answer))

    def _answered(self, ledger_id: int, master_key: bytes, answer: Positive | Unknown) -> None:
        waiting = self._waiting.pop((ledger_id, master_key), [])
        self._count -= len(waiting)
        for go_on, done in waiting:
            if isinstance(answer, Positive):
                go_on()
            else:
                done(status_of(answer))
