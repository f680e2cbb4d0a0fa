"""Requests about one ledger as frames, and answers as events of the protocol's machines.

Law: this module only converts; ``protocol`` interprets the answers. The only check here is that of digests: if an entry's digest
does not match, the bookie's answer becomes Unknown from that entry on, so that the machine asks the next replica.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.client.network.connections import Answer, Connections, OnBatch
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.wire.digests import Digester, first_mismatch
from bookspark.store.wire.entry_batch import Buffer, EntryBatch, encode_entries, with_header
from bookspark.store.wire.frames import Frame, control_frame
from bookspark.store.wire.header import Flag, Header, Kind, WireError
from bookspark.store.wire.messages import FetchFrom, Ranges
from bookspark.support.threads import BackOff

BookieAction = act.SendAdd | act.SendRead | act.SendReadLac | act.SendListHeld

READ_BYTES = 2 << 20
_ASK_AGAIN_SECONDS, _ASK_AGAIN_SECONDS_MAX = 0.1, 1.0
"""Pause before a bookie with its maximum of long polls is asked again: doubles from the first value up to the second."""
_FENCE, _SPARSE, _ENTRY = int(Flag.FENCE), int(Flag.SPARSE), int(Flag.ENTRY)
_ROWS, _ONLY_THIS_LEDGER = 1, 1
"""Number of rows requested by RANGES, and its restriction to one ledger."""
_TOO_MANY = UnknownReason.TOO_MANY_REQUESTS
_SHORT_BYTES_MAX = 8 << 10
_JOINED_BYTES_MAX = 512 << 10
"""Largest batch that is joined with others, and largest joined frame, in copies to another bookie."""


class _Checked(NamedTuple):
    """A received batch. ``bad``: id of its first entry with a wrong digest; None if all match."""

    batch: EntryBatch
    header: Header
    bad: int | None


class LedgerRequests:
    """The requests of one client about one ledger.

    ``put``: called in the I/O loop with each answer as an event of the protocol's machines.
    """

    def __init__(
        self,
        io: IoLoop,
        connections: Connections,
        ledger_id: int,
        master_key: bytes,
        digest: Digester | None,
        timeout_seconds: float,
    ) -> None:
        """``digest``: None if digests can't be checked, because the password is unknown."""
        self._io = io
        self._connections = connections
        self._ledger_id = ledger_id
        self._master_key = master_key
        self._digest = digest
        self._timeout_seconds = timeout_seconds

    def send(self, action: BookieAction, put: Callable[[act.Event], None]) -> None:
        if isinstance(action, act.SendRead):
            self.read(action, put)
        elif isinstance(action, act.SendReadLac):
            self.read_lac(action, put)
        elif isinstance(action, act.SendListHeld):
            self.list_held(action, put)
        else:
            self.recovery_add(action, put)

    def read(self, action: act.SendRead, put: Callable[[act.Event], None], limit: int = READ_BYTES) -> None:
        """Send READ. The answer has at most about ``limit`` bytes, but at least one entry. The event's ``entries`` are a list of
        ``EntryBatch`` with checked digests; each item of its ``ahead`` has such a list too."""

        def answered(answer: Answer) -> None:
            put(self._read_event(action, answer))

        header = self._header(
            Kind.READ,
            first_entry_id=action.first,
            last_entry_id=action.last,
            flags=(_FENCE if action.fence else 0) | (_SPARSE if action.sparse else 0),
            limit=limit,
        )
        self._send(action.bookie, header, control_frame(header), answered, on_batch=self._check)

    def read_lac(self, action: act.SendReadLac, put: Callable[[act.Event], None], wait_seconds: float = 0.0) -> None:
        """Send READ_LAC, a request for the last add confirmed (LAC).

        With ``wait_seconds``, the bookie delays its response until its LAC reaches the entry that ``action`` waits for, and sends
        that entry too, in the event's ``entries``. A bookie with its maximum of delayed responses is asked again after a pause.
        """
        self._read_lac(action, put, wait_seconds, BackOff(_ASK_AGAIN_SECONDS, _ASK_AGAIN_SECONDS_MAX))

    def _read_lac(
        self, action: act.SendReadLac, put: Callable[[act.Event], None], wait_seconds: float, pauses: BackOff
    ) -> None:
        deadline = time.monotonic() + wait_seconds

        def answered(answer: Answer) -> None:
            if isinstance(answer.response, Unknown) and answer.response.reason is _TOO_MANY:
                pause = pauses.next()
                if (left := deadline - time.monotonic() - pause) > 0:
                    self._connections.later(pause, partial(self._read_lac, action, put, left, pauses))
                    return
            header = answer.header or Header(Kind.READ_LAC, 0)
            confirmed, replicated = header.last_add_confirmed, header.last_add_fully_replicated
            came, _ = self._entries(action.wait_for, answer)
            put(act.LacAnswered(action.bookie, answer.response, confirmed, replicated, came or None))

        header = self._header(
            Kind.READ_LAC,
            first_entry_id=action.wait_for,
            flags=(_FENCE if action.fence else 0) | (_ENTRY if wait_seconds else 0),
            limit=math.ceil(wait_seconds * 1000),
        )
        self._send(action.bookie, header, control_frame(header), answered, wait_seconds, self._check)

    def list_held(self, action: act.SendListHeld, put: Callable[[act.Event], None]) -> None:
        """Send RANGES, for a part of the bookie's entries from an entry on."""

        def answered(answer: Answer) -> None:
            response, last = answer.response, action.first - 1
            if isinstance(response, Positive):
                try:
                    last = max(Ranges.decode(answer.body).last_entry_ids, default=last)
                except WireError as error:
                    response = Unknown(UnknownReason.BAD_REQUEST, str(error))
            put(act.HeldAnswered(action.bookie, action.first, last, response))

        header = self._header(Kind.RANGES, first_entry_id=action.first, limit=_ROWS, value=_ONLY_THIS_LEDGER)
        self._send(action.bookie, header, control_frame(header), answered)

    def recovery_add(self, action: act.SendAdd, put: Callable[[act.Event], None]) -> None:
        """Write ``action.entries`` (a list of EntryBatch) verbatim to every bookie of the action."""
        for bookie in action.bookies:
            self._recovery_add_to(bookie, action, put)

    def fetch(
        self, target: str, action: act.SendAdd, source: FetchFrom, first: int, answered: Callable[[Answer], None]
    ) -> None:
        """Send FETCH: ``target`` copies entries of ``action`` from another bookie, from ``first`` on. It may take one answer's
        time to read them, and another's to write them. ``answered`` gets its answer in the I/O loop."""
        header = self._header(
            Kind.FETCH,
            first_entry_id=first,
            last_entry_id=action.last,
            last_add_confirmed=action.last_add_confirmed,
            last_add_fully_replicated=action.last_add_fully_replicated,
            flags=Flag.RECOVERY,
            limit=math.ceil(self._timeout_seconds * 1000),
        )
        # The target first waits for the other bookie's answer.
        self._send(target, header, control_frame(header, source.encode()), answered, self._timeout_seconds)

    def _recovery_add_to(self, bookie: str, action: act.SendAdd, put: Callable[[act.Event], None]) -> None:
        frames = list(_frames(action.entries))
        responses: list[Response] = []

        def answered(answer: Answer) -> None:
            responses.append(answer.response)
            if len(responses) == len(frames):
                refused = [response for response in responses if not isinstance(response, Positive)]
                put(act.AddAnswered(bookie, action.first, action.last, refused[0] if refused else Positive()))

        for batches in frames:
            header = self._header(
                Kind.ADD,
                first_entry_id=batches[0].first_entry_id,
                last_entry_id=batches[-1].last_entry_id,
                last_add_confirmed=action.last_add_confirmed,
                last_add_fully_replicated=action.last_add_fully_replicated,
                flags=Flag.RECOVERY,
            )
            if len(batches) > 1:
                rows = [entry for batch in batches for entry in batch.entries()]
                self._send(bookie, header, encode_entries(header, rows), answered)
            else:
                # The body and its checksum are not changed.
                head, body = with_header(batches[0].frame, header)
                self._send(bookie, header, head, answered, body=body)

    def _header(self, kind: Kind, **fields: int) -> Header:
        return Header(
            kind, self._connections.next_request_id(), ledger_id=self._ledger_id, master_key=self._master_key, **fields
        )

    def _send(
        self,
        bookie: str,
        header: Header,
        frame: Buffer,
        answered: Callable[[Answer], None],
        wait_seconds: float = 0.0,
        on_batch: OnBatch | None = None,
        body: Buffer = b"",
    ) -> None:
        timeout = self._timeout_seconds + wait_seconds
        self._io.submit(self._connections.send, bookie, header.request_id, frame, answered, timeout, on_batch, body)

    def _check(self, frame: Frame) -> _Checked | WireError:
        """Check one batch at its arrival, while the bookie reads or sends the next batch."""
        if frame.batch is None or frame.header.ledger_id != self._ledger_id:
            return WireError(f"an answer to a read of ledger {self._ledger_id} with something else")
        try:
            batch = EntryBatch.checked(frame.batch, frame.header, frame.body_crc)
        except WireError as error:
            return error
        return _Checked(batch, frame.header, None if self._digest is None else first_mismatch(batch, self._digest))

    def _read_event(self, action: act.SendRead, answer: Answer) -> act.ReadAnswered:
        batches, bad = self._entries(action.first, answer, action.last, sparse=action.sparse)
        run = list(_first_run(batches, action.first))
        last, length = (run[-1].last_entry_id, run[-1].length) if run else (action.first - 1, 0)
        ahead = tuple((i, [one]) for batch in batches[len(run) :] for i, one in _singles(batch))
        following: Response = bad or answer.response
        if not isinstance(following, Unknown) and answer.header is not None:
            told, came = answer.header.last_entry_id, sum(batch.count for batch in batches)
            if came != answer.header.value or (told != last and not action.sparse):
                words = f"an answer to a read with {came} entries up to {last}, which says {answer.header.value} up to {told}"
                following = Unknown(UnknownReason.BAD_REQUEST, words)
            elif told > last:
                # The bookie looked for the next entry, and did not send it.
                following = Negative()
        return act.ReadAnswered(action.bookie, action.first, last, following, run, length, ahead)

    def _entries(
        self, first: int, answer: Answer, asked_to: int | None = None, *, sparse: bool = False
    ) -> tuple[list[EntryBatch], Unknown | None]:
        """The received batches, from ``first`` on, up to the first bad entry; and the defect of that entry, if any. ``asked_to``:
        the last requested entry."""
        batches: list[EntryBatch] = []
        last = first - 1
        for found in answer.batches:
            if isinstance(found, WireError):
                return batches, Unknown(UnknownReason.BAD_REQUEST, str(found))
            batch, header, bad = found
            begin = batch.first_entry_id
            if begin <= last or (begin > last + 1 and not sparse):
                why = "an answer to a read that does not go on where it stopped"
                return batches, Unknown(UnknownReason.BAD_REQUEST, why)
            if asked_to is not None and batch.last_entry_id > asked_to:
                why = f"an answer with entry {batch.last_entry_id} to a read of entries up to {asked_to}"
                return batches, Unknown(UnknownReason.BAD_REQUEST, why)
            if bad is not None:
                if bad > begin:
                    batches.append(EntryBatch(batch.slice(begin, bad - 1, header)))
                return batches, Unknown(UnknownReason.DIGEST_MISMATCH, f"entry {bad}")
            batches.append(batch)
            last = batch.last_entry_id
        return batches, None


def _frames(batches: Iterable[EntryBatch]) -> Iterator[list[EntryBatch]]:
    """Group the batches; short consecutive ones are joined: a request for each would cost more than the join, and a bookie
    accepts only a few thousand requests at a time."""
    together: list[EntryBatch] = []
    size = 0
    for batch in batches:
        short = len(batch.frame) <= _SHORT_BYTES_MAX
        if together and not (
            short
            and size + len(batch.frame) <= _JOINED_BYTES_MAX
            and together[-1].last_entry_id + 1 == batch.first_entry_id
        ):
            yield together
            together, size = [], 0
        together.append(batch)
        size += len(batch.frame) if short else _JOINED_BYTES_MAX
    if together:
        yield together


def _first_run(batches: list[EntryBatch], first: int) -> Iterator[EntryBatch]:
    for batch in batches:
        if batch.first_entry_id != first:
            return
        yield batch
        first = batch.last_entry_id + 1


def _singles(batch: EntryBatch) -> Iterator[tuple[int, EntryBatch]]:
    if batch.count == 1:
        yield batch.first_entry_id, batch
        return
    for i in range(batch.first_entry_id, batch.last_entry_id + 1):
        header = Header(Kind.READ, 0, batch.ledger_id, i, i)
        yield i, EntryBatch(batch.slice(i, i, header))


def sync_report(answer: Answer, assignment: Assignment | None) -> act.SyncReport | None:
    """The synced entries that a bookie of a VD ledger (volatile durability: acknowledged before the sync) reports in a positive
    answer to a request with ``assignment``. None for other ledgers (``assignment`` is None) and other answers."""
    header = answer.header
    if assignment is None or header is None or not isinstance(answer.response, Positive):
        return None
    return act.SyncReport(header.last_add_synced, header.incarnation, assignment)
