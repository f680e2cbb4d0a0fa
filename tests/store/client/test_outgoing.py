"""Payloads on their way into frames: cut into runs, and encoded the same for every form of input."""

from __future__ import annotations

import itertools
import tracemalloc
from struct import pack

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import EntryTooLargeError, InvalidArgumentError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.store.client.writing.payloads import Outgoing, payloads_of, runs_of
from bookspark.store.wire.columns import Heads
from bookspark.store.wire.digests import digester
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, Entry, encode_entries
from bookspark.store.wire.header import Header, Kind

FRAME_BYTES = 300
payloads = st.lists(st.binary(max_size=120), max_size=20)


def dumb_cuts(sizes: list[int]) -> list[int]:
    """Number of payloads in each run, by a naive count."""
    counts: list[int] = []
    filled = 0
    for size in sizes:
        if not counts or filled + size + ENTRY_OVERHEAD_BYTES > FRAME_BYTES:
            counts.append(0)
            filled = 0
        counts[-1] += 1
        filled += size + ENTRY_OVERHEAD_BYTES
    return counts


@given(payloads)
def test_runs_are_as_long_as_a_frame_allows(payloads: list[bytes]) -> None:
    for given_as in (payloads, pa.array(payloads, pa.binary()), pa.array([b"x", *payloads], pa.binary())[1:]):
        runs = runs_of(given_as, FRAME_BYTES, one_each=False)
        assert [run.count for run in runs] == dumb_cuts([len(payload) for payload in payloads])
        assert [bytes(payload) for run in runs for payload in run.payloads()] == payloads
        assert sum(run.byte_length for run in runs) == sum(map(len, payloads))


@given(payloads)
def test_each_run_of_a_striped_ledger_has_a_single_entry(payloads: list[bytes]) -> None:
    for given_as in (payloads, pa.array(payloads, pa.binary())):
        runs = runs_of(given_as, FRAME_BYTES, one_each=True)
        assert [[bytes(payload) for payload in run.payloads()] for run in runs] == [[payload] for payload in payloads]


@pytest.mark.parametrize("digest_type", DigestType)
@given(payloads=payloads.filter(bool))
def test_run_is_encoded_like_its_single_entries(digest_type: DigestType, payloads: list[bytes]) -> None:
    digest = digester(digest_type, b"secret")
    header = Header(Kind.ADD, 5, 7, 30, 30 + len(payloads) - 1, 28)
    entries, length = [], 1000
    for entry_id, payload in enumerate(payloads, 30):
        length += len(payload)
        entries.append(Entry(7, entry_id, 28, length, payload, digest(7, entry_id, 28, length, payload)))
    outgoing = Outgoing(7, digest, 1 << 20, striped=False)
    half = len(payloads) // 2
    for waiting in (
        payloads,
        runs_of(payloads, 1 << 20, one_each=False),
        runs_of(pa.array(payloads, pa.binary()), 1 << 20, one_each=False),
        [*runs_of(payloads[:half], 1 << 20, one_each=False), *payloads[half:]],
        [*payloads[:half], *runs_of(payloads[half:], 1 << 20, one_each=False)],
    ):
        outgoing.put(waiting)
        assert outgoing.encode(header, outgoing.take(), 1000) == encode_entries(header, entries)
        assert len(outgoing) == 0


@given(st.lists(st.one_of(st.binary(max_size=120), payloads.filter(bool)), max_size=20))
def test_waiting_runs_leave_in_frames_as_full_as_possible(appended: list[bytes | list[bytes]]) -> None:
    outgoing = Outgoing(7, digester(DigestType.CRC32C, b""), FRAME_BYTES, striped=False)
    for item in appended:
        outgoing.put([item] if isinstance(item, bytes) else runs_of(item, FRAME_BYTES, one_each=False))
    runs = [
        run
        for item in appended
        for run in ([[item]] if isinstance(item, bytes) else split(item, dumb_cuts([len(payload) for payload in item])))
    ]
    expected: list[list[bytes]] = []
    for run in runs:
        if expected and sum(len(p) + ENTRY_OVERHEAD_BYTES for p in expected[-1] + run) <= FRAME_BYTES:
            expected[-1] = expected[-1] + run
        else:
            expected.append(run)
    assert [list(outgoing.take().payloads()) for _ in expected] == expected
    assert len(outgoing) == 0


def heads_of(count: int, size: int = 17) -> tuple[Heads, list[bytes]]:
    """Heads of ``count`` payloads, as ``Heads`` and as bytes."""
    columns = tuple(pack(f"<{count}q", *range(first, first + count)) for first in (0, 1 << 40, 5))
    return Heads(columns, size), [pack("<3q", n, n + (1 << 40), n + 5)[:size] for n in range(count)]


@pytest.mark.parametrize("size", [17, 24])
@given(payloads)
def test_runs_with_heads_are_as_long_as_a_frame_allows(size: int, payloads: list[bytes]) -> None:
    heads, each = heads_of(len(payloads), size)
    whole = [head + payload for head, payload in zip(each, payloads, strict=True)]
    runs = runs_of(payloads, FRAME_BYTES, one_each=False, heads=heads)
    assert [run.count for run in runs] == dumb_cuts([len(payload) for payload in whole])
    assert b"".join(part for run in runs for part in run.with_heads) == b"".join(whole)
    assert sum(run.byte_length for run in runs) == sum(map(len, whole))
    striped = runs_of(payloads, FRAME_BYTES, one_each=True, heads=heads)
    assert [list(run.with_heads) for run in striped] == [[payload] for payload in whole]


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("size", [1, 100, 3000])
def test_separate_heads_are_encoded_like_heads_inside_payloads(digest_type: DigestType, size: int) -> None:
    digest = digester(digest_type, b"secret")
    for count in (1, 2, 63, 64, 130):
        bodies = [bytes([n]) * (size + n % 3) for n in range(count)]
        heads, each = heads_of(count)
        whole = [head + body for head, body in zip(each, bodies, strict=True)]
        header = Header(Kind.ADD, 5, 7, 30, 30 + count - 1, 28)
        apart, together = (Outgoing(7, digest, 1 << 20, striped=False) for _ in range(2))
        half = count // 2
        for first, end in ((0, half), (half, count)):
            apart.put(runs_of(bodies[first:end], 1 << 20, one_each=False, heads=heads.part(first, end)))
        together.put(runs_of(whole, 1 << 20, one_each=False))
        assert apart.encode(header, apart.take(), 1000) == together.encode(header, together.take(), 1000)
        assert len(apart) == 0


def test_entries_with_and_without_heads_leave_in_separate_frames_in_order() -> None:
    outgoing = Outgoing(7, digester(DigestType.CRC32C, b""), FRAME_BYTES, striped=False)
    heads, each = heads_of(1)
    with_head = runs_of([b"x"], FRAME_BYTES, one_each=False, heads=heads)
    outgoing.put([b"a", *with_head, *with_head, b"b", *runs_of([b"c"], FRAME_BYTES, one_each=False)])
    frames = [b"".join(outgoing.take().with_heads) for _ in range(3)]
    assert frames == [b"a", b"".join((*each, b"x")) * 2, b"bc"]
    assert len(outgoing) == 0


def split(payloads: list[bytes], counts: list[int]) -> list[list[bytes]]:
    """Split the payloads into lists of these lengths."""
    ends = list(itertools.accumulate(counts))
    return [payloads[end - count : end] for end, count in zip(ends, counts, strict=True)]


def test_arrow_array_leaves_in_its_own_frame() -> None:
    outgoing = Outgoing(7, digester(DigestType.CRC32C, b""), FRAME_BYTES, striped=False)
    outgoing.put([b"a", *runs_of(pa.array([b"b", b"c"]), FRAME_BYTES, one_each=False), b"d"])
    assert [[bytes(p) for p in outgoing.take().payloads()] for _ in range(3)] == [[b"a"], [b"b", b"c"], [b"d"]]


def test_buffers_are_accepted_as_payloads_and_other_types_refused() -> None:
    assert payloads_of([bytearray(b"ab"), memoryview(b"c"), b""], "append_batch") == [b"ab", b"c", b""]
    with pytest.raises(InvalidArgumentError, match="encode the text first"):
        payloads_of([b"a", "text"], "append_batch")
    with pytest.raises(InvalidArgumentError, match="null"):
        payloads_of(pa.array([b"a", None]), "append_batch")
    with pytest.raises(InvalidArgumentError, match="int64"):
        payloads_of(pa.array([1]), "append_batch")


def test_entry_larger_than_a_frame_is_refused() -> None:
    large = bytes(PAYLOAD_BYTES_MAX + 1)
    for given_as in ([b"", large], pa.array([b"", large], pa.binary())):
        with pytest.raises(EntryTooLargeError, match="split it"):
            runs_of(given_as, FRAME_BYTES, one_each=False)
    with pytest.raises(EntryTooLargeError, match="split it"):
        runs_of([large[1:]], FRAME_BYTES, one_each=False, heads=heads_of(1)[0])


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=60))
def test_appends_between_frames_leave_in_order(events: list[bytes | None]) -> None:
    """In ``events``, None takes a frame."""
    outgoing = Outgoing(7, digester(DigestType.CRC32C, b""), FRAME_BYTES, striped=False)
    came, left = list[bytes](), list[bytes]()
    for event in events:
        if event is not None:
            outgoing.put((event,))
            came.append(event)
        elif outgoing:
            left += (bytes(payload) for payload in outgoing.take().payloads())
        assert len(outgoing) == len(came) - len(left)
    while outgoing:
        left += (bytes(payload) for payload in outgoing.take().payloads())
    assert left == came
    with pytest.raises(IndexError):
        outgoing.take()


def test_next_frame_takes_all_waiting_appends_including_the_latest() -> None:
    outgoing = Outgoing(7, digester(DigestType.CRC32C, b""), FRAME_BYTES, striped=False)
    large = bytes(FRAME_BYTES)
    for payload in (large, b"a", b"b"):
        outgoing.put((payload,))
    assert outgoing.take().count == 1
    outgoing.put((b"c",))
    assert (outgoing.take().count, len(outgoing)) == (3, 0)


def test_idle_ledger_takes_little_memory() -> None:
    """Each ledger's empty deque took 760 bytes."""
    digest, ledgers = digester(DigestType.CRC32C, b""), list[Outgoing]()

    def made() -> Outgoing:
        outgoing = Outgoing(7, digest, FRAME_BYTES, striped=False)
        for _ in range(20):
            outgoing.put((b"x",))
        while outgoing:
            outgoing.take()
        return outgoing

    ledgers.append(made())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        ledgers += [made() for _ in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 100 < 500
