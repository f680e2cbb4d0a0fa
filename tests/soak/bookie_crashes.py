"""A bookie's storage crashes before each operation on its files, and each following boot crashes in every way as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bookspark.testing.power_cuts import LOSSES, Loss, drawn
from tests.soak._command import main
from tests.store.bookie.crashes import Crashes, acked_before_the_sync, add_fence_confirm
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.bookie.test_every_crash_reclaiming import rewrite_collect_and_compact

WORKLOADS: tuple[Callable[[Stepped], None], ...] = (
    add_fence_confirm,
    acked_before_the_sync,
    rewrite_collect_and_compact,
)


def run(rounds: int) -> Mapping[str, int]:
    """Each round draws other losses beside the named ones, for each workload, with one disk and with two."""
    counts: Counter[str] = Counter()
    with without_threads():
        for round_ in range(rounds):

            def losses(point: int, depth: int, round_: int = round_) -> Iterable[Loss]:
                return (*LOSSES, *(drawn(1_000_000 * round_ + 4 * point + i) for i in range(4)))

            for workload in WORKLOADS:
                for disks in ((Path("/disk"),), (Path("/disk0"), Path("/disk1"))):
                    settings = config(
                        *disks,
                        entry_log_bytes_max=3000,
                        journal_write_data=workload is not acked_before_the_sync,
                        background_sync_interval_ms=3_600_000,
                        background_sync_bytes=2000,
                    )
                    crashes = Crashes(settings, losses, depth=1)
                    crashes.run(workload)
                    counts["crashes"] += crashes.points
                    counts["boots"] += crashes.boots
            counts["rounds"] += 1
    return counts


if __name__ == "__main__":
    main(__doc__, run, 1)
