"""``bookspark audit``, ``snapshot`` and ``safe-to-stop``: errors found before Spark starts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bookspark.operations.cli.terminal import output
from tests.awaiting import await_that, time_passes
from tests.operations.cli.conftest import Run


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes seconds to start; these errors are known without it."""
    monkeypatch.setattr(
        "bookspark.operations.cli.commands.audit.quiet_session", lambda name: pytest.fail("Spark was started")
    )


@pytest.mark.parametrize("command", [("audit",), ("safe-to-stop", "bookie-1")])
def test_folder_without_snapshots_is_an_error(bookspark: Run, command: tuple[str, ...], tmp_path: Path) -> None:
    outcome = bookspark(*command, "--path", str(tmp_path / "missing"))
    assert outcome.status == 2 and f"there is no snapshot under {tmp_path}/missing" in outcome.err


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "command", [("audit",), ("snapshot", "--path", "x"), ("audit", "--path", ".", "--integrity-check")]
)
def test_unreachable_cluster_is_an_error_that_names_its_address(
    bookspark: Run, command: tuple[str, ...], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[client]\nmetadata_timeout_seconds = 0.5\n")
    outcome = bookspark("--config", str(settings), *command, "--zookeeper", "127.0.0.1:1")
    assert outcome.status == 2 and "127.0.0.1:1" in outcome.err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_bar_is_shown_only_on_a_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, 75 seconds passed in silence."""
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("writing a snapshot") as begins:
        begins("index_ranges", 12, 13)
    assert ("writing a snapshot: index ranges" in err.getvalue() and "12/13" in err.getvalue()) is is_terminal
    assert bool(err.getvalue()) is is_terminal


def test_progress_in_a_file_is_a_line_each_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot was silent for 376 seconds where standard error was no terminal."""
    err = io.StringIO()
    monkeypatch.setattr("sys.stderr", err)
    assert output.PROGRESS_SECONDS == 10.0
    monkeypatch.setattr(output, "PROGRESS_SECONDS", 0.01)
    with output.progress("writing a snapshot") as begins:
        await_that(lambda: "writing a snapshot, 0 s\n" in err.getvalue())
        begins("index_ranges", 12, 13)
        await_that(lambda: "writing a snapshot: index ranges (13 of 13), " in err.getvalue())
    told = err.getvalue()
    time_passes(0.05)
    assert err.getvalue() == told, "it ends with the step"
