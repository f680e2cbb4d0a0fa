"""The end of a read: it is answered once and makes room for the next read of its connection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from tests.store.bookie.kit import Client, Pumped, config, serving

READS = 30
"""More reads than a connection may have under way."""


def raises(error: Exception) -> Callable[..., Any]:
    def trip(*arguments: Any, **options: Any) -> Any:
        raise error

    return trip


def fails(*arguments: Any) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(OSError("on purpose"))
    return failed


@pytest.mark.parametrize(
    ("of", "call", "stand_in", "status"),
    [
        ("holdings", "plan_read", raises(ValueError("on purpose")), Status.IO_ERROR),
        ("disk_threads", "run", raises(ValueError("on purpose")), Status.IO_ERROR),
        ("disk_threads", "run", raises(RuntimeError("no thread")), Status.TOO_MANY_REQUESTS),
        ("disk_threads", "run", fails, Status.IO_ERROR),
    ],
    ids=["a defect of a plan", "a defect", "no thread", "a thread that fails"],
)
def test_failed_reads_are_answered_and_block_no_later_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, call: str, stand_in: Callable[..., Any], status: Status
) -> None:
    """A connection has few reads under way at most; if ended reads still counted, it would accept no more."""
    storage = Pumped(config(tmp_path))
    storage.add(5, 0)
    storage.storage.close()
    with serving(config(tmp_path)) as (server, address), monkeypatch.context() as patched:
        patched.setattr(getattr(server.storage, of), call, stand_in)
        client = Client(address)
        client.send(*(control_frame(Header(Kind.READ, number, 5, 0, 0)) for number in range(READS)))
        answers = [client.receive().header for _ in range(READS)]
        assert sorted(answer.request_id for answer in answers) == list(range(READS))
        assert {answer.status for answer in answers} == {status}
        patched.undo()
        found, end = client.read(5, 0, 0)
        assert len(found) == 1 and end.status == Status.OK
        client.close()
