"""The options of a random schedule: given options, and random values for the others.

Law: the same numbers draw the same options. Half of the schedules are *small*: few entries and clients on few bookies, so that
rare orders come often. The others have some of everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode

_SIZES = (
    (1, 1, 1),
    (2, 2, 1),
    (2, 2, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 3),
    (3, 2, 2),
    (3, 2, 1),
    (4, 3, 2),
    (5, 3, 2),
)
_SMALL_SIZES = ((2, 2, 1), (2, 2, 2), (3, 3, 2))
_SMALL_GUARANTEED = (*_SMALL_SIZES, (3, 2, 2), (3, 2, 1))
"""A striped guaranteed ledger limits the replaceable bookies differently, and ``_SIZES`` alone draws such ledgers too rarely."""
_Sizes = tuple[int, int, int]


def draw_options(random: Random, given: Mapping[str, Any]) -> SimulationOptions:
    """Options for a schedule: the ``given`` ones, and random values for the others."""
    small = random.random() < 0.5
    ensemble, write_quorum, ack_quorum = _draw_sizes(random, given, _SMALL_SIZES if small else _SIZES)
    volatile = random.random() < 0.3
    guaranteed = random.random() < 0.4
    drawn: dict[str, Any] = {
        "ensemble": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "closes": random.random() < 0.7,
        "crash_loses": random.choice((CrashLoses.UNSYNCED, CrashLoses.EVERYTHING)),
        "heals": random.random() < 0.3,
        "journal_write_data": random.random() < 0.5,
        "ledger_type": LedgerType.VD_JOURNAL if volatile else LedgerType.PD_JOURNAL,
        "replication": Replication.GUARANTEED if guaranteed else Replication.BEST_EFFORT,
        "deletes": random.random() < 0.15,
    }
    drawn |= _little(random) if small else _of_everything(random)
    drawn |= {"abandons": random.random() < 0.1, "holds_back": random.random() < 0.3}
    accept_loss, departures = random.random() < 0.2, random.choice((0, 1, 2))
    drawn |= {"accept_loss": accept_loss, "departures": departures * given.get("accept_loss", accept_loss)}
    drawn["hold_ups"] = random.choice((0, 0, 0, 1, 2))
    drawn["second_ledger"] = random.random() < 0.1
    if small and given.get("replication", drawn["replication"]) is Replication.GUARANTEED:
        # Last, so that a seed draws the same options as before for other ledgers.
        sizes = _draw_sizes(random, given, _SMALL_GUARANTEED)
        drawn |= dict(zip(("ensemble", "write_quorum", "ack_quorum"), sizes, strict=True))
    return SimulationOptions(**{**drawn, **given})


def _little(random: Random) -> dict[str, Any]:
    spares = random.choice((0, 0, 1))
    return {
        "spares": spares,
        "entries": random.choice((1, 1, 2, 3)),
        "recoverers": random.choice((1, 1, 2)),
        "crashes": random.choice((0, 1, 1, 2)),
        "losses": random.choice((0, 1)) if spares else 0,
        "replicators": random.choice((0, 1)) if spares else 0,
        "ensemble_changes": ChangeMode.AT_ONCE if spares else ChangeMode.OFF,
    }


def _of_everything(random: Random) -> dict[str, Any]:
    return {
        "spares": random.choice((0, 0, 1, 2)),
        "entries": random.choice((1, 2, 3, 4, 6)),
        "recoverers": random.choice((0, 1, 1, 2, 3)),
        "readers": random.choice((0, 1, 2)),
        "reads": random.choice((1, 3)),
        "long_polls": random.random() < 0.5,
        "explicit_lacs": random.choice((0, 0, 1, 3)),
        "replicators": random.choice((0, 0, 1, 2)),
        "crashes": random.choice((0, 0, 1, 1, 2, 3)),
        "losses": random.choice((0, 0, 1, 3, 8)),
        "duplicates": random.choice((0, 0, 1, 3)),
        "ensemble_changes": random.choice((ChangeMode.OFF, ChangeMode.AT_ONCE, ChangeMode.AT_ONCE, ChangeMode.DELAYED)),
    }


def _draw_sizes(random: Random, given: Mapping[str, Any], sizes: Sequence[_Sizes]) -> _Sizes:
    """A draw of (E, WQ, AQ) that matches the given sizes."""
    wanted = tuple(given.get(name) for name in ("ensemble", "write_quorum", "ack_quorum"))
    fitting = [drawn for drawn in sizes if all(w in (None, size) for w, size in zip(wanted, drawn, strict=True))]
    if fitting:
        return random.choice(fitting)
    ensemble = wanted[0] or wanted[1] or wanted[2] or 1
    write_quorum = wanted[1] or ensemble
    return ensemble, write_quorum, wanted[2] or write_quorum // 2 + 1
