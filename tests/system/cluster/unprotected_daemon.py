"""A bookie process without one of the protections of lossy boots: the tests of that protection must fail with it.

The bookie has no such switch. ``LocalCluster`` starts this module when a test sets ``launch.DAEMON`` to its name.
"""

from __future__ import annotations

import os
import sys

from bookspark.protocol.bookie.bookie_boot import NO_LOSSY_BOOT, PhaseOne
from bookspark.protocol.bookie.bookie_ledger import FenceNoted, LimboNoted
from bookspark.servers.daemon.__main__ import main
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.holdings import boot
from bookspark.store.bookie.ledgers.lossy_boots import LossyBoots

WITHOUT = "BOOKSPARK_TEST_WITHOUT"
LEFT_OUT = {"limbo": LimboNoted, "fencing": FenceNoted, "mark": None}
REACH = "reach"


def leave_out(protection: str) -> None:
    if protection == REACH:
        boot.went_back = lambda found, noted: False
        return
    note = LossyBoots.note_lossy_boot
    record = LEFT_OUT[protection]

    def noted(losses: LossyBoots, found: PhaseOne, *, fences_lost: bool) -> None:
        mark = NO_LOSSY_BOOT if record is None else found.mark
        records = tuple(r for r in found.records if record is None or not isinstance(r, record))
        note(losses, PhaseOne(mark, records), fences_lost=fences_lost and record is not None)

    LossyBoots.note_lossy_boot = noted  # type: ignore[method-assign]
    if record is LimboNoted:
        # Disable the limbo of the whole bookie too, which lasts until the bookie is healed.
        ControlState.unsure_of = lambda state, ledger_id: False  # type: ignore[method-assign]


if __name__ == "__main__":
    leave_out(os.environ[WITHOUT])
    sys.exit(main(sys.argv[1:]))
