"""Adds to ledgers with an unsure fence: they wait for the ledger's metadata.

Law: as in ``protocol.bookie.bookie_boot``. Such an add is refused unless the metadata, read after the add's arrival, is OPEN with
this bookie in its last fragment. Then the add is decided again, so a fence that arrived meanwhile wins. Adds of one ledger keep
their order and share one read of the metadata, in a thread. The bytes of waiting adds are bounded; beyond the bound the answer is
TOO_MANY_REQUESTS.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from bookspark.protocol.bookie.bookie_boot import METADATA_UNKNOWN
from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Header, Status

FenceCheck = Callable[[int], Positive | Unknown]
"""``check_fence(ledger_id)``: Positive if the ledger's current metadata shows that no fence can be lost
(``bookie_boot.answer_unsure``). It may block, but not for ever."""

_THREADS = 4
_WAITING_BYTES_MAX = 16 << 20


class WaitingAdd(NamedTuple):
    """An undecided add: the arguments of ``Storage.add``."""

    header: Header
    batch: EntryBatch
    done: Done


def no_metadata(ledger_id: int) -> Unknown:
    """The ``FenceCheck`` of a storage without a metadata store."""
    return METADATA_UNKNOWN


class UnsureAdds:
    """The waiting adds of one bookie. Owned by the loop."""

    def __init__(self, check_fence: FenceCheck, decide: Callable[[int, list[WaitingAdd]], None]) -> None:
        """``decide(ledger_id, adds)``: decide the adds again, as the ledger had no fence to lose."""
        self._check_fence = check_fence
        self._decide = decide
        self._waiting: dict[int, list[WaitingAdd]] = {}
        self._waiting_bytes = 0
        self._post: Post | None = None
        self._threads: ThreadPoolExecutor | None = None

    def start(self, post: Post) -> None:
        """Read the metadata from now on. Earlier adds are answered TOO_MANY_REQUESTS."""
        self._post = post

    def wait(self, ledger_id: int, add: WaitingAdd) -> None:
        """Queue ``add`` until the metadata is read. Its ``done``: a status of ``Storage.add``, or of a refusal by
        ``check_fence``."""
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
        """Refuse all waiting adds."""
        self._post = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for ledger_id in list(self._waiting):
            self._answered(ledger_id, METADATA_UNKNOWN)

    def _read(self, ledger_id: int, post: Post) -> None:
        try:
            answer: Positive | Unknown = self._check_fence(ledger_id)
        except Exception as error:
            answer = Unknown(METADATA_UNKNOWN.reason, f"{METADATA_UNKNOWN.detail}: {error}")
        post(partial(self._answered, ledger_id, answer))

    def _answered(self, ledger_id: int, answer: Positive | Unknown) -> None:
        adds = self._waiting.pop(ledger_id, [])
        self._waiting_bytes -= sum(len(add.batch.frame) for add in adds)
        if isinstance(answer, Positive):
            self._decide(ledger_id, adds)
            return
        for add in adds:
            add.done(status_of(answer))
