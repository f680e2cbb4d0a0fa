"""Read memory is lent again and again, except while a view of it exists."""

from __future__ import annotations

from bookspark.store.bookie.holdings.reads import ReadMemory


def test_memory_is_lent_again_only_when_no_view_of_it_is_left():
    memory = ReadMemory()
    kept = []
    for number in range(40):
        lent = memory.lend(100_000)
        lent[:] = bytes([number]) * 100_000
        kept.append(lent[10:20])
        del lent
    assert [bytes(view) for view in kept] == [bytes([number]) * 10 for number in range(40)]
    first = memory.lend(10).obj
    kept.clear()
    assert memory.lend(1_000_000).obj is first
    assert memory.lend(1_000_000).obj is first


def test_request_above_the_chunk_size_gets_its_own_memory():
    memory = ReadMemory()
    chunk = memory.lend(10).obj
    large = memory.lend(5_000_000)
    assert len(large) == 5_000_000
    assert large.obj is not chunk
    assert memory.lend(10).obj is chunk
