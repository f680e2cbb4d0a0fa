"""A ledger is closed during appends: an append that returned is in the ledger, and one that raised is not, if the writer's
own close succeeded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random

from bookspark import BookKeeper
from bookspark.errors import BookKeeperError, LedgerClosedError, LedgerFencedError
from bookspark.local import LocalCluster
from tests.soak._command import main

_APPENDERS = 3
_SECONDS_MAX = 60.0


def races(writer: BookKeeper, recoverer: BookKeeper, rounds: int, seed: int = 0) -> Mapping[str, int]:
    """Close ``rounds`` ledgers during appends: by the writer, by a recoverer, or by both. Returns counts."""
    random = Random(seed)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(_APPENDERS + 1) as pool:
        for round_ in range(rounds):
            _race(writer, recoverer, random, pool, counts)
            counts["rounds"] = round_ + 1
    return counts


def _race(
    writer: BookKeeper, recoverer: BookKeeper, random: Random, pool: ThreadPoolExecutor, counts: Counter[str]
) -> None:
    ledger = writer.create_ledger(*random.choice([(3, 3, 2), (3, 2, 2), (3, 3, 3)]))
    returned: dict[int, bytes] = {}
    raised: dict[bytes, BookKeeperError] = {}
    enough, goal = threading.Event(), random.randint(0, 30)

    def append(name: int) -> None:
        for number in range(1_000_000):
            payload = b"%d.%d" % (name, number)
            try:
                entry_id = ledger.append(payload)
            except BookKeeperError as error:
                raised[payload] = error
                return
            returned[entry_id] = payload
            if len(returned) >= goal:
                enough.set()

    how = random.choice(["writer", "writer without waiting", "recoverer", "both"])
    appending = [pool.submit(append, name) for name in range(_APPENDERS)]
    assert enough.wait(_SECONDS_MAX)
    recovery = pool.submit(recoverer.open_ledger, ledger.ledger_id) if how in ("recoverer", "both") else None
    own = None
    if recovery is not None and how == "recoverer":
        recovery.result(_SECONDS_MAX)
    try:
        ledger.close(wait=how != "writer without waiting")
    except BookKeeperError as error:
        own = error
    if recovery is not None:
        recovery.result(_SECONDS_MAX)
    for future in appending:
        future.result(_SECONDS_MAX)

    reader = recoverer.open_ledger(ledger.ledger_id)
    entries = {entry.entry_id: entry.payload for entry in reader.read()}
    assert sorted(entries) == list(range(len(entries)))
    assert len(set(entries.values())) == len(entries)
    lost = {entry_id: payload for entry_id, payload in returned.items() if entries.get(entry_id) != payload}
    assert not lost, f"{how}: returned, but not in the ledger: {lost}"
    held = set(entries.values())
    if own is None:
        present = {payload: error for payload, error in raised.items() if payload in held}
        assert not present, f"{how}: raised, and yet in the ledger that the writer closed: {present}"
    if how == "writer":
        assert own is None
        assert all(isinstance(error, LedgerClosedError) for error in raised.values())
    for error in raised.values():
        if isinstance(error, LedgerFencedError):
            assert "is unknown" in str(error) or "open it" in str(error)
    counts[how] += 1
    counts["returned"] += len(returned)
    counts["raised"] += len(raised)
    counts["raised, but in the ledger"] += sum(payload in held for payload in raised)
    counts["closed by its writer"] += own is None


def _run(rounds: int) -> Mapping[str, int]:
    with LocalCluster(bookies=3) as cluster:
        return races(cluster.bookkeeper(), cluster.bookkeeper(), rounds)


if __name__ == "__main__":
    main(__doc__, _run, 1000)
