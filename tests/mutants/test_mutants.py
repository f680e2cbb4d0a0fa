"""The mutant harness itself, and a sample of its mutants: 20 wrong protocols, drawn by a fixed seed, of which none survives.

``scripts/mutants`` judges all of them.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from types import SimpleNamespace

import pytest

from bookspark.client.network.patience import Patience
from tests.mutants.changing import PARTS, ROOT, all_mutants, code_for
from tests.mutants.driver_operators import DRIVER_OPERATORS
from tests.mutants.equivalents import equivalents, harmless
from tests.mutants.forking import Work, each_in_a_process
from tests.mutants.judging import lent
from tests.mutants.operators import OPERATORS, mutants_of
from tests.mutants.reaching import Reached, known_runs, traced
from tests.mutants.simulating import SAFETY, touching_safety

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


DRIVER = """
class Driver:
    def commit(self, group):
        with self._lock:
            self._file.sync()
        self.told = group
        self._tell(group)
        log.debug("told")
        self.figures.groups.observe(1)

    def wait(self, timeout):
        try:
            return self._queue.get(timeout=self._timeout)
        except Empty:
            self._ended = True
        finally:
            self._lock.release()

    async def stop(self):
        await self._stopped()

    def answer(self, found):
        return Status.IO_ERROR if found else Status.NO_SUCH_ENTRY

    def _append(self, entries):
        yield from self._write(entries)
        super().append(entries)
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


def texts(function, source=MACHINE, operators=OPERATORS):
    """Its mutants by their operators, each as "right → wrong"."""
    found = {}
    for mutant in mutants_of(source, "m", function if "." in function else f"Machine.{function}", operators):
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


def driver_texts(function):
    return texts(f"Driver.{function}", DRIVER, DRIVER_OPERATORS)


class TestDriverOperators:
    def test_a_sync_is_left_out_a_lock_not_held_and_two_steps_change_places(self):
        assert driver_texts("commit") == {
            "lock": ["with self._lock: self._file.sync() → if True: self._file.sync()"],
            "sync": ["self._file.sync() → pass"],
            "step": ["self.told = group → pass", "self._tell(group) → pass"],
            "order": ["self.told = group → self._tell(group); before"],
        }

    def test_an_error_is_swallowed_or_passed_on_a_deadline_dropped_and_a_lock_kept(self):
        found = driver_texts("wait")
        assert found["exception"] == [
            "try: → try:",
            "except Empty: self._ended = True → except Empty: pass",
            "except Empty: self._ended = True → except Empty: raise",
        ]
        assert found["deadline"] == ["self._timeout → 1000000.0"]
        assert found["lock"] == ["self._lock.release() → pass"]

    def test_nobody_awaits_a_task_nor_does_steps(self):
        assert driver_texts("stop")["await"] == ["await self._stopped() → pass"]
        assert driver_texts("_append")["await"] == ["yield from self._write(entries) → yield"]

    def test_unknown_becomes_no_and_no_becomes_unknown(self):
        assert driver_texts("answer")["status"] == [
            "Status.IO_ERROR → Status.OK",
            "Status.IO_ERROR → Status.NO_SUCH_ENTRY",
            "Status.NO_SUCH_ENTRY → Status.LIMBO",
        ]


def test_a_mutant_takes_the_place_of_a_method_that_calls_super_although_it_does_not(monkeypatch):
    """Else the harness could not make it: only code that needs the same from outside can take a function's place."""
    before = ConnectionsOfTests.close.__code__
    mutants = mutants_of(inspect.getsource(ConnectionsOfTests), "m", "ConnectionsOfTests.close", DRIVER_OPERATORS)
    mutant = next(mutant for mutant in mutants if mutant.operator == "step")
    code = code_for(ConnectionsOfTests.close, mutant.tree, __file__, "ConnectionsOfTests.close")
    monkeypatch.setattr(ConnectionsOfTests.close, "__code__", code)
    ConnectionsOfTests().close()
    assert code != before


class AllOfTests:
    def close(self):
        raise AssertionError("the mutant does not call it")


class ConnectionsOfTests(AllOfTests):
    def close(self):
        super().close()


def test_a_test_that_does_not_reach_a_mutants_lines_does_not_judge_it(tmp_path):
    part = PARTS["client"]
    spend, looked = [
        next(mutant for mutant in all_mutants(part) if f".patience:Patience.{name} " in mutant.name)
        for name in ("spend", "is_spent")
    ]
    patience = Patience(1.0)
    runs = [
        traced(part, "spends", lambda: patience.spend(["b1"], 1.0) or "", time.monotonic),
        traced(part, "spends in a thread", lambda: in_a_thread(patience.spend, ["b1"], 2.0) or "", time.monotonic),
        traced(part, "looks", lambda: patience.is_spent("b1") or "", time.monotonic),
    ]
    kept = tmp_path / "reached"
    kept.write_text("".join(run.line() for run in runs))
    assert [*known_runs(kept)] == runs
    reached = Reached(runs, last=lambda test: False)
    assert {run.test for run in reached.by(spend)} == {"spends", "spends in a thread"}
    assert [run.test for run in reached.by(looked)] == ["looks"]


def test_a_thread_that_an_earlier_test_started_counts_for_the_test_that_runs():
    """The server of a module's fixture: what it did for any test but the first was reached by no test, and judged by none."""
    part, patience = PARTS["client"], Patience(1.0)
    with ThreadPoolExecutor(1) as server:
        runs = [
            traced(part, "starts it", lambda: server.submit(str).result(60.0), time.monotonic),
            traced(part, "asks it", lambda: server.submit(patience.is_spent, "b1").result(60.0) or "", time.monotonic),
        ]
    assert [bool(run.reached) for run in runs] == [False, True]


def test_the_clients_of_a_module_end_with_it_and_the_shared_cluster_goes_on():
    """Their threads outlived the module, so its last test failed after 300 s: every mutant that had come so far was found."""
    ended = []
    cluster = SimpleNamespace(_stack=ExitStack())
    cluster._stack.callback(ended.append, "cluster")
    with lent(cluster) as shared:
        shared._stack.callback(ended.append, "client")
        assert ended == []
    assert ended == ["client"]
    cluster._stack.close()
    assert ended == ["client", "cluster"]


def in_a_thread(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


def test_a_process_that_does_not_end_is_ended_with_all_that_it_started():
    def hangs(watch):
        tempfile.mkdtemp()
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        watch(0.0, 0.0, {"left": left.pid, "folder": tempfile.gettempdir()})
        left.wait()

    ((key, said),) = each_in_a_process([Work("hangs", hangs, 60)], 1)
    assert key == "hangs"
    assert said["folder"] != tempfile.gettempdir() and not os.path.exists(said["folder"])
    # Killed, and a child of this process.
    assert os.waitstatus_to_exitcode(os.waitpid(said["left"], 0)[1]) == -signal.SIGKILL


def test_another_process_works_beside_one_that_stands():
    freed, frees = os.pipe()

    def stands(watch):
        watch(0.0, 600.0, "ended")
        return os.read(freed, 1).decode() == "!"

    def works(watch):
        return os.write(frees, b"!") == 1

    try:
        assert dict(each_in_a_process([Work("stands", stands, 60), Work("works", works, 60)], 1)) == {
            "stands": True,
            "works": True,
        }
    finally:
        os.close(freed)
        os.close(frees)


def test_a_test_that_only_a_mutant_lets_stand_till_its_deadline_kills_it(tmp_path, monkeypatch):
    """Whatever the clock ended counted as found, also on a machine that was only slow."""
    monkeypatch.setenv("MUTANTS_MEASURED", str(tmp_path / "measured"))
    stands, anyway = (
        f"tests/mutants/standing.py::test_stands_{name}" for name in ("if_it_is_wrong", "from_the_second_time")
    )
    for options, found in (
        ([stands], (0, True, f"deadline: {stands}", "")),
        ([stands, "--deadline", "1"], (1, False, "", f"stood: {stands}")),
        ([anyway], (1, False, "", f"stood: {anyway}")),
    ):
        status, verdicts = run("--only", "ledger.quorum:write_set quorum: .*-", "--schedules", "0", *options)
        last = {verdict["mutant"]: verdict for verdict in verdicts}
        assert {(status, each["killed"], each["tests"], each["undecided"]) for each in last.values()} == {found}


def test_a_failure_counts_only_if_the_test_passes_without_the_mutant(tmp_path, monkeypatch):
    """Clients that other mutants had left in the shared cluster failed a test, and each mutant with it."""
    monkeypatch.setenv("MUTANTS_MEASURED", str(tmp_path / "measured"))
    fails = "tests/mutants/standing.py::test_fails_from_the_second_time"
    status, verdicts = run("--only", "ledger.quorum:write_set quorum: .*-", "--schedules", "0", fails)
    assert (status, verdicts[0]["killed"]) == (1, True)
    assert (verdicts[-1]["killed"], verdicts[-1]["undecided"]) == (False, f"fails without it too: {fails}")


@cache
def names_of(part):
    return [mutant.name for mutant in all_mutants(PARTS[part])]


@pytest.mark.parametrize("part", PARTS)
def test_each_mutant_has_a_name_of_its_own(part):
    names = names_of(part)
    assert len(names) == len(set(names)) > 3000


def test_each_equivalent_is_one_of_them():
    names = [name for part in PARTS for name in names_of(part)]
    assert equivalents().keys() - set(names) == set(), "the code has changed: review these again"
    assert all(reason.endswith(".") for reason in equivalents().values())


def test_a_mutant_that_nobody_looks_for_survives():
    status, verdicts = run(
        "--only", "ledger.quorum:write_set quorum", "--schedules", "0", "tests/protocol/test_control_copies.py"
    )
    assert status == 1
    assert len(verdicts) == 2
    assert not any(verdict["killed"] for verdict in verdicts)


def test_each_harmless_one_touches_safety():
    touching = {mutant.name for mutant in touching_safety(all_mutants())}
    assert harmless().keys() - touching == set(), "the code has changed: review these again"
    assert not harmless().keys() & equivalents().keys()


def test_what_touches_safety_is_named_by_modules_that_there_are():
    touching = [mutant.name for mutant in touching_safety(all_mutants())]
    modules = {f"{shelf}.{module}" for shelf, names in SAFETY.items() for module in names}
    assert {name.partition(":")[0] for name in touching} == modules
    assert not any(":LedgerRecovery._fail " in name for name in touching)


def test_simulation_alone_finds_a_wrong_recovery_and_says_what_it_does_not_reach():
    only = r"^(reading.recovery:LedgerRecovery._fence step: self.phase|ledger.quorum:last_add_confirmed_of watermark)"
    status, verdicts = run("--by-simulate", "2", "--only", only)
    found = {verdict["mutant"].partition(".")[0]: (verdict["killed"], verdict["phase"]) for verdict in verdicts}
    assert status == 0, "the one that is not reached does no harm: nothing that ships calls it"
    assert found.pop("reading") in ((True, "ledgers: all drawn"), (True, "reading"))
    assert found == {"ledger": (False, "not reached")}


@pytest.mark.timeout(1200)
def test_of_a_sample_of_wrong_protocols_none_survives():
    status, verdicts = run("--sample", "20", "--seed", "2", "--only", SAMPLED, "--schedules", "20", *QUICK)
    survived = [verdict["mutant"] for verdict in verdicts if not verdict["killed"]]
    assert len(verdicts) == 20
    assert status == 0, survived
