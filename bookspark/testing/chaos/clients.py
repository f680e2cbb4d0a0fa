"""The clients of a chaos run: writers, recoverers and readers, each on a thread with a client of its own.

Law: they do what users do. An error that users get (``BookKeeperError``) is counted, and the client goes on. Any other exception,
and a call that does not end within its deadline, is a defect and ends the run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random

from bookspark.errors import BookKeeperError
from bookspark.store.client import BookKeeper
from bookspark.testing.history import History
from bookspark.testing.recorded import RecordedReader, RecordedWriter

ADD_SECONDS = 6.0
RECOVERY_SECONDS = 12.0
CLIENT_OPTIONS = {
    "add_timeout_seconds": ADD_SECONDS,
    "answer_timeout_seconds": 1.0,
    "connect_timeout_seconds": 1.0,
    "recovery_timeout_seconds": RECOVERY_SECONDS,
    "quarantine_seconds": 2.0,
}
APPEND_SECONDS_MAX = 60.0
"""An append that takes longer hangs. This is far above the client's own deadlines, because the machine may be busy."""
_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2), (5, 5, 3))
_ENTRIES_MAX = (1, 20, 100, 400)
_BURST_MAX = (1, 1, 5, 40)
_PAYLOAD_BYTES_MAX = (20, 20, 200, 5000)
_PAUSE_SECONDS_MAX = 0.1


class Ledgers:
    """The ledgers of the run, and which of them are being written now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[int] = []
        self._written: list[int] = []

    def begin(self, ledger_id: int) -> None:
        """The ledger was created and has a writer."""
        with self._lock:
            self._all.append(ledger_id)
            self._written.append(ledger_id)

    def end(self, ledger_id: int) -> None:
        """The ledger's writer is gone."""
        with self._lock:
            self._written.remove(ledger_id)

    def every(self) -> list[int]:
        """The ids of all ledgers, in the order of their creation."""
        with self._lock:
            return list(self._all)

    def pick(self, random: Random, written: bool) -> int | None:
        """The id of a random ledger. ``written``: True takes only ledgers that are being written now; False takes any, mostly one
        of the newest. None if there is no such ledger."""
        with self._lock:
            if written:
                return random.choice(self._written) if self._written else None
            among = self._all if random.random() < 0.2 else self._all[-20:]
            return random.choice(among) if among else None


class Worker:
    """The loop of one client. ``errors`` counts the errors that it got, by type."""

    def __init__(
        self, name: str, connect: Callable[[str], BookKeeper], ledgers: Ledgers, history: History, random: Random
    ) -> None:
        self.name = name
        self.errors: Counter[str] = Counter()
        self._connect = connect
        self._client = connect(name)
        self._ledgers = ledgers
        self._history = history
        self._random = random
        self._observers = 0

    def run(self, stop: threading.Event) -> None:
        """Take turns until ``stop`` is set, then close the client."""
        while not stop.is_set():
            try:
                self._turn(stop)
            except BookKeeperError as error:
                self.errors[type(error).__name__] += 1
                stop.wait(self._random.uniform(0.0, _PAUSE_SECONDS_MAX))
        self._client.close()

    def _turn(self, stop: threading.Event) -> None:
        raise NotImplementedError

    def _observer(self) -> str:
        """A new name: in the history, each handle is an observer of its own."""
        self._observers += 1
        return f"{self.name}.{self._observers}"

    def _pause(self, stop: threading.Event) -> None:
        stop.wait(self._random.uniform(0.0, _PAUSE_SECONDS_MAX))


class Writer(Worker):
    """Creates ledgers of all shapes and writes them. Then it closes the ledger, leaves it open, or dies before the close."""

    def _turn(self, stop: threading.Event) -> None:
        random = self._random
        ensemble_size, write_quorum, ack_quorum = random.choice(_QUORUMS)
        handle = self._client.create_ledger(ensemble_size, write_quorum, ack_quorum)
        self._ledgers.begin(handle.ledger_id)
        try:
            writer = RecordedWriter(self._history, self.name, handle)
            left = random.randint(0, random.choice(_ENTRIES_MAX))
            bytes_max = random.choice(_PAYLOAD_BYTES_MAX)
            while left > 0 and not stop.is_set():
                left -= self._burst(writer, min(left, random.choice(_BURST_MAX)), bytes_max)
                self._pause(stop)
            fate = random.random()
            if fate < 0.7:
                writer.close()
            elif fate < 0.85:
                # As if the process had died.
                self._client.close()
                self._client = self._connect(self.name)
        finally:
            self._ledgers.end(handle.ledger_id)

    def _burst(self, writer: RecordedWriter, count: int, bytes_max: int) -> int:
        """Append ``count`` entries, one after the other or as one batch. Not every burst is waited for. Returns ``count``."""
        random, ledger_id = self._random, writer.handle.ledger_id
        payloads = [
            b"%s %d %s" % (self.name.encode(), ledger_id, random.randbytes(random.randint(0, bytes_max)))
            for _ in range(count)
        ]
        if random.random() < 0.3:
            last = writer.append_batch_async(payloads)
        else:
            last = [writer.append_async(payload) for payload in payloads][-1]
        if random.random() < 0.8:
            last.result(APPEND_SECONDS_MAX)
        return count


class Recoverer(Worker):
    """Opens ledgers with recovery, some of them while they are written, and reads all of their entries."""

    def _turn(self, stop: threading.Event) -> None:
        self._pause(stop)
        ledger_id = self._ledgers.pick(self._random, written=self._random.random() < 0.2)
        if ledger_id is not None:
            read_whole(self._client, ledger_id, self._history, self._observer())


class Reader(Worker):
    """Follows a ledger while it is written."""

    def _turn(self, stop: threading.Event) -> None:
        ledger_id = self._ledgers.pick(self._random, written=self._random.random() < 0.8)
        if ledger_id is None:
            self._pause(stop)
            return
        handle = self._client.open_ledger_no_recovery(ledger_id)
        reader = RecordedReader(self._history, self._observer(), handle)
        following, patience = 0, self._random.randint(1, 20)
        while not stop.is_set() and patience > 0:
            patience -= 1
            if reader.wait_for(following, timeout=1.0):
                following += reader.read(following, handle.last_add_confirmed)
            elif handle.metadata.closed:
                return
            else:
                reader.read_last_add_confirmed()


def read_whole(client: BookKeeper, ledger_id: int, history: History, observer: str) -> None:
    """Open a ledger, with recovery if it is not closed, and read all of its entries."""
    reader = RecordedReader(history, observer, client.open_ledger(ledger_id))
    if reader.handle.last_add_confirmed >= 0:
        reader.read(0, reader.handle.last_add_confirmed)
