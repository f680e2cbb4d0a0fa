"""``bookspark audit`` and its like, before Spark has anything to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long to start, only to say what can be known at once."""
    monkeypatch.setattr("bookspark.cli.commands.audit.quiet_session", lambda name: pytest.fail("Spark was started"))


@pytest.mark.parametrize("command", [("audit",), ("safe-to-stop", "bookie-1")])
def test_a_folder_without_snapshots(bookspark: Run, command: tuple[str, ...], tmp_path: Path) -> None:
    outcome = bookspark(*command, "--path", str(tmp_path / "missing"))
    assert outcome.status == 2 and f"there is no snapshot under {tmp_path}/missing" in outcome.err


@pytest.mark.parametrize(
    "command", [("audit",), ("snapshot", "--path", "x"), ("audit", "--path", ".", "--integrity-check")]
)
def test_a_cluster_that_is_not_there(bookspark: Run, command: tuple[str, ...], tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[client]\nmetadata_timeout_seconds = 0.5\n")
    outcome = bookspark("--config", str(settings), *command, "--zookeeper", "127.0.0.1:1")
    assert outcome.status == 2 and "127.0.0.1:1" in outcome.err
