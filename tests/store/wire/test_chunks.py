"""The pool of receive chunks reuses memory that no view refers to."""

from __future__ import annotations

from bookspark.store.wire.chunks import ChunkPool


def test_chunk_is_reused_only_when_no_view_of_it_is_left():
    pool = ChunkPool()
    chunk = pool.take()
    view = memoryview(chunk)[:10]
    pool.retire(chunk)
    other = pool.take()
    assert other is not chunk
    view.release()
    assert pool.take() is chunk
    assert len(chunk) == len(other)
