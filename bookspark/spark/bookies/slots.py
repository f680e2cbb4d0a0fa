"""How many barrier tasks an application has room for, and a clear error where Spark would wait in silence.

Law: a bookie job leaves one slot of each executor free, so that a sink or source always finds room. What can't work is refused
within ``SLOTS_SECONDS``: Spark itself waits 40 × 15 s for slots that never come, and refuses dynamic allocation only when the job
runs. Executors that are promised, and have room for all tasks, are waited for longer (``EXECUTORS_SECONDS``): on a busy host they
start slowly, which is no mistake of the user's.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from bookspark.errors import ConfigurationError

SLOTS_SECONDS = 8.0
"""How long slots are waited for if nothing tells how many will come."""
EXECUTORS_SECONDS = 90.0
"""How long promised slots are waited for."""
_LOOK_SECONDS = 0.2


class Slots(NamedTuple):
    """The room of an application."""

    total: int
    """How many tasks run at once."""
    executors: int
    """How many executors run them."""

    @property
    def for_bookies(self) -> int:
        """How many tasks may look after bookies: all but one on each executor."""
        return self.total - self.executors


def slots_of(context: Any) -> Slots:
    """The slots of the executors that are there now. ``context``: a SparkContext. In local mode the driver is the executor."""
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    executors = len(scala.statusTracker().getExecutorInfos()) - 1
    return Slots(scala.maxNumConcurrentTasks(profile), max(executors, 1))


def slots_to_come(master: str, instances: str | None, cores: str | None) -> Slots | None:
    """The slots that are promised to the application, by its master URL and ``spark.executor.instances`` and ``.cores``.

    None if these don't tell.
    """
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*]", master):
        executors, slots_each = map(int, found.groups())
    elif instances and cores and not master.startswith("local"):
        executors, slots_each = int(instances), int(cores)
    else:
        return None
    return Slots(executors * slots_each, executors)


def await_slots(context: Any, wanted: int) -> Slots:
    """Wait until ``wanted`` tasks fit; executors may still be starting. Returns the slots.

    Raises ConfigurationError, which says what to set, if they can't fit, do not fit in time, or dynamic allocation is on.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ConfigurationError(
            "dynamic allocation is on, and Spark then refuses barrier jobs: set spark.dynamicAllocation.enabled=false "
            "for the bookies' application"
        )
    promised = slots_to_come(context.master, conf.get("spark.executor.instances"), conf.get("spark.executor.cores"))
    if promised is not None and promised.for_bookies < wanted:
        raise _too_few(promised, wanted, context.master)
    deadline = time.monotonic() + (SLOTS_SECONDS if promised is None else EXECUTORS_SECONDS)
    while (slots := slots_of(context)).for_bookies < wanted:
        if time.monotonic() > deadline:
            raise _too_few(slots, wanted, context.master)
        time.sleep(_LOOK_SECONDS)
    return slots


def _too_few(slots: Slots, wanted: int, master: str) -> ConfigurationError:
    return ConfigurationError(
        f"too few slots: {wanted} bookies need {wanted} slots, and one on each executor stays free, so "
        f"{wanted + slots.executors} in all; there are {slots.total} on {slots.executors} executors; "
        f"{_advice(master, wanted)}"
    )


def _advice(master: str, wanted: int) -> str:
    if master.startswith("local-cluster"):
        return f"set --master 'local-cluster[{wanted},2,1024]', or ask for fewer bookies"
    if master.startswith("local"):
        return f"set --master 'local[{wanted + 1}]', or ask for fewer bookies"
    return (
        f"set for example spark.executor.instances={wanted} and spark.executor.cores=2 "
        f"(spark.cores.max={2 * wanted} on a standalone cluster), or ask for fewer bookies"
    )
