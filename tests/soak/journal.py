"""The gain from leaving out the journal: adds a second at 1 KiB, and bytes written to disk per acknowledged byte, with and
without it.

A round is a million bytes for each of two clusters in turn, so that both run under the same load. BookKeeper writes each
byte twice with its journal; here the entry log is the journal (docs/decisions/one-log.md), and only the wait for the sync
is left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bookspark.local import LocalCluster
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from tests.soak._command import main

_ENTRY = b"x" * 1024
_ADDS = 1000
_COPIES = 3


def journal(rounds: int) -> Mapping[str, object]:
    seconds, written = Counter[str](), Counter[str]()
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(LocalCluster(bookies=_COPIES, journal_write_data=name == "with"))
            for name in ("with", "without")
        }
        ledgers = {name: _ledger(stack, cluster) for name, cluster in clusters.items()}
        before = {name: _written_bytes(cluster) for name, cluster in clusters.items()}
        for _ in range(rounds):
            for name, ledger in ledgers.items():
                began = time.monotonic()
                for future in [ledger.append_async(_ENTRY) for _ in range(_ADDS)]:
                    future.result()
                seconds[name] += time.monotonic() - began
        for name, cluster in clusters.items():
            ledgers[name].close()
            written[name] = _written_bytes(cluster) - before[name]
    adds = {name: round(rounds * _ADDS / seconds[name]) for name in clusters}
    per_byte = {name: round(written[name] / (rounds * _ADDS * len(_ENTRY)), 3) for name in clusters}
    return {
        "entry_bytes": len(_ENTRY),
        "copies": _COPIES,
        "adds": rounds * _ADDS,
        "adds_per_second": adds,
        "adds_ratio": round(adds["without"] / adds["with"], 3),
        "bytes_written_per_acked_byte": per_byte,
        "bytes_written_ratio": round(per_byte["without"] / per_byte["with"], 3),
    }


def _ledger(stack: ExitStack, cluster: LocalCluster) -> LedgerHandle:
    bookkeeper = stack.enter_context(cluster.bookkeeper())
    return bookkeeper.create_ledger(_COPIES, _COPIES, 2)


def _written_bytes(cluster: LocalCluster) -> int:
    """The bytes that all bookies have written to disk so far, as counted by the kernel."""
    total = 0
    for bookie in cluster.bookies:
        lines = Path(f"/proc/{bookie.pid}/io").read_text().splitlines()
        total += int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))
    return total


if __name__ == "__main__":
    main(__doc__, journal, 100)
