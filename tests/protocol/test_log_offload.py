"""Progress of a log's offload: one transaction at a time, whichever run begins or completes it."""

from __future__ import annotations

import pytest

from bookspark.protocol.logs.log_offload import Offload, OffloadError
from bookspark.protocol.logs.log_record import LogRecord


def test_beginning_or_completing_a_transaction_twice_changes_nothing() -> None:
    begun = LogRecord("orders").offload_begun("/table", 10)
    assert begun.offload == Offload("/table", pending=10)
    assert begun.offload_begun("/table", 10) == begun
    done = begun.offload_done("/table", 10, 0)
    assert done.offload == Offload("/table", position=10, version=0)
    assert done.offload_done("/table", 10, 3) == done
    assert done.offload_begun("/table", 10) == done, "that is no progress"


def test_second_transaction_waits_for_the_pending_one() -> None:
    begun = LogRecord("orders").offload_begun("/table", 10)
    assert begun.offload_begun("/table", 25) == begun
    with pytest.raises(OffloadError, match="up to row 25 was never begun; what is begun ends at row 10"):
        begun.offload_done("/table", 25, 1)


def test_late_completion_of_a_done_transaction_changes_nothing() -> None:
    later = LogRecord("orders").offload_begun("/table", 10).offload_done("/table", 10, 0).offload_begun("/table", 20)
    assert later.offload_done("/table", 10, 5) == later


def test_log_is_offloaded_to_a_single_table() -> None:
    done = LogRecord("orders").offload_begun("/table", 10).offload_done("/table", 10, 0)
    with pytest.raises(OffloadError, match="the log is offloaded to /table, not to /other"):
        done.offload_begun("/other", 20)


def test_log_that_was_never_offloaded_refuses_the_end_of_an_offload() -> None:
    with pytest.raises(OffloadError, match="was never offloaded"):
        LogRecord("orders").offload_done("/table", 10, 0)


def test_offload_is_taken_back_until_its_ledgers_are_being_deleted() -> None:
    """A failed offload left the log without a way to a retention or another table."""
    begun = LogRecord("orders").offload_begun("/table", 10)
    done = begun.offload_done("/table", 10, 0)
    for record in (LogRecord("orders"), begun, done, done.offload_begun("/table", 20)):
        assert record.offload_taken_back() == LogRecord("orders")
    deleting = done.offload_deleting("/table", 10)
    with pytest.raises(OffloadError, match="ledgers of rows 0 to 9 may be deleted, and /table may have the only copy"):
        deleting.offload_taken_back()
    assert deleting.offload_begun("/table", 20).offload_done("/table", 20, 1).offload == Offload(
        "/table", 20, 1, deleted=10
    )
    truncated = deleting.truncated(10, {}).offload_taken_back()
    assert (truncated.offload, truncated.first_position) == (None, 10)


def test_ledgers_are_deleted_only_of_rows_in_the_table_of_an_offload_that_stands() -> None:
    with pytest.raises(OffloadError, match="rows before 20 are not all in the table"):
        LogRecord("orders").offload_begun("/table", 10).offload_done("/table", 10, 0).offload_deleting("/table", 20)
    with pytest.raises(OffloadError, match="never offloaded, or its offload was taken back"):
        LogRecord("orders").offload_deleting("/table", 10)


def test_run_whose_offload_was_taken_back_can_neither_end_nor_delete_for_the_next_one() -> None:
    """It said that the next table had its rows, and deleted their ledgers."""
    next_one = LogRecord("orders").offload_begun("/old", 10).offload_taken_back().offload_begun("/new", 10)
    with pytest.raises(OffloadError, match="the log is offloaded to /new, not to /old"):
        next_one.offload_done("/old", 10, 3)
    with pytest.raises(OffloadError, match="the log is offloaded to /new, not to /old"):
        next_one.offload_done("/new", 10, 0).offload_deleting("/old", 10)
