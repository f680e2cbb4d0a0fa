"""Memory that is used again once no view of it is left."""

from __future__ import annotations

from bookspark.store.wire.chunks import ChunkPool


def test_a_chunk_is_used_again_once_no_view_of_it_is_left_and_no_sooner():
    pool = ChunkPool()
    chunk = pool.take()
    view = memoryview(chunk)[:10]
    pool.retire(chunk)
    other = pool.take()
    assert other is not chunk
    view.release()
    assert pool.take() is chunk
    assert len(chunk) == len(other)
