"""Small record batches made one, before Spark gets them.

Law: the same rows in the same order. A batch that is large passes as it is; small ones wait for each other, up to about one that
is large. Each batch that Spark gets costs it about as much as a thousand small rows, and a log of small micro-batches has a batch
for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

LARGE_ROWS, LARGE_BYTES = 8192, 256 << 10
"""A batch is large if it has so many rows, or so many bytes."""


def gathered(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The rows of ``batches``, which have the same columns."""
    small: list[pyarrow.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = batch.nbytes
        if small and (rows + batch.num_rows > LARGE_ROWS or size + more > LARGE_BYTES):
            yield _one(small)
            small, rows, size = [], 0, 0
        if batch.num_rows >= LARGE_ROWS or more >= LARGE_BYTES:
            yield batch
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + more
    if small:
        yield _one(small)


def _one(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    import pyarrow

    return batches[0] if len(batches) == 1 else pyarrow.concat_batches(batches)
