"""First use of the codec by many threads at once: msgspec crashed a bookie's process in a lossy boot, without a log line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.awaiting import SECONDS_MAX

_FIRST_USE = """
import os, sys, threading
import msgspec
from bookspark.store.metadata.records.codec import decode_ledger, encode_ledger
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.store.wire.messages import BookieStatus, HealingStatus

status = msgspec.json.encode(BookieStatus("b1", 1, 2, [], 0, 0, 0, healing=HealingStatus(1, 1, 1, 1, 1.0)))
ledger = encode_ledger(LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),)))
sys.setswitchinterval(1e-6)

def decode(ready):
    ready.wait()
    decode_ledger(7, ledger)
    msgspec.json.decode(status, type=BookieStatus)

def first_use():
    ready = threading.Barrier(16)
    threads = [threading.Thread(target=decode, args=(ready,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

for _ in range(40):  # one in four died
    if not (child := os.fork()):
        first_use()
        os._exit(0)
    if ended := os.waitpid(child, 0)[1]:
        sys.exit(f"a process died of signal {ended}")
"""


@pytest.mark.acceptance
def test_many_threads_can_decode_records_at_first_use():
    run = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert (run.returncode, run.stderr) == (0, "")
