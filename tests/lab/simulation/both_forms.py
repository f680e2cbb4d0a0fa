"""Prints the simulator's findings as a JSON object; with ``--compiled FOLDER`` those of the compiled modules."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from bookspark.lab.simulation.compiled import MODULES, use_compiled
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode

MODES: dict[str, dict[str, Any]] = {
    "all drawn": {},
    "VD": {"ledger_type": LedgerType.VD_JOURNAL},
    "guaranteed": {"replication": Replication.GUARANTEED},
    "without a journal": {"journal_write_data": False},
    "accepted loss": {"accept_loss": True},
    "changes delayed": {"ensemble_changes": ChangeMode.DELAYED},
    "held back": {"holds_back": True},
}
LOST = SimulationOptions(2, 2, 1, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False)
TINY = SimulationOptions(2, 2, 1, closes=False, recoverers=0)
PINNED = replace(
    TINY, spares=1, entries=2, losses=1, replication=Replication.GUARANTEED, ensemble_changes=ChangeMode.AT_ONCE
)
SEARCHES = {
    "fences": SimulationOptions(3, 3, 2).without("fence_on_recovery_read"),
    "limbo": LOST.without("limbo"),
    "boot fencing": LOST.without("boot_fencing"),
    "lossy-boot mark": LOST.without("lossy_boot_mark"),
    "synced write-backs": SimulationOptions(2, 2, 2, crashes=1, journal_write_data=False, closes=False).without(
        "sync_on_recovery_add"
    ),
    "pinning": PINNED.without("pinning"),
    "collection mark": SimulationOptions(2, 2, 1, deletes=True, closes=False).without("collection_mark"),
    "named losses": replace(TINY, recoverers=1, losses=2, accept_loss=True).without("named_losses"),
    "later entries": SimulationOptions(
        2, 1, 1, entries=2, crashes=1, crash_loses=CrashLoses.EVERYTHING, accept_loss=True, closes=False
    ).without("later_entries"),
    "3/3/2": SimulationOptions(3, 3, 2),
    "lost disks": LOST,
    "VD": replace(TINY, crashes=1, ledger_type=LedgerType.VD_JOURNAL),
    "autorecovery": SimulationOptions(1, 1, 1, spares=1, entries=2, replicators=1, recoverers=0),
    "reader": SimulationOptions(2, 2, 1, readers=1, reads=1, long_polls=True, closes=False, recoverers=0),
    "held back": replace(TINY, holds_back=True, entries=2),
}
# A planted bug that random schedules find; its story is shrunk and then replaced by a shortest story.
SHRUNK = {"limbo": False, "ensemble": 2, "crash_loses": CrashLoses.EVERYTHING}


def found(schedules: int) -> dict[str, Any]:
    """The findings on which both forms must agree: digests of all moves, and stories."""
    from bookspark.lab.simulation.search.exhaustive import Exhaustive
    from bookspark.lab.simulation.search.random_schedules import RandomSchedules
    from bookspark.lab.simulation.story import tell

    told: dict[str, Any] = {}
    for name, given in MODES.items():
        search, digest = RandomSchedules(given), sha256()
        for seed in range(schedules):
            world, moves, violation = search.schedule(30_000_000 + seed)
            digest.update(repr([world.options.arguments(), [tuple(move) for move in moves], violation]).encode())
        told[f"random: {name}"] = digest.hexdigest(), sorted(map(str, search.met))
    for name, options in SEARCHES.items():
        one = Exhaustive(options)
        result = one.run()
        told[f"exhaustive: {name}"] = result.states, result.finished, tell(one.world, result.moves)
    failure = RandomSchedules(SHRUNK).run(2000, seed=1).failure
    assert failure is not None
    told["shrunk"] = failure.seed, failure.moves_before, failure.violation, tell(failure.world, failure.moves)
    return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=int, default=100, help="of each mode")
    parser.add_argument("--compiled", type=Path)
    arguments = parser.parse_args()
    if arguments.compiled is not None and not use_compiled(arguments.compiled):
        sys.exit("nothing is compiled from these sources")
    told = found(arguments.schedules)
    sources = {name for name in MODULES if str(sys.modules[name].__file__).endswith(".py")}
    assert sources == (set(MODULES) if arguments.compiled is None else set())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
