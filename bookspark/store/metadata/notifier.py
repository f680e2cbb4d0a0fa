"""The two threads of a metadata store, and the process that owns them.

Law: in kazoo's own threads, Bookspark's code only puts things into a queue. An exception of a callback or task never stops the
others. ``Notifier`` calls users' callbacks, which may be slow. ``Upkeep`` restores registrations and watches after a lost
session, undelayed by callbacks.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

from bookspark.errors import BookKeeperError, MetadataStoreError

log = logging.getLogger(__name__)
_JOIN_SECONDS = 5.0
_RETRY_SECONDS = 0.5


class Owner:
    """The process that made an object. A forked child can't use the object: threads and connections are not forked."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        if not self.here:
            raise MetadataStoreError(
                f"this {self._what} was made by process {self._pid} and can't be used in its child {os.getpid()}; "
                "make a new one there"
            )


class Notifier:
    """Calls callbacks one after the other from one thread, started by the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def post(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` soon. After ``close`` no callback is called."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="bookspark-metadata-notifier", daemon=True)
                # A signal handler may have interrupted, and started a thread.
                if self._thread is None:
                    self._thread = thread
                    thread.start()
        self._queue.put(callback)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None and not self._closed:
            try:
                callback()
            except BaseException:
                log.exception("a callback of a metadata watch failed")


class Once:
    """A callback posted at most once: by the event or by the loss of the session."""

    def __init__(self, notifier: Notifier, callback: Callable[[], None]) -> None:
        self._notifier = notifier
        self._callback: Callable[[], None] | None = callback
        self._lock = threading.Lock()

    def __call__(self, *_: object) -> None:
        with self._lock:
            callback, self._callback = self._callback, None
        if callback is not None:
            self._notifier.post(callback)


class Upkeep:
    """Runs tasks from one thread, and repeats a failed task until it succeeds."""

    def __init__(self) -> None:
        self._due: dict[Callable[[], None], None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._warned = ""
        """The last warning, not repeated at each attempt."""

    def request(self, task: Callable[[], None]) -> None:
        """Run ``task`` soon. Never blocks, so kazoo's listeners may call it."""
        with self._changed:
            if self._closed:
                return
            self._due[task] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bookspark-metadata-upkeep", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Begin no other task. A failure of the running task is not logged any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if self._closed:
                    return
                due, self._due = self._due, {}
            failed = [task for task in due if not self._attempt(task)]
            if failed:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _RETRY_SECONDS)
                    self._due.update(dict.fromkeys(failed))

    def _attempt(self, task: Callable[[], None]) -> bool:
        try:
            task()
        except BookKeeperError as error:
            if not self._closed and self._warned != str(error):
                self._warned = str(error)
                log.warning("will try again until it is done: %s", error)
            return False
        except BaseException:
            log.exception("upkeep of the metadata session failed; will try again")
            return False
        return True
