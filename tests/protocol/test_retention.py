"""Commits of a lane that its retention lets expire."""

from __future__ import annotations

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.commits import Commit, EntryRange, Position
from bookspark.protocol.logs.log_offload import Offload
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.logs.retention import Retention, check_not_offloaded

NOW_MS = 1_000_000


def expired(retention: Retention, time_ms: int, behind: int) -> bool:
    """Whether a commit of this time, with ``behind`` of the lane's 100 bytes behind it, expires."""
    commit = Commit("q", 0, "r", 1, (EntryRange(5, 0, 9, 10, 10),), time_ms)
    return retention.expired(commit, Position(1, 10, 100 - behind), 100, NOW_MS)


@pytest.mark.parametrize(("time_ms", "goes"), [(NOW_MS - 51, True), (NOW_MS - 50, False), (NOW_MS + 7, False)])
def test_commit_older_than_the_retention_expires(time_ms: int, goes: bool) -> None:
    assert expired(Retention(retention_ms=50), time_ms, 0) is goes


@pytest.mark.parametrize(("behind", "goes"), [(41, True), (40, True), (39, False), (0, False)])
def test_commit_followed_by_the_retention_bytes_expires(behind: int, goes: bool) -> None:
    assert expired(Retention(retention_bytes=40), NOW_MS, behind) is goes


def test_either_bound_expires_a_commit_and_without_bounds_none_expires() -> None:
    both = Retention(retention_ms=50, retention_bytes=40)
    assert expired(both, 1, 0) and expired(both, NOW_MS, 100) and not expired(both, NOW_MS, 0)
    assert not expired(Retention(), 1, 100) and Retention().forever and not both.forever


def test_commit_of_unknown_time_does_not_expire_by_age() -> None:
    assert not expired(Retention(retention_ms=50), 0, 0)


def test_offloaded_log_refuses_a_retention() -> None:
    check_not_offloaded(LogRecord("orders"))
    with pytest.raises(ConfigurationError, match="offloaded to s3://orders"):
        check_not_offloaded(LogRecord("orders", offload=Offload("s3://orders")))
