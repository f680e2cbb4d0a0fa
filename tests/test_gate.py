"""The test command: the tests that belong to a path, and the second try of a failed test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import gate
from tests.gate import ROOT, SECOND_TRIES_MAX, belonging, second_tries
from tests.promises import PLACES, judges_a_promise

FAILS_ONCE = """
from pathlib import Path

def test_fails_once():
    seen = Path(__file__).with_name("seen")
    assert seen.exists() or seen.touch()
"""


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "SECOND_TRIES", ROOT / ".cache" / f"{tmp_path.name}.jsonl")
    yield gate.SECOND_TRIES
    gate.SECOND_TRIES.unlink(missing_ok=True)


def failures(tmp_path: Path, source: str, workers: str = "0") -> list[dict]:
    """Run a module of tests, and return the failures that the second step gets."""
    module, noted = tmp_path / "test_made.py", tmp_path / "failures.json"
    module.write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.reporting", "-p", "no:cacheprovider", "-q", "-n", workers]
    subprocess.run([*command, f"--failures={noted}", str(module)], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    # Pytest names a test outside of the project from the project's root.
    return [
        failure | {"test": f"{module}::{failure['test'].rpartition('::')[2]}"}
        for failure in json.loads(noted.read_text())
    ]


def test_failed_test_that_passes_alone_is_noted_and_the_run_succeeds(tmp_path, notes, capsys):
    failed = failures(tmp_path, FAILS_ONCE)
    assert second_tries(failed) == 0
    assert "test_made.py::test_fails_once: " in capsys.readouterr().out.splitlines()[-1]
    (note,) = map(json.loads, notes.read_text().splitlines())
    assert {"date", "test", "message", "load"} <= note.keys()
    assert "AssertionError" in note["message"] or "assert" in note["message"]


def test_failed_test_that_fails_again_fails_the_run(tmp_path, notes):
    assert second_tries(failures(tmp_path, "def test_fails():\n    assert 1 == 2")) == 1
    assert not notes.exists()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_promise_test_has_no_second_try(tmp_path, notes, capsys, workers):
    (failed,) = failures(
        tmp_path, FAILS_ONCE.replace("def test", "import pytest\n\n@pytest.mark.promise\ndef test"), workers
    )
    assert failed["final"]
    assert second_tries([failed]) == 1
    assert failed["test"] in capsys.readouterr().out


def test_crashing_test_has_no_second_try(tmp_path, notes):
    (failed,) = failures(tmp_path, "import os\n\ndef test_ends():\n    os._exit(3)", workers="1")
    assert second_tries([failed]) == 1


def test_unimportable_module_has_no_second_try(tmp_path, notes):
    (failed,) = failures(tmp_path, "import nothing_of_this_name")
    assert failed["final"]


def test_too_many_failures_fail_the_run_without_a_second_try(tmp_path, notes, monkeypatch):
    monkeypatch.setattr(gate, "_run", lambda *_: pytest.fail("tried again"))
    failed = {"test": "tests/test_gate.py::test_x", "message": "no", "load": 1.0, "final": False}
    assert second_tries([failed] * (SECOND_TRIES_MAX + 1)) == 1


def test_every_place_that_judges_promises_exists():
    assert [str(place) for place in PLACES if not place.exists()] == []
    assert judges_a_promise(ROOT / "tests/store/bookie/test_histories.py")
    assert not judges_a_promise(ROOT / "tests/operations/cli/test_signals.py")


def test_module_of_the_product_gets_the_tests_of_its_name():
    assert "tests/store/bookie/test_index.py" in belonging("bookspark/store/bookie/disk/index.py")


def test_folder_of_the_product_gets_the_tests_that_import_it():
    found = belonging("bookspark/protocol/ledger")
    assert "tests/protocol/test_quorum.py" in found
    assert all(test.startswith("tests/protocol/") for test in found)


def test_path_of_tests_is_taken_unchanged():
    assert belonging("tests/test_gate.py::test_x") == ["tests/test_gate.py::test_x"]


def test_value_of_an_option_is_not_a_path(monkeypatch):
    ran = []
    monkeypatch.setattr(gate, "_run", lambda *arguments: ran.append(arguments) or 0)
    assert gate.main(["tests/test_gate.py", "-k", "docs"]) == 0
    assert ran == [("-n", "auto", "tests/test_gate.py", "-k", "docs")]


def test_path_without_tests_is_refused(tmp_path):
    with pytest.raises(LookupError, match="no test imports"):
        belonging("conf")
