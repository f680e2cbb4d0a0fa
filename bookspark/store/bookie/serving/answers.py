"""Answers to the requests of one connection: their headers, and the count of unanswered requests.

Law: each request is answered once, unless the connection ends first. An answer carries the LAC (last add confirmed) and LAFR
(last add fully replicated) of the request's ledger and, for a request of a volatile ledger, LastAddSynced.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.store.bookie.serving.peer import Peer
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import NO_KEY, Flag, Header, Kind, Status
from bookspark.store.wire.messages import Acks

_VOLATILE = int(Flag.VOLATILE)
_RESPONSE = int(Flag.RESPONSE)
_ADD, _SYNC = int(Kind.ADD), int(Kind.SYNC)
_OK = int(Status.OK)
_ADDED = _ADD, _OK


class Answers:
    """Builds the answers to one ``peer`` and sends them."""

    def __init__(self, bookie: ServedBookie, peer: Peer) -> None:
        self._storage = bookie.storage
        self._answered = bookie.storage.traffic.answers
        self._incarnation = bookie.incarnation
        self._refusals = bookie.refusals
        self._peer = peer
        self._send = peer.send
        self.under_way = 0
        """Unanswered requests. The code that takes a request counts it here."""

    def answer(self, request: Header, status: int, *, value: int = 0, body: bytes = b"") -> None:
        """Answer ``request`` with a control frame. Its entry ids are the request's; a caller with other ids replaces them in
        ``request``."""
        self.under_way -= 1
        self._answered[request.kind, status] += 1
        ledger = self._storage.holdings.ledger(request.ledger_id)
        confirmed, replicated = NO_ENTRY, NO_ENTRY
        if ledger is not None:
            confirmed, replicated = ledger.last_add_confirmed, ledger.last_add_fully_replicated
        synced = NO_ENTRY
        if status == _OK and (request.kind == _SYNC or (request.kind == _ADD and request.flags & _VOLATILE)):
            synced = self._storage.volatile.last_add_synced(request.ledger_id, request.assignment())
        header = Header(
            request.kind,
            request.request_id,
            request.ledger_id,
            request.first_entry_id,
            request.last_entry_id,
            confirmed,
            _RESPONSE,
            status,
            replicated,
            synced,
            self._incarnation,
            NO_KEY,
            0,
            value,
        )
        self._send(control_frame(header, body))

    def acknowledge(self, request: Header) -> None:
        """Answer OK to an add of a non-volatile ledger, together with other adds (``acks_frame``)."""
        self.under_way -= 1
        self._answered[_ADDED] += 1
        self._peer.acknowledge(request.request_id)

    def refuse(self, request: Header, why: str) -> None:
        """Answer BAD_REQUEST, with ``why`` as the body, for people."""
        self._refusals.tell(self._peer.peer, why)
        self.answer(request, Status.BAD_REQUEST, body=why.encode())


def acks_frame(incarnation: int, request_ids: Sequence[int]) -> bytes:
    header = Header(Kind.ACKS, 0, flags=_RESPONSE, incarnation=incarnation, value=len(request_ids))
    return control_frame(header, Acks.encode(request_ids))


def refusal_frame(incarnation: int, why: str) -> bytes:
    """The last frame of a connection refused for bad bytes or for want of room."""
    header = Header(Kind.REFUSAL, 0, flags=_RESPONSE, status=Status.BAD_REQUEST, incarnation=incarnation)
    return control_frame(header, why.encode())
