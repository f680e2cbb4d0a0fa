"""Wire status of each decision of a bookie.

Law: each Negative has a status of its own, and no other class of answer gets it. The inverse is ``Header.response``.
"""

from __future__ import annotations

from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, UnknownReason
from bookspark.store.wire.header import Status

_NEGATIVE = {
    NegativeReason.NO_SUCH_ENTRY: Status.NO_SUCH_ENTRY,
    NegativeReason.NO_SUCH_LEDGER: Status.NO_SUCH_LEDGER,
}
_UNKNOWN = {
    UnknownReason.FENCED: Status.FENCED,
    UnknownReason.UNAUTHORIZED: Status.UNAUTHORIZED,
    UnknownReason.LIMBO: Status.LIMBO,
    UnknownReason.TOO_MANY_REQUESTS: Status.TOO_MANY_REQUESTS,
    UnknownReason.BAD_REQUEST: Status.BAD_REQUEST,
    UnknownReason.CONFLICT: Status.CONFLICT,
    UnknownReason.READ_ONLY: Status.READ_ONLY,
    UnknownReason.LOST: Status.LOST,
}


def status_of(response: Response) -> Status:
    if isinstance(response, Positive):
        return Status.OK
    if isinstance(response, Negative):
        return _NEGATIVE[response.reason]
    return _UNKNOWN.get(response.reason, Status.IO_ERROR)
