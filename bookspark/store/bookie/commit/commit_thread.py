"""The commit thread of one directory: what the bookie's loop queues is written there, in groups.

Law: the loop hands over once in each of its turns, and is told of each group once (twice if some of it need not wait for the
sync). Everything that came while a group was being written is the next group: one add alone waits for one sync, and a thousand
share one. ``group_writer`` tells what happens to a group.

Decision: the loop itself writes and syncs a few adds that find the thread idle, because waking a thread and being woken by it
takes longer than a quick sync. A loop must not hang on a sick disk. So it writes only where the directory is the bookie's only
one and no more than one client is heard or served (``Admission.is_shared``), so that there is nobody else to be held up; and
only after many consecutive groups that took less than a millisecond each. A slower group gives the work back to the thread. The
loop knows whether the thread is idle: the loop counts what it hands over, the thread what it has done.

A client that is connected and silent counts as one that is not there: both may come while the loop waits, and are held up by the
one sync that was slow. So a reader that is done, or a repair that has nothing to do, costs writers nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

from bookspark.store.bookie.commit.commit_items import EntryWrite, Item, RelaxedWrite, Stop
from bookspark.store.bookie.commit.completions import ignore
from bookspark.store.bookie.commit.group_writer import GroupWriter, Tell
from bookspark.store.bookie.traffic import GroupFigures
from bookspark.support.metrics.histogram import Distribution, Histogram, together

Completed = Callable[["CommitThread", Sequence[Item], int, OSError | None], None]
"""``completed(thread, items, synced_bytes, failure)``: the items are done, or failed with ``failure``. ``synced_bytes`` of
``RelaxedWrite`` are synced now."""
Post = Callable[..., object]
"""``post(function, *arguments)``: have it called on the loop (``loop.call_soon_threadsafe``)."""

Soon = Callable[[Callable[[], None]], object]
"""``soon(function)``: have it called once this turn of the loop is over (``loop.call_soon``)."""

_Turn = tuple[float, Sequence[Item]]
"""What was submitted in one turn of the loop, and when that began."""

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
        self._queue: SimpleQueue[_Turn] = SimpleQueue()
        self._turn: list[Item] = []
        """What was submitted in this turn of the loop."""
        self._turn_begun = 0.0
        """When the first of that was."""
        self.adds = Histogram()
        """For metrics: how long adds took, in seconds, from their turn of the loop until they were told to be done. Owned by the
        loop."""
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
        """Does the loop serve more than one client at present? Then it must not wait for the disk."""
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
            self._hand_over([item], monotonic())
            return
        if not self._turn:
            self._turn_begun = monotonic()
            self._soon(self._end_turn)
        self._turn.append(item)

    def stop(self) -> None:
        """Queue the last item. From any thread, once the loop submits nothing any more."""
        turn, self._turn = self._turn, []
        self._hand_over([*turn, Stop(ignore)], self._turn_begun if turn else monotonic())

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
    def groups(self) -> GroupFigures:
        """What was written, for metrics."""
        return self._writer.figures

    @property
    def syncs(self) -> Distribution:
        """How long the syncs of the log took, in seconds."""
        return together((self._writer.figures.syncs.copy(), self._writer.background_syncs.copy()))

    @property
    def sync_seconds(self) -> float | None:
        """How long a sync that adds wait for takes lately; None: not enough is known."""
        return self._writer.figures.lately.seconds(monotonic())

    @property
    def queued(self) -> int:
        """How many turns of the loop wait."""
        return self._queue.qsize()

    # -- the loop

    def _end_turn(self) -> None:
        items, self._turn = self._turn, []
        if self._completed is not None and self._may_commit_here(items):
            turns: list[_Turn] = [(self._turn_begun, items)]
            self._writer.commit(items, self._tell(_call, self._completed, turns), in_threads=True)
        elif items:
            self._hand_over(items, self._turn_begun)

    def _hand_over(self, items: Sequence[Item], begun: float) -> None:
        self._handed_over += 1
        self._queue.put((begun, items))

    def _may_commit_here(self, items: Sequence[Item]) -> bool:
        return (
            self._handed_over == self._through
            and 0 < len(items) <= _ITEMS_HERE_MAX
            and self._writer.quick_groups >= _QUICK_GROUPS
            and not self.loop_is_shared()
            and self._writer.takes_at_once(items)
            and sum([len(item.frame) for item in items if type(item) is EntryWrite]) <= _BYTES_HERE_MAX
        )

    def _told(
        self,
        completed: Completed,
        turns: list[_Turn],
        items: Sequence[Item],
        synced_bytes: int,
        failure: OSError | None,
    ) -> None:
        """A group is done, or the part of it that need not wait for the sync."""
        completed(self, items, synced_bytes, failure)
        if failure is None and items:
            now = monotonic()
            for begun, turn in turns:
                kinds = list(map(type, turn))
                if count := kinds.count(EntryWrite) + kinds.count(RelaxedWrite):
                    self.adds.observe(now - begun, count)
            # What is told of the group later is no add.
            turns.clear()

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
        turns = self._take()
        handed_over = len(turns)
        items = [item for _, turn in turns for item in turn]
        goes_on = self._writer.commit(items, self._tell(post, completed, turns), in_threads=self._thread is not None)
        self._writer.sync_notes()
        self._through += handed_over
        return goes_on

    def _take(self) -> list[_Turn]:
        """The turns of the loop that are the next group; none if none came until something else is to be done."""
        try:
            turns = [self._queue.get(timeout=self._writer.patience)]
        except Empty:
            self._writer.note_idle()
            return []
        return turns + [self._queue.get() for _ in range(self._queue.qsize())]

    def _tell(self, post: Post, completed: Completed, turns: list[_Turn]) -> Tell:
        return partial(self._post, post, completed, turns)

    def _post(
        self,
        post: Post,
        completed: Completed,
        turns: list[_Turn],
        items: Sequence[Item],
        synced_bytes: int,
        failure: OSError | None,
    ) -> None:
        try:
            post(self._told, completed, turns, items, synced_bytes, failure)
        except RuntimeError:
            log.debug("%s: the loop is closed, nobody waits for this group", self.directory)


def _call(function: Callable[..., object], *arguments: object) -> object:
    """A ``Post`` for who is on the loop already."""
    return function(*arguments)
