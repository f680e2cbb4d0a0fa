"""Copy closed ledgers of a cluster of Apache BookKeeper's into one of ours, under their own ids.

    spark-submit $(bookspark job copy_ledgers) --source OLD:2181/ledgers --zookeeper NEW:2181 [--tasks N] [LEDGER…]

The tasks share the ledgers (``bookspark.operations.moving``). The job prints one line of JSON: ``{"copied", "were_there", "open",
"entries", "bytes", "failed": {ledger: why}}``; ``open`` counts ledgers skipped because they are not closed. A second run compares
existing copies and continues interrupted ones. Run one such job at a time. Exit status 1: a ledger was not copied. The source
cluster is only read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated

import typer

from bookspark import BookKeeper
from bookspark.errors import BookKeeperError
from bookspark.operations.moving import EntryReader, Source, copy_ledger
from bookspark.spark.session import session
from bookspark.spark.short_jobs import run_job
from bookspark.support.command_line import FOUND


def main(
    source: Annotated[str, typer.Option(help="BookKeeper's cluster: host:port[,host:port…]/ledgers.")],
    zookeeper: Annotated[str, typer.Option(help="Bookspark's cluster: host:port[,host:port…][/chroot].")],
    tasks: Annotated[int, typer.Option(help="Tasks to divide the ledgers among.", min=1)] = 8,
    ledgers: Annotated[list[int] | None, typer.Argument(help="Ids of ledgers. Default: all closed ledgers.")] = None,
) -> None:
    """Copy closed ledgers of an Apache BookKeeper cluster into a Bookspark cluster, under their ids."""
    with Source(source) as there:
        asked = ledgers or there.ledger_ids()
    spark = session("bookspark copy_ledgers", zookeeper=zookeeper)
    # Ledgers of the same time tend to have similar sizes, so each task gets ledgers of all times.
    told = (
        spark.sparkContext.parallelize([asked[i::tasks] for i in range(tasks)], tasks)
        .mapPartitions(partial(_copy, source, zookeeper, not ledgers))
        .collect()
    )
    spark.stop()
    summary: Counter[str] = Counter(dict.fromkeys(("copied", "were_there", "open", "entries", "bytes"), 0))
    failed: dict[int, str] = {}
    for counts, failures in told:
        summary.update(counts)
        failed |= failures
    print(json.dumps({**summary, "failed": failed}))
    if failed:
        raise typer.Exit(FOUND)


def _copy(
    source: str, zookeeper: str, leave_open_out: bool, lists: Iterable[list[int]]
) -> Iterator[tuple[Counter[str], dict[int, str]]]:
    """The result of a task: counts of the summary, and the errors by ledger id."""
    counts: Counter[str] = Counter()
    failed: dict[int, str] = {}
    with Source(source) as there, EntryReader(there.addresses()) as reader, BookKeeper(zookeeper) as here:
        for ledger_id in (each for ids in lists for each in ids):
            try:
                if leave_open_out and not there.ledger(ledger_id).closed:
                    counts["open"] += 1
                    continue
                copied = copy_ledger(there, reader, here, ledger_id)
            except BookKeeperError as error:
                failed[ledger_id] = str(error)
            else:
                counts["were_there" if copied.was_there else "copied"] += 1
                counts.update(entries=copied.entries, bytes=copied.byte_count)
    yield counts, failed


if __name__ == "__main__":
    run_job("copy_ledgers", main)
