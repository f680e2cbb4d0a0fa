"""Clients in a forked process (Spark forks its Python workers): no call hangs on inherited state."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from bookspark import BookKeeper
from bookspark.errors import LedgerClosedError, MetadataStoreError
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.store.client.writing.ledger_handle import LedgerHandle, LedgerHandleAdv
from tests.store.client.unsent import unsent_context
from tests.store.metadata.kit import EVENT_SECONDS, ledger


def in_a_fork(check):
    """Run ``check`` in a child process; a hanging child is killed."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(EVENT_SECONDS))
            check()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_client_forked_while_it_connects_can_be_used_and_closed(monkeypatch):
    client, parent = BookKeeper("127.0.0.1:1"), os.getpid()
    connecting, go_on = threading.Event(), threading.Event()

    def connect():
        connecting.set()
        if os.getpid() == parent:
            go_on.wait(2 * EVENT_SECONDS)
        raise MetadataStoreError("no answer")

    def use():
        with pytest.raises(MetadataStoreError, match="no answer"):
            client.list_ledgers()

    def use_and_close():
        use()
        client.close()

    monkeypatch.setattr(client.context, "_connect", connect)
    user = threading.Thread(target=use)
    user.start()
    try:
        assert connecting.wait(EVENT_SECONDS)
        in_a_fork(use_and_close)
    finally:
        go_on.set()
        user.join()


@pytest.mark.parametrize("wait", [AppendFuture.result, lambda f: f.result(60), lambda f: f.add_done_callback(print)])
def test_forked_process_cannot_wait_for_an_append_of_its_parent(wait):
    watermark = Watermark()
    watermark.advance(0)

    def refused():
        assert AppendFuture(watermark, 0).result() == 0, "that was known at the fork"
        with pytest.raises(LedgerClosedError, match=f"process {os.getppid()}"):
            wait(AppendFuture(watermark, 1))

    in_a_fork(refused)


def test_forked_process_cannot_append_or_flush_the_lac():
    context = unsent_context()
    handle, adv = LedgerHandle(context, ledger(1), 0, b""), LedgerHandleAdv(context, ledger(2), 0, b"")
    held, done = threading.Event(), threading.Event()

    def hold():
        with adv._room.lock:
            held.set()
            done.wait(EVENT_SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(EVENT_SECONDS)

    def refused():
        for call in (handle.flush_last_add_confirmed, lambda: handle.append(b"0"), lambda: handle.append_batch([b"0"])):
            with pytest.raises(LedgerClosedError, match="one writer"):
                call()
        adv.close()

    try:
        in_a_fork(refused)
    finally:
        done.set()
        holder.join()
