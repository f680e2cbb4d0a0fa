"""Digest types of ledgers, read from the metadata for BookKeeper's clients.

Law: a ledger's digest type is in its metadata and never changes, so it is read once, and kept while the bookie holds the ledger:
a deleted ledger's id may be given out again. A thread reads it. Adds of a ledger wait for it in their order, and their bytes are
bounded; beyond the bound the answer is TOO_MANY_REQUESTS. After a failed read the next add reads again.

BookKeeper's clients don't note ids of their own choice. So the bookie notes them, before the first add: a new bookie's first mark
and garbage collection rely on the highest id of any ledger.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bookspark.errors import MetadataStoreError, NoSuchLedgerError, UnreadableRecordError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.header import Status

ReadDigestType = Callable[[int], DigestType]
"""``read(ledger_id)``. It may block, but not for ever. Raises NoSuchLedgerError, MetadataStoreError, UnreadableRecordError."""
Told = Callable[[DigestType | None, Status], None]
"""``told(digest_type, status)``: the type, or None and the reason."""

_THREADS = 2
_KEPT_MAX = 1 << 16
_WAITING_BYTES_MAX = 32 << 20
_ADD_BYTES = 1024
"""Memory of a waiting add, besides its body."""

log = logging.getLogger(__name__)


def read_and_note(store: MetadataStore) -> ReadDigestType:
    """A reader of digest types from ``store`` that notes the ledgers' ids there."""
    highest = -1

    def read(ledger_id: int) -> DigestType:
        nonlocal highest
        digest_type = store.read_ledger(ledger_id).value.digest_type
        if ledger_id > highest:
            found = store.highest_ledger_id()
            if ledger_id > found:
                store.note_given_id(ledger_id)
            highest = max(highest, found, ledger_id)
        return digest_type

    return read


class DigestTypes:
    """The known digest types of one bookie. Owned by the loop."""

    def __init__(self, read: ReadDigestType, post: Post) -> None:
        self._read = read
        self._post = post
        self._known: OrderedDict[int, DigestType] = OrderedDict()
        self._waiting: dict[int, list[tuple[Told, int]]] = {}
        self._waiting_bytes = 0
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def when_known(self, ledger_id: int, is_held: bool, size: int, told: Told) -> None:
        """Call ``told`` with the digest type of a ledger, now or later. ``is_held``: is the ledger held here? ``size``: of the
        waiting add, in bytes."""
        found = self._known.get(ledger_id)
        if found is not None and is_held and ledger_id not in self._waiting:
            told(found, Status.OK)
            return
        size += _ADD_BYTES
        if self._closed:
            told(None, Status.READ_ONLY)
            return
        if self._waiting_bytes + size > _WAITING_BYTES_MAX:
            told(None, Status.TOO_MANY_REQUESTS)
            return
        self._waiting_bytes += size
        waiting = self._waiting.setdefault(ledger_id, [])
        waiting.append((told, size))
        if len(waiting) > 1:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookkeeper metadata")
        self._threads.submit(self._ask, ledger_id)

    def close(self) -> None:
        """Refuse all waiting adds. After READ_ONLY a client turns to another bookie; after any other answer it would avoid this
        bookie for half an hour after its restart (quarantine)."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for ledger_id in list(self._waiting):
            self._tell(ledger_id, None, Status.READ_ONLY)

    def _ask(self, ledger_id: int) -> None:
        found, status = None, Status.OK
        try:
            found = self._read(ledger_id)
        except NoSuchLedgerError:
            status = Status.NO_SUCH_LEDGER
        except (MetadataStoreError, UnreadableRecordError) as error:
            log.warning("the digest type of ledger %d is not known: %s", ledger_id, error)
            status = Status.IO_ERROR
        except Exception:
            log.exception("asking for the digest type of ledger %d failed", ledger_id)
            status = Status.IO_ERROR
        if not self._closed:
            self._post(partial(self._tell, ledger_id, found, status))

    def _tell(self, ledger_id: int, found: DigestType | None, status: Status) -> None:
        if found is not None:
            self._known[ledger_id] = found
            if len(self._known) > _KEPT_MAX:
                self._known.popitem(last=False)
        for told, size in self._waiting.pop(ledger_id, []):
            self._waiting_bytes -= size
            told(found, status)
