"""The appends that are not under way yet, and how they become frames.

Law: entries leave in the order in which they were appended. Waiting entries go out together, up to the frame size, those with
heads apart from those without. A run is never divided. On a striped ledger each entry is a frame of its own, as neighbours have
different write sets. Any thread puts; the I/O thread takes, and asks how many there are.

Decision: while nothing is under way, half of many entries go out, and the others right after them. A caller with a bound on what
is unacknowledged would go in step with the bookies otherwise: it holds the interpreter until it may append no more, all of that
is one frame, and each waits while the other works. With two frames the caller appends while the bookies sync
(docs/decisions/profile.md, "Small adds").

An empty deque takes 700 bytes, and most of many ledgers are idle. So there are two lists: the one to which any thread adds, and
what the I/O thread took from it whole, the next one last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookspark.store.client.writing.payloads import PayloadRun
from bookspark.store.wire.columns import Buffer, consecutive, ends_after, equal_offsets, joined, repeated
from bookspark.store.wire.digests import Digester
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES, encode_one, encode_pieces
from bookspark.store.wire.header import Header

_MANY = 256
"""Appends of which half go out by themselves."""


class Outgoing:
    """The appends of one ledger that wait for a frame."""

    def __init__(self, ledger_id: int, digest: Digester, frame_bytes: int, *, striped: bool) -> None:
        self._ledger_id = ledger_id
        self._digest = digest
        self._frame_bytes = frame_bytes
        self._striped = striped
        self.waiting: list[bytes | PayloadRun] = []
        """Always the same list. Whoever asks often whether anything waits looks at the two lists, which takes no call."""
        self.taken: list[bytes | PayloadRun] = []
        """What came before ``waiting``, the first one last."""
        self.put: Callable[[Sequence[bytes | PayloadRun]], None] = self.waiting.extend
        """Add appends at the end. It runs no Python code, so no signal handler comes in the middle."""

    def __len__(self) -> int:
        return len(self.taken) + len(self.waiting)

    def clear(self) -> None:
        self.taken.clear()
        self.waiting.clear()

    def _more(self) -> bool:
        """Take what waits, if all that was taken has gone. Returns whether something is left."""
        if not self.taken and (came := self.waiting[:]):
            # Other threads add at the end, so those that were copied are still the first ones.
            del self.waiting[: len(came)]
            came.reverse()
            self.taken = came
        return bool(self.taken)

    def take(self, *, idle: bool = False) -> PayloadRun:
        """The entries of the next frame: what waits, up to the frame size. The run of an Arrow array goes alone. ``idle``:
        nothing is under way."""
        if not self._more():
            raise IndexError("nothing waits")
        left = len(self) // 2 if idle and len(self) >= _MANY else 0
        item = self.taken.pop()
        run = PayloadRun((item,), len(item)) if isinstance(item, bytes) else item
        if self._striped or not run.is_list or not self._more():
            return run
        pieces, size = list(run.pieces), run.byte_length
        heads = [] if run.heads is None else [run.heads]
        while (self.taken or self._more()) and (not left or len(self) > left):
            item = self.taken[-1]
            if isinstance(item, bytes):
                if heads:
                    break
                size_after, count, more = size + len(item), len(pieces) + 1, None
            elif item.is_list and (item.heads is not None) == bool(heads):
                size_after, count, more = size + item.byte_length, len(pieces) + item.count, item.heads
            else:
                break
            if size_after + ENTRY_OVERHEAD_BYTES * count > self._frame_bytes:
                break
            pieces += (item,) if isinstance(item, bytes) else item.pieces
            if more is not None:
                heads.append(more)
            size = size_after
            self.taken.pop()
        return PayloadRun(pieces, size, None, joined(heads) if heads else None)

    def encode(self, header: Header, run: PayloadRun, length: int) -> Buffer:
        """The frame of ``run``. ``header`` has its ids and the LAC (last add confirmed); ``length`` is the ledger's before it, in
        bytes."""
        count, confirmed, ledger_id = run.count, header.last_add_confirmed, self._ledger_id
        first, digest = header.first_entry_id, self._digest
        if count == 1:
            payload = run.pieces[0] if run.heads is None else b"".join(run.with_heads)
            length += run.byte_length
            return encode_one(header, length, payload, digest(ledger_id, first, confirmed, length, payload))
        offsets = run.offsets
        columns = [
            repeated(ledger_id, count),
            consecutive(first, count),
            repeated(confirmed, count),
            ends_after(length, offsets),
        ]
        digests = digest.column(columns, run.payloads(), run.heads)
        columns += (offsets, equal_offsets(count, digest.size))
        return encode_pieces(header, columns, run.with_heads, run.byte_length, digests)
