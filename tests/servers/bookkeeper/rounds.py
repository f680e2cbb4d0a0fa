"""Random rounds: BookKeeper's client and ours write, recover and read each other's ledgers while bookies are killed.

Law: both clients read every acknowledged entry, whichever client wrote it or closed the ledger and whichever bookie died; and a
writer adds nothing after its ledger was recovered. The seed and the number determine a round. No more bookies are killed than
the ledger's quorums tolerate; entries with a single copy are read after their bookie has restarted.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from bookspark import BookKeeper, DigestType, errors
from bookspark.local import LocalBookie, LocalCluster
from tests.awaiting import await_that
from tests.servers.bookkeeper.judge import Judge

DIGESTS = {
    "CRC32": DigestType.BOOKKEEPER_CRC32,
    "CRC32C": DigestType.BOOKKEEPER_CRC32C,
    "MAC": DigestType.BOOKKEEPER_HMAC,
    "DUMMY": DigestType.BOOKKEEPER_DUMMY,
}
VERSIONS = ("v2", "v3")
BOOKIES = 5
_KILL_AFTER_MS = 60
_APPEND_SECONDS = 60.0


def payload(entry_id: int, size: int) -> bytes:
    """Payload of this entry, as ``Judge.java`` makes it."""
    repeated = bytes((entry_id * 31 + i * 7) & 255 for i in range(256))
    return (repeated * (size // 256 + 1))[:size]


def told(payloads: list[bytes]) -> str:
    """The judge's answer to a read of these payloads: count and SHA-1."""
    return f"{len(payloads)} {hashlib.sha1(b''.join(payloads)).hexdigest()}"


def ends_at_an_ensemble_change(bookkeeper: BookKeeper, ledger_id: int, count: int) -> bool:
    """Does the last fragment begin after all ``count`` entries? BookKeeper's recovery then returns no length
    (docs/compatibility.md)."""
    return bookkeeper.get_ledger_metadata(ledger_id).last_fragment.first_entry_id == count


class Step(NamedTuple):
    """Entries written in the same way."""

    how: str
    """``one by one``, ``pipelined`` or ``in a batch`` (of ours; BookKeeper's client pipelines)."""
    count: int
    size: int


class Round(NamedTuple):
    """Parameters of one round."""

    number: int
    version: str
    digest: str
    quorums: tuple[int, int, int]
    """E, WQ, AQ."""
    java_writes: bool
    java_recovers: bool
    flags: str
    """Flags of BookKeeper's handle: ``-``, ``deferred`` or ``advanced``."""
    steps: tuple[Step, ...]
    victim: int | None
    kill_in_step: int | None
    """Step in which the victim is killed; None: after the last step."""
    kill_after_ms: float
    closes: bool
    """Does the writer close its ledger, so that no recovery is needed?"""

    def __str__(self) -> str:
        writer, recoverer = (("Java" if java else "Python") for java in (self.java_writes, self.java_recovers))
        steps = ", ".join(f"{step.count} × {step.size} {step.how}" for step in self.steps)
        killed = "" if self.victim is None else f", bookie {self.victim} dies "
        if self.victim is not None:
            killed += "at the end" if self.kill_in_step is None else f"in step {self.kill_in_step}"
        return (
            f"round {self.number}: {self.version} {self.digest} {self.quorums} {self.flags}, {writer} writes {steps}"
            f"{killed}, {'closed' if self.closes else f'{recoverer} recovers'}"
        )


def drawn(seed: int, number: int) -> Round:
    """Draw the round of this number."""
    choose = random.Random(f"{seed} {number}")
    dies = choose.random() < 0.4
    ensemble = choose.randint(1, BOOKIES - 2 if dies else BOOKIES - 1)
    write = choose.randint(1, ensemble)
    ack = choose.randint(1, write)
    version, java_writes = choose.choice(VERSIONS), choose.random() < 0.5
    flags = choose.choice(("-", "-", "-", "deferred", "advanced")) if java_writes and version == "v3" else "-"
    steps = []
    for _ in range(choose.randint(1, 4)):
        how = choose.choice(("one by one", "pipelined", "pipelined", "in a batch"))
        most = 12 if how == "one by one" or flags == "advanced" else choose.choice((20, 100, 700))
        steps.append(Step(how, choose.randint(1, most), choose.choice((0, 1, 100, 100, 1000, 5000))))
    return Round(
        number,
        version,
        choose.choice(list(DIGESTS)),
        (ensemble, write, ack),
        java_writes,
        choose.random() < 0.5,
        flags,
        tuple(steps),
        choose.randrange(BOOKIES) if dies else None,
        # Unsynced entries may be lost with their bookie.
        choose.randrange(len(steps)) if dies and flags != "deferred" and choose.random() < 0.6 else None,
        choose.uniform(0, _KILL_AFTER_MS),
        choose.random() < 0.25,
    )


class Rounds:
    """Plays rounds on a cluster of ``BOOKIES`` bookies."""

    def __init__(self, judge: Judge, bookkeeper: BookKeeper, cluster: LocalCluster) -> None:
        self._judge = judge
        self._bookkeeper = bookkeeper
        self._bookies: list[LocalBookie] = cluster.bookies

    def play(self, one: Round) -> None:
        """Play a round. Raises AssertionError, or a client's exception, if the law is broken."""
        victim = None if one.victim is None else self._bookies[one.victim]
        try:
            self._play(one, victim)
        finally:
            if victim is not None:
                victim.start()

    def _play(self, one: Round, victim: LocalBookie | None) -> None:
        expected: list[bytes] = []
        ledger_id, write, close, late = self._writer(one)
        for number, step in enumerate(one.steps):
            if victim is not None and number == one.kill_in_step:
                killer = threading.Timer(one.kill_after_ms / 1000, victim.kill)
                killer.start()
                try:
                    expected += write(step, len(expected))
                finally:
                    killer.join()
            else:
                expected += write(step, len(expected))
        if one.closes:
            close()
        if victim is not None:
            victim.kill()
            if one.quorums[2] == 1:
                victim.start()
        order = (self._java_reads, self._python_reads) if one.java_recovers else (self._python_reads, self._java_reads)
        for read in order:
            read(one, ledger_id, expected)
        if not one.closes:
            late()

    # -- writing

    def _writer(
        self, one: Round
    ) -> tuple[int, Callable[[Step, int], list[bytes]], Callable[[], object], Callable[[], None]]:
        """The new ledger's id and three functions: write a step from an entry id on, close, and append too late."""
        return self._java_writer(one) if one.java_writes else self._python_writer(one)

    def _java_writer(
        self, one: Round
    ) -> tuple[int, Callable[[Step, int], list[bytes]], Callable[[], object], Callable[[], None]]:
        ask, name = self._judge.ask, "w"
        quorums = " ".join(map(str, one.quorums))
        ledger_id = int(ask("create", name, one.version, one.digest, "secret", quorums, one.flags))

        def write(step: Step, first: int) -> list[bytes]:
            last = str(first + step.count - 1)
            if one.flags == "advanced":
                for entry_id in range(first, first + step.count):
                    assert ask("addas", name, entry_id, step.size) == str(entry_id)
            elif step.how == "one by one":
                assert ask("add", name, step.count, step.size) == last
            else:
                assert ask("pipeline", name, step.count, step.size) == last
            if one.flags == "deferred":
                assert ask("force", name) == last
            return [payload(entry_id, step.size) for entry_id in range(first, first + step.count)]

        def late() -> None:
            entry_id = sum(step.count for step in one.steps)
            words = ("addas", name, entry_id, 1) if one.flags == "advanced" else ("add", name, 1, 1)
            with pytest.raises(RuntimeError, match=r"Fenced|LedgerClosed"):
                ask(*words)

        return ledger_id, write, lambda: ask("close", name), late

    def _python_writer(
        self, one: Round
    ) -> tuple[int, Callable[[Step, int], list[bytes]], Callable[[], object], Callable[[], None]]:
        ensemble, write_quorum, ack = one.quorums
        ledger = self._bookkeeper.create_ledger(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack,
            digest_type=DIGESTS[one.digest],
            password=b"secret",
        )

        def write(step: Step, first: int) -> list[bytes]:
            payloads = [payload(entry_id, step.size) for entry_id in range(first, first + step.count)]
            if step.how == "one by one":
                assert [ledger.append(each) for each in payloads] == [*range(first, first + step.count)]
            elif step.how == "pipelined":
                for future in [ledger.append_async(each) for each in payloads]:
                    future.result(_APPEND_SECONDS)
            else:
                assert ledger.append_batch(payloads) == range(first, first + step.count)
            return payloads

        def late() -> None:
            with pytest.raises((errors.LedgerFencedError, errors.LedgerClosedError)):
                ledger.append(b"late")

        return ledger.ledger_id, write, ledger.close, late

    # -- recovering and reading

    def _java_reads(self, one: Round, ledger_id: int, expected: list[bytes]) -> None:
        last, length = len(expected) - 1, sum(map(len, expected))
        ask = self._ask_until_found if one.victim is not None and one.quorums[2] == 1 else self._judge.ask
        opened = ask("open", "r", one.version, one.digest, "secret", ledger_id)
        told_length = 0 if self._no_length(one, opened, ledger_id, len(expected)) else length
        assert opened == f"{last} {told_length}"
        assert ask("read", "r", 0, last) == told(expected)
        if one.version == "v2" and length < 1 << 20:
            # BookKeeper's client reads in batches with version 2 only. A bookie may return fewer entries, but at least one.
            read = ask("readbatch", "r", 0, len(expected))
            count = int(read.partition(" ")[0])
            assert count >= 1
            assert read == told(expected[:count])

    def _ask_until_found(self, *words: object) -> str:
        """Repeat a command until BookKeeper's client knows the new address of the bookie with the only copy: it never retries."""
        answers: list[str] = []

        def answered() -> bool:
            try:
                answers.append(self._judge.ask(*words))
            except RuntimeError as error:
                if not re.search("BKBookieHandleNotAvailable|BKLedgerRecovery", str(error)):
                    raise
            return bool(answers)

        await_that(answered, what="BookKeeper's client finds the bookie that was started again")
        return answers[0]

    def _no_length(self, one: Round, opened: str, ledger_id: int, count: int) -> bool:
        return (
            one.java_recovers
            and not one.closes
            and opened.endswith(" 0")
            and ends_at_an_ensemble_change(self._bookkeeper, ledger_id, count)
        )

    def _python_reads(self, one: Round, ledger_id: int, expected: list[bytes]) -> None:
        with self._bookkeeper.open_ledger(ledger_id, b"secret") as reader:
            assert reader.last_add_confirmed == len(expected) - 1
            assert [entry.payload for entry in reader.read(0, len(expected) - 1)] == expected
