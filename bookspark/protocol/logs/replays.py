"""Is a micro-batch new, a replay of a committed one, or from a Spark checkpoint that was set back?

Law: a batch is committed once, and no new rows are taken for committed rows. Spark numbers the batches of a query upwards and
replays the last one only. So the number decides, and for the last number the *fingerprint* in its commit:

============================  ===============================================================================================
number                        the batch is
============================  ===============================================================================================
above the query's last one    new, if the query itself had the last one
above it, and the query had   refused: a copy of the query's Spark checkpoint is, or was, in use elsewhere, and wrote the last one
another batch as the last
the last one, the same batch  a replay: it is committed, nothing is written
the last one, another batch   refused
below the last one            refused: its former content is unknown
============================  ===============================================================================================

Two batches of one number are *the same* by the first of these rules that has its data:

1. The same plan: Spark writes it before it runs the batch, and replays it. The rows may differ, if the query's values are random.
2. The same offsets (where both are known), number of rows and sum over the rows. This is a batch planned anew: a Spark checkpoint
   was set back by one batch, and nothing came in since.
3. A commit without a sum (written by an earlier version) has only the number of rows to compare.

A new batch is judged by the plan or offsets of the log's last number in its Spark checkpoint. Its own rows prove nothing: a copy
of the checkpoint may have put a batch with rows under a number whose batch has none here.

A plan is unknown if the Spark checkpoint can't be read where the batch is committed (``spark.connector.sink``). A replay with
random values is then refused, and its error names the option that accepts it as the same. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.commits import CommitHeader, Fingerprint


class CheckpointRewoundError(BookKeeperError):
    """A query's batch number is in the log with other rows: its Spark checkpoint was set back."""


class Batch(NamedTuple):
    """A micro-batch to be committed, with names for its errors."""

    log: str
    query: str
    number: int
    """Its number in the query."""
    fingerprint: Fingerprint | None = None
    """None: not known yet, or the batch is to be accepted as the one of its number."""
    checkpoint: str = ""
    """The place of the query's Spark checkpoint. Empty: unknown."""
    before: Callable[[int], Fingerprint] | None = None
    """The plan of an earlier batch in that Spark checkpoint, by its number. None: no comparison is needed, because this run has
    written to the log before."""


def is_committed(header: CommitHeader, batch: Batch) -> bool:
    """Is the batch part of the log, whose commits ``header`` sums up?

    Raises CheckpointRewoundError if the log has another batch of this number, or a later one.
    """
    last = header.last_batches.get(batch.query, -1)
    if batch.number > last:
        _check_last(header.fingerprints.get(batch.query), last, batch)
        return False
    if batch.number < last:
        raise CheckpointRewoundError(
            _refusal(
                batch, f"the log has batch {last} of it, and what was in batch {batch.number} then may be other rows"
            )
        )
    kept = header.fingerprints.get(batch.query)
    if batch.fingerprint is None or kept is None or kept.same_as(batch.fingerprint):
        return True
    raise CheckpointRewoundError(
        _refusal(
            batch,
            f"the log has batch {last} of it with {kept.rows} rows, and this one of {batch.fingerprint.rows} rows is another",
        )
        + f" If it is the same, and the query's values are random, set the sink's option acceptReplay to {batch.number}: "
        "the batch is then taken for the one in the log"
    )


def _check_last(kept: Fingerprint | None, last: int, batch: Batch) -> None:
    """Raise CheckpointRewoundError if the log's last batch differs from the batch of its number in the batch's checkpoint."""
    if batch.before is None or last < 0:
        return
    if kept is not None and not kept.may_be_planned_as(batch.before(last)):
        raise CheckpointRewoundError(
            _refusal(
                batch,
                f"the log has a batch {last} of it with {kept.rows} rows, which is not the batch {last} in its checkpoint, so "
                f"batch {batch.number} may have rows that are in the log",
            )
            + f" If you know that it has none, set the sink's option acceptReplay to {last}"
        )


def _refusal(batch: Batch, why: str) -> str:
    where = f" ({batch.checkpoint})" if batch.checkpoint else ""
    return (
        f"log {batch.log!r}: batch {batch.number} of query {batch.query} is not written: {why}. The query's Spark "
        f"checkpoint{where} was restored from an older copy, or two queries have copies of one. Give the query its newest "
        "checkpoint again. Or start it with a new checkpointLocation and the sink's option follows set to "
        f"{batch.query!r}, from a source that starts where the log's rows end."
    )
