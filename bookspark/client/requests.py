"""Requests as frames, and answers as events of the protocol's machines.

Law: here only shapes change; what an answer means is decided in ``protocol``. The one thing added is the digest: an entry whose
digest does not match becomes an Unknown of the bookie that sent it, so that the machine asks the next replica.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection
from random import Random

from bookspark.client.connections import Answer, Connections
from bookspark.client.io_loop import IoLoop
from bookspark.client.placement import choose_replacements
from bookspark.metadata.store import MetadataStore
from bookspark.protocol import actions as act
from bookspark.protocol.errors import BookKeeperError, MetadataVersionError
from bookspark.protocol.responses import Positive, Response, Unknown, UnknownReason
from bookspark.wire.digests import Digester
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.frames import control_frame
from bookspark.wire.header import Flag, Header, Kind, WireError

READ_BYTES = 1 << 20
"""About what one answer to a read carries."""


class LedgerRequests:
    """The requests of one client about one ledger. ``put`` receives each answer as an event; it is called in the I/O loop."""

    def __init__(
        self,
        io: IoLoop,
        connections: Connections,
        ledger_id: int,
        master_key: bytes,
        digest: Digester,
        timeout_seconds: float,
    ) -> None:
        self._io = io
        self._connections = connections
        self._ledger_id = ledger_id
        self._master_key = master_key
        self._digest = digest
        self._timeout_seconds = timeout_seconds

    def read(self, action: act.SendRead, put: Callable[[act.Event], None]) -> None:
        """READ; the event's ``entries`` are a list of ``EntryBatch``, digests checked."""

        def answered(answer: Answer) -> None:
            put(self._read_event(action, answer))

        header = self._header(
            Kind.READ,
            first_entry_id=action.first,
            last_entry_id=action.last,
            flags=Flag.FENCE if action.fence else Flag.NONE,
            limit=READ_BYTES,
        )
        self._send(action.bookie, header, control_frame(header), answered)

    def read_lac(
        self, action: act.SendReadLac, put: Callable[[act.Event], None], wait_for: int = -1, wait_seconds: float = 0.0
    ) -> None:
        """READ_LAC; with ``wait_seconds`` the bookie holds the answer until its LAC is at least ``wait_for``."""

        def answered(answer: Answer) -> None:
            header = answer.header or Header(Kind.READ_LAC, 0)
            put(
                act.LacAnswered(
                    action.bookie, answer.response, header.last_add_confirmed, header.last_add_fully_replicated
                )
            )

        header = self._header(
            Kind.READ_LAC,
            first_entry_id=wait_for,
            flags=Flag.FENCE if action.fence else Flag.NONE,
            limit=int(wait_seconds * 1000),
        )
        self._send(action.bookie, header, control_frame(header), answered, wait_seconds)

    def recovery_add(self, action: act.SendAdd, put: Callable[[act.Event], None]) -> None:
        """Write ``action.entries`` (a list of EntryBatch) back, verbatim, to every bookie of the action."""
        for bookie in action.bookies:
            self._recovery_add_to(bookie, action, put)

    def _recovery_add_to(self, bookie: str, action: act.SendAdd, put: Callable[[act.Event], None]) -> None:
        responses: list[Response] = []

        def answered(answer: Answer) -> None:
            responses.append(answer.response)
            if len(responses) == len(action.entries):
                refused = [response for response in responses if not isinstance(response, Positive)]
                put(act.AddAnswered(bookie, action.first, action.last, refused[0] if refused else Positive()))

        for batch in action.entries:
            header = self._header(
                Kind.ADD,
                first_entry_id=batch.first_entry_id,
                last_entry_id=batch.last_entry_id,
                last_add_confirmed=action.last_add_confirmed,
                last_add_fully_replicated=action.last_add_fully_replicated,
                flags=Flag.RECOVERY,
            )
            self._send(bookie, header, batch.slice(batch.first_entry_id, batch.last_entry_id, header), answered)

    def _header(self, kind: Kind, **fields: int) -> Header:
        return Header(
            kind, self._connections.next_request_id(), ledger_id=self._ledger_id, master_key=self._master_key, **fields
        )

    def _send(
        self, bookie: str, header: Header, frame: bytes, answered: Callable[[Answer], None], wait_seconds: float = 0.0
    ) -> None:
        self._io.submit(
            self._connections.send, bookie, header.request_id, frame, answered, self._timeout_seconds + wait_seconds
        )

    def _read_event(self, action: act.SendRead, answer: Answer) -> act.ReadAnswered:
        batches: list[EntryBatch] = []
        following, last, length = answer.response, action.first - 1, 0
        try:
            for frame in answer.batches:
                if frame.batch is None or frame.header.first_entry_id != last + 1:
                    raise WireError("an answer to a read that does not go on where it stopped")
                batch = EntryBatch.checked(frame.batch, frame.header, frame.body_crc)
                for entry in batch.entries():
                    digest = self._digest(
                        entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload
                    )
                    if digest != entry.digest:
                        if entry.entry_id > batch.first_entry_id:
                            good = batch.slice(batch.first_entry_id, entry.entry_id - 1, frame.header)
                            batches.append(EntryBatch(good))
                        raise _DigestMismatch(entry.entry_id)
                    last, length = entry.entry_id, entry.length
                batches.append(batch)
        except _DigestMismatch as mismatch:
            following = Unknown(UnknownReason.DIGEST_MISMATCH, f"entry {mismatch.entry_id}")
        except WireError as error:
            following = Unknown(UnknownReason.BAD_REQUEST, str(error))
        return act.ReadAnswered(action.bookie, action.first, last, following, batches, length)


class _DigestMismatch(Exception):
    def __init__(self, entry_id: int) -> None:
        self.entry_id = entry_id


class Mailbox:
    """Where a blocking call waits for its events: any thread puts, the caller takes, nobody waits past the deadline."""

    def __init__(self, timeout_seconds: float) -> None:
        self._queue: queue.SimpleQueue[act.Event] = queue.SimpleQueue()
        self._deadline = time.monotonic() + timeout_seconds

    def put(self, event: act.Event) -> None:
        self._queue.put(event)

    def left_seconds(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def take(self) -> act.Event:
        """The next event; ``DeadlinePassed`` once the time is over."""
        try:
            return self._queue.get(timeout=self.left_seconds())
        except queue.Empty:
            return act.DeadlinePassed()


StoreAction = act.ReadMetadata | act.WriteMetadata | act.ChooseBookies
StoreAnswer = (
    act.MetadataRead
    | act.MetadataWritten
    | act.MetadataConflict
    | act.MetadataFailed
    | act.BookiesChosen
    | act.NoBookies
)


def answer_from_store(
    store: MetadataStore, ledger_id: int, action: StoreAction, quarantined: Collection[str]
) -> StoreAnswer:
    """Do what a machine asks of the metadata store, blocking. ``quarantined``: bookies to choose last."""
    try:
        if isinstance(action, act.ReadMetadata):
            return act.MetadataRead(*store.read_ledger(ledger_id))
        if isinstance(action, act.WriteMetadata):
            return act.MetadataWritten(store.write_ledger(action.metadata, action.version))
        candidates = store.bookies()
        return act.BookiesChosen(
            choose_replacements(candidates, action.ensemble, action.replaced, quarantined, Random())
        )
    except MetadataVersionError:
        return act.MetadataConflict()
    except BookKeeperError as error:
        return act.NoBookies(error) if isinstance(action, act.ChooseBookies) else act.MetadataFailed(error)
