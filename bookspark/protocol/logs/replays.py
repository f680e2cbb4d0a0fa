"""Is a micro-batch new, a replay of a committed one, or from a Spark checkpoint that was set back?

A version of an application (a batch write with ``txnAppId``) is judged as a batch is; it has no plan to compare.

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

A plan is unknown of a version, of a batch that Spark has dropped from its checkpoint, and with the sink's option
``compareCheckpoint`` false. A replay with random values is then refused, and its error names the option that accepts it as the
same. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.commits import TXN, CommitHeader, Fingerprint


class CheckpointRewoundError(BookKeeperError):
    """A query's batch number, or an application's version, is in the log with other rows: the Spark checkpoint was set back
    or is new."""


class Batch(NamedTuple):
    """A micro-batch to be committed, with names for its errors."""

    log: str
    query: str
    number: int
    """The batch's number in the query."""
    fingerprint: Fingerprint | None = None
    """None: not known yet, or the user accepts the batch as a replay of its number."""
    checkpoint: str = ""
    """The place of the query's Spark checkpoint. Empty: unknown."""
    before: Callable[[int], Fingerprint] | None = None
    """The plan of an earlier batch in that Spark checkpoint, by its number. None: no comparison is needed, because this run has
    written to the log before."""

    @property
    def kind(self) -> str:
        return "version" if self.query.startswith(TXN) else "batch"


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
                batch,
                f"the log has {batch.kind} {last} of it, and what was in {batch.kind} {batch.number} then may be other rows",
            )
        )
    kept = header.fingerprints.get(batch.query)
    if batch.fingerprint is None or kept is None or kept.same_as(batch.fingerprint):
        return True
    raise CheckpointRewoundError(
        _refusal(
            batch,
            f"the log has {batch.kind} {last} of it with {kept.rows} rows, and this one of {batch.fingerprint.rows} rows is "
            "another",
        )
        + f" If it is the same, and its values are random, set the sink's option acceptReplay to {batch.number}: "
        f"the {batch.kind} is then taken for the one in the log"
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
    if batch.query.startswith(TXN):
        return (
            f"log {batch.log!r}: version {batch.number} of application {batch.query.removeprefix(TXN)!r} is not written: {why}. "
            "Micro-batches are counted from 0 again with a new Spark checkpoint, so a number alone proves no replay. Give these "
            "rows another txnAppId, one for each checkpoint."
        )
    where = f" ({batch.checkpoint})" if batch.checkpoint else ""
    return (
        f"log {batch.log!r}: batch {batch.number} of query {batch.query} is not written: {why}. The query's Spark "
        f"checkpoint{where} was restored from an older copy, or two queries have copies of one. Give the query its newest "
        "checkpoint again. Or start it with a new checkpointLocation and the sink's option follows set to "
        f"{batch.query!r}, from a source that starts where the log's rows end."
    )
