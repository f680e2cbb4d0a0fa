"""The requests of one connection of a client of BookKeeper, given to the bookie that also serves ours.

Law: nothing is decided here. Each request becomes one of ``Storage``'s calls, with BookKeeper's ids and with the 16 bytes that
the bookie keeps of its master key; the answer is the storage's, in BookKeeper's words. Each request is answered once, unless the
connection ends first.

A read of entry −1 asks for the last entry that is held, for its LAC. It has no answer while the bookie may lack entries (limbo).
An explicit LAC is kept in the control log, like ours. Its signed body, which BookKeeper's clients want back, is kept in memory
only, and made again where its digest needs no password; elsewhere their readers learn the LAC from the entries after a restart.

Source: BookKeeper's ``ReadEntryProcessorV3``, ``LongPollReadEntryProcessorV3``,
``ReadLacProcessorV3``, ``WriteLacProcessorV3``, ``ForceLedgerProcessorV3``, ``GetBookieInfoProcessorV3``,
``GetListOfEntriesOfLedgerProcessorV3``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import answer_last_add_confirmed
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX, NO_ENTRY
from bookspark.servers.bookkeeper.availability import list_of_entries
from bookspark.servers.bookkeeper.entries import LAC_BODY_BYTES
from bookspark.servers.bookkeeper.entry_reads import EntryReads
from bookspark.servers.bookkeeper.gathered_adds import ALL, GatheredAdds, key_of
from bookspark.servers.bookkeeper.messages import BookieInfo, Operation
from bookspark.servers.bookkeeper.requests import (
    BATCH_HEAD_BYTES,
    MASTER_KEY_BYTES,
    Asked,
    answer,
    answer_adds,
    answer_auth,
)
from bookspark.servers.bookkeeper.shared_by_clients import SharedByClients
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.bookie.serving.peer import Peer
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.header import NO_KEY, Flag, Status, WireError

_FENCE, _ENTRY = int(Flag.FENCE), int(Flag.ENTRY)
_ALONE = "AuthDisabledPlugin"
"""What a bookie of BookKeeper without authentication answers to an AUTH."""
_LONG_POLL_MS_MAX = 300_000
_COUNT_MAX = 1 << 20
_ANSWER_BYTES = 1 << 10
"""Of an answer, beside what it carries."""
_LAST_ENTRY = -1
_ADD = Operation.ADD_ENTRY
_NO_FIELDS: Mapping[str, object] = {}
_KINDS = {one: f"bookkeeper_{one.name.lower()}" for one in Operation}

log = logging.getLogger(__name__)


class Dispatch:
    """Takes the requests of one ``peer``."""

    def __init__(self, shared: SharedByClients, peer: Peer) -> None:
        self._shared = shared
        self._bookie = shared.bookie
        self._storage = shared.bookie.storage
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._reads = EntryReads(self._storage, peer, shared.kept_batches)
        self._under_way = 0
        self._adds = GatheredAdds(shared, peer, self._answer_adds, self._refuse)
        self._polls: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        """The long polls that wait: the ledger of each, by their numbers in ``storage.long_polls``."""

    def end(self) -> None:
        """The connection has ended: nobody waits for anything any more."""
        for poll, (ledger_id, timer) in self._polls.items():
            timer.cancel()
            self._storage.long_polls.remove(ledger_id, poll)
        self._polls.clear()
        # What came before the end is added, as if the end had come a moment later.
        self._adds.add_gathered()

    def handle(self, asked: Asked) -> None:
        """Take one request. It is answered now or later, on the loop; no error comes out of here."""
        self._under_way += 1
        try:
            is_add = asked.operation is _ADD
            if not is_add:
                self._adds.add_gathered()
            if self._under_way > self._bookie.requests_in_flight_max:
                self._answer(asked, Status.TOO_MANY_REQUESTS)
            elif is_add and 0 <= asked.ledger_id <= BOOKKEEPERS_LEDGER_ID_MAX:
                self._adds.add(asked)
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
            case Operation.READ_ENTRY | Operation.BATCH_READ_ENTRY:
                self._read(asked)
            case Operation.READ_LAC:
                self._read_lac(asked)
            case Operation.WRITE_LAC:
                self._write_lac(asked)
            case Operation.FORCE_LEDGER:
                self._force(asked)
            case Operation.GET_LIST_OF_ENTRIES:
                self._list_of_entries(asked)
            case other:
                self._refuse(asked, f"{other.name} is not served")

    # -- answers

    def _answer(
        self, asked: Asked, status: int, bodies: Sequence[bytes] = (), fields: Mapping[str, object] = _NO_FIELDS
    ) -> None:
        self._under_way -= 1
        self._storage.traffic.answers[_KINDS[asked.operation], status] += 1
        self._peer.send(answer(asked, status, bodies, fields))

    def _answer_adds(self, adds: Sequence[Asked], status: int) -> None:
        self._under_way -= len(adds)
        self._storage.traffic.answers[_KINDS[Operation.ADD_ENTRY], status] += len(adds)
        self._peer.send(answer_adds(adds, status))

    def _refuse(self, asked: Asked, why: str) -> None:
        log.warning("request %r from %s refused: %s", asked, self._peer.peer, why)
        # A client that hears BAD_REQUEST of an add changes the ensemble and sends it elsewhere, without end.
        self._answer(asked, Status.UNAUTHORIZED if asked.operation is Operation.ADD_ENTRY else Status.BAD_REQUEST)

    # -- reads

    def _read(self, asked: Asked) -> None:
        if asked.entry_id < _LAST_ENTRY:
            raise WireError(f"a read of entry {asked.entry_id}")
        if asked.flags & _FENCE:
            key = key_of(asked)
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
        self._shared.when_lac_body(asked.ledger_id, partial(self._read_lac_beside, asked))

    def _read_lac_beside(self, asked: Asked, explicit: bytes | None) -> None:
        fields: dict[str, object] = {} if explicit is None else {"lacBody": explicit}
        last_entry = self._last_entry(asked.ledger_id)
        if last_entry is None:
            self._loop.call_soon(self._read_lac_beside, asked, explicit)
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

        self._storage.write_last_add_confirmed(asked.ledger_id, key_of(asked), asked.entry_id, written)

    # -- the rest

    def _force(self, asked: Asked) -> None:
        """Sync what was added with the deferred sync flag. The request has no master key: a sync gives nobody anything."""
        ledger = self._storage.ledger(asked.ledger_id)
        key = NO_KEY if ledger is None or ledger.master_key is None else ledger.master_key
        self._storage.sync(asked.ledger_id, key, ALL, partial(self._answer, asked))

    def _list_of_entries(self, asked: Asked) -> None:
        """What is held, once it is durable. What is not in the list may be missing here, so absence from it proves nothing."""
        if self._storage.ledger(asked.ledger_id) is None:
            self._answer(asked, status_of(self._storage.absent(asked.ledger_id)))
            return
        if not self._storage.may_read(asked.ledger_id, NO_KEY):
            self._answer(asked, Status.UNAUTHORIZED)
            return

        def told(ranges: list[tuple[int, int]] | None) -> None:
            found = b"" if ranges is None else list_of_entries(ranges)
            if ranges is None or len(found) > FRAME_BYTES_MAX - _ANSWER_BYTES:
                self._answer(asked, Status.IO_ERROR)
            else:
                self._answer(asked, Status.OK, fields={"availability": found})

        self._storage.held_ranges(asked.ledger_id, told)

    def _bookie_info(self, asked: Asked) -> None:
        fields = {}
        if asked.size & BookieInfo.TOTAL_BYTES:
            fields["totalDiskCapacity"] = self._shared.disk_bytes()
        if asked.size & BookieInfo.FREE_BYTES:
            fields["freeDiskSpace"] = self._storage.status().free_bytes
        self._answer(asked, Status.OK, fields=fields)
