"""The arguments of a producer's appends, judged where they are not what nearly all are.

Law: as for every public call (``bookspark.support.arguments``): what can't be used is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from bookspark.logs.appended import VALUE_BYTES_MAX, too_large
from bookspark.logs.chain.stamps import Headers
from bookspark.support.arguments import EntryId, Payload
from bookspark.support.arguments.taken import judged, taken_by

SequenceNumber = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Half of the numbers that a stamp can say: behind the largest of them come rows that nobody numbers."""

_APPEND, _BATCH = "append:", "append_batch:"
_VALUE, _SEQUENCE, _NUMBER, _KEY, _HEADERS, _VALUES = map(
    taken_by, (Payload, SequenceNumber | None, EntryId | None, Payload | None, Headers, Sequence[Payload])
)


def judged_row(
    value: bytes, sequence: int | None, expect: int | None, key: bytes | None, headers: Headers
) -> tuple[bytes, int | None, int | None, bytes | None, Headers]:
    """The arguments of an append, as what they are to be. Raises InvalidArgumentError and EntryTooLargeError."""
    value, key = judged(_APPEND, "value", _VALUE, value), judged(_APPEND, "key", _KEY, key)
    headers = judged(_APPEND, "headers", _HEADERS, headers)
    size = len(value) + len(key or b"") + sum(len(name) + len(one) for name, one in headers)
    if size > VALUE_BYTES_MAX:
        raise too_large(size)
    sequence = judged(_APPEND, "sequence", _SEQUENCE, sequence)
    return value, sequence, judged(_APPEND, "expect", _NUMBER, expect), key, headers


def judged_rows(values: object) -> Any:
    """The values of a batch, as a list of bytes. Raises InvalidArgumentError."""
    return judged(_BATCH, "values", _VALUES, values)
