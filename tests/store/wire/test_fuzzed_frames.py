"""Decoders of the wire refuse fuzzed bytes without other effects; ``scripts/soak fuzz-frames`` does it for long, guided by
coverage."""

from __future__ import annotations

import tracemalloc
from collections import Counter

from hypothesis import Phase, given, settings, target
from hypothesis import strategies as st

from tests.store.wire.fuzzing import decode

_OVERHEAD_BYTES = 17 << 20
"""A receiver may make room for one frame as soon as its size is announced."""
_reached: Counter[int] = Counter()


@settings(max_examples=1000, phases=[Phase.generate, Phase.target, Phase.shrink])
@given(st.binary(min_size=1, max_size=700))
def _fuzz(data):
    reached = decode(data)
    _reached[reached] += 1
    target(float(reached))


def test_decoders_refuse_or_decode_any_fuzzed_bytes():
    _reached.clear()
    _fuzz()
    assert _reached[0] and _reached[1] and _reached[2], f"the fuzzer gets everywhere: {_reached}"


@settings(max_examples=100, phases=[Phase.generate, Phase.shrink])
@given(st.binary(min_size=1, max_size=500))
def test_short_fuzzed_bytes_take_bounded_memory(data):
    tracemalloc.start()
    try:
        decode(data)
        assert tracemalloc.get_traced_memory()[1] < _OVERHEAD_BYTES
    finally:
        tracemalloc.stop()
