"""Getting executors to the hosts where bookies are missing. ``placement`` decides; this asks Spark.

Law: an executor that has a task is ended only if nothing else helps. YARN and Kubernetes are asked for one executor more, with
the host as a hint; one that comes elsewhere is sent back, and the question is put again, ever more seldom. A standalone master
gives an application no more cores than it asked for, so there an executor is replaced that shares its host with another one:
the master prefers the worker with the most free cores. That costs an attempt of the job, and no bookie.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bookspark.spark.bookies.placement import Missing, surplus_executor, wasted_executors

PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 120.0, 300.0, 600.0)
"""The pause before executors are asked for: the first time, the second, and so on."""

log = logging.getLogger(__name__)


class Coverage:
    """The executors of an application that has bookies out of reach. ``context``: its SparkContext."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._standalone = str(context.master).startswith("spark:")
        self._can_ask = not str(context.master).startswith("local")
        self._asked = 0
        self._due: float | None = None
        self._usual = 0
        """How many executors there are when none was asked for beyond what the user wants; 0: not known."""
        self._asked_for_more = False
        """Whether there may be more than that."""

    def complete(self, executors: Mapping[str, str]) -> None:
        """Nothing is missing."""
        self.send_back(executors)
        self._asked, self._due = 0, None
        if not self._asked_for_more:
            self._usual = max(self._usual, len(executors))

    def send_back(self, executors: Mapping[str, str]) -> None:
        """Give back what there is too much, now that the host has an executor that had none: an attempt ends by that, so it is
        done just before the job is submitted again."""
        if self._asked_for_more and len(executors) <= self._usual:
            self._asked_for_more = False
        elif self._asked_for_more:
            surplus = surplus_executor(executors)
            if surplus is not None:
                log.info("sending executor %s back: its host has another one, and so have those that had none", surplus)
                self._context._jsc.sc().killExecutor(surplus)

    def ask(self, executors: Mapping[str, str], with_task: Collection[str], missing: Sequence[Missing]) -> None:
        """Something is missing. Returns at once, and is to be called again every second or so."""
        hosts = sorted({one.host for one in missing if one.host})
        if not self._can_ask or not hosts:
            return
        now = time.monotonic()
        if self._due is None:
            self._due = now + PAUSES_SECONDS[min(self._asked, len(PAUSES_SECONDS) - 1)]
        if now < self._due:
            return
        self._asked, self._due = self._asked + 1, None
        if self._standalone:
            if (surplus := surplus_executor(executors)) is not None:
                log.warning("replacing executor %s: its host has another one, and bookies are missing", surplus)
                self._context._jsc.sc().killAndReplaceExecutor(surplus)
            return
        self._usual = self._usual or self._configured() or len(executors)
        for executor in wasted_executors(executors, with_task, self._usual):
            log.info("sending executor %s back: it came to a host that has one", executor)
            self._context._jsc.sc().killExecutor(executor)
        self._ask_for_one_more(hosts)

    def _configured(self) -> int:
        given = self._context.getConf().get("spark.executor.instances", "")
        return int(given) if given.isdecimal() else 0

    def _ask_for_one_more(self, hosts: Sequence[str]) -> None:
        cores = int(self._context.getConf().get("spark.executor.cores", "1"))
        jvm = self._context._jvm
        hint = jvm.java.util.HashMap()
        for host in hosts:
            hint.put(host, cores)
        log.info("asking for one executor more, on %s", " or ".join(hosts))
        self._asked_for_more = True
        hosts_of_tasks = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(hint)
        self._context._jsc.sc().requestTotalExecutors(self._usual + 1, cores * len(hosts), hosts_of_tasks)
