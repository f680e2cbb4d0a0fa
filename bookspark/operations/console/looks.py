"""Looks at single things (a log, a ledger), each shared by all who ask for it meanwhile.

Law: at most ``at_once`` looks run at once and ``_WAITING_MAX`` wait, whoever asks. What was seen is kept and told again until it
is older than ``_FRESH_SECONDS`` and the console has rested ``_RESTS`` times what the look cost the processor. Nobody waits for
a look for longer than he says, and who has something to show does not wait at all: a page tells that a look is under way, or
shows what was seen before. What was seen is forgotten when nobody asked for a while: it is as old as the last one who watched.
What never changes is kept as long as there is room.
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
from bookspark.operations.console.pages import text
from bookspark.support.plain_text import one_line

PAGE_SECONDS = 4.0
"""How long a page waits for its looks, all in all."""
SOON_SECONDS = 0.1
"""How long a page waits for a look that takes long in a large cluster."""
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
    """What a look saw."""

    found: Found | None
    """None: nothing was seen yet, or the last look failed."""
    problem: str = ""
    """Why the last look failed."""
    at_ms: int = 0
    """When the look began, in ms since 1970, by the clock of this host."""


UNDER_WAY: Look[Any] = Look(None)
"""Nothing was seen yet."""


@dataclass
class _Kept:
    seen: Look[Any] = UNDER_WAY
    due: float = 0.0
    """From when on the next look may begin."""
    running: Future[None] | None = field(default=None, repr=False)


class Looks:
    """Looks until ``close``. Thread-safe."""

    def __init__(self, name: str = "console-look", at_once: int = _AT_ONCE) -> None:
        """``name``: that of the threads; ``at_once``: how many there are at most."""
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(at_once, name)

    def of(
        self, key: Hashable, look: Callable[[], Found], seconds: float = PAGE_SECONDS, *, lasting: bool = False
    ) -> Look[Found]:
        """What ``look`` sees, or saw a moment ago for another who asked for ``key``; UNDER_WAY if it sees nothing within
        ``seconds``. ``lasting``: what was seen never changes, so nobody looks again as long as it is kept."""
        with self._lock:
            one = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            if lasting and one.seen.found is not None:
                return one.seen
            late = time.monotonic() - one.due
            if one.running is None and late > _FRESH_SECONDS + PAGE_SECONDS:
                # Nobody asked for a while, so what was seen is old.
                one.seen = UNDER_WAY
            if one.running is None and late >= 0 and len(self._running) < _WAITING_MAX:
                one.running = self._pool.submit(self._look, one, look)
                self._running.add(one.running)
            for old in [old for old, kept in self._kept.items() if kept.running is None][: len(self._kept) - _KEPT]:
                if old != key:
                    del self._kept[old]
            running, seen = one.running, one.seen
        # Who has something to show does not wait: the next page has what is seen now.
        if running is not None and seen.found is None:
            wait([running], max(0.0, seconds))
            seen = one.seen
        return seen

    def close(self) -> None:
        """Look no more. Returns once the looks that are under way have ended, or after ``_END_SECONDS_MAX``."""
        with self._lock:
            running = set(self._running)
            self._pool.shutdown(wait=False, cancel_futures=True)
        # One that was cancelled never ends for ``wait``: no thread takes it any more.
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
    """The seconds that a page has for all its looks."""

    def __init__(self, seconds: float = PAGE_SECONDS) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, 0 or more."""
        return max(0.0, self._until - time.monotonic())


def unseen(look: Look[Any]) -> str:
    """Why there is nothing to show yet, as HTML."""
    if look.problem:
        return f'<span class="bad">{text(look.problem)}</span>'
    return '<span class="soft waiting" role="status">It is being looked at</span>'
