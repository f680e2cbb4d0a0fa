"""The commit thread of one directory: what the bookie's loop queues is written there, in groups.

Law: the loop hands over once in each of its turns, and is told of each group once (twice if some of it need not wait for the
sync). Everything that came while a group was being written is the next group: one add alone waits for one sync, and a thousand
share one. ``group_writer`` tells what happens to a group.

Decision: the loop itself writes and syncs a few adds that find the thread idle, because waking a thread and being woken by it
takes longer than a quick sync. A loop must not hang on a sick disk. So it writes only where the directory is the bookie's only
one and no more than one client is connected, so that there is nobody else to be held up; and only after many consecutive groups
that took less than a millisecond each. A slower group gives the work back to the thread. The loop knows whether the thread is
idle: the loop counts what it hands over, the thread what it has done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from bookspark.bookie.commit.commit_items import EntryWrite, Item, Stop
from bookspark.bookie.commit.completions import ignore
from bookspark.bookie.commit.group_writer import GroupWriter, Tell

Completed = Callable[["CommitThread", Sequence[Item], int, OSError | None], None]
"""``completed(thread, items, synced_bytes, failure)``: the items are done, or failed with ``failure``. ``synced_bytes`` of
``RelaxedWrite`` are synced now."""
Post = Callable[..., object]
"""``post(function, *arguments)``: have it called on the loop (``loop.call_soon_threadsafe``)."""

Soon = Callable[[Callable[[], None]], object]
"""``soon(function)``: have it called once this turn of the loop is over (``loop.call_soon``)."""

_QUICK_GROUPS = 16
"""The loop may commit after this number of quick groups in a row."""
_ITEMS_HERE_MAX = 4
_BYTES_HERE_MAX = 32 << 10
"""How many adds, and how many bytes of them, the loop commits at once."""

log = logging.getLogger(__name__)


class CommitThread:
    """Writes and syncs one directory. ``submit`` from the loop; ``completed`` is posted to the loop."""

    def __init__(self, directory: str, writer: GroupWriter) -> None:
        self.directory = directory
        self._writer = writer
        self._queue: SimpleQueue[Sequence[Item]] = SimpleQueue()
        self._turn: list[Item] = []
        """What was submitted in this turn of the loop."""
        self._handed_over = 0
        """How often the loop put something into the queue."""
        self._through = 0
        """How much of that the thread has done."""
        self._soon: Soon | None = None
        self._completed: Completed | None = None
        """Set where the loop may commit."""
        self._thread: threading.Thread | None = None
        self.broken: Callable[[str], None] = lambda why: None
        """Called, in any thread, when something failed that is not the disk's fault. The bookie has to end then, because what is
        queued may never be answered."""
        self.loop_is_shared: Callable[[], bool] = lambda: False
        """Does the loop serve more than one client? Then it must not wait for the disk."""
        writer.broken = lambda why: self.broken(why)

    def start(self, post: Post, completed: Completed, soon: Soon | None = None, *, alone: bool = False) -> None:
        """Start the thread. ``soon``: None gathers nothing over a turn of the loop. ``alone``: the bookie has no other
        directory."""
        self._soon = soon
        if alone and soon is not None:
            self._completed = completed
        self._thread = threading.Thread(
            target=self._run, args=(post, completed), name=f"commit {self.directory}", daemon=True
        )
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Queue an item; its ``done`` will be called, whatever happens. On the loop."""
        if self._soon is None:
            self._hand_over([item])
            return
        if not self._turn:
            self._soon(self._end_turn)
        self._turn.append(item)

    def stop(self) -> None:
        """Queue the last item. From any thread, once the loop submits nothing any more."""
        turn, self._turn = self._turn, []
        self._hand_over([*turn, Stop(ignore)])

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end, after ``stop``. False if it has not ended."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Was the thread started, and runs no more?"""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def queued(self) -> int:
        """How many turns of the loop wait."""
        return self._queue.qsize()

    # -- the loop

    def _end_turn(self) -> None:
        items, self._turn = self._turn, []
        if self._completed is not None and self._may_commit_here(items):
            self._writer.commit(items, self._tell(_call, self._completed), in_threads=True)
        elif items:
            self._hand_over(items)

    def _hand_over(self, items: Sequence[Item]) -> None:
        self._handed_over += 1
        self._queue.put(items)

    def _may_commit_here(self, items: Sequence[Item]) -> bool:
        return (
            self._handed_over == self._through
            and not self.loop_is_shared()
            and self._writer.quick_groups >= _QUICK_GROUPS
            and 0 < len(items) <= _ITEMS_HERE_MAX
            and self._writer.takes_at_once(items)
            and sum(len(item.frame) for item in items if type(item) is EntryWrite) <= _BYTES_HERE_MAX
        )

    # -- the thread

    def _run(self, post: Post, completed: Completed) -> None:
        try:
            while self.commit_queued(post, completed):
                pass
        except BaseException as error:
            log.critical("%s: the commit thread ended", self.directory, exc_info=error)
            self.broken(f"the commit thread of {self.directory} ended with {type(error).__name__}: {error}")

    def commit_queued(self, post: Post, completed: Completed) -> bool:
        """Wait for an item, make one group of it and all that is queued behind it, and tell. False once it held the last item.
        The background sync is made in a thread of its own if this thread was started, else here."""
        items, turns = self._take()
        goes_on = self._writer.commit(items, self._tell(post, completed), in_threads=self._thread is not None)
        self._writer.sync_notes()
        self._through += turns
        return goes_on

    def _take(self) -> tuple[list[Item], int]:
        """The next group, and how many turns of the loop are in it; empty if none came until something else is to be done."""
        try:
            items = list(self._queue.get(timeout=self._writer.patience))
        except Empty:
            self._writer.note_idle()
            return [], 0
        more = self._queue.qsize()
        for _ in range(more):
            items += self._queue.get()
        return items, 1 + more

    def _tell(self, post: Post, completed: Completed) -> Tell:
        return partial(self._post, post, completed)

    def _post(
        self, post: Post, completed: Completed, items: Sequence[Item], synced_bytes: int, failure: OSError | None
    ) -> None:
        try:
            post(completed, self, items, synced_bytes, failure)
        except RuntimeError:
            log.debug("%s: the loop is closed, nobody waits for this group", self.directory)


def _call(function: Callable[..., object], *arguments: object) -> object:
    """A ``Post`` for who is on the loop already."""
    return function(*arguments)
