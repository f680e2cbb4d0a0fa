"""Adds to ledgers whose fence is unsure: they wait for the word of the ledger's metadata, read after they came.

Law: that of ``protocol.bookie_boot``: such an add is refused unless the metadata, read after the boot, is OPEN with this bookie
in its last fragment; then it is decided again, so that a fence that came meanwhile wins. Adds of one ledger keep their order
and share a reading. What waits is bounded; more than that is answered TOO_MANY_REQUESTS. The reading is done in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from bookspark.bookie.commit.commit_thread import Post
from bookspark.bookie.commit.completions import Done
from bookspark.bookie.ledgers.statuses import status_of
from bookspark.protocol.bookie.bookie_boot import METADATA_UNKNOWN
from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Header, Status

MetadataWord = Callable[[int], Positive | Unknown]
"""``word(ledger_id)``: ``bookie_boot.answer_unsure`` of the metadata as it is now. It may block, but not for ever."""

_THREADS = 4
_WAITING_BYTES_MAX = 16 << 20


class WaitingAdd(NamedTuple):
    """An add that is not decided yet."""

    header: Header
    batch: EntryBatch
    done: Done


def nobody_knows(ledger_id: int) -> Unknown:
    """The word where there is no metadata store to ask."""
    return METADATA_UNKNOWN


class UnsureAdds:
    """Owned by the loop."""

    def __init__(self, word: MetadataWord, decide: Callable[[int, list[WaitingAdd]], None]) -> None:
        """``decide(ledger_id, adds)``: the ledger had no fence to lose; decide its adds again."""
        self._word = word
        self._decide = decide
        self._waiting: dict[int, list[WaitingAdd]] = {}
        self._waiting_bytes = 0
        self._post: Post | None = None
        self._threads: ThreadPoolExecutor | None = None

    def start(self, post: Post) -> None:
        self._post = post

    def wait(self, ledger_id: int, add: WaitingAdd) -> None:
        """Have ``add`` decided when the metadata is known."""
        waiting = self._waiting.get(ledger_id)
        if self._post is None or self._waiting_bytes > _WAITING_BYTES_MAX:
            add.done(Status.TOO_MANY_REQUESTS)
            return
        self._waiting_bytes += len(add.batch.frame)
        if waiting is not None:
            waiting.append(add)
            return
        self._waiting[ledger_id] = [add]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookie metadata")
        self._threads.submit(self._read, ledger_id, self._post)

    def close(self) -> None:
        """Nothing that waits is admitted any more."""
        self._post = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for ledger_id in list(self._waiting):
            self._told(ledger_id, METADATA_UNKNOWN)

    def _read(self, ledger_id: int, post: Post) -> None:
        try:
            word: Positive | Unknown = self._word(ledger_id)
        except Exception as error:
            word = Unknown(METADATA_UNKNOWN.reason, f"{METADATA_UNKNOWN.detail}: {error}")
        post(partial(self._told, ledger_id, word))

    def _told(self, ledger_id: int, word: Positive | Unknown) -> None:
        adds = self._waiting.pop(ledger_id, [])
        self._waiting_bytes -= sum(len(add.batch.frame) for add in adds)
        if isinstance(word, Positive):
            self._decide(ledger_id, adds)
            return
        for add in adds:
            add.done(status_of(word))
