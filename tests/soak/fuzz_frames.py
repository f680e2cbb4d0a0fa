"""Fuzz the decoders of frames, headers and bodies, guided by coverage (atheris, which is libFuzzer). Rounds are inputs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.soak._command import main

_MEMORY_MB_MAX = 600
_ALLOCATION_MB_MAX = 64


def _fuzz(corpus: str, rounds: int) -> None:
    """Runs in a process of its own, which the fuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["bookspark.store.wire", "tests.store.wire"]):
        from tests.store.wire import fuzzing
    reached: Counter[int] = Counter()

    def one_input(data: bytes) -> None:
        reached[fuzzing.decode(data)] += 1
        if sum(reached.values()) == rounds:
            print(f"reached: {dict(sorted(reached.items()))}", flush=True)

    limits = [f"-runs={rounds}", f"-rss_limit_mb={_MEMORY_MB_MAX}", f"-malloc_limit_mb={_ALLOCATION_MB_MAX}"]
    atheris.Setup([sys.argv[0], *limits, "-max_len=4000", "-print_final_stats=1", corpus], one_input)
    atheris.Fuzz()


def _run(rounds: int) -> Mapping[str, object]:
    from tests.store.wire import fuzzing

    with tempfile.TemporaryDirectory() as corpus:
        seeds = [b"\x50" + bytes(112), b"\x50\x01\x00\x01" + bytes(109) + b'{"client":"a"}', b"\xa0" + bytes(50)]
        seeds += [b"\x00" + fuzzing.control(bytes(120)), b"\x00" + fuzzing.batch(bytes(100)), b"\xd0" + bytes(200)]
        for number, seed in enumerate(seeds):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        command = [sys.executable, "-m", "tests.soak.fuzz_frames", "--fuzz", corpus, str(rounds)]
        fuzzer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        tail = fuzzer.stdout.splitlines()[-25:]
        print("\n".join(tail))
        if fuzzer.returncode != 0:
            sys.exit(1)
        return {"inputs": rounds, "corpus": len(list(Path(corpus).iterdir())), "violations": 0}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fuzz"]:
        _fuzz(sys.argv[2], int(sys.argv[3]))
    else:
        main(__doc__, _run, 500_000)
