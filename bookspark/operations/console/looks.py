"""Looks at single objects (a log, a ledger), shared by concurrent requests.

Law: at most ``at_once`` looks run in parallel, and at most ``_WAITING_MAX`` run or wait. A result is reused until it is older
than ``_FRESH_SECONDS`` and than ``_RESTS`` times the look's processor time. A caller with an earlier result does not wait; others
wait no longer than their limit. A result without a request for a while is forgotten as too old. A lasting result is kept as long
as there is room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from bookspark.errors import BookKeeperError
from bookspark.operations.console.pages import Markup, Text, html
from bookspark.support.plain_text import one_line

PAGE_SECONDS = 4.0
"""A page's wait for all its looks."""
SOON_SECONDS = 0.1
"""A page's wait for a look that is slow in a large cluster."""
_AT_ONCE = 2
_WAITING_MAX = 64
_KEPT = 256
_FRESH_SECONDS = 2.0
_RESTS = 20
_REST_SECONDS_MAX = 60.0
_END_SECONDS_MAX = 30.0

Found = TypeVar("Found")
log = logging.getLogger(__name__)


class Look(NamedTuple, Generic[Found]):
    """The result of a look."""

    found: Found | None
    """None: no result yet, or the last look failed."""
    problem: str = ""
    at_ms: int = 0
    """Start of the look, in ms since 1970, by this host's clock."""


UNDER_WAY: Look[Any] = Look(None)


@dataclass
class _Kept:
    seen: Look[Any] = UNDER_WAY
    due: float = 0.0
    """Earliest start of the next look, on the monotonic clock."""
    running: Future[None] | None = field(default=None, repr=False)


class Looks:
    """Runs looks until ``close``. Thread-safe."""

    def __init__(self, name: str = "console-look", at_once: int = _AT_ONCE) -> None:
        """``name``: prefix of the threads' names; ``at_once``: threads at most."""
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(at_once, name)

    def of(
        self, key: Hashable, look: Callable[[], Found], seconds: float = PAGE_SECONDS, *, lasting: bool = False
    ) -> Look[Found]:
        """The result of ``look``, or of a recent look with the same ``key``; UNDER_WAY if none comes within ``seconds``.
        ``lasting``: the result never changes, so a kept result is final."""
        with self._lock:
            one = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            if lasting and one.seen.found is not None:
                return one.seen
            late = time.monotonic() - one.due
            if one.running is None and late > _FRESH_SECONDS + PAGE_SECONDS:
                # No request for a while: the result is too old to show.
                one.seen = UNDER_WAY
            if one.running is None and late >= 0 and len(self._running) < _WAITING_MAX:
                one.running = self._pool.submit(self._look, one, look)
                self._running.add(one.running)
            spare = max(0, len(self._kept) - _KEPT)
            for old in [old for old, kept in self._kept.items() if kept.running is None][:spare]:
                if old != key:
                    del self._kept[old]
            running, seen = one.running, one.seen
        # With an earlier result the page does not wait: the next request gets the new one.
        if running is not None and seen.found is None:
            wait([running], max(0.0, seconds))
            seen = one.seen
        return seen

    def close(self) -> None:
        """Stop. Returns after the running looks have ended, or after ``_END_SECONDS_MAX``."""
        with self._lock:
            running = set(self._running)
            self._pool.shutdown(wait=False, cancel_futures=True)
        # A cancelled future never ends for ``wait``, because no thread takes it any more.
        wait([one for one in running if not one.cancelled()], _END_SECONDS_MAX)

    def _look(self, one: _Kept, look: Callable[[], Any]) -> None:
        began, at_ms = time.thread_time(), time.time_ns() // 1_000_000
        try:
            one.seen = Look(look(), at_ms=at_ms)
        except BookKeeperError as error:
            one.seen = Look(None, one_line(error))
        except Exception as error:
            log.warning("a look failed: %s: %s", type(error).__name__, error)
            one.seen = Look(None, "it can't be looked at now; the console's log says why")
        finally:
            cost = time.thread_time() - began
            with self._lock:
                one.due = time.monotonic() + max(_FRESH_SECONDS, min(_RESTS * cost, _REST_SECONDS_MAX))
                if one.running is not None:
                    self._running.discard(one.running)
                one.running = None


class Patience:
    """A page's time budget for all its looks."""

    def __init__(self, seconds: float = PAGE_SECONDS) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, 0 or more."""
        return max(0.0, self._until - time.monotonic())


def unseen(look: Look[Any]) -> Markup:
    """The reason for a missing result."""
    if look.problem:
        return html(Text(look.problem, "bad"))
    return Markup('<span class="soft waiting" role="status">It is being looked at</span>')
