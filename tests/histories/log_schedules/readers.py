"""Readers of a log like a streaming query, with places that outlive them.

Laws, beside those of ``history``:

* A reader never moves to a place before its current place, in any lane, even if it sees less than before.
* A limit is never exceeded; at least a row comes if any waits.
* An invalid place is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from bookspark.errors import ConfigurationError, DataLossError, ReadError
from bookspark.logs.feeds.log_feed import Limit, LogFeed
from bookspark.protocol.logs.lanes import later
from bookspark.protocol.logs.log_record import NoSuchLogError
from tests.histories.log_schedules.actors import LOG, Stage


def read_on(stage: Stage, polls: int) -> None:
    """Read on from the current place, sometimes in another process."""
    process = object()
    client = stage.client(process)
    feed = at = before = None
    for _ in range(polls):
        # Too few bookies answer, or an existing commit is invisible for the moment.
        try:
            if feed is None or at is None:
                feed = LogFeed(client, LOG, b"", fail_on_data_loss=False)
                at = feed.earliest()
            elif before is not None and stage.random.random() < 0.2:
                # Another process, with older knowledge, continues from the saved offset.
                feed, before = before, feed
                feed.check(at)
            elif stage.random.random() < 0.2:
                # A new process continues.
                feed, before = LogFeed(client, LOG, b"", fail_on_data_loss=False), feed
                feed.check(at)
                check_refuses(stage.random, feed, at)
            newest = end = later(at, feed.newest())
            before_it, rows_then = feed.all_rows(at), feed.all_rows(newest)
            assert all(count <= rows_then.get(lane, 0) for lane, count in before_it.items()), (
                f"a reader at {at} is to go back to {newest}"
            )
            limit = Limit(stage.random.choice([None, 1, 2, 5]), stage.random.choice([None, 1, 30]))
            limited = stage.random.random() < 0.4
            if limited:
                end = feed.limited(at, newest, limit)
                assert feed.rows(at, end) or not feed.rows(at, newest), (
                    f"no row comes, and {feed.rows(at, newest)} wait"
                )
            rows = stage.read(client, feed, at, end)
            assert not limited or limit.rows is None or rows <= limit.rows, (
                f"{rows} rows come, of {limit.rows} that may"
            )
            at = end
        except (DataLossError, NoSuchLogError):
            assert stage.makes_anew
            # The next log of the name is read from its beginning.
            feed = at = before = None
        except ReadError:
            pass


def check_refuses(random: Random, feed: LogFeed, at: Mapping[str, int]) -> None:
    """Check that a reader refuses an invalid place."""
    damaged: dict[str, Any] = dict(at)
    damaged[random.choice(list(at))] = random.choice([-1, 0.5, "1", None, [0]])
    left_out = random.choice(["log", "position"])
    lacking = {key: rows for key, rows in at.items() if key != left_out}
    strange = {**at, random.choice(["0", "-1", "1.5", "", "orders", "\u0663"]): 0}
    wrong = random.choice([damaged, lacking, strange])
    try:
        feed.check(wrong)
    except (ConfigurationError, DataLossError):
        return
    raise AssertionError(f"{wrong} is taken for a place in the log")
