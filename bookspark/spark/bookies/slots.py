"""The application's room for barrier tasks, and a clear error where Spark would wait in silence.

Law: a request for new bookies gets room or an error within ``SLOTS_SECONDS``. (Spark itself waits 40 × 15 s for slots that never
come, and refuses dynamic allocation only when the job runs.) Promised executors get more time (``EXECUTORS_SECONDS``): on a busy
host they start slowly, which is no mistake of the user. Existing bookies are kept with any room. In an application that also runs
queries, a slot of each executor stays free.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.support.addresses import split_address

SLOTS_SECONDS = 8.0
"""Wait for slots without a promise."""
EXECUTORS_SECONDS = 90.0
"""Wait for promised slots."""
_LOOK_SECONDS = 0.2


class Slots(NamedTuple):
    total: int
    """Tasks that run at once."""
    executors: int

    def room(self, leave_free: bool) -> int:
        """Number of tasks that may keep bookies. ``leave_free``: a slot of each executor stays free."""
        return max(self.total - self.executors, 0) if leave_free else self.total


class Need(NamedTuple):
    tasks: int
    at_least: int
    leave_free: bool


def slots_of(context: Any) -> Slots:
    """The slots of the present executors. ``context``: a SparkContext. In local mode the driver is the executor."""
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    executors = len(scala.statusTracker().getExecutorInfos()) - 1
    return Slots(scala.maxNumConcurrentTasks(profile), max(executors, 1))


def executors_of(context: Any) -> dict[str, str]:
    """The present executors: host by Spark's id. In local mode it is only ``driver``."""
    listed = context._jsc.sc().statusStore().executorList(True)
    infos = (listed.apply(place) for place in range(listed.size()))
    hosts = {info.id(): split_address(info.hostPort())[0] for info in infos}
    return {executor: host for executor, host in hosts.items() if executor != "driver" or len(hosts) == 1}


def slots_to_come(master: str, instances: str | None, cores: str | None, cores_max: str | None = None) -> Slots | None:
    """The slots promised to the application by its master URL and ``spark.executor.instances`` and ``.cores``, or by
    ``spark.cores.max`` on a standalone cluster.

    None if these settings promise no number.
    """
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*]", master):
        executors, slots_each = map(int, match.groups())
    elif instances and not master.startswith("local") and (cores or master == "yarn"):
        executors, slots_each = int(instances), int(cores or 1)
    elif cores_max and master.startswith("spark:"):
        return Slots(int(cores_max), 1)
    else:
        return None
    return Slots(executors * slots_each, executors)


def await_slots(context: Any, need: Need) -> Slots:
    """Wait until the tasks fit, or the smallest number of them if no more room comes; executors may still be starting. Returns
    the slots.

    Raises ConfigurationError with the needed settings, if they can't fit, do not fit in time, or dynamic allocation is on.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ConfigurationError(
            "dynamic allocation is on, and Spark then refuses barrier jobs: set spark.dynamicAllocation.enabled=false "
            "for the bookies' application"
        )
    promised = slots_to_come(
        context.master,
        conf.get("spark.executor.instances"),
        conf.get("spark.executor.cores"),
        conf.get("spark.cores.max"),
    )
    if promised is not None and promised.room(need.leave_free) < need.at_least:
        raise _too_few(promised, need, context.master)
    began = time.monotonic()
    patience = EXECUTORS_SECONDS if promised is not None or need.at_least < need.tasks else SLOTS_SECONDS
    first_room = 0.0
    while (room := (slots := slots_of(context)).room(need.leave_free)) < need.tasks:
        now = time.monotonic()
        if room >= need.at_least:
            first_room = first_room or now
            if now - first_room > SLOTS_SECONDS or (promised is not None and slots.total >= promised.total):
                return slots
        elif now - began > patience:
            raise _too_few(slots, need, context.master)
        time.sleep(_LOOK_SECONDS)
    return slots


def _too_few(slots: Slots, need: Need, master: str) -> ConfigurationError:
    wanted = need.at_least
    sum_up = f", and one on each executor stays free, so {wanted + slots.executors} in all" if need.leave_free else ""
    return ConfigurationError(
        f"too few slots: {wanted} bookies need {wanted} slots{sum_up}; "
        f"there are {slots.total} on {slots.executors} executors; {_advice(master, need)}"
    )


def _advice(master: str, need: Need) -> str:
    wanted, each = need.at_least, 2 if need.leave_free else 1
    if master.startswith("local-cluster"):
        return f"set --master 'local-cluster[{wanted},{each},1024]', or ask for fewer bookies"
    if master.startswith("local"):
        return f"set --master 'local[{wanted + each - 1}]', or ask for fewer bookies"
    return (
        f"set for example spark.executor.instances={wanted} and spark.executor.cores={each} "
        f"(spark.cores.max={each * wanted} on a standalone cluster), ask for one core for each host instead of each bookie, or "
        "ask for fewer bookies"
    )
