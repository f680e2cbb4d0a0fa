"""Fuzz the code reached by strangers' bytes, guided by coverage (atheris, which is libFuzzer): HELLO, every kind of
request, TLS, and records of ZooKeeper (``tests/store/bookie/fuzzing.py``). Rounds are minutes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.soak._command import main

_MEMORY_MB_MAX = 2000
_FUZZED = [
    "bookspark.store.wire",
    "bookspark.store.bookie",
    "bookspark.store.metadata.records",
    "bookspark.protocol",
    "tests.store.bookie.fuzzing",
]
_OF_THE_DOOR = ["bookspark.servers.bookkeeper", "tests.servers.bookkeeper.fuzzing"]
# After this time a bookie has entries of many ledgers and is replaced by an empty one.
_SECONDS_A_BOOKIE = 60.0


def fuzz(corpus: str, certificate: str, seconds: int, door: bool = False) -> None:
    """Runs in a process of its own, which the fuzzer ends. ``door``: fuzz the door for BookKeeper's clients."""
    import atheris

    with atheris.instrument_imports(include=[*_FUZZED, *(_OF_THE_DOOR if door else ())]):
        from tests.servers.bookkeeper.fuzzing import DoorTarget
        from tests.store.bookie import fuzzing
        from tests.store.bookie.fuzzed_bookie import FuzzedBookie
    target = DoorTarget if door else fuzzing.Target
    logging.getLogger("bookspark").setLevel(logging.ERROR)
    bookie = FuzzedBookie(certificate, target=target)
    count, until, began = 0, time.monotonic() + seconds, time.monotonic()

    def one_input(data: bytes) -> None:
        nonlocal bookie, count, began
        now = time.monotonic()
        if now - began > _SECONDS_A_BOOKIE:
            reached = bookie.reached
            bookie.close()
            bookie, began = FuzzedBookie(certificate, reached, target), now
        bookie.take(data)
        count += 1
        if now > until:
            print("reached " + json.dumps({"inputs": count, **dict(sorted(bookie.reached.items()))}), flush=True)
            bookie.close()
            os._exit(0)

    limits = [f"-rss_limit_mb={_MEMORY_MB_MAX}", f"-max_total_time={seconds + 600}", "-timeout=60"]
    atheris.Setup([sys.argv[0], *limits, "-max_len=4000", corpus], one_input)
    atheris.Fuzz()


def _run(minutes: int) -> Mapping[str, object]:
    from tests.store.bookie.fuzzing import seeds

    return run(minutes, "tests.soak.fuzz_strangers", seeds())


def run(minutes: int, module: str, seeds: Sequence[bytes]) -> Mapping[str, object]:
    """Let ``module`` fuzz for so many minutes; returns its counts."""
    from tests.authority import Authority

    with tempfile.TemporaryDirectory() as directory:
        certificate = Authority(Path(directory, "authority")).certificate("bookie")
        corpus = Path(directory, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(seeds):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        command = [sys.executable, "-m", module, "--fuzz", str(corpus), certificate]
        fuzzer = subprocess.run(
            [*command, str(minutes * 60)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        lines = fuzzer.stdout.splitlines()
        if fuzzer.returncode != 0 or not lines[-1].startswith("reached "):
            print("\n".join(lines[-60:]))
            sys.exit(1)
        coverage = [line for line in lines if " cov: " in line][-1:]
        print("\n".join(coverage))
        kept = len(list(corpus.iterdir()))
        return {"minutes": minutes, "corpus": kept, **json.loads(lines[-1].removeprefix("reached ")), "violations": 0}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fuzz"]:
        fuzz(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(__doc__, _run, 60)
