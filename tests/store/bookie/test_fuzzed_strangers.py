"""Fuzzed HELLOs, requests, ClientHellos and ZooKeeper records: none causes a defect. ``scripts/soak fuzz-strangers`` runs
longer, guided by coverage."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bookspark.store.wire.header import Kind
from tests.authority import Authority
from tests.store.bookie.fuzzed_bookie import FuzzedBookie
from tests.store.bookie.fuzzing import RECORDS, seeds


def test_fuzzed_input_of_a_stranger_is_always_refused_or_answered(tmp_path):
    bookie = FuzzedBookie(Authority(tmp_path / "authority").certificate("bookie"))
    begun = seeds()
    no_records = [bytes([0xC0 + at]) for at in range(len(RECORDS))]
    # Drawn inputs differ each time; these inputs are always tried.
    for seed in (*begun, *no_records):
        bookie.take(seed)

    @settings(
        max_examples=400, phases=[Phase.generate, Phase.shrink], suppress_health_check=[*HealthCheck], deadline=None
    )
    @given(st.binary(max_size=600) | st.tuples(st.sampled_from(begun), st.integers(0, 400), st.binary(max_size=8)))
    def fuzz(drawn):
        if isinstance(drawn, tuple):
            seed, at, change = drawn
            drawn = seed[:at] + change + seed[at + len(change) :]
        bookie.take(drawn)

    fuzz()
    kinds = {int(what.partition(":")[0]) for what in bookie.reached if ":" in what}
    assert kinds >= set(Kind), f"the fuzzer gets everywhere: {bookie.reached}"
    assert bookie.reached["TLS goes on"]
    for name, _, _ in RECORDS:
        assert bookie.reached[f"{name} taken"] and bookie.reached[f"{name} refused"], bookie.reached
    bookie.close()
