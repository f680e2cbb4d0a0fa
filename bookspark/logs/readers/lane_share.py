"""The lanes that one reader of a group has, of those that the group shares.

Law: as that of every lock (``metadata.documents.locks``), the hold on a lane saves work, and nothing relies on it. A reader that
lost its session reads on until it hears of that, and what it saves then is behind what it read. So a row comes once at least, to
whichever reader; and once, unless a reader died, lost its session or was closed before it saved what it had read.

A reader looks once a second at most, in its own thread, as it reads. One that does not read any more keeps its lanes until it is
closed or dropped, or its process ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError
from bookspark.logs.readers.records import now_ms
from bookspark.protocol.logs.lane_shares import moves

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.documents.sharing import Sharing

LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)


class LaneShare:
    """One reader's part of the lanes. For one thread."""

    def __init__(self, bookkeeper: BookKeeper, log_name: str, group: str) -> None:
        # Those that joined first come first, as far as the hosts' clocks agree.
        self._name = f"{now_ms():013}-{uuid.uuid4().hex[:12]}"
        self._sharing = bookkeeper.metadata.sharing(f"{group}@{log_name}", self._name)
        self.lanes: frozenset[int] = frozenset()
        """The lanes that this reader has."""
        self._due, self._held, self._pid = 0.0, set[str](), os.getpid()
        self._left = weakref.finalize(self, _leave_soon, self._sharing, self._held)
        self._left.atexit = False

    @property
    def due_in(self) -> float:
        """The seconds until the next look."""
        return max(0.0, self._due - time.monotonic())

    def look(self, lanes: Collection[int], unsaved: Collection[int]) -> None:
        """Leave and take lanes (``protocol.logs.lane_shares.moves``). Raises MetadataStoreError."""
        self._due = time.monotonic() + LOOK_SECONDS
        members = self._sharing.join()
        holders = {int(lane): name for lane, name in self._sharing.holders().items()}
        to_leave, to_take = moves(lanes, members, self._name, holders, unsaved)
        mine = {lane for lane, name in holders.items() if name == self._name}
        self._has(mine)
        self._sharing.give_back(map(str, to_leave))
        self._has(mine.difference(to_leave))
        self._has(self.lanes.union(map(int, self._sharing.take(map(str, to_take)))))

    def look_again(self) -> None:
        """Drop the lanes that this reader has lost. Raises MetadataStoreError."""
        holders = self._sharing.holders()
        self._has({lane for lane in self.lanes if holders.get(str(lane)) == self._name})

    def close(self) -> None:
        """Let others take the lanes at once. Never raises."""
        if self._left.detach() is not None and self._pid == os.getpid():
            _leave(self._sharing, self._held)
        self.lanes = frozenset()

    def _has(self, lanes: Collection[int]) -> None:
        self.lanes = frozenset(lanes)
        # In place: what happens if this reader is dropped knows it too.
        self._held.clear()
        self._held.update(map(str, lanes))


def _leave(sharing: Sharing, lanes: set[str]) -> None:
    try:
        sharing.leave(lanes)
    except BookKeeperError as error:
        log.warning("a reader of a group has ended, and its lanes can be taken once its session has: %s", error)


def _leave_soon(sharing: Sharing, lanes: set[str]) -> None:
    """A reader was dropped: its thread, whichever it is, must not wait."""
    try:
        threading.Thread(target=_leave, args=(sharing, lanes), name="bookspark-leave-group", daemon=True).start()
    except RuntimeError:
        log.debug("a reader of a group was dropped as the process ends")
