"""Ledgers of each durability and replication mode, while bookies lose power, die, hang and are cut off; then their writer
goes.

A round is a ledger. Half of the rounds cut the power of any number of bookies: then no entry may be lost for which
``sync()`` returned or which a LAC covered (on a VD_JOURNAL ledger an acknowledgement promises nothing). In the others
bookies are killed, suspended and cut off: then no acknowledged entry may be lost. The history of the writer and the
readers is checked all the time. At the end all bookies are back, another client opens the ledger, and each entry of a
guaranteed ledger has all its copies.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from random import Random

from bookspark import BookKeeper, LedgerType
from bookspark.errors import BookKeeperError
from bookspark.local import LocalBookie
from bookspark.protocol.ledger.ledger_metadata import Replication
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from bookspark.testing import FaultyCluster
from bookspark.testing.chaos import CLIENT_OPTIONS, read_whole
from bookspark.testing.history import Event, EventKind, History
from bookspark.testing.recorded import RecordedWriter
from tests.soak._command import main
from tests.system.cluster.copies import cut_power, replication_factors, start_all

log = logging.getLogger(__name__)

MODES = list(product(LedgerType, Replication))
_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 3, 3), (4, 3, 2), (3, 2, 2), (4, 2, 1))
_STEPS = 8
# Options of the client that checks when all bookies are back: nothing may fail then, however busy the machine is.
_PATIENT = {"answer_timeout_seconds": 30.0, "connect_timeout_seconds": 30.0, "recovery_timeout_seconds": 120.0}
_SYNC_SECONDS = 20.0


class _VolatileWriter(RecordedWriter):
    """Records acknowledgements only after a ``sync``: an acknowledgement alone promises nothing here."""

    def _record_outcome(self, first: int, last: int, error: BookKeeperError | None) -> None:
        pass


class _Round:
    def __init__(self, cluster: FaultyCluster, history: History, seed: str, mode: int, power: bool) -> None:
        self._cluster, self._history, self._power = cluster, history, power
        self._random = Random(seed)
        self._undo: dict[LocalBookie, ExitStack] = {}
        self._ledger_type, self._replication = MODES[mode]

    def run(self, auditor: BookKeeper, counts: Counter[str]) -> None:
        random = self._random
        client = self._cluster.bookkeeper(client_name="writer", sync_bytes=1 << 14, **CLIENT_OPTIONS)
        e, wq, aq = random.choice(_QUORUMS)
        ledger = client.create_ledger(e, wq, aq, ledger_type=self._ledger_type, replication=self._replication)
        volatile = self._power and self._ledger_type is LedgerType.VD_JOURNAL
        writer = (_VolatileWriter if volatile else RecordedWriter)(self._history, "writer", ledger)
        try:
            for _ in range(_STEPS):
                self._step(writer, counts)
            closes = random.random() < 0.5
            if closes and random.random() < 0.5:
                self._heal()
            if closes:
                writer.close(timeout=_SYNC_SECONDS)
                counts["closed by their writer"] += 1
        except BookKeeperError as error:
            counts[type(error).__name__] += 1
        client.close()
        self._heal()
        read_whole(auditor, ledger.ledger_id, self._history, f"reader of {ledger.ledger_id}")
        metadata = auditor.get_ledger_metadata(ledger.ledger_id)
        counts["entries"] += metadata.last_entry_id + 1
        counts["fragments"] += len(metadata.fragments)
        if self._replication is Replication.GUARANTEED:
            factors = replication_factors(auditor, metadata, metadata.last_entry_id + 1)
            assert set(factors) <= {wq}, f"ledger {ledger.ledger_id}: {metadata}, copies {factors}"

    def _step(self, writer: RecordedWriter, counts: Counter[str]) -> None:
        random = self._random
        for _ in range(random.randint(1, 30)):
            writer.append_async(random.randbytes(random.randint(0, 1000)))
        done = random.random()
        if done < 0.25:
            self._hit(counts)
        elif done < 0.5 and self._undo:
            self._undo.pop(random.choice(list(self._undo))).close()
        if random.random() < 0.3:
            writer.handle.sync(_SYNC_SECONDS)
            counts["syncs"] += 1
        self._saw(writer.handle)

    def _saw(self, ledger: LedgerHandle) -> None:
        self._history.record(
            Event(EventKind.LAC, f"writer of {ledger.ledger_id}", ledger.ledger_id, ledger.last_add_confirmed)
        )

    def _hit(self, counts: Counter[str]) -> None:
        """Inject one fault, into one bookie or (power only) into several at once."""
        random = self._random
        well = [bookie for bookie in self._cluster.bookies if bookie not in self._undo]
        if not well:
            return
        blow = random.choice(["power", "power", "cut"]) if self._power else random.choice(["kill", "suspend", "cut"])
        hit = random.sample(well, min(len(well), random.choice([1, 1, 2, 5])) if blow == "power" else 1)
        counts[blow] += len(hit)
        self._history.record(
            Event(EventKind.FAULT, "", note=f"{blow} of {', '.join(bookie.bookie_id for bookie in hit)}")
        )
        if blow == "power":
            cut_power(*hit, start=False)
        for bookie in hit:
            undo = self._undo[bookie] = ExitStack()
            if blow == "cut":
                undo.enter_context(self._cluster.wire.cut(bookie.bookie_id, client="writer"))
            elif blow == "suspend":
                bookie.suspend()
                undo.callback(bookie.resume)
            else:
                bookie.kill()
                undo.callback(bookie.start)

    def _heal(self) -> None:
        for undo in self._undo.values():
            undo.close()
        self._undo.clear()
        start_all(*self._cluster.bookies)


def durability(cluster: FaultyCluster, rounds: int, seed: int = 0) -> Mapping[str, int]:
    """Run so many rounds, the modes in turn, with and without power cuts; returns counts. Raises AssertionError."""
    history, counts = History(), Counter[str]()
    auditor = cluster.bookkeeper(client_name="auditor", **_PATIENT)
    for round_ in range(rounds):
        power, mode = divmod(round_, len(MODES))
        _Round(cluster, history, f"{seed} {round_}", mode, power % 2 == 0).run(auditor, counts)
        for violation in history.violations:
            raise AssertionError("\n".join([f"seed {seed}, round {round_}", str(violation), *violation.excerpt]))
        counts["rounds"] += 1
        log.info("round %d: %s", round_, dict(counts))
    return counts


def _run(rounds: int) -> Mapping[str, int]:
    logging.basicConfig()
    log.setLevel(logging.INFO)
    with FaultyCluster(bookies=5, background_sync_interval_ms=3_600_000, background_sync_bytes=1 << 30) as cluster:
        return durability(cluster, rounds)


if __name__ == "__main__":
    main(__doc__, _run, 800)
