"""The requests of one connection of a client of BookKeeper, given to the bookie that also serves ours.

Law: nothing is decided here. Each request becomes one of ``Storage``'s calls, with BookKeeper's ids and with the 16 bytes that
the bookie keeps of its master key; the answer is the storage's, in BookKeeper's words. Each request is answered once, unless the
connection ends first. Adds that come together for one ledger, with consecutive ids, become one entry batch; if it is refused as
a whole because one of them is a conflict, each is added by itself.

A read of entry −1 asks for the last entry that is held, for its LAC. It has no answer while the bookie may lack entries (limbo).
An explicit LAC is kept in the control log, like ours; its signed body, which BookKeeper's clients want back, is kept in memory
only, so that after a restart their readers learn the LAC from the entries.

Source: BookKeeper's ``WriteEntryProcessorV3``, ``ReadEntryProcessorV3``, ``LongPollReadEntryProcessorV3``,
``ReadLacProcessorV3``, ``WriteLacProcessorV3``, ``ForceLedgerProcessorV3``, ``GetBookieInfoProcessorV3``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bookspark.bookie.ledgers.statuses import status_of
from bookspark.bookie.serving.peer import Peer
from bookspark.bookkeeper.entries import LAC_BODY_BYTES, entry_of
from bookspark.bookkeeper.entry_reads import EntryReads
from bookspark.bookkeeper.messages import BookieInfo, Operation
from bookspark.bookkeeper.requests import BATCH_HEAD_BYTES, MASTER_KEY_BYTES, Asked, answer, answer_auth
from bookspark.bookkeeper.shared_by_clients import SharedByClients
from bookspark.protocol.bookie.bookie_ledger import answer_last_add_confirmed
from bookspark.protocol.ledger.bookkeeper_keys import kept_key
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX, NO_ENTRY, DigestType
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.wire.entry_batch import FRAME_BYTES_MAX, Entry, EntryBatch, encode_entries, encode_one
from bookspark.wire.header import NO_KEY, Flag, Header, Kind, Status, WireError

_FENCE, _ENTRY, _VOLATILE = int(Flag.FENCE), int(Flag.ENTRY), int(Flag.VOLATILE)
_ALL = Assignment(0, 1, 1, 0)
"""A client of BookKeeper does not say which entries are assigned to a bookie, and asks for no LastAddSynced."""
_ALONE = "AuthDisabledPlugin"
"""What a bookie of BookKeeper without authentication answers to an AUTH."""
_TOGETHER_MAX = 512
_TOGETHER_BYTES_MAX = 1 << 20
_LONG_POLL_MS_MAX = 300_000
_COUNT_MAX = 1 << 20
_LAST_ENTRY = -1
_NO_FIELDS: Mapping[str, object] = {}
_KINDS = {one: f"bookkeeper_{one.name.lower()}" for one in Operation}

log = logging.getLogger(__name__)


class _Add(NamedTuple):
    asked: Asked
    entry: Entry


class Dispatch:
    """Takes the requests of one ``peer``."""

    def __init__(self, shared: SharedByClients, peer: Peer) -> None:
        self._shared = shared
        self._bookie = shared.bookie
        self._storage = shared.bookie.storage
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._reads = EntryReads(self._storage, peer)
        self._under_way = 0
        self._adds: list[_Add] = []
        """Consecutive adds of one ledger that came in this turn of the loop."""
        self._adds_bytes = 0
        self._polls: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        """The long polls that wait: the ledger of each, by their numbers in ``storage.long_polls``."""

    def end(self) -> None:
        """The connection has ended: nobody waits for anything any more."""
        for poll, (ledger_id, timer) in self._polls.items():
            timer.cancel()
            self._storage.long_polls.remove(ledger_id, poll)
        self._polls.clear()
        # What came before the end is added, as if the end had come a moment later.
        self._add_gathered()

    def handle(self, asked: Asked) -> None:
        """Take one request. It is answered now or later, on the loop; no error comes out of here."""
        self._under_way += 1
        try:
            if asked.operation is not Operation.ADD_ENTRY:
                self._add_gathered()
            if self._under_way > self._bookie.requests_in_flight_max:
                self._answer(asked, Status.TOO_MANY_REQUESTS)
            elif asked.operation is Operation.AUTH:
                self._under_way -= 1
                self._peer.send(answer_auth(asked, _ALONE))
            elif asked.operation is Operation.GET_BOOKIE_INFO:
                self._bookie_info(asked)
            elif asked.operation is Operation.START_TLS:
                self._refuse(asked, "this bookie speaks no TLS with clients of BookKeeper")
            elif not 0 <= asked.ledger_id <= BOOKKEEPERS_LEDGER_ID_MAX:
                self._refuse(asked, f"ledger ids go from 0 to {BOOKKEEPERS_LEDGER_ID_MAX}")
            else:
                self._of_a_ledger(asked)
        except WireError as error:
            self._refuse(asked, str(error))
        except Exception:
            log.exception("request %r from %s failed", asked, self._peer.peer)
            self._answer(asked, Status.IO_ERROR)

    def _of_a_ledger(self, asked: Asked) -> None:
        match asked.operation:
            case Operation.ADD_ENTRY:
                self._add(asked)
            case Operation.READ_ENTRY | Operation.BATCH_READ_ENTRY:
                self._read(asked)
            case Operation.READ_LAC:
                self._read_lac(asked)
            case Operation.WRITE_LAC:
                self._write_lac(asked)
            case Operation.FORCE_LEDGER:
                self._force(asked)
            case other:
                self._refuse(asked, f"{other.name} is not served")

    # -- answers

    def _answer(
        self, asked: Asked, status: int, bodies: Sequence[bytes] = (), fields: Mapping[str, object] = _NO_FIELDS
    ) -> None:
        self._under_way -= 1
        self._storage.traffic.answers[_KINDS[asked.operation], status] += 1
        self._peer.send(answer(asked, status, bodies, fields))

    def _refuse(self, asked: Asked, why: str) -> None:
        log.warning("request %r from %s refused: %s", asked, self._peer.peer, why)
        # A client that hears BAD_REQUEST of an add changes the ensemble and sends it elsewhere, without end.
        self._answer(asked, Status.UNAUTHORIZED if asked.operation is Operation.ADD_ENTRY else Status.BAD_REQUEST)

    def _key(self, asked: Asked) -> bytes:
        if len(asked.master_key) != MASTER_KEY_BYTES:
            raise WireError(f"a master key of {len(asked.master_key)} bytes; BookKeeper's have {MASTER_KEY_BYTES}")
        return kept_key(asked.master_key)

    # -- adds

    def _add(self, asked: Asked) -> None:
        self._key(asked)
        if asked.entry_id < 0:
            raise WireError(f"an add of entry {asked.entry_id}")
        known = partial(self._add_of_type, asked)
        is_held = self._storage.ledger(asked.ledger_id) is not None
        self._shared.digest_types.when_known(asked.ledger_id, is_held, len(asked.body), known)

    def _add_of_type(self, asked: Asked, digest_type: DigestType | None, status: Status) -> None:
        if digest_type is None:
            self._answer(asked, status)
            return
        if not digest_type.bookkeepers:
            self._refuse(
                asked, f"ledger {asked.ledger_id} has digest {digest_type.value}, which is none of BookKeeper's"
            )
            return
        try:
            recovery = bool(asked.flags & Flag.RECOVERY)
            entry = entry_of(asked.body, asked.ledger_id, asked.entry_id, digest_type, recovery=recovery)
        except WireError as error:
            self._refuse(asked, str(error))
            return
        last = self._adds[-1] if self._adds else None
        if last is not None and not self._goes_with(last.asked, asked):
            self._add_gathered()
        if not self._adds:
            self._loop.call_soon(self._add_gathered)
        self._adds.append(_Add(asked, entry))
        self._adds_bytes += len(asked.body)

    def _goes_with(self, last: Asked, asked: Asked) -> bool:
        """May it be in one batch with the add before it?"""
        return (
            (last.ledger_id, last.entry_id + 1, last.flags, last.master_key)
            == (asked.ledger_id, asked.entry_id, asked.flags, asked.master_key)
            and len(self._adds) < _TOGETHER_MAX
            and self._adds_bytes + len(asked.body) <= _TOGETHER_BYTES_MAX
        )

    def _add_gathered(self) -> None:
        adds, self._adds, self._adds_bytes = self._adds, [], 0
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
            header = header.with_assignment(_ALL)

        def added(status: int) -> None:
            if status == Status.CONFLICT and len(adds) > 1:
                for add in adds:
                    self._add_together([add])
                return
            for add in adds:
                self._answer(add.asked, status)

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

    # -- reads

    def _read(self, asked: Asked) -> None:
        if asked.entry_id < _LAST_ENTRY:
            raise WireError(f"a read of entry {asked.entry_id}")
        if asked.flags & _FENCE:
            key = self._key(asked)
            self._storage.fence(asked.ledger_id, key, partial(self._read_fenced, asked))
        elif not self._storage.may_read(asked.ledger_id, NO_KEY):
            self._answer(asked, Status.UNAUTHORIZED)
        elif asked.previous_lac is not None:
            self._long_poll(asked, asked.previous_lac)
        else:
            self._read_entries(asked)

    def _read_fenced(self, asked: Asked, status: int) -> None:
        if status == Status.OK:
            self._read_entries(asked)
        else:
            self._answer(asked, status)

    def _read_entries(self, asked: Asked) -> None:
        entry_id = asked.entry_id
        if entry_id == _LAST_ENTRY:
            found = self._last_entry(asked.ledger_id)
            if found is None:
                self._loop.call_soon(self._read_entries, asked)
                return
            status, entry_id = found
            if status != Status.OK:
                self._answer(asked, status)
                return
        batch = asked.operation is Operation.BATCH_READ_ENTRY
        count = (asked.entries_max or _COUNT_MAX) if batch else 1
        size = max(asked.size - BATCH_HEAD_BYTES, 0) if batch else FRAME_BYTES_MAX
        self._reads.read(asked.ledger_id, entry_id, count, size, partial(self._found, asked))

    def _found(self, asked: Asked, status: int, bodies: Sequence[bytes]) -> None:
        fields = {"maxLac": self._confirmed(asked.ledger_id)} if asked.version == 3 else {}
        self._answer(asked, status, bodies, fields)

    def _confirmed(self, ledger_id: int) -> int:
        ledger = self._storage.ledger(ledger_id)
        return NO_ENTRY if ledger is None else ledger.last_add_confirmed

    def _last_entry(self, ledger_id: int) -> tuple[Status, int] | None:
        """The last entry that is held, for its LAC, with OK; or why there is none. None: ask again in another turn."""
        ledger = self._storage.ledger(ledger_id)
        if ledger is None:
            return status_of(self._storage.absent(ledger_id)), NO_ENTRY
        status = status_of(answer_last_add_confirmed(ledger))
        if status != Status.OK:
            return status, NO_ENTRY
        last = self._storage.last_entry_id(ledger_id)
        if last is None:
            return None
        if last == NO_ENTRY:
            # The storage says whether absence proves anything.
            refusal = self._storage.plan_read(ledger_id, 0, 0, 0, sparse=False).refusal
            status = Status.IO_ERROR if refusal is None else status_of(refusal)
        return status, last

    def _long_poll(self, asked: Asked, previous: int) -> None:
        """Answer when the LAC is beyond ``previous``, or when the time is up; with the entry after it if that is wanted."""
        if asked.flags & _ENTRY and asked.entry_id != _LAST_ENTRY:
            raise WireError(f"a long poll with an entry asks for entry −1, not {asked.entry_id}")
        if self._confirmed(asked.ledger_id) > previous or asked.timeout_ms <= 0:
            self._answer_poll(asked, previous)
            return
        if len(self._polls) >= self._bookie.requests_in_flight_max:
            self._answer(asked, Status.TOO_MANY_REQUESTS)
            return

        def finish() -> None:
            _, timer = self._polls.pop(poll)
            timer.cancel()
            self._storage.long_polls.remove(asked.ledger_id, poll)
            self._under_way += 1
            try:
                self._answer_poll(asked, previous)
            except Exception:
                log.exception("long poll %r from %s failed", asked, self._peer.peer)
                self._answer(asked, Status.IO_ERROR)

        # One that waits costs next to nothing, so it does not count as a request under way.
        self._under_way -= 1
        poll = self._storage.long_polls.add(asked.ledger_id, previous + 1, finish)
        seconds = min(asked.timeout_ms, _LONG_POLL_MS_MAX) / 1000
        self._polls[poll] = (asked.ledger_id, self._loop.call_later(seconds, finish))

    def _answer_poll(self, asked: Asked, previous: int) -> None:
        if not asked.flags & _ENTRY:
            self._read_entries(asked)
            return
        ledger = self._storage.ledger(asked.ledger_id)
        if ledger is None:
            self._answer(asked, status_of(self._storage.absent(asked.ledger_id)))
            return
        confirmed = ledger.last_add_confirmed
        status = status_of(answer_last_add_confirmed(ledger))
        if status != Status.OK or confirmed <= previous:
            self._answer(asked, status, fields={"maxLac": confirmed})
            return

        def found(status: int, bodies: Sequence[bytes]) -> None:
            if status == Status.OK:
                self._answer(asked._replace(entry_id=previous + 1), status, bodies, {"maxLac": confirmed})
            else:
                # The LAC alone is an answer too; the client reads the entry elsewhere.
                self._answer(asked, Status.OK, fields={"maxLac": confirmed})

        self._reads.read(asked.ledger_id, previous + 1, 1, FRAME_BYTES_MAX, found)

    # -- the LAC

    def _read_lac(self, asked: Asked) -> None:
        if not self._storage.may_read(asked.ledger_id, NO_KEY):
            self._answer(asked, Status.UNAUTHORIZED)
            return
        explicit = self._shared.lac_bodies.get(asked.ledger_id)
        fields: dict[str, object] = {} if explicit is None else {"lacBody": explicit}
        last_entry = self._last_entry(asked.ledger_id)
        if last_entry is None:
            self._loop.call_soon(self._read_lac, asked)
            return
        status, last = last_entry
        if status != Status.OK:
            alone = status == Status.NO_SUCH_ENTRY and explicit is not None
            self._answer(asked, Status.OK if alone else status, fields=fields)
            return

        def found(status: int, bodies: Sequence[bytes]) -> None:
            for body in bodies:
                fields["lastEntryBody"] = body
            self._answer(asked, status, fields=fields)

        self._reads.read(asked.ledger_id, last, 1, FRAME_BYTES_MAX, found)

    def _write_lac(self, asked: Asked) -> None:
        if asked.entry_id < NO_ENTRY:
            raise WireError("an explicit LAC is an entry id")
        named = asked.ledger_id.to_bytes(8, "big") + asked.entry_id.to_bytes(8, "big", signed=True)
        if asked.body[:LAC_BODY_BYTES] != named or len(asked.body) > LAC_BODY_BYTES + MASTER_KEY_BYTES:
            raise WireError(f"the body of an explicit LAC is not that of {asked.entry_id} of ledger {asked.ledger_id}")

        def written(status: int) -> None:
            if status == Status.OK and asked.entry_id >= 0:
                self._shared.keep_lac_body(asked.ledger_id, asked.body)
            self._answer(asked, status)

        self._storage.write_last_add_confirmed(asked.ledger_id, self._key(asked), asked.entry_id, written)

    # -- the rest

    def _force(self, asked: Asked) -> None:
        """Sync what was added with the deferred sync flag. The request has no master key: a sync gives nobody anything."""
        ledger = self._storage.ledger(asked.ledger_id)
        key = NO_KEY if ledger is None or ledger.master_key is None else ledger.master_key
        self._storage.sync(asked.ledger_id, key, _ALL, partial(self._answer, asked))

    def _bookie_info(self, asked: Asked) -> None:
        fields = {}
        if asked.size & BookieInfo.TOTAL_BYTES:
            fields["totalDiskCapacity"] = self._shared.disk_bytes()
        if asked.size & BookieInfo.FREE_BYTES:
            fields["freeDiskSpace"] = self._storage.status().free_bytes
        self._answer(asked, Status.OK, fields=fields)
