"""A bookie or a client of the version that ``PYTHONPATH`` names, for a test in another version. It is run by its path.

    python either_version.py bookie DIRECTORY ZOOKEEPER     a bookie, which prints its id and process id once it serves
    python either_version.py client ZOOKEEPER               a client; each line of its input is a call

Law: it uses only features of both versions. It prints lines of JSON: ``{"told": …}`` or ``{"error": class, "why": text}``.
A bookie stops at the end of its input, and can be killed by its process id.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bookspark import BookKeeper
from bookspark.local import LocalCluster

_CLIENT = {"add_timeout_seconds": 10.0, "answer_timeout_seconds": 3.0, "connect_timeout_seconds": 3.0}
_BOOKIE = {"entry_log_bytes_max": 1 << 16, "checkpoint_interval_seconds": 1.0, "lease_seconds": 60.0}
_SECONDS_MAX = 60.0


def tell(call: Callable[[], Any]) -> bool:
    """Print the result or the error of a call. Returns True on success."""
    try:
        told = {"told": call()}
    except Exception as error:
        told = {"error": type(error).__name__, "why": str(error)}
    print(json.dumps(told), flush=True)
    return "told" in told


def bookie(directory: str, zookeeper: str) -> None:
    """Serve until the input ends."""
    cluster = LocalCluster(1, directory, zookeeper, **_BOOKIE)

    def start() -> tuple[str, int]:
        cluster.start()
        (one,) = cluster.bookies
        assert one.pid is not None
        return one.bookie_id, one.pid

    if tell(start):
        sys.stdin.read()
        cluster.stop()


def _why(future: Any) -> str:
    """The error of an append, or ""."""
    try:
        future.result(_SECONDS_MAX)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Calls:
    """The calls that a client accepts. Ledgers are named by their ids."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._written: dict[int, Any] = {}

    def answer(self, name: str, *arguments: Any) -> Any:
        """The result of the call ``name``."""
        return getattr(self, name)(*arguments)

    def create(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> int:
        """Returns the id."""
        handle = self._bookkeeper.create_ledger(ensemble_size, write_quorum, ack_quorum)
        self._written[handle.ledger_id] = handle
        return int(handle.ledger_id)

    def append(self, ledger_id: int, payloads: Sequence[str], batch: bool) -> list[str]:
        """Returns the error of each payload, "" if it was acknowledged."""
        handle = self._written[ledger_id]
        content = [payload.encode() for payload in payloads]
        appends = [partial(handle.append_batch_async, content)]
        if not batch:
            appends = [partial(handle.append_async, each) for each in content]
        failed, futures = [], []
        for append in appends:
            try:
                futures.append(append())
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")
        # Refused appends come after accepted ones: the ledger takes no more.
        failed = [*map(_why, futures), *failed]
        return failed * len(content) if batch else failed

    def close(self, ledger_id: int) -> tuple[int, int]:
        """Returns the last entry id, and the length."""
        handle = self._written.pop(ledger_id)
        handle.close()
        return handle.metadata.last_entry_id, handle.metadata.length

    def recover(self, ledger_id: int) -> tuple[int, int]:
        """Returns the last entry id, and the length."""
        with self._bookkeeper.open_ledger(ledger_id) as ledger:
            return ledger.metadata.last_entry_id, ledger.metadata.length

    def read(self, ledger_id: int) -> tuple[int, list[str]]:
        """Returns the LAC, and the payloads up to it."""
        with self._bookkeeper.open_ledger_no_recovery(ledger_id) as ledger:
            lac = ledger.last_add_confirmed
            entries = ledger.read(0, lac) if lac >= 0 else ()
            return lac, [bytes(entry.payload).decode() for entry in entries]


def client(zookeeper: str) -> None:
    """Answer calls until the input ends."""
    calls = Calls(BookKeeper(zookeeper, **_CLIENT))
    tell(lambda: "ready")
    for line in sys.stdin:
        tell(partial(calls.answer, *json.loads(line)))


if __name__ == "__main__":
    {"bookie": bookie, "client": client}[sys.argv[1]](*sys.argv[2:])
