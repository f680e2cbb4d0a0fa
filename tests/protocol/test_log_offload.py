"""How far a log is offloaded: one transaction at a time, whoever begins it, and whoever carries it through."""

from __future__ import annotations

import pytest

from bookspark.protocol.logs.log_offload import Offload, OffloadError
from bookspark.protocol.logs.log_record import LogRecord


def test_a_transaction_is_begun_and_done_and_doing_either_twice_changes_nothing() -> None:
    begun = LogRecord("orders").offload_begun("/table", 10)
    assert begun.offload == Offload("/table", pending=10)
    assert begun.offload_begun("/table", 10) == begun
    done = begun.offload_done(10, 0)
    assert done.offload == Offload("/table", position=10, version=0)
    assert done.offload_done(10, 3) == done
    assert done.offload_begun("/table", 10) == done, "that is no progress"


def test_nobody_begins_another_transaction_while_one_is_pending() -> None:
    begun = LogRecord("orders").offload_begun("/table", 10)
    assert begun.offload_begun("/table", 25) == begun
    with pytest.raises(OffloadError, match="up to row 25 was never begun; what is begun ends at row 10"):
        begun.offload_done(25, 1)


def test_a_run_that_comes_late_finds_its_transaction_done() -> None:
    later = LogRecord("orders").offload_begun("/table", 10).offload_done(10, 0).offload_begun("/table", 20)
    assert later.offload_done(10, 5) == later


def test_a_log_has_one_table() -> None:
    done = LogRecord("orders").offload_begun("/table", 10).offload_done(10, 0)
    with pytest.raises(OffloadError, match="the log is offloaded to /table, not to /other"):
        done.offload_begun("/other", 20)


def test_a_log_that_was_made_anew_meanwhile_was_never_offloaded() -> None:
    with pytest.raises(OffloadError, match="made anew"):
        LogRecord("orders").offload_done(10, 0)
