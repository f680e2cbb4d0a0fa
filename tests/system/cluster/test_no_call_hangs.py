"""Calls of a client in callbacks, signal handlers, forks, finalizers and at the end of the interpreter: each call ends."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import warnings

import pytest

from bookspark import BookKeeper
from bookspark.errors import (
    BookieError,
    BookKeeperError,
    ConfigurationError,
    LedgerClosedError,
    MetadataStoreError,
    NoSuchClusterError,
)
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import await_that
from tests.support.test_threads import interrupted_by
from tests.system.cluster.test_pressure import resident_bytes

SECONDS = 60.0


class StopWritingError(Exception):
    pass


def append_for_ever(ledger):
    while True:
        ledger.append_async(b"x" * 100)


def test_signal_handler_can_use_and_close_the_ledger_it_interrupts(bookkeeper):
    """A close in a handler of SIGTERM waited forever for a lock that the interrupted append held: 5 of 14 scripts hung."""
    chance = random.Random(7)
    for _ in range(10):
        ledger = bookkeeper.create_ledger()

        def stop(*_, ledger=ledger):
            last = ledger.append(b"last")
            assert ledger.sync() >= last
            assert [entry.payload for entry in ledger.read(last, last)] == [b"last"]
            assert ledger.ledger_id in bookkeeper.list_ledgers()
            ledger.close()
            raise StopWritingError

        with interrupted_by(stop, chance.uniform(0.002, 0.02)), pytest.raises(StopWritingError):
            append_for_ever(ledger)
        assert bookkeeper.open_ledger(ledger.ledger_id).metadata.last_entry_id == ledger.last_add_pushed


def calls_of(bookkeeper, other, ledger, reader):
    """Every call that waits, by name."""
    bookie = ledger.metadata.last_fragment.ensemble[0]
    return {
        "append": lambda: ledger.append(b"a"),
        "append_batch": lambda: ledger.append_batch([b"a", b"b"]),
        "append_async": lambda: ledger.append_async(b"a").result(SECONDS),
        "sync": ledger.sync,
        "flush": ledger.flush_last_add_confirmed,
        "writer's LAC": ledger.read_last_add_confirmed,
        "writer's read": lambda: list(ledger.read(0, 0)),
        "writer's long poll": lambda: ledger.read_last_add_confirmed_and_entry(ledger.last_add_pushed + 1, 0.05),
        "read": lambda: list(reader.read(0, 0)),
        "read_unconfirmed": lambda: list(reader.read_unconfirmed(0, 0)),
        "read_batches": lambda: reader.read_batches(0, 0).read_all(),
        "read_last_add_confirmed": reader.read_last_add_confirmed,
        "long poll": lambda: reader.read_last_add_confirmed_and_entry(reader.last_add_confirmed + 100, 0.05),
        "create_ledger": lambda: bookkeeper.create_ledger().close(),
        "open_ledger": lambda: bookkeeper.open_ledger(reader.ledger_id),
        "open_ledger_no_recovery": lambda: bookkeeper.open_ledger_no_recovery(ledger.ledger_id),
        "list_ledgers": bookkeeper.list_ledgers,
        "get_ledger_metadata": lambda: bookkeeper.get_ledger_metadata(ledger.ledger_id),
        "bookie_status": lambda: bookkeeper.bookie_status(bookie),
        "list_ranges": lambda: bookkeeper.list_ranges(bookie, ledger.ledger_id),
        "first use of another client": other.list_ledgers,
        "close": ledger.close,
        "close the client": bookkeeper.close,
    }


@pytest.fixture
def own(cluster):
    """A client of this test's own, with a ledger being written and a reader of another, closed ledger."""
    with BookKeeper(cluster.zookeeper) as bookkeeper:
        closed = bookkeeper.create_ledger()
        closed.append(b"0")
        closed.close()
        ledger = bookkeeper.create_ledger()
        ledger.append(b"0")
        reader = bookkeeper.open_ledger(closed.ledger_id)
        yield bookkeeper, ledger, reader


def test_every_waiting_call_works_in_a_callback(cluster, own):
    """Callbacks ran in the I/O thread: a read there blocked the whole client for 14 s, and so did the client's close."""
    bookkeeper, ledger, reader = own
    other, outcomes = BookKeeper(cluster.zookeeper), queue.SimpleQueue()
    beside = bookkeeper.create_ledger()
    with other:
        for name, call in calls_of(bookkeeper, other, ledger, reader).items():

            def callback(future, name=name, call=call):
                try:
                    outcomes.put((name, call(), None))
                except BaseException as error:
                    outcomes.put((name, None, error))

            beside.append_async(b"z").add_done_callback(callback)
            told = outcomes.get(timeout=SECONDS)
            assert told[0] == name and told[2] is None, told


def test_finalizer_in_a_client_thread_gets_an_error_instead_of_waiting(cluster, own):
    """The garbage collector may run a finalizer there at any moment. Its calls would wait for the thread that they run in."""
    bookkeeper, ledger, reader = own
    other, outcomes = BookKeeper(cluster.zookeeper), queue.SimpleQueue()

    def finalize():
        for name, call in calls_of(bookkeeper, other, ledger, reader).items():
            try:
                call()
                outcomes.put((name, "done"))
            except BookKeeperError as error:
                outcomes.put((name, str(error)))
        outcomes.put(None)

    bookkeeper.context.runtime.io.submit(finalize)
    for name, outcome in iter(lambda: outcomes.get(timeout=SECONDS), None):
        # Some calls ask no bookie: the writer knows its LAC, and the reader that its ledger is closed. A long poll that is
        # not refused returns when its time is over.
        asks_nobody = name in ("writer's LAC", "read_last_add_confirmed", "long poll")
        assert outcome == "done" if asks_nobody else "must not wait for it" in outcome, (name, outcome)
    kazoo = bookkeeper.metadata.client.handler.spawn(finalize)
    kazoo.join(SECONDS)
    told = dict(iter(lambda: outcomes.get(timeout=SECONDS), None))
    assert "must not wait for it" in told["list_ledgers"] and "must not wait for it" in told["close the client"]
    assert ledger.append(b"it goes on") == ledger.last_add_pushed


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_exception_in_a_callback_does_not_stop_other_callbacks_or_results(bookkeeper, error, caplog):
    """``sys.exit`` in a callback ended the I/O thread, or the loop over the other callbacks: they waited forever."""
    ledger, told = bookkeeper.create_ledger(), queue.SimpleQueue()

    def fail(future):
        raise error

    for _ in range(20):
        future = ledger.append_async(b"y")
        future.add_done_callback(fail)
        future.add_done_callback(lambda future: told.put(future.entry_id))
        assert future.result(SECONDS) == told.get(timeout=SECONDS)
    ledger.close()


def test_failed_close_does_not_hide_the_error_of_the_with_body(bookkeeper):
    def fail():
        with bookkeeper.create_ledger() as ledger:
            ledger.append(b"0")
            bookkeeper.open_ledger(ledger.ledger_id)
            with contextlib.suppress(BookKeeperError):
                ledger.append(b"fenced")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert "could not be closed either" in caught.value.__notes__[0]


# -- dropped handles


def test_dropped_handles_warn_and_are_freed_after_their_appends(bookkeeper):
    """The client kept the writer of each: 2,000 of 2,000."""
    writers = bookkeeper.context.runtime._writers
    before = len(writers)
    futures = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            ledger = bookkeeper.create_ledger()
            futures.append(ledger.append_async(b"0"))
            del ledger
    assert [future.result(SECONDS) for future in futures] == [0] * 30
    assert len([w for w in caught if issubclass(w.category, ResourceWarning)]) == 30
    assert "was not closed" in str(caught[0].message)
    await_that(lambda: len(writers) <= before, SECONDS)


def test_dropped_handle_sends_its_lac_to_readers_and_leaves_the_ledger_open(bookkeeper):
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    ledger.append(b"1")
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    del ledger
    lac, entry = reader.read_last_add_confirmed_and_entry(1, SECONDS)
    assert (lac, entry.payload) == (1, b"1")
    assert not bookkeeper.get_ledger_metadata(reader.ledger_id).closed


def test_closed_handles_and_handles_of_a_closed_client_drop_without_warning(cluster):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with BookKeeper(cluster.zookeeper) as bookkeeper:
            ledger, closed = bookkeeper.create_ledger(), bookkeeper.create_ledger()
            closed.close()
        del ledger, closed, bookkeeper
        gc.collect()


def ours():
    return {thread for thread in threading.enumerate() if "bookspark" in thread.name or "zk_loop" in thread.name}


def test_dropped_client_is_closed_with_a_warning(cluster):
    before = ours()
    held = [BookKeeper(cluster.zookeeper)]
    held[0].list_ledgers()
    assert ours() > before
    held.clear()
    with pytest.warns(ResourceWarning, match="client was not closed"):
        gc.collect()
    await_that(lambda: ours() <= before, SECONDS)


# -- closing


def test_close_from_many_threads_ends_every_running_call(cluster):
    bookkeeper = BookKeeper(cluster.zookeeper)
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    began, errors = threading.Barrier(6), queue.SimpleQueue()

    def again(call):
        began.wait(SECONDS)
        with contextlib.suppress(BookKeeperError):
            while True:
                call()
        errors.put(None)

    calls = (
        lambda: ledger.append(b"1"),
        lambda: reader.read_last_add_confirmed_and_entry(10**9, 10 * SECONDS),
        lambda: list(reader.read(0, 0)),
        lambda: bookkeeper.create_ledger(),
        reader.read_last_add_confirmed,
    )
    threads = [threading.Thread(target=again, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    began.wait(SECONDS)
    closing = [threading.Thread(target=bookkeeper.close, daemon=True) for _ in range(4)]
    for thread in closing:
        thread.start()
    for thread in (*closing, *threads):
        thread.join(SECONDS)
        assert not thread.is_alive()
    bookkeeper.close()
    with pytest.raises(LedgerClosedError):
        ledger.append(b"2")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("failing", ["no ZooKeeper", "no watch", "no TLS"])
def test_failed_first_uses_leave_no_threads_or_descriptors(cluster, failing, monkeypatch, tmp_path):
    """Each late failure left threads, descriptors and a session."""

    def fail(self, changed):
        raise MetadataStoreError("watching: no answer")

    options, address, expected = {}, cluster.zookeeper, MetadataStoreError
    if failing == "no ZooKeeper":
        address = "127.0.0.1:1"
        start = Connection._start
        monkeypatch.setattr(Connection, "_start", lambda self, seconds: start(self, 0.01))
    elif failing == "wrong chroot":
        address, expected = f"{address}/mistyped", NoSuchClusterError
    elif failing == "no watch":
        monkeypatch.setattr(ZooKeeperStore, "watch_bookies", fail)
    else:
        options, expected = {"tls_ca": str(tmp_path / "missing.pem")}, ConfigurationError
    with BookKeeper(address, **options) as bookkeeper:
        threads, open_files = ours(), None
        for attempt in range(50 if failing == "no TLS" else 12):
            with pytest.raises(expected):
                bookkeeper.list_ledgers()
            if attempt == 1:
                open_files = descriptors()
        await_that(lambda: ours() <= threads, SECONDS)
        await_that(lambda: descriptors() <= open_files, SECONDS)


@pytest.mark.acceptance
def test_failed_first_uses_do_not_leak_memory(cluster, monkeypatch):
    """Each failure left its threads, and the memory that they held."""

    def fail(self, changed):
        raise MetadataStoreError("watching: no answer")

    monkeypatch.setattr(ZooKeeperStore, "watch_bookies", fail)
    with BookKeeper(cluster.zookeeper) as bookkeeper:
        for attempt in range(200):
            if attempt == 40:
                threads, open_files, before = ours(), descriptors(), resident_bytes()
            with pytest.raises(MetadataStoreError):
                bookkeeper.list_ledgers()
        await_that(lambda: ours() <= threads and descriptors() <= open_files, SECONDS)
    gc.collect()
    grown = resident_bytes() - before
    print(f"160 failed first uses: {grown >> 10} KiB more")
    assert grown <= 4 << 20


# -- forks


def in_a_fork(check):
    """Run ``check`` in a child process, which an alarm ends if it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(int(SECONDS))
            check()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_forked_child_cannot_stop_its_parents_cluster(cluster):
    """The child deleted the parent's data."""
    pids = [bookie.pid for bookie in cluster.bookies]

    def leave():
        cluster.stop()
        cluster.__exit__(None, None, None)
        for verb in ("stop", "kill", "wipe", "start", "lose_unsynced"):
            with contextlib.suppress(BookieError):
                getattr(cluster.bookies[0], verb)()
                raise AssertionError(f"{verb}() of a child's reached its parent's bookie")

    in_a_fork(leave)
    assert [bookie.pid for bookie in cluster.bookies] == pids
    assert all(os.path.exists(bookie.directories[0]) for bookie in cluster.bookies)


def test_read_begun_before_a_fork_fails_in_the_child_and_continues_in_the_parent(cluster):
    """The child waited 13 s for responses that only the parent receives."""
    with BookKeeper(cluster.zookeeper, answer_timeout_seconds=10 * SECONDS) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        ledger.append_batch([b"x" * 1000] * 5000)
        half_read = ledger.read()
        next(half_read)

        def child():
            with pytest.raises(BookKeeperError, match="read anew"):
                list(half_read)
            assert len(list(ledger.read(4990))) == 10
            assert ledger.read_last_add_confirmed() >= 0
            ledger.close()

        in_a_fork(child)
        assert len(list(half_read)) == 4999


def test_handles_dropped_in_a_forked_child_keep_working_in_the_parent(cluster):
    """If freed, the inherited event loop would remove the parent's sockets from the kernel's watch set, which both processes
    share."""
    with BookKeeper(cluster.zookeeper) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        ledger.append(b"0")
        inherited = [bookkeeper, ledger, bookkeeper.open_ledger_no_recovery(ledger.ledger_id)]
        del bookkeeper, ledger

        def child():
            inherited[0].list_ledgers()
            inherited[0].close()
            inherited.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                gc.collect()

        in_a_fork(child)
        assert inherited[1].append(b"1") == 1
        inherited[1].close()


# -- the end of the interpreter

_SCRIPTS = {
    "atexit closes the ledger": """
import atexit
ledger = bookkeeper.create_ledger()
ledger.append(b"1")
atexit.register(print, "closed", flush=True)
atexit.register(ledger.close)
""",
    "atexit closes what was used only later": """
import atexit
held = []
atexit.register(print, "closed", flush=True)
atexit.register(lambda: (held[0].append(b"late"), held[0].close(), bookkeeper.create_ledger().close(), bookkeeper.close()))
held.append(bookkeeper.create_ledger())
held[0].append(b"1")
""",
    "a thread goes on after the main one": """
import threading
def work():
    ledger = bookkeeper.create_ledger()
    ledger.append(b"1")
    threading.main_thread().join()
    ledger.append(b"2")
    ledger.close()
    bookkeeper.create_ledger().close()
    print("closed", flush=True)
threading.Thread(target=work).start()
""",
    "nothing is closed": """
ledger = bookkeeper.create_ledger()
futures = [ledger.append_async(b"x" * 100) for _ in range(2000)]
for future in futures:
    future.add_done_callback(lambda future: None)
reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
import threading
threading.Thread(target=reader.read_last_add_confirmed_and_entry, args=(10**9, 60), daemon=True).start()
print("closed", flush=True)
""",
    "a read is not read to its end": """
ledger = bookkeeper.create_ledger()
ledger.append_batch([b"x" * 1000] * 5000)
entries = ledger.read(0)
next(entries)
print("closed", flush=True)
""",
    "SIGTERM closes the ledger": """
import os, signal, sys, threading
ledger = bookkeeper.create_ledger()
def stop(*_):
    ledger.close()
    print("closed", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
while True:
    ledger.append_async(b"x" * 100)
""",
}


@pytest.mark.acceptance
def test_scripts_end_cleanly_with_open_ledgers_threads_and_exit_handlers(cluster):
    """``atexit.register(ledger.close)`` failed, and so did threads that outlast the main thread: the client's threads ended
    with the main thread."""
    begin = f"from bookspark import BookKeeper\nbookkeeper = BookKeeper({cluster.zookeeper!r})\n"
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", begin + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name, script in _SCRIPTS.items()
    }
    for name, process in running.items():
        out, err = process.communicate(timeout=3 * SECONDS)
        assert (process.returncode, out, err) == (0, "closed\n", ""), name


@pytest.mark.acceptance
def test_cluster_can_be_stopped_in_an_atexit_handler(new_chroot):
    """The cluster stopped its bookies with threads that had ended with the main thread, so bookies ran until their leases
    expired."""
    script = f"""
import atexit
from bookspark.local import LocalCluster
cluster = LocalCluster(bookies=2, zookeeper={new_chroot()!r})
cluster.start()
atexit.register(lambda: print([bookie.pid for bookie in cluster.bookies], flush=True))
atexit.register(cluster.stop)
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=3 * SECONDS, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "[None, None]\n", "")
