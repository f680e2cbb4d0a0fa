"""A worker closes its idle handles: when they are unused, when a task fails, and when the interpreter ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bookspark.logs import DataWriter, LogAddress, LogRegistry, LogRun, RollPolicy
from bookspark.logs.rows.data_ledgers import DataLedger
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.spark.idle_closing import IdleCloser, closed_if_it_fails
from tests.awaiting import SECONDS_MAX, await_that
from tests.spark.memory_bookkeeper import MemoryBookKeeper
from tests.spark.test_logs_committer import values

HOUR = 3600.0


class Handle:
    """A handle that counts its closes; each waits until ``let_go`` is set."""

    def __init__(self, held: bool = False) -> None:
        self.closing, self.let_go = threading.Event(), threading.Event()
        self.closed = 0
        if not held:
            self.let_go.set()

    def close(self) -> None:
        self.closing.set()
        assert self.let_go.wait(SECONDS_MAX)
        self.closed += 1


def test_unused_handle_is_closed_and_can_be_used_again() -> None:
    closer, handle = IdleCloser(seconds=0.0), Handle()
    for uses in (1, 2):
        with closer.in_use(handle):
            pass
        await_that(lambda uses=uses: handle.closed == uses)


def test_handle_in_use_is_not_closed() -> None:
    closer, used, other = IdleCloser(HOUR), Handle(), Handle()
    for handle in (used, other):
        with closer.in_use(handle):
            pass
    with closer.in_use(used):
        closer.close_all()
        assert other.closed and not used.closing.is_set()
    closer.close_all()
    assert used.closed


def test_use_of_a_handle_waits_for_its_close_in_progress() -> None:
    closer, handle = IdleCloser(seconds=0.0), Handle(held=True)
    with closer.in_use(handle):
        pass
    assert handle.closing.wait(SECONDS_MAX)
    threading.Timer(0.05, handle.let_go.set).start()
    with closer.in_use(handle):
        assert handle.closed == 1


def test_close_all_closes_idle_handles_before_their_time() -> None:
    closer, handles = IdleCloser(HOUR), [Handle() for _ in range(3)]
    for handle in handles:
        with closer.in_use(handle):
            pass
    closer.close_all()
    assert [handle.closed for handle in handles] == [1, 1, 1]


def test_idle_handles_are_closed_when_a_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends the worker then. A refused query left the commit ledgers of other queries open."""
    closer, handle, used = IdleCloser(HOUR), Handle(), Handle()
    monkeypatch.setattr("bookspark.spark.idle_closing._closers", {os.getpid(): closer})
    with closer.in_use(handle):
        pass
    with pytest.raises(RuntimeError), closed_if_it_fails(), closer.in_use(used):
        raise RuntimeError("made to fail")
    assert (handle.closed, used.closed) == (1, 1)


def test_handle_that_fails_to_close_does_not_stop_other_closes() -> None:
    class Broken(Handle):
        def close(self) -> None:
            self.closing.set()
            raise RuntimeError("made to fail")

    closer, broken, handle = IdleCloser(seconds=0.0), Broken(), Handle()
    for one in (broken, handle):
        with closer.in_use(one):
            pass
    await_that(lambda: broken.closing.is_set() and handle.closed)


def test_idle_data_ledger_is_closed_and_the_next_task_begins_a_new_ledger() -> None:
    bookkeeper, address = MemoryBookKeeper(), LogAddress("zookeeper", "orders")
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")
    run = LogRun.of(address, registry.claim("orders", "a"))
    ledger, closer = DataLedger(bookkeeper, run, LogOptions(), RollPolicy()), IdleCloser(seconds=0.0)
    used = set()
    for _ in range(2):
        with closer.in_use(ledger):
            writer = DataWriter(ledger)
            writer.append(values(b"a"))
            (written,) = writer.finish()
            used.add(written.ledger_id)
        await_that(lambda ledger_id=written.ledger_id: bookkeeper.get_ledger_metadata(ledger_id).closed)
    assert len(used) == 2


WORKER = """
import sys
from bookspark.spark.idle_closing import idle_closer

class Handle:
    def close(self):
        open(sys.argv[1], "w").close()

with idle_closer().in_use(Handle()):
    pass
"""


def test_ending_interpreter_closes_idle_handles(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    subprocess.run([sys.executable, "-c", WORKER, str(closed)], check=True, timeout=SECONDS_MAX)
    assert closed.exists()
