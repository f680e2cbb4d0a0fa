"""The distribution of test modules over the workers of ``pytest -n``.

Law: all tests of a module run on one worker, in their order, so that their shared fixtures are made once. Modules that
start Spark (``pytest.mark.spark``) run on one of the workers, and on ``SPARK_WORKERS`` with ``--all``: each of these
starts one JVM, and no more of them work at once than there are cores. The longest modules start first, by the durations
noted in an earlier run of this checkout; without a note the order of ``_FOLDERS`` decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.reporting import noted_seconds

SPARK_WORKERS = 2
ROOT = Path(__file__).resolve().parent.parent
# The folders of tests, those with long modules first.
_FOLDERS = (
    "system/acceptance", "spark", "system/cluster", "operations/cli", "store/metadata", "store/bookie", "lab", "store/client",
)  # fmt: skip


class ByModule(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._seconds = noted_seconds(config)
        self._spark_workers_max = SPARK_WORKERS if config.option.all or config.option.release else 1
        self._spark_workers: set[WorkerController] = set()
        self._starts_spark: dict[str, bool] = {}

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _reschedule(self, node: WorkerController) -> None:
        """Shut down a worker that may run none of the remaining modules: xdist's workers hold back their last test until
        they get more."""
        if self.workqueue and not any(self._may_have(node, module) for module in self.workqueue):
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give the asking worker the longest module that it may run; if there is none at the start, any module."""
        module = min(self.workqueue, key=lambda module: (not self._may_have(node, module), self._rank(module)))
        if self._needs_spark(module):
            self._spark_workers.add(node)
        self.workqueue.move_to_end(module, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        self._spark_workers.discard(node)
        crashed: str | None = super().remove_node(node)
        return crashed

    def _may_have(self, node: WorkerController, module: str) -> bool:
        if not self._needs_spark(module):
            return True
        return node in self._spark_workers or len(self._spark_workers) < self._spark_workers_max

    def _rank(self, module: str) -> tuple[int, float, int]:
        folder = next((place for place, name in enumerate(_FOLDERS) if f"tests/{name}/" in module), len(_FOLDERS))
        return -self._needs_spark(module), -self._seconds.get(module, 0.0), folder

    def _needs_spark(self, module: str) -> bool:
        if module not in self._starts_spark:
            file = ROOT / module
            self._starts_spark[module] = file.is_file() and "pytest.mark.spark" in file.read_text("utf-8")
        return self._starts_spark[module]
