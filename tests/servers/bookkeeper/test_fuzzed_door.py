"""Fuzzed requests and bytes at the BookKeeper port; ``scripts/soak fuzz-door`` runs longer, guided by coverage."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bookspark.servers.bookkeeper.messages import Operation
from tests.servers.bookkeeper.fuzzing import DoorTarget, seeds
from tests.store.bookie.fuzzed_bookie import FuzzedBookie


@pytest.fixture
def door():
    made = FuzzedBookie("", target=DoorTarget)
    yield made
    made.close()


def test_fuzzed_input_at_the_bookkeeper_port_is_answered_or_refused(door):
    begun = seeds()
    # Drawn inputs differ in each run; the seeds are always tested.
    for seed in begun:
        door.take(seed)

    @settings(
        max_examples=100, phases=[Phase.generate, Phase.shrink], suppress_health_check=[*HealthCheck], deadline=None
    )
    @given(st.binary(max_size=400) | st.tuples(st.sampled_from(begun), st.integers(0, 300), st.binary(max_size=8)))
    def fuzz(drawn):
        if isinstance(drawn, tuple):
            seed, at, change = drawn
            drawn = seed[:at] + change + seed[at + len(change) :]
        door.take(drawn)

    fuzz()
    answered = {what.partition(":")[0] for what in door.reached}
    # START_TLS is refused here, and batched reads exist in version 2 only.
    wanted = {f"3 {one.name}" for one in Operation if one is not Operation.BATCH_READ_ENTRY} | {
        "2 1",
        "2 2",
        "2 3",
        "2 7",
    }
    assert wanted <= answered, f"the fuzzer gets everywhere: {door.reached}"
    assert door.reached["2 2:0"] and door.reached["2 7:0"] and door.reached["3 READ_ENTRY:0"], door.reached
