"""Storage compared with a plain dict, with many more random sequences of operations and crashes than the test command
runs."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.soak._command import main
from tests.store.bookie.stepped import without_threads
from tests.store.bookie.test_storage_model import StorageModel


def run(rounds: int) -> Mapping[str, int]:
    with without_threads():
        run_state_machine_as_test(
            StorageModel,
            settings=settings(
                max_examples=rounds,
                stateful_step_count=50,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return {"rounds": rounds}


if __name__ == "__main__":
    main(__doc__, run, 5000)
