"""Commands that run until a signal: the signal at start, twice, and under nohup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bookspark.operations.cli.terminal.signals import until_signal


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    """SIGHUP may be ignored in the process that runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_signalled_while_it_starts_cleans_up_and_counts_as_ended(number: int) -> None:
    stopped = False
    before = signal.getsignal(signal.SIGTERM)
    with until_signal():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("it went on starting")
        finally:
            stopped = True
    assert stopped
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_second_signal_does_not_interrupt_the_cleanup(number: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with until_signal() as wait:
            signal.setitimer(signal.ITIMER_REAL, 0)
            previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            wait()
            signal.signal(signal.SIGALRM, previous)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGINT, before)


def test_command_started_by_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with until_signal():
            os.kill(os.getpid(), signal.SIGHUP)
            went_on = True
        assert went_on and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


CTRL_C_AT_IMPORT = """
import sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from bookspark.__main__ import main
sys.argv[1:] = ["bookies"]
main()
"""


@pytest.mark.parametrize(
    "module",
    [
        "bookspark.errors",
        "msgspec",
        "bookspark.operations.cli.main",
        "typer",
        "bookspark.operations.cli.commands.bookies",
    ],
)
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C_AT_IMPORT.replace("sys.argv[1]", repr(module))], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"")
