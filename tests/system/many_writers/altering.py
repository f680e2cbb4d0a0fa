"""A log that is altered repeatedly beside a query, a producer and two readers, which are killed, and beside a timed producer.

Law: each row is in the log once, each lane in order, and each reader reads all. No bookie is killed: there may be only one
copy.

The timed producer (``timing``) appends one row after another, each awaited. The *pause* at an alteration is its longest append
between the start of the alteration and the end of the append that first used the next ledger; all other appends are usual ones.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import NamedTuple

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, create_log
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.log_record import DATA_ROLE, LOG_LABEL, ROLE_LABEL
from bookspark.store.client import BookKeeper
from tests.spark.query_kills import LOG, QueryKills
from tests.system.many_writers.accounts import appends, read_whole, tailed
from tests.system.many_writers.append_history import check
from tests.system.many_writers.journal import lines, lives
from tests.system.many_writers.processes import Program, Programs

TAILS = ("tail-0", "tail-1")
TIMED = "timed"
_KILLS_MIN, _KILLS_PER_SECOND = 0.02, 0.1
"""Probability that a kill follows an alteration: it grows with the pause between alterations."""
_WAIT_SECONDS = 600.0


class Append(NamedTuple):
    """An append of the timed producer; times are in ns of ``time.monotonic_ns``."""

    begun: int
    ended: int
    opened: bool
    """True if the append was the first in the next ledger."""

    @property
    def ms(self) -> float:
        return (self.ended - self.begun) / 1e6


class Altering:
    """A run in ``folder``, which is empty. ``pace_seconds``: pause of the timed producer between two appends."""

    def __init__(
        self, cluster: LocalCluster, bookkeeper: BookKeeper, folder: Path, seed: int = 7, pace_seconds: float = 0.0
    ) -> None:
        self._cluster, self._bookkeeper, self._folder, self._random = cluster, bookkeeper, folder, Random(seed)
        self.alterations: list[int] = []
        """Start of each alteration."""
        self._ended = threading.Event()
        create_log(bookkeeper, LOG)
        (folder / "query").mkdir()
        place = [str(folder), cluster.zookeeper, LOG]
        self._producer = Program(folder, "numbers-0", "producing", [*place, "numbers-0"])
        self._tails = [Program(folder, name, "tailing", [*place, name]) for name in TAILS]
        self._timed = Program(folder, TIMED, "timing", [*place, TIMED], [str(pace_seconds)])
        self._killed = [self._producer, *self._tails]
        self._beside = Programs([*self._killed, self._timed])

    def run(self, blows: Sequence[str], count_min: int, pause_seconds_max: float) -> Mapping[str, float]:
        """Alter the log until the query has had its ``blows`` and ``count_min`` alterations are done, with pauses up to
        ``pause_seconds_max``. Returns counts and times in ms. Raises AssertionError."""
        with ThreadPoolExecutor(1) as thread:
            try:
                for program in self._beside.all:
                    program.start()
                altering = thread.submit(self._alter_and_kill, count_min, pause_seconds_max)
                kills = QueryKills(self._cluster, self._folder / "query", master="local[2]")
                counts = kills.run(blows)
                self._ended.set()
                altering.result(count_min * pause_seconds_max + _WAIT_SECONDS)
                (self._folder / "finish").touch()
                self._beside.await_all(lambda one: one.finished or one in self._tails, _WAIT_SECONDS, lambda: None)
                (self._folder / "all-is-written").touch()
                self._beside.await_all(lambda one: one.finished, _WAIT_SECONDS, lambda: None)
            finally:
                self._ended.set()
                for program in self._beside.all:
                    program.end()
        timed = self._appends()
        self._check(counts["rows checked"], len(timed))
        told = {f"lives of {program.name}": program.lives for program in self._killed}
        return {**counts, **told, "alterations": len(self.alterations), **self._times(timed)}

    # -- inside

    def _appends(self) -> list[Append]:
        """Appends of the timed producer."""
        (journal,) = lives(self._folder, TIMED)
        return [Append(*map(int, line.words[:2]), line.words[2] == "1") for line in lines(journal)]

    def _times(self, timed: Sequence[Append]) -> dict[str, float]:
        """Durations of the appends, in ms."""
        usual, pauses = usual_and_pauses(timed, self.alterations)
        found: dict[str, float] = {"pauses": len(pauses), "usual appends": len(usual)}
        for name, took in (("usual", usual), ("pause", pauses)):
            if len(took) > 1:
                parts = quantiles(took, n=100, method="inclusive")
                found |= {f"{name} p50 ms": parts[49], f"{name} p99 ms": parts[98], f"{name} longest ms": max(took)}
        return {name: round(value, 2) for name, value in found.items()}

    def _alter_and_kill(self, count_min: int, pause_seconds_max: float) -> None:
        registry, random = LogRegistry(self._bookkeeper.metadata), self._random
        while not self._ended.is_set() or len(self.alterations) < count_min:
            copies = random.randint(1, 3)
            self.alterations.append(time.monotonic_ns())
            registry.alter(
                LOG,
                ensemble_size=3,
                write_quorum=copies,
                ack_quorum=random.randint(1, copies),
                digest_type=random.choice(list(DigestType)),
            )
            pause_seconds = random.random() * pause_seconds_max
            if random.random() < _KILLS_MIN + _KILLS_PER_SECOND * pause_seconds:
                random.choice(self._killed).kill()
            self._beside.pass_time(pause_seconds, lambda: None)

    def _check(self, rows_of_query: int, rows_timed: int) -> None:
        assert self._producer.lives > 1 and sum(tail.lives for tail in self._tails) > 2, "they were killed"
        lanes = read_whole(self._bookkeeper, LOG)
        by_writer = {rows[0].value.split()[0]: [row.value for row in rows] for rows in lanes.values() if rows}
        timed, service = by_writer.pop(TIMED.encode()), by_writer.pop(b"numbers-0")
        (query,) = by_writer.values()
        assert len(query) == rows_of_query, "that each is there once was checked by QueryKills"
        assert timed == [f"{TIMED} {number}".encode() for number in range(rows_timed)]
        assert service == [b"numbers-0 %d" % number for number in range(len(service))]
        heard = check(service, appends(self._folder, "numbers-0"))
        assert not heard.violations and heard.counts["appended"] > 0
        for name in TAILS:
            assert tailed(self._folder, name, lanes) == len(query) + len(service) + len(timed)
        ledgers = self._bookkeeper.metadata.read_ledgers(self._bookkeeper.list_ledgers(), {})
        data = [one for one, _ in ledgers if one.custom_metadata.get(ROLE_LABEL) == DATA_ROLE.encode()]
        # Ledgers of each lane: the log name of lane 2 is LOG@2.
        made = [one for one in data if one.custom_metadata[LOG_LABEL].partition(b"@")[0] == LOG.encode()]
        assert len({(one.write_quorum, one.ack_quorum, one.digest_type) for one in made}) > 3


def usual_and_pauses(appends: Sequence[Append], alterations: Sequence[int]) -> tuple[list[float], list[float]]:
    """Durations of usual appends, and the pause of each alteration that an append met, in ms."""
    windows: list[tuple[int, int]] = []
    for one in appends[1:]:
        at = bisect_right(alterations, one.ended)
        if one.opened and at:
            windows.append((alterations[at - 1], one.ended))
    usual, longest, at = list[float](), [0.0] * len(windows), 0
    for one in appends[1:]:
        while at < len(windows) and windows[at][1] < one.ended:
            at += 1
        if at < len(windows) and one.ended > windows[at][0]:
            longest[at] = max(longest[at], one.ms)
        else:
            usual.append(one.ms)
    return usual, longest
