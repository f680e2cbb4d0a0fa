"""The commit thread of one directory: it writes the items that the bookie's loop queues, in groups.

Law: the loop hands over once a turn and gets one report a group (two if a part need not wait for the sync). Items that arrive
during a group form the next group: a lone add waits for one sync, and a thousand adds share one.

Decision: the loop itself commits a few adds if the thread is idle, because two thread switches take longer than a quick sync. A
slow disk must not hold up other clients. So the loop commits only in the bookie's only directory, with at most one client active
or served (``Admission.is_shared``), and after many consecutive groups of less than a millisecond. The thread is idle once it has
finished all hand-overs. A connected but silent client counts as absent: a finished reader costs writers nothing, and a client
that wakes up waits for one slow sync at most.
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
"""``post(function, *arguments)``: schedule a call on the loop (``loop.call_soon_threadsafe``)."""

Soon = Callable[[Callable[[], None]], object]
"""``soon(function)``: schedule a call after this turn of the loop (``loop.call_soon``)."""

_Turn = tuple[float, Sequence[Item]]
"""Start time and items of one turn of the loop."""

_QUICK_GROUPS = 16
"""The loop may commit after this number of quick groups in a row."""
_ITEMS_HERE_MAX = 4
_BYTES_HERE_MAX = 32 << 10
"""Limits of a commit by the loop: adds, and their bytes."""

log = logging.getLogger(__name__)


class CommitThread:
    """Writes and syncs one directory. ``submit`` from the loop; ``completed`` is posted to the loop."""

    def __init__(self, directory: str, writer: GroupWriter) -> None:
        self.directory = directory
        self._writer = writer
        self._queue: SimpleQueue[_Turn] = SimpleQueue()
        self._turn: list[Item] = []
        self._turn_begun = 0.0
        self.adds = Histogram()
        """For metrics: seconds from an add's turn of the loop to its report. Owned by the loop."""
        self._handed_over = 0
        self._through = 0
        """Hand-overs that the thread has finished."""
        self._soon: Soon | None = None
        self._completed: Completed | None = None
        """Set if the loop may commit."""
        self._thread: threading.Thread | None = None
        self.broken: Callable[[str], None] = lambda why: None
        """Called in any thread on a failure that is not the disk's. The bookie must then end, because queued items may never be
        answered."""
        self.loop_is_shared: Callable[[], bool] = lambda: False
        """Does the loop serve more than one client at present? It must then not wait for the disk."""
        writer.broken = lambda why: self.broken(why)

    def start(self, post: Post, completed: Completed, soon: Soon | None = None, *, alone: bool = False) -> None:
        """Start the thread. ``soon``: None hands over each item at once. ``alone``: the bookie has no other directory."""
        self._soon = soon
        if alone and soon is not None:
            self._completed = completed
        self._thread = threading.Thread(
            target=self._run, args=(post, completed), name=f"commit {self.directory}", daemon=True
        )
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Queue an item, on the loop. Its ``done`` is called in any case."""
        if self._soon is None:
            self._hand_over([item], monotonic())
            return
        if not self._turn:
            self._turn_begun = monotonic()
            self._soon(self._end_turn)
        self._turn.append(item)

    def stop(self) -> None:
        """Queue the last item, from any thread. The loop submits nothing afterwards."""
        turn, self._turn = self._turn, []
        self._hand_over([*turn, Stop(ignore)], self._turn_begun if turn else monotonic())

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end, after ``stop``. False if it still runs."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    @property
    def groups(self) -> GroupFigures:
        return self._writer.figures

    @property
    def syncs(self) -> Distribution:
        """Durations of the log's syncs, in seconds."""
        return together((self._writer.figures.syncs.copy(), self._writer.background_syncs.copy()))

    @property
    def sync_seconds(self) -> float | None:
        """Recent duration of a sync that adds wait for, in seconds. None: too few syncs."""
        return self._writer.figures.lately.seconds(monotonic())

    @property
    def queued(self) -> int:
        """Waiting turns of the loop."""
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
        """Report a group, or its part that need not wait for the sync."""
        completed(self, items, synced_bytes, failure)
        if failure is None and items:
            now = monotonic()
            for begun, turn in turns:
                kinds = list(map(type, turn))
                if count := kinds.count(EntryWrite) + kinds.count(RelaxedWrite):
                    self.adds.observe(now - begun, count)
            # A second report of the group covers no adds.
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
        """Wait for an item, commit it and all queued items as one group, and report. False after the last item. The background
        sync runs in its own thread if this thread was started, else here."""
        turns = self._take()
        handed_over = len(turns)
        items = [item for _, turn in turns for item in turn]
        goes_on = self._writer.commit(items, self._tell(post, completed, turns), in_threads=self._thread is not None)
        self._writer.sync_notes()
        self._through += handed_over
        return goes_on

    def _take(self) -> list[_Turn]:
        """The turns that form the next group; none on a timeout for idle work."""
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
    """``Post`` for callers on the loop."""
    return function(*arguments)
