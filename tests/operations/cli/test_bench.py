"""``bookspark bench ledger`` at a tiny scale, its limits and kept results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError
from bookspark.lab.bench import kept_results, trees
from bookspark.lab.bench.kept_results import keep
from bookspark.lab.bench.ledger.cases import CASES, WORKLOADS, Kind, Turn, Workload, chosen
from bookspark.lab.bench.peers.ledger_comparison import fed_loops, limits
from bookspark.lab.bench.processes import use_memory_once
from tests.operations.cli.conftest import Run

pytestmark = pytest.mark.acceptance


def test_each_workload_prints_a_line(bookspark: Run, tmp_path: Path) -> None:
    turns = (Turn.SYNCED, Turn.LEDGERS)
    words = [word for turn in turns for word in ("--turn", turn)]
    outcome = bookspark("bench", "ledger", "--scale", "0.0005", *words, "--directory", str(tmp_path))
    assert outcome.status == 0, outcome.err
    lines = [json.loads(line) for line in outcome.text.splitlines()]
    asked = [w for turn in turns for w in WORKLOADS[turn]]
    assert [line["label"] for line in lines if line.get("api") != "read"] == [workload.label for workload in asked]
    for line in lines:
        assert line["system"] == "bookspark"
        assert all(value > 0 for name, value in line.items() if name.endswith(("_per_second", "_ms", "_per_byte")))
    assert list(tmp_path.iterdir()) == []


def test_limit_measurements_leave_no_files_behind(tmp_path: Path) -> None:
    assert fed_loops(tmp_path, 1024, 20, syncs=False) > 0
    use_memory_once(tmp_path, 3 << 20)
    assert list(tmp_path.iterdir()) == []


def test_labels_of_workloads_are_unique_and_without_spaces() -> None:
    labels = [workload.label for workloads in WORKLOADS.values() for workload in workloads]
    assert len(labels) == len(set(labels))
    assert not any(" " in label for label in labels)


def test_only_the_named_cases_are_measured() -> None:
    assert [one.label for one in chosen(Turn.SYNCED, ["L1", "L2"], 1.0)] == ["L1", "L2-100", "L2-1024", "L2-16384"]
    assert chosen(Turn.COLD, ["L1"], 1.0) == []
    assert {one.case for turn in Turn for one in chosen(turn, [], 1.0)} == set(CASES)


def test_small_scale_keeps_a_whole_batch_and_the_length_of_recovered_ledgers() -> None:
    assert Workload("b", Kind.BATCH, entries=5000, batch=1000).scaled(0.001).entries == 1000
    assert Workload("r", Kind.RECOVER, entries=2000, ledgers=9).scaled(0.001) == Workload(
        "r", Kind.RECOVER, entries=2000
    )


@pytest.mark.parametrize("turn", [Turn.SYNCED, Turn.LEDGERS, Turn.COLD, Turn.UNJOURNALED])
def test_limit_is_measured_for_each_case_that_has_a_limit(turn: Turn, tmp_path: Path) -> None:
    workloads = [workload.scaled(0.0005) for workload in WORKLOADS[turn]]
    found = {line["label"]: line for line in limits(turn, workloads, tmp_path)}
    without = (Kind.RECOVER, Kind.CREATE_CLOSE, Kind.IDLE)
    assert found.keys() == {workload.label for workload in workloads if workload.kind not in without}
    for line in found.values():
        assert line["system"] == "limit"
        assert all(value > 0 for name, value in line.items() if name.endswith(("_per_second", "_ms")))
    assert list(tmp_path.iterdir()) == []


def test_each_run_is_appended_and_compared_only_with_runs_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_results, "commit", lambda tree: "abc")

    def run(adds: float, p50: float, bench: str = "ledger", scale: float = 1.0) -> list[str]:
        line = {"system": "bookspark", "label": "L1", "adds_per_second": adds, "p50_ms": p50, "load": 3.0}
        return [told.partition(" than")[0] for told in keep(tmp_path, bench, [line], scale, tmp_path)]

    assert run(100.0, 1.0) == []
    assert run(104.0, 0.96) == [], "less than 5 %"
    assert run(80.0, 0.5) == [
        "bookspark L1, adds_per_second: 104 → 80 (-23%, worse",
        "bookspark L1, p50_ms: 0.96 → 0.5 (-48%, better",
    ]
    assert run(10.0, 5.0, scale=0.1) == run(10.0, 5.0, bench="another") == []
    monkeypatch.setattr(kept_results, "machine", lambda: "another one")
    assert run(1.0, 50.0) == []
    kept = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [(one["commit"], one["figures"]["bookspark L1"]["p50_ms"]) for one in kept][:3] == [
        ("abc", 1.0),
        ("abc", 0.96),
        ("abc", 0.5),
    ]


def test_two_trees_are_measured_in_turns_each_with_its_own_code(tmp_path: Path) -> None:
    tree = tmp_path / "checkout"
    (tree / "bookspark").mkdir(parents=True)
    (tree / "bookspark" / "__init__.py").touch()

    def git(*words: str) -> None:
        known = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *known, *words], cwd=tree, check=True, stdout=subprocess.DEVNULL, timeout=60)

    def code(rate: int) -> None:
        line = json.dumps({"label": "L1", "adds_per_second": rate})
        (tree / "bookspark" / "__main__.py").write_text(f"print({line!r})\n")

    git("init", "--quiet")
    code(100)
    git("add", ".")
    git("commit", "--quiet", "--message", "before")
    code(150)
    text, lines = trees.against(tree, "HEAD", [Turn.SYNCED], 2, 1.0, None)
    assert [(line["system"], line["round"]) for line in lines] == [
        ("this tree", 0),
        ("against", 0),
        ("against", 1),
        ("this tree", 1),
    ]
    assert text.splitlines()[2:] == ["| L1, adds per second | 150 | 100 | 1.5 |"]
    assert len(list((tree / ".git").glob("worktrees/*"))) == 0, "the other tree is gone"
    assert kept_results.commit(tree).endswith("+"), "what is not committed is measured too"
    for wrong in ("no-such-commit", "--force"):
        with pytest.raises(ConfigurationError, match=wrong):
            trees.against(tree, wrong, [Turn.SYNCED], 1, 1.0, None)
