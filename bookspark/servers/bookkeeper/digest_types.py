"""Digest types of ledgers, read from the metadata for BookKeeper's clients.

Law: a ledger's digest type is in its metadata and never changes, so it is read once, and kept while the bookie holds the ledger:
a deleted ledger's id may be given out again. Requests wait for it as for other metadata (``metadata_looks``): adds of a ledger in
their order, peers in turn, as memory of their peer, no longer than its connection. After a failed read the next add reads again.

BookKeeper's clients don't note ids of their own choice. So the bookie notes them, before the first add: a new bookie's first mark
and garbage collection rely on the highest id of any ledger.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bookspark.errors import MetadataStoreError, NoSuchLedgerError, UnreadableRecordError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.bookie.ledgers.metadata_looks import Answer, Asker, MetadataLooks, Question, Waiting
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.header import Status

ReadDigestType = Callable[[int], DigestType]
"""``read(ledger_id)``. It may block, but not for ever. Raises NoSuchLedgerError, MetadataStoreError, UnreadableRecordError."""
Told = Callable[[DigestType | None, int], None]
"""``told(digest_type, status)``: the type, or None and the reason."""

_KEPT_MAX = 1 << 16
_UNREADABLE = Unknown(UnknownReason.IO_ERROR, "the ledger's digest type can't be read")
_NO_SUCH_LEDGER = Unknown(UnknownReason.IO_ERROR, "no such ledger")
"""An Unknown, because it says nothing about the bookie's entries."""

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


class _TypeOf(NamedTuple):
    """Subject of a look at the metadata."""

    ledger_id: int


class DigestTypes:
    """The known digest types of one bookie. Owned by the loop."""

    def __init__(self, read: ReadDigestType, looks: MetadataLooks) -> None:
        self._read = read
        self._looks = looks
        self._known: OrderedDict[int, DigestType] = OrderedDict()
        self._closed = False

    def when_known(self, ledger_id: int, is_held: bool, size: int, asker: Asker, told: Told) -> None:
        """Call ``told`` with the digest type of a ledger, now or later, unless the asker's connection ends before. ``is_held``:
        is the ledger held here? ``size``: of the waiting add, in bytes."""
        about = _TypeOf(ledger_id)
        found = self._known.get(ledger_id)
        if found is not None and is_held and not self._looks.is_asked(about):
            told(found, Status.OK)
        elif self._closed:
            told(None, Status.READ_ONLY)
        else:
            question = Question(about, partial(self._look, ledger_id), _UNREADABLE, partial(self._answered, ledger_id))
            self._looks.asker = asker
            self._looks.ask(question, lambda: told(self._known[ledger_id], Status.OK), partial(told, None), size)

    def close(self) -> None:
        """Refuse all waiting adds. After READ_ONLY a client turns to another bookie; after any other answer it would avoid this
        bookie for half an hour after its restart (quarantine)."""
        self._closed = True
        self._looks.end(_TypeOf)

    def _look(self, ledger_id: int) -> Answer:
        try:
            return Positive(self._read(ledger_id))
        except NoSuchLedgerError:
            return _NO_SUCH_LEDGER
        except (MetadataStoreError, UnreadableRecordError) as error:
            log.warning("the digest type of ledger %d is not known: %s", ledger_id, error)
        except Exception:
            log.exception("asking for the digest type of ledger %d failed", ledger_id)
        return _UNREADABLE

    def _answered(self, ledger_id: int, answer: Answer, waiting: Sequence[Waiting]) -> None:
        if isinstance(answer, Positive):
            self._known[ledger_id] = answer.value
            if len(self._known) > _KEPT_MAX:
                self._known.popitem(last=False)
        for one in waiting:
            if self._closed:
                one.done(Status.READ_ONLY)
            elif answer is _NO_SUCH_LEDGER:
                one.done(Status.NO_SUCH_LEDGER)
            else:
                self._looks.answer(one, answer)
