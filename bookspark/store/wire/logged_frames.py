"""Batch frames of a log, as a scan reads them: parsed after every check.

Law: a frame is good if its Arrow message matches its sizes, and the checksums of its header and body match. Consecutive frames
are checked some hundred at a time, because a Python step for each check of each frame would cost more than the checks. If a
check fails, frames are checked singly, so both ways give the same result.

One sum checks all header checksums. A header ends with its own checksum, so every good header leaves the same sum behind,
whatever its fields. A bad header leaves another sum, which only another bad header can repair, once in 2³² times.

Source: docs/decisions/one-log.md; ``entry_batch`` for the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple, cast

from crc32c import crc32c

from bookspark.store.wire.batch_prefix import (
    BODY_LENGTH_OFFSET,
    HEADER_END,
    HEADER_OFFSET,
    PREFIX_BYTES,
    PREFIX_START,
    behind_header,
)
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.header import HEADER_BYTES, PROTOCOL_VERSION

# Fields of the prefix for a scan: of the header the version, ledger, first, last, LAC, LAFR, master key, the body's checksum
# and its own; of the message the body's length and the sizes of the two binary columns.
_SCAN = struct.Struct("<16xH14xqqqqq16x16s4xI12xI24xq208xq40xq")
_HEADER = slice(HEADER_OFFSET, HEADER_OFFSET + HEADER_BYTES - 4)
_BEFORE_HEADER = slice(HEADER_OFFSET)
_AFTER_HEADER = slice(HEADER_END, PREFIX_BYTES)
# The same prefix in pieces: before the header, the header, after it. The length of the body lies in the last.
_PARTS = struct.Struct("<16s112s400s")
_BODY_LENGTH = struct.Struct("<q")
_TOGETHER = 512
_LAST_ROW_LAC = struct.Struct("<q")


class LoggedFrame(NamedTuple):
    """A good frame of a log, with fields of its header. Position and size in bytes."""

    position: int
    size: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    master_key: bytes


# ``LoggedFrame._make`` in C.
_logged_frame: Callable[[tuple[int | bytes, ...]], LoggedFrame] = partial(tuple.__new__, LoggedFrame)


class LoggedFrames(NamedTuple):
    """Consecutive good frames of a log, at least one: a column for each field of ``LoggedFrame``."""

    position: Sequence[int]
    size: Sequence[int]
    ledger_id: Sequence[int]
    first_entry_id: Sequence[int]
    last_entry_id: Sequence[int]
    last_add_confirmed: Sequence[int]
    last_add_fully_replicated: Sequence[int]
    master_key: Sequence[bytes]

    @classmethod
    def of(cls, frames: Sequence[LoggedFrame]) -> LoggedFrames:
        """From consecutive frames, at least one."""
        return _logged_frames(zip(*frames, strict=True))

    @property
    def end(self) -> int:
        """The position behind the last frame."""
        return self.position[-1] + self.size[-1]

    def each(self) -> Iterator[LoggedFrame]:
        return map(_logged_frame, zip(*self, strict=True))

    def by_ledger(self) -> Iterator[LoggedFrames]:
        """Runs of frames of one ledger."""
        end = 0
        for _, run in groupby(self.ledger_id):
            start, end = end, end + len(list(run))
            yield _logged_frames(column[start:end] for column in self)


_logged_frames = cast(Callable[[Iterable[Sequence[object]]], LoggedFrames], partial(tuple.__new__, LoggedFrames))


def parse_logged_frames(content: memoryview, position: int) -> LoggedFrames | None:
    """Good frames from the start of ``content`` on, which lies at ``position`` of its log; None if no good frame begins there."""
    frames = _together(content, position)
    if frames is None:
        found: list[LoggedFrame] = []
        at = 0
        while len(found) < _TOGETHER and (frame := parse_logged_frame(content, at, position + at)) is not None:
            found.append(frame)
            at += frame.size
        return LoggedFrames.of(found) if found else None
    return frames


def _together(content: memoryview, position: int) -> LoggedFrames | None:
    """The consecutive frames from the start of ``content`` on, up to _TOGETHER, at ``position`` of its log. None unless each
    passes every check of ``parse_logged_frame``."""
    at, size = 0, len(content)
    parts: list[tuple[bytes, bytes, bytes]] = []
    bodies: list[int] = []
    ends: list[int] = []
    while at + PREFIX_BYTES <= size and len(ends) < _TOGETHER:
        part = _PARTS.unpack_from(content, at)
        (body_bytes,) = _BODY_LENGTH.unpack_from(content, at + BODY_LENGTH_OFFSET)
        at += PREFIX_BYTES + body_bytes
        if not 0 < body_bytes <= FRAME_BYTES_MAX or at > size:
            break
        parts.append(part)
        bodies.append(body_bytes)
        ends.append(at)
    count = len(ends)
    if not count:
        return None
    starts_of_frames, headers, afters = zip(*parts, strict=True)
    joined = b"".join(headers)
    if (
        starts_of_frames.count(PREFIX_START) != count
        or crc32c(joined) != _sum_of_headers(count)
        or memoryview(joined).cast("H")[:: HEADER_BYTES // 2].tolist().count(PROTOCOL_VERSION) != count
    ):
        return None
    numbers, sizes = memoryview(joined).cast("q"), memoryview(b"".join(afters)).cast("q")
    ledger_ids, firsts, lasts, confirmed, replicated = (numbers[at :: HEADER_BYTES // 8].tolist() for at in range(2, 7))
    payloads, digests = (sizes[at :: len(afters[0]) // 8].tolist() for at in (30, 36))
    counts = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    if (
        not 0 < min(counts) <= max(counts) <= FRAME_BYTES_MAX
        or not 0 <= min(payloads) <= max(payloads) <= FRAME_BYTES_MAX
        or not 0 <= min(digests) <= max(digests) <= FRAME_BYTES_MAX
        or list(map(behind_header, counts, payloads, digests)) != list(afters)
    ):
        return None
    starts = [end - body for end, body in zip(ends, bodies, strict=True)]
    sums = list(map(crc32c, map(content.__getitem__, map(slice, starts, ends))))
    if memoryview(joined).cast("I")[23 :: HEADER_BYTES // 4].tolist() != sums:
        return None
    # Every size is a multiple of 8.
    words = content[: ends[-1]].cast("q")
    last_rows = [start + 24 * n - 8 >> 3 for start, n in zip(starts, counts, strict=True)]
    row_confirmed = map(words.__getitem__, last_rows)
    return LoggedFrames(
        [position + start - PREFIX_BYTES for start in starts],
        [PREFIX_BYTES + body for body in bodies],
        ledger_ids,
        firsts,
        lasts,
        [told if told > row else row for told, row in zip(confirmed, row_confirmed, strict=True)],
        replicated,
        [header[72:88] for header in headers],
    )


@lru_cache(maxsize=1024)
def _sum_of_headers(count: int) -> int:
    """The CRC32C of ``count`` good headers."""
    return crc32c((bytes(HEADER_BYTES - 4) + crc32c(bytes(HEADER_BYTES - 4)).to_bytes(4, "little")) * count)


def parse_logged_frame(content: memoryview, at: int, position: int) -> LoggedFrame | None:
    """The frame at ``content[at:]``, which lies at ``position`` of its log; None unless it passes every check. (A read calls
    this for each frame that it serves, so it is one straight line.)"""
    body = at + PREFIX_BYTES
    if body > len(content):
        return None
    # fmt: off
    (
        version, ledger_id, first, last, confirmed, replicated, master_key, body_crc, header_crc,
        body_bytes, payload_bytes, digest_bytes,
    ) = _SCAN.unpack_from(content, at)
    # fmt: on
    count = last - first + 1
    end = body + body_bytes
    if (
        version != PROTOCOL_VERSION
        or not 0 < body_bytes <= FRAME_BYTES_MAX
        or end > len(content)
        or not (0 < count <= FRAME_BYTES_MAX and 0 <= payload_bytes <= FRAME_BYTES_MAX >= digest_bytes >= 0)
    ):
        return None
    prefix = content[at:body].tobytes()
    if (
        crc32c(prefix[_HEADER]) != header_crc
        or prefix[_BEFORE_HEADER] != PREFIX_START
        or prefix[_AFTER_HEADER] != behind_header(count, payload_bytes, digest_bytes)
        or crc32c(content[body:end]) != body_crc
    ):
        return None
    (row_confirmed,) = _LAST_ROW_LAC.unpack_from(content, body + 24 * count - 8)
    if row_confirmed > confirmed:
        confirmed = row_confirmed
    return _logged_frame((position, end - at, ledger_id, first, last, confirmed, replicated, master_key))
