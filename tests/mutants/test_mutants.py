"""The mutant harness itself, and a sample of its mutants: 20 wrong protocols, drawn by a fixed seed, of which none survives.

``scripts/mutants`` judges all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.mutants.changing import ROOT, all_mutants
from tests.mutants.equivalents import equivalents
from tests.mutants.operators import mutants_of

MACHINE = """
class Machine:
    def step(self, event) -> list[Action]:
        if self.done and not self.asked:
            return []
        self.last = event.last
        match event:
            case Told():
                return [first, *rest]
        return self.more() + self.rest()

    def enough(self, answers):
        return sum(isinstance(a, Positive) for a in answers) >= self.ack_quorum

    def next(self):
        return max(self.lac, 0) + 1

    def write(self):
        return WriteMetadata(self.record, self.version)

    def read(self):
        return Verdict.ABSENT, SendRead(fence=True)

    def why(self) -> str:
        return f"{self.last + 1}" if self.last > 1 else "nothing"
"""


SAMPLED = (
    "^(reading.(fencing|range_read|recovery|write_back)"
    "|writing.(durability|ensemble_change|replication|writer|writer_adds|writer_cursors)):"
)
"""The machines that the tests of ``QUICK`` are about."""
QUICK = (
    "tests/scenarios",
    "tests/protocol/test_accepted_loss.py",
    "tests/protocol/test_ensemble_change.py",
    "tests/protocol/test_explicit_lac.py",
    "tests/protocol/test_reader.py",
    "tests/protocol/test_recovery.py",
    "tests/protocol/test_recovery_ensemble_change.py",
    "tests/protocol/test_sync_cursor.py",
    "tests/protocol/test_transitions.py",
    "tests/protocol/test_transitions_reading.py",
    "tests/protocol/test_volatile_policy.py",
    "tests/protocol/test_writer.py",
)
"""What judges the sample."""


def run(*arguments):
    """The exit status of the harness, and its verdicts."""
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1100, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


def texts(function):
    """Its mutants by their operators, each as "right → wrong"."""
    found = {}
    for mutant in mutants_of(MACHINE, "m", f"Machine.{function}"):
        found.setdefault(mutant.operator, []).append(mutant.name.partition(": ")[2])
    return found


class TestOperators:
    def test_a_guard_is_dropped_in_whole_or_in_part(self):
        assert texts("step")["guard"] == [
            "self.done and (not self.asked) → True",
            "self.done and (not self.asked) → False",
            "self.done and (not self.asked) → not self.asked",
            "self.done and (not self.asked) → self.done",
            "not self.asked → self.asked",
        ]

    def test_actions_are_dropped_made_twice_or_change_places(self):
        assert texts("step")["action"] == [
            "[first, *rest] → [*rest]",
            "[first, *rest] → [first, first, *rest]",
            "[first, *rest] → [first]",
            "[first, *rest] → [first, *rest, *rest]",
            "[first, *rest] → [*rest, first]",
            "self.more() + self.rest() → self.more()",
            "self.more() + self.rest() → self.rest()",
            "self.more() + self.rest() → self.rest() + self.more()",
        ]

    def test_an_event_is_ignored_and_a_step_left_out(self):
        assert texts("step")["event"] == ["case Told(): return [first, *rest] → case Told(): return []"]
        assert texts("step")["step"] == ["self.last = event.last → pass"]

    def test_a_comparison_a_quorum_an_answer_a_watermark_a_flag(self):
        assert texts("step")["watermark"] == ["event.last → event.last + 1", "event.last → event.last - 1"]
        assert texts("enough") == {
            "comparison": [
                "sum((isinstance(a, Positive) for a in answers)) >= self.ack_quorum → "
                "sum((isinstance(a, Positive) for a in answers)) > self.ack_quorum"
            ],
            "quorum": ["self.ack_quorum → self.ack_quorum + 1", "self.ack_quorum → self.ack_quorum - 1"],
        }
        assert texts("next")["watermark"][:2] == [
            "max(self.lac, 0) + 1 → max(self.lac, 0)",
            "max(self.lac, 0) → min(self.lac, 0)",
        ]
        assert texts("read") == {
            "answer": [f"Verdict.ABSENT → Verdict.{other}" for other in ("PENDING", "PRESENT", "UNKNOWN")],
            "flag": ["True → False"],
        }

    def test_a_record_is_written_without_compare_and_set(self):
        (write,) = texts("write")["compare-and-set"]
        assert write.startswith("WriteMetadata(self.record, self.version) → WriteMetadata(self.record, ")

    def test_what_is_assigned_to_stays_a_name(self):
        made = list(mutants_of("def keep(of):\n    ack_quorum = of.ack_quorum\n    return ack_quorum\n", "m", "keep"))
        assert made and all(compile(mutant.tree, "m", "exec") for mutant in made)

    def test_a_text_for_people_is_left_alone(self):
        assert texts("why") == {}


def test_each_mutant_has_a_name_of_its_own_and_each_equivalent_is_one_of_them():
    names = [mutant.name for mutant in all_mutants()]
    assert len(names) == len(set(names)) > 3000
    assert equivalents().keys() - set(names) == set(), "the code has changed: review these again"
    assert all(reason.endswith(".") for reason in equivalents().values())


def test_a_mutant_that_nobody_looks_for_survives():
    status, verdicts = run(
        "--only", "ledger.quorum:write_set quorum", "--schedules", "0", "tests/protocol/test_control_copies.py"
    )
    assert status == 1
    assert len(verdicts) == 2
    assert not any(verdict["killed"] for verdict in verdicts)


@pytest.mark.timeout(1200)
def test_of_a_sample_of_wrong_protocols_none_survives():
    status, verdicts = run("--sample", "20", "--seed", "2", "--only", SAMPLED, "--schedules", "20", *QUICK)
    survived = [verdict["mutant"] for verdict in verdicts if not verdict["killed"]]
    assert len(verdicts) == 20
    assert status == 0, survived
