"""A bookie's healing when something comes that nobody expected."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from bookspark.autorecovery import healing
from bookspark.errors import NoSuchLedgerError


def test_a_defect_at_one_ledger_does_not_end_the_healing(monkeypatch, caplog):
    """The thread died at it, and all ledgers stayed in limbo until the bookie was started again."""
    monkeypatch.setattr(healing, "_RETRY_SECONDS", 0.01)
    cleared: set[int] = set()
    healed = threading.Event()
    defects = [ZeroDivisionError("a defect")]

    def read_ledger(ledger_id):
        if ledger_id == 1 and defects:
            raise defects.pop()
        raise NoSuchLedgerError(f"no ledger {ledger_id}")

    bookie = SimpleNamespace(
        boot=1,
        bookie_id="b1",
        limbo=lambda: {ledger_id: 1 for ledger_id in (1, 2) if ledger_id not in cleared},
        clear_limbo=lambda ledger_id, boot: cleared.add(ledger_id),
        note_healed=lambda boot: healed.set(),
    )
    metadata = SimpleNamespace(list_ledgers=list, read_ledger=read_ledger)
    running = healing.Healing(bookie, SimpleNamespace(metadata=metadata, close=lambda: None), 0)
    running.start()
    assert healed.wait(20)
    assert running.wait(20)
    assert cleared == {1, 2}
    assert "ledger 1 is not healed yet because of a defect" in caplog.text
