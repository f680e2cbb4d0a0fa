"""An hour of steady appends in simulated time (``tests/store/bookie/steady_load.py``): disk use under collection and
rewriting.

96 MiB a second, half of it deleted after a minute; the other half after ten minutes in the first run, never in the second.
In both, no pass may take long, and garbage may not grow.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.soak._command import main
from tests.store.bookie.steady_load import SteadyLoad
from tests.store.bookie.stepped import without_threads

_MIB, _GIB = 1 << 20, 1 << 30
_FOR_EVER = 1e9


def run(rounds: int) -> Mapping[str, object]:
    """Run for so many minutes."""
    found: dict[str, object] = {}
    for name, life in (("ten minutes", 600.0), ("for ever", _FOR_EVER)):
        with without_threads():
            load = SteadyLoad(96 * _MIB, 2 * _MIB, 160 * _MIB, life)
            load.run(60 * rounds)
        garbage = [(used - live) / _GIB for used, live in zip(load.used, load.live, strict=True)]
        peaks = [round(max(garbage[start : start + 900]), 1) for start in range(0, len(garbage), 900)]
        assert max(peaks) < 90, peaks
        found[f"the rest lives {name}"] = {
            "collections": len(load.collections),
            "passes": len(load.passes),
            "longest_pass_seconds": round(max(load.passes, default=0.0), 1),
            "garbage_gib_each_quarter": peaks,
            "used_gib_at_the_end": round(load.used[-1] / _GIB, 1),
            "live_gib_at_the_end": round(load.live[-1] / _GIB, 1),
        }
    return found


if __name__ == "__main__":
    main(__doc__ or "", run, 60)
