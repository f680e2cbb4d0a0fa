"""Adds of one connection of a client of BookKeeper: those that come together become one entry batch.

Law: adds of one ledger with consecutive ids that come in one turn of the loop are added as one batch, and each is answered. If
the batch is refused as a whole because one of them is a conflict, each is added by itself.

Source: BookKeeper's ``WriteEntryProcessorV3``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bookspark.protocol.ledger.bookkeeper_keys import kept_key
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.servers.bookkeeper.entries import entry_of
from bookspark.servers.bookkeeper.requests import MASTER_KEY_BYTES, Asked
from bookspark.servers.bookkeeper.shared_by_clients import SharedByClients
from bookspark.store.bookie.serving.peer import Peer
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Entry, EntryBatch, encode_entries, encode_one
from bookspark.store.wire.header import Flag, Header, Kind, Status, WireError

ALL = Assignment(0, 1, 1, 0)
"""A client of BookKeeper does not say which entries are assigned to a bookie, and asks for no LastAddSynced."""
_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_TOGETHER_MAX = 512
_TOGETHER_BYTES_MAX = 1 << 20

log = logging.getLogger(__name__)


def key_of(asked: Asked) -> bytes:
    """What the bookie keeps of the request's master key. Raises WireError if it has none."""
    if len(asked.master_key) != MASTER_KEY_BYTES:
        raise WireError(f"a master key of {len(asked.master_key)} bytes; BookKeeper's have {MASTER_KEY_BYTES}")
    return kept_key(asked.master_key)


class _Add(NamedTuple):
    asked: Asked
    entry: Entry


class GatheredAdds:
    """The adds of one ``peer`` that came in this turn of the loop: consecutive ones of one ledger."""

    def __init__(
        self,
        shared: SharedByClients,
        peer: Peer,
        answer: Callable[[Sequence[Asked], int], None],
        refuse: Callable[[Asked, str], None],
    ) -> None:
        """Adds of one ledger are told to ``answer`` with their status, or one to ``refuse`` with why its bytes make no sense."""
        self._digest_types = shared.digest_types
        self._storage = shared.bookie.storage
        self._peer = peer
        self._answer = answer
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._adds: list[_Add] = []
        self._digest_type = DigestType.BOOKKEEPER_CRC32C
        """That of the ledger of ``_adds``."""
        self._bytes = 0

    def add(self, asked: Asked) -> None:
        """Take one add. It is answered later, once its ledger's digest type is known. Raises WireError."""
        if self._adds and self._goes_with(self._adds[-1].asked, asked):
            # What was looked up for the one before it is true of this one.
            self._gather(asked, self._digest_type)
            return
        key_of(asked)
        if asked.entry_id < 0:
            raise WireError(f"an add of entry {asked.entry_id}")
        known = partial(self._add_of_type, asked)
        is_held = self._storage.ledger(asked.ledger_id) is not None
        self._digest_types.when_known(asked.ledger_id, is_held, len(asked.body), known)

    def _add_of_type(self, asked: Asked, digest_type: DigestType | None, status: Status) -> None:
        if digest_type is None:
            self._answer((asked,), status)
            return
        if not digest_type.bookkeepers:
            self._refuse(
                asked, f"ledger {asked.ledger_id} has digest {digest_type.value}, which is none of BookKeeper's"
            )
            return
        if self._adds and not self._goes_with(self._adds[-1].asked, asked):
            self.add_gathered()
        self._digest_type = digest_type
        self._gather(asked, digest_type)

    def _gather(self, asked: Asked, digest_type: DigestType) -> None:
        recovery = asked.flags & _RECOVERY != 0
        try:
            entry = entry_of(asked.body, asked.ledger_id, asked.entry_id, digest_type, recovery=recovery)
        except WireError as error:
            self._refuse(asked, str(error))
            return
        if not self._adds:
            self._loop.call_soon(self.add_gathered)
        self._adds.append(_Add(asked, entry))
        self._bytes += len(asked.body)

    def _goes_with(self, last: Asked, asked: Asked) -> bool:
        """May it be in one batch with the add before it?"""
        return (
            last.entry_id + 1 == asked.entry_id
            and last.ledger_id == asked.ledger_id
            and (last.version, last.flags, last.master_key) == (asked.version, asked.flags, asked.master_key)
            and len(self._adds) < _TOGETHER_MAX
            and self._bytes + len(asked.body) <= _TOGETHER_BYTES_MAX
        )

    def add_gathered(self) -> None:
        """Add what was gathered, so that what the peer asks for next comes after it."""
        adds, self._adds, self._bytes = self._adds, [], 0
        if adds:
            self._add_together(adds)

    def _add_together(self, adds: list[_Add]) -> None:
        first, last = adds[0].asked, adds[-1].asked
        header = Header(
            Kind.ADD,
            0,
            first.ledger_id,
            first.entry_id,
            last.entry_id,
            max(add.entry.last_add_confirmed for add in adds),
            first.flags,
            master_key=kept_key(first.master_key),
        )
        if first.flags & _VOLATILE:
            header = header.with_assignment(ALL)

        def added(status: int) -> None:
            if status == Status.CONFLICT and len(adds) > 1:
                for add in adds:
                    self._add_together([add])
                return
            self._answer([add.asked for add in adds], status)

        try:
            if len(adds) == 1:
                [(_, entry)] = adds
                frame: bytes | bytearray = encode_one(header, entry.length, entry.payload, entry.digest)
            else:
                frame = encode_entries(header, [add.entry for add in adds])
            if len(frame) > FRAME_BYTES_MAX:
                raise WireError(f"a batch of {len(frame)} bytes")
            self._storage.add(header, EntryBatch(frame), added)
        except Exception:
            log.exception("adds %r from %s failed", first, self._peer.peer)
            added(Status.IO_ERROR)
