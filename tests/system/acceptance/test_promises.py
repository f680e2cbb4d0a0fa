"""The demonstrations of docs/promises.md, each run as it is written, in a process of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.spark.short_jobs import QUICK_JVM
from tests.pages import DOCS, blocks_of, path, run

PAGE = "promises.md"
TEXT = (DOCS / PAGE).read_text("utf-8")
SAID = {
    "Acknowledged entries stay": "all of 100 acknowledged entries are there",
    "A ledger ends behind them": "no_divergence_between_writer_and_metadata",
    "A writer that was replaced adds nothing": "refused: ledger 0 was fenced",
    "An entry has one value": '"violation": null',
    "Readers see what stays": '"finished": true, "violation": null',
    "I don't know is never no": "no_divergence_between_writer_and_metadata",
    "What recovery wrote outlives a crash": "what_recovery_wrote_is_synced",
    "A deleted ledger does not come back": "no_divergence_between_writer_and_metadata",
    "Guaranteed means all copies": "all_acked_entries_are_readable",
    "Nothing is given up that somebody may have": "accepted_losses_are_losses",
    "Damage is found and not served": "a row that will rot on two disks",
    "A wrong or empty disk is refused": "bookspark cookie fix",
    "Lost copies come back": "has the copies of",
    "A change takes no entry below its ack quorum": "impossible  ledger 0 has",
    "Every call ends": "AddTimeoutError ledger 0",
    "A closed cluster stays closed": "",
    "Each row of a query is there once": "each of 3000 is there once",
    "A numbered row of a service is there once": "[b'order 1', b'order 2']",
    "A group of readers skips no row": "[b'order 3', b'order 4']",
    "A later log of the name stays as it is": "LogRecreatedError log 'orders' with id",
}
"""By promise: the output of its demonstration. If empty, the demonstration is another page, which has its own test."""
WITH_SPARK = "Each row of a query is there once"


def sections() -> dict[str, str]:
    """Text of each promise."""
    parts = re.split(r"^### (.*)\n", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.partition("\n## ")[0] for part in parts[2::2]), strict=True))


def demonstration(promise: str) -> str:
    """The code blocks of a promise as one script."""
    script = ["set -euo pipefail"]
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", sections()[promise], re.MULTILINE | re.DOTALL):
        script.append(code if language == "bash" else f"python - << 'END OF PYTHON'\n{code}END OF PYTHON\n")
    return "\n".join(script)


def shown(promise: str, folder: Path) -> str:
    own = {"PATH": path(), "PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JVM}
    return run(demonstration(promise), folder, {**os.environ, **own})


def test_every_promise_has_a_sentence_a_checker_and_a_demonstration() -> None:
    assert list(sections()) == list(SAID)
    for promise, text in sections().items():
        assert re.match(r"\n\*\*[^*]+[.:]\*\*", text), promise
        assert "Checked by" in text, promise
        assert "```" in text or not SAID[promise], promise
    in_sections = sum(text.count("\n```") for text in sections().values())
    assert in_sections == 2 * len(blocks_of(PAGE)), "a block outside of the promises is not run"


def test_every_checker_of_the_simulator_has_its_promise() -> None:
    assert [name for name in CHECKERS if f"`{name}`" not in TEXT] == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("promise", [one for one, said in SAID.items() if said and one != WITH_SPARK])
def test_demonstration_of_a_promise_prints_its_evidence(promise: str, tmp_path: Path) -> None:
    printed = shown(promise, tmp_path)
    assert SAID[promise] in printed, printed
    assert (" --no-" in demonstration(promise) and "|| echo" in demonstration(promise)) == printed.endswith("found\n")


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_demonstration_with_spark_prints_its_evidence(tmp_path: Path) -> None:
    assert SAID[WITH_SPARK] in shown(WITH_SPARK, tmp_path)
