"""Requests that would make a ledger known without an entry: they wait for the ledger's metadata (``metadata_looks``).

Law: as in ``protocol.bookie.first_request``. A storage without a metadata store grants every request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.protocol.bookie.first_request import METADATA_UNREADABLE
from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.packed_dict import PackedDict
from bookspark.store.bookie.ledgers.metadata_looks import MetadataLooks, Question

FirstRequestCheck = Callable[[int, bytes], Positive | Unknown]
"""``check(ledger_id, master_key)``: ``first_request.answer_first_request`` by the current metadata. It may block, but not for
ever."""


class FirstRequests:
    """The first requests of one bookie. Owned by the loop."""

    def __init__(
        self, check: FirstRequestCheck | None, ledgers: PackedDict[BookieLedger], looks: MetadataLooks
    ) -> None:
        self._check = check
        self._ledgers = ledgers
        self._looks = looks

    def when_granted(self, ledger_id: int, master_key: bytes, go_on: Callable[[], None], done: Done) -> None:
        """Call ``go_on`` if the ledger is known, or once the metadata granted the request; otherwise ``done`` with UNAUTHORIZED,
        LIMBO or TOO_MANY_REQUESTS."""
        if self._check is None or self._is_known(ledger_id):
            go_on()
            return
        about = "first", ledger_id, master_key
        question = Question(about, partial(self._check, ledger_id, master_key), METADATA_UNREADABLE)
        self._looks.ask(question, go_on, done)

    def _is_known(self, ledger_id: int) -> bool:
        ledger = self._ledgers.look(ledger_id)
        return ledger is not None and ledger.master_key is not None
