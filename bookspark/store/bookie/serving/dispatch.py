"""The requests of one connection: each is checked, counted and given to what answers its kind.

Law: each request is answered once, whatever happens, unless the connection ends first. A frame whose header can be read but that
makes no sense is answered BAD_REQUEST. A fault of the bookie's own is answered IO_ERROR, never a Negative. The first request of a
connection is HELLO; a bookie with a secret serves nobody whose HELLO has no proof of it, and takes but a few requests until
then. A ledger id that no ledger can have is refused in every kind of request.

Reads are answered by ``entry_reads`` and ``lac_reads``, the rest here.
"""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX, NO_ENTRY
from bookspark.store.bookie.serving.answers import Answers
from bookspark.store.bookie.serving.entry_reads import EntryReads
from bookspark.store.bookie.serving.lac_reads import LacReads
from bookspark.store.bookie.serving.listings import entry_logs, limbo
from bookspark.store.bookie.serving.peer import Peer
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.frames import Frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, Status, WireError
from bookspark.store.wire.messages import FetchFrom, Hello
from bookspark.store.wire.security import is_proof, new_challenge

_VOLATILE = int(Flag.VOLATILE)
_ADD = int(Kind.ADD)
_OK = int(Status.OK)
_BEFORE_HELLO_MAX = 16
_OF_A_LEDGER = frozenset((Kind.READ, Kind.READ_LAC, Kind.WRITE_LAC, Kind.SYNC, Kind.RANGES, Kind.LIMBO, Kind.FETCH))
"""Requests that name a ledger, besides ADD. The others may name none."""
_NO_LEDGER_ID = f"ledger ids go from 0 to {LEDGER_ID_MAX}"

log = logging.getLogger(__name__)


class Dispatch:
    """Takes the requests of one ``peer``."""

    def __init__(self, bookie: ServedBookie, peer: Peer) -> None:
        self._bookie = bookie
        self._storage = bookie.storage
        self._peer = peer
        self._answers = Answers(bookie, peer)
        self._entries = EntryReads(bookie, peer, self._answers)
        self._lacs = LacReads(bookie, self._answers, self._entries)
        self._greeted = False
        self._challenge = b""
        self._before_hello = 0
        """How many requests came before the peer was greeted."""

    def end(self) -> None:
        """The connection has ended: nobody waits for anything any more."""
        self._lacs.end()

    def handle(self, frame: Frame) -> None:
        """Take one request. It is answered now or later, on the loop; no error comes out of here."""
        header = frame.header
        answers = self._answers
        answers.under_way += 1
        try:
            if not self._greeted:
                self._before_hello += 1
                if self._before_hello > _BEFORE_HELLO_MAX:
                    self._peer.refuse(f"{_BEFORE_HELLO_MAX} requests came, and none was a HELLO that can be granted")
                    return
            if answers.under_way > self._bookie.requests_in_flight_max:
                answers.answer(header, Status.TOO_MANY_REQUESTS)
            elif header.kind == _ADD:
                self._add(frame)
            elif frame.batch is not None:
                answers.refuse(header, f"kind {header.kind} is not asked for with a batch")
            elif header.kind == Kind.HELLO:
                self._hello(header, frame.body)
            elif not self._greeted:
                answers.refuse(header, "the first request of a connection is HELLO")
            elif not (0 if header.kind in _OF_A_LEDGER else -1) <= header.ledger_id <= LEDGER_ID_MAX:
                answers.refuse(header, _NO_LEDGER_ID)
            else:
                self._answer_by_kind(header, frame.body)
        except WireError as error:
            answers.refuse(header, str(error))
        except Exception:
            log.exception("request %r from %s failed", header, self._peer.peer)
            answers.answer(header, Status.IO_ERROR)

    def _answer_by_kind(self, header: Header, body: memoryview) -> None:
        match header.kind:
            case Kind.READ:
                self._entries.read(header)
            case Kind.READ_LAC:
                self._lacs.read(header)
            case Kind.WRITE_LAC:
                self._write_last_add_confirmed(header)
            case Kind.SYNC:
                self._sync(header)
            case Kind.RANGES:
                self._ranges(header)
            case Kind.STATUS:
                self._answers.answer(header, _OK, body=msgspec.json.encode(self._bookie.status()))
            case Kind.ENTRY_LOGS:
                logs, following = entry_logs(self._storage, header.value)
                self._answers.answer(header, _OK, value=following, body=logs.encode())
            case Kind.LIMBO:
                found, following = limbo(self._storage, header.ledger_id, header.limit)
                self._answers.answer(header, _OK, value=following, body=found.encode())
            case Kind.COLLECT:
                log.info("%s asked for a collection", self._peer.peer)
                self._answers.answer(header, _OK, value=self._bookie.collect())
            case Kind.SWITCH_READ_ONLY:
                log.warning("%s switches read-only %s", self._peer.peer, "on" if header.value else "off")
                self._storage.switch_read_only(bool(header.value), partial(self._answers.answer, header))
            case Kind.FETCH:
                self._fetch(header, body)
            case unknown:
                self._answers.refuse(header, f"unknown kind {unknown}")

    def _hello(self, header: Header, body: memoryview) -> None:
        if header.value < PROTOCOL_VERSION:
            self._answers.refuse(header, f"protocol version {header.value}; this bookie speaks {PROTOCOL_VERSION}")
            return
        hello = Hello.decode(body)
        secrets, bookie_id = self._bookie.secrets(), self._bookie.bookie_id
        if secrets and not is_proof(hello.proof, secrets, self._challenge, bookie_id):
            self._challenge = new_challenge()
            self._answers.answer(header, Status.UNAUTHORIZED, body=self._challenge)
            return
        if hello.client:
            self._peer.name_peer(hello.client)
        self._greeted, self._challenge = True, b""
        self._peer.greeted()
        self._answers.answer(header, _OK, value=PROTOCOL_VERSION, body=bookie_id.encode())

    def _add(self, frame: Frame) -> None:
        header = frame.header
        if not self._greeted:
            self._answers.refuse(header, "the first request of a connection is HELLO")
        elif frame.batch is None or header.first_entry_id < 0:
            self._answers.refuse(header, "an add is a batch of entries of one ledger, with ids from 0")
        elif not 0 <= header.ledger_id <= LEDGER_ID_MAX:
            self._answers.refuse(header, _NO_LEDGER_ID)
        else:
            if header.flags & _VOLATILE:
                # Raises if the assignment makes no sense.
                header.assignment()
            batch = EntryBatch.checked(frame.batch, header, frame.body_crc)
            self._storage.add(header, batch, partial(self._added, header))

    def _added(self, header: Header, status: int) -> None:
        if status != _OK or header.flags & _VOLATILE:
            self._answers.answer(header, status)
        else:
            self._answers.acknowledge(header)

    def _write_last_add_confirmed(self, header: Header) -> None:
        if header.last_add_confirmed < NO_ENTRY:
            self._answers.refuse(header, "an explicit LAC is an entry id")
            return
        self._storage.write_last_add_confirmed(
            header.ledger_id,
            header.master_key,
            header.last_add_confirmed,
            partial(self._answers.answer, header),
            header.last_add_fully_replicated,
        )

    def _sync(self, header: Header) -> None:
        assignment = header.assignment()
        self._storage.sync(header.ledger_id, header.master_key, assignment, partial(self._answers.answer, header))

    def _fetch(self, header: Header, body: memoryview) -> None:
        fetch = self._bookie.fetch()
        if fetch is None:
            self._answers.refuse(header, "this bookie fetches nothing from others")
        elif not 0 <= header.first_entry_id <= header.last_entry_id:
            self._answers.refuse(header, f"a fetch of entries {header.first_entry_id}..{header.last_entry_id}")
        else:
            fetch(header, FetchFrom.decode(body), partial(self._fetched, header))

    def _fetched(self, header: Header, status: int, last: int, byte_count: int, why: str) -> None:
        self._answers.answer(header._replace(last_entry_id=last), status, value=byte_count, body=why.encode())

    def _ranges(self, header: Header) -> None:
        ranges, ledger_id, first = self._storage.ranges(
            header.ledger_id, max(header.first_entry_id, 0), header.limit, only=header.value == 1
        )
        answered = header._replace(first_entry_id=first)
        # Who compares copies takes what is listed for a copy that is there, so a power cut may not take it back.
        self._storage.when_durable(ranges, partial(self._listed, answered, ledger_id, ranges.encode()))

    def _listed(self, header: Header, following: int, ranges: bytes, status: int) -> None:
        if status == _OK:
            self._answers.answer(header, _OK, value=following, body=ranges)
        else:
            self._answers.answer(header, status)
