"""The project's simulators, as those who look for wrong protocols run them (``simulating``).

Law: each runs the same seeds in the same order, for ever, and says of each in which phase it was and what broke, "" if nothing
did. What can't be imported late is imported here: a process that is forked has it then.

=============  =====================================================================================================
``ledgers``    ``bookspark simulate``: the machines of a ledger's clients and bookies
``logs``       random schedules of logs (``tests/logs/schedules``): what ships in ``bookspark.logs``, in a made-up cluster
``repairs``    random schedules of repairs (``tests/autorecovery/schedules``): the machines, over hundreds of entries, and what a
               bookie knows of those that it lost
``reading``    random schedules of readers and recoveries (``tests/reading/schedules``): the machines, each step against what the
               answers so far say
``histories``  random histories of a bookie's storage (``tests/bookie/histories``): what ships, on disks in memory
``boots``      random schedules of a bookie's boots (``tests/bookie/boots``): the decisions over directories on paper
=============  =====================================================================================================
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import tests.logs.schedules.offloads  # noqa: F401
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.simulation.search.random_schedules import RandomSchedules
from bookspark.simulation.simulation_options import CrashLoses
from tests.autorecovery.schedules import run as repairs
from tests.bookie import boots
from tests.bookie.histories import failure_of, stepped
from tests.bookie.stories import TROUBLES, drawn_story
from tests.logs.schedules.run import Kind, run
from tests.reading.schedules import run as reading

Phase = tuple[str, Mapping[str, Any], int]
"""Name, options that are given, and how many schedules."""
Outcome = tuple[str, str]
"""The phase, and what broke."""
_STEP = 7
"""A block of neighbouring seeds has the same options: steps of 7 see many options, and some of them more often."""


def phases() -> Iterator[Phase]:
    """What a ledger's schedules are, in turns: everything drawn, then each mode. For ever."""
    vd, guaranteed = {"ledger_type": LedgerType.VD_JOURNAL}, {"replication": Replication.GUARANTEED}
    alone: dict[str, Any] = {"recoverers": 0, "readers": 0, "replicators": 0}
    changes: dict[str, Any] = {"ensemble_changes": ChangeMode.AT_ONCE, **alone}
    modes: dict[str, Mapping[str, Any]] = {
        "VD": vd,
        "guaranteed": guaranteed,
        "without a journal": {"journal_write_data": False},
        "accepted loss": {"accept_loss": True},
        "changes delayed": {"ensemble_changes": ChangeMode.DELAYED},
        "held back": {"holds_back": True},
        # A writer that nobody fences lives long enough for what rarely comes.
        "VD, held back": {
            "holds_back": True, "entries": 6, "closes": True, "write_quorum": 2, "ack_quorum": 1, "crashes": 0, "losses": 0,
            "replication": Replication.BEST_EFFORT, "ensemble_changes": ChangeMode.OFF, **vd, **alone,
        },
        "VD, crashes": {
            "crashes": 2, "closes": True, "crash_loses": CrashLoses.UNSYNCED, "ensemble_changes": ChangeMode.OFF, **vd, **alone,
        },
        "guaranteed, one goes": {"spares": 1, "hold_ups": 0, "crashes": 0, "closes": True, **changes, **guaranteed},
        "guaranteed, two go": {
            "ensemble": 3, "write_quorum": 3, "ack_quorum": 3, "spares": 2, "departures": 2, "entries": 2, "losses": 0,
            "crashes": 0, "hold_ups": 0, "abandons": False, "deletes": False, "closes": True, **changes, **guaranteed,
        },
        "explicit LACs": {"explicit_lacs": 3, "closes": False, "spares": 1, "losses": 2, **changes},
        "bookies hold up": {"hold_ups": 2, "spares": 1, "entries": 3, **changes},
        "no other bookies": {"spares": 0, "losses": 3, "crashes": 2, **changes},
        # Few things befall a small ledger, so that those that have to come together do.
        "no other bookies, VD, guaranteed": {
            "spares": 0, "losses": 2, "crashes": 2, "entries": 2, "explicit_lacs": 0, "duplicates": 0, "departures": 0,
            "abandons": False, "deletes": False, "crash_loses": CrashLoses.UNSYNCED, **changes, **vd, **guaranteed,
        },
        "bookies go": {"departures": 2, "ensemble_changes": ChangeMode.AT_ONCE},
    }  # fmt: skip
    yield "all drawn", {}, 600
    while True:
        for name, given in modes.items():
            yield name, given, 200
        yield "all drawn", {}, 600


def _ledgers() -> Iterator[Outcome]:
    done = Counter[str]()
    for name, given, number in phases():
        schedules = RandomSchedules(given)
        for _ in range(number):
            violation = schedules.schedule(_STEP * done[name])[2]
            done[name] += 1
            yield name, "" if violation is None else violation.invariant


def _logs() -> Iterator[Outcome]:
    # What compares plans is seldom reached by the others.
    kinds = [*Kind, Kind.QUERIES]
    for seed in count():
        kind = kinds[seed % len(kinds)]
        try:
            run(seed, kind)
        except AssertionError as error:
            yield kind.value, str(error).partition("; the last steps")[0]
        else:
            yield kind.value, ""


def _repairs() -> Iterator[Outcome]:
    for number in count():
        seed, kind = divmod(number, len(repairs.Kind))
        name = list(repairs.Kind)[kind]
        try:
            repairs.run(seed, name)
        except AssertionError as error:
            yield name.value, str(error) or "AssertionError"
        else:
            yield name.value, ""


def _reading() -> Iterator[Outcome]:
    kinds = list(reading.Kind)
    for number in count():
        seed, kind = divmod(number, len(kinds))
        try:
            reading.run(seed, kinds[kind])
        except AssertionError as error:
            yield kinds[kind].value, str(error).partition(";")[0] or "AssertionError"
        else:
            yield kinds[kind].value, ""


def _histories() -> Iterator[Outcome]:
    for number in count():
        seed, kind = divmod(number, len(TROUBLES))
        with stepped():
            failure = failure_of(drawn_story(TROUBLES[kind], seed))
        yield TROUBLES[kind], failure


def _boots() -> Iterator[Outcome]:
    for seed in count():
        yield "boots", boots.failure_of(seed).partition(";")[0]


SIMULATORS: Mapping[str, Callable[[], Iterator[Outcome]]] = {
    "ledgers": _ledgers,
    "logs": _logs,
    "repairs": _repairs,
    "reading": _reading,
    "histories": _histories,
    "boots": _boots,
}


def quietly() -> None:
    """Errors and warnings are what these are about."""
    logging.disable(logging.CRITICAL)
