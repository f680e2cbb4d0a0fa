"""What an operator has one bookie do: collect deleted ledgers now, be read-only.

Law: an order that returns is carried out. A bookie that does not answer in time, or that was started anew meanwhile, raises
BookieError, and the order may have been carried out or not; to give it again does no harm.
"""

from __future__ import annotations

import time

import msgspec

from bookspark.errors import BookieError
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.client.inspection.bookie_questions import ask
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.wire.header import Header, Kind
from bookspark.store.wire.messages import BookieStatus, CollectionStatus

_LOOK_SECONDS = 0.2
"""Time between two looks at a collection."""


def collect_now(context: ClientContext, bookie_id: str, seconds_max: float) -> CollectionStatus:
    """Have the bookie collect deleted ledgers and give their space back; returns what came of it. Raises BookieError if it is not
    over after ``seconds_max``, or did not come to its end."""
    ordered = _done(context, bookie_id, Header(Kind.COLLECT, context.runtime.connections.next_request_id()))
    assert ordered.header is not None
    number, incarnation = ordered.header.value, ordered.header.incarnation
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        answer = _done(context, bookie_id, Header(Kind.STATUS, context.runtime.connections.next_request_id()))
        assert answer.header is not None
        if answer.header.incarnation != incarnation:
            raise BookieError(f"bookie {bookie_id} was started anew meanwhile; ask for the collection again")
        found = msgspec.json.decode(answer.body, type=BookieStatus).collection
        if found is not None and found.number >= number:
            if found.problem:
                raise BookieError(f"bookie {bookie_id} did not finish its collection: {found.problem}; see its log")
            return found
        time.sleep(_LOOK_SECONDS)
    raise BookieError(
        f"bookie {bookie_id} still collects after {seconds_max:g} s, and goes on; `bookspark bookie status {bookie_id}` will "
        "tell what it freed"
    )


def switch_read_only(context: ClientContext, bookie_id: str, read_only: bool) -> None:
    """Make the bookie read-only, also after a restart, or take that back. Raises BookieError."""
    request_id = context.runtime.connections.next_request_id()
    _done(context, bookie_id, Header(Kind.SWITCH_READ_ONLY, request_id, value=int(read_only)))


def _done(context: ClientContext, bookie_id: str, header: Header) -> Answer:
    """The bookie's positive answer. Raises BookieError for any other."""
    answer = ask(context, bookie_id, header)
    if isinstance(answer.response, Positive) and answer.header is not None:
        return answer
    why = str(answer.response)
    if isinstance(answer.response, Unknown) and answer.response.reason is UnknownReason.BAD_REQUEST:
        why += "; a bookie of an older version knows no such request"
    raise BookieError(f"bookie {bookie_id} did not do it: {why}")
