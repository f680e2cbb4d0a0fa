"""``bookspark job`` and ``bookspark conf`` print the paths of the packaged files."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import bookspark as package
from tests.operations.cli.conftest import Run

ROOT = Path(__file__).resolve().parents[3]


def test_job_prints_the_path_of_the_named_job(bookspark: Run) -> None:
    for path in ROOT.glob("jobs/[a-z]*.py"):
        outcome = bookspark("job", path.stem)
        assert (outcome.status, outcome.text) == (0, f"{path}\n")


def test_jobs_are_listed_with_their_descriptions(bookspark: Run) -> None:
    lines = bookspark("job").text.splitlines()
    assert [line.split()[0] for line in lines] == [
        "audit",
        "autorecovery",
        "bookies",
        "copy_ledgers",
        "offload",
        "snapshot",
    ]
    assert all(len(line.split()) > 4 and line.endswith(".") for line in lines)


def test_conf_prints_the_path_of_the_named_settings_file(bookspark: Run) -> None:
    outcome = bookspark("conf", "spark-defaults.conf")
    assert (outcome.status, outcome.text) == (0, f"{ROOT / 'conf/spark-defaults.conf'}\n")
    listed = {line.split()[0] for line in bookspark("conf").text.splitlines()}
    assert listed == {path.name for path in (ROOT / "conf").iterdir()}
    assert bookspark("conf", "kubernetes").text == f"{ROOT / 'conf/kubernetes'}\n"


def test_unknown_name_is_an_error_in_one_line(bookspark: Run) -> None:
    outcome = bookspark("job", "bookie")
    assert (outcome.status, outcome.err) == (2, "bookspark: unknown job 'bookie'; did you mean 'bookies'?\n")
    outcome = bookspark("conf", "zoo.conf")
    assert (outcome.status, outcome.err) == (
        2,
        "bookspark: unknown settings file 'zoo.conf'; did you mean 'zoo.cfg'?\n",
    )


def test_command_and_module_print_the_packages_version(bookspark: Run) -> None:
    assert bookspark("--version").text == f"bookspark {package.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "bookspark", "--version"], capture_output=True, text=True, timeout=300)
    assert done.stdout == f"bookspark {package.__version__}\n"


def test_each_job_has_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``[/chroot]`` must be printed as it stands, not parsed as a rich markup tag."""
    for path in ROOT.glob("jobs/[a-z]*.py"):
        monkeypatch.setattr(sys, "argv", [str(path), "--help"])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path), run_name="__main__")
        text = capsys.readouterr().out
        assert not end.value.code
        assert text.startswith(f"Usage: {path.name} [OPTIONS]")
        assert "[/chroot]" in " ".join(text.split())
