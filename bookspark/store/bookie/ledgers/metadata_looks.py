"""Looks at ledgers' metadata, for requests that wait for them: first requests, adds with an unsure fence, master keys that meet,
digest types for BookKeeper's clients.

Law: a thread reads the metadata once for all waiting requests with the same question. The threads serve addresses in turn, and
the connections of an address in turn. So a peer with many questions delays the others by the looks under way, and by one look for
each other connection. After a look that grants nothing its thread rests: strangers cause at most 500 looks a second.

Waiting requests are memory that their peer makes the bookie hold (``Peer.waits``, ``protocol.bookie.peer_memory``). They go with
its connection; the look goes on only for others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakSet

from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.wire.header import Status, status_of

Answer = Positive | Unknown

_THREADS = 4
_REST_SECONDS = 0.008
_REQUEST_BYTES = 1 << 10
"""Approximate memory of a waiting request, beside its entries."""


class Asker(Protocol):
    """The peer whose requests wait."""

    origin: str
    """Address of the peer, by which its connections are counted."""

    def waits(self, more: int) -> None:
        """Count these bytes of requests that wait for metadata; negative: they wait no longer."""


class _Nobody:
    """Asks for the bookie itself."""

    origin = ""

    def waits(self, more: int) -> None:
        pass


NOBODY = _Nobody()


class Waiting(NamedTuple):
    go_on: Callable[[], None]
    done: Done
    size: int
    asker: Asker


class Question(NamedTuple):
    """A question about one ledger; questions with the same ``about`` share a look."""

    about: Hashable
    look: Callable[[], Answer]
    """Reads the metadata, in a thread. It may block, but not for ever."""
    unreadable: Unknown
    """The answer if ``look`` fails."""
    answered: Callable[[Answer, Sequence[Waiting]], None] | None = None
    """Takes the answer for the waiting requests; None: each goes on, or is refused with the answer's status."""


class _Asked:
    def __init__(self, question: Question, waiting: Sequence[Waiting]) -> None:
        self.question = question
        self.waiting = list(waiting)
        self.begun = False


class MetadataLooks:
    """The requests of one bookie that wait for metadata. Owned by the loop."""

    def __init__(self) -> None:
        self.asker: Asker = NOBODY
        """The peer whose request the loop handles. Each connection sets it before its requests."""
        self._asked: dict[Hashable, _Asked] = {}
        self._turns: dict[str, dict[Asker, dict[_Asked, None]]] = {}
        """Questions without a look yet, by address and connection; whose turn comes next, first."""
        self._first: deque[_Asked] = deque()
        self._under_way: set[_Asked] = set()
        """Questions with a look, or whose turn comes first. They are few."""
        self._ended: WeakSet[Asker] = WeakSet()
        """Peers whose connection has ended, while a request of theirs is not decided yet."""
        self._running = 0
        self._post: Post | None = None
        self._threads: ThreadPoolExecutor | None = None

    def start(self, post: Post) -> None:
        """Read the metadata from now on. Earlier requests are answered TOO_MANY_REQUESTS."""
        self._post = post

    def ask(self, question: Question, go_on: Callable[[], None], done: Done, size: int = 0) -> None:
        """Call ``go_on`` or ``done`` once the question is answered. ``size``: bytes of the request. Nothing is called if the
        asker's connection ends before."""
        if self._post is None:
            done(Status.TOO_MANY_REQUESTS)
            return
        asker = self.asker
        if asker in self._ended:
            return
        asked = self._asked.get(question.about)
        if asked is None:
            asked = self._asked[question.about] = _Asked(question, ())
        waiting = Waiting(go_on, done, size + _REQUEST_BYTES, asker)
        asked.waiting.append(waiting)
        if not asked.begun:
            self._turns.setdefault(asker.origin, {}).setdefault(asker, {})[asked] = None
        asker.waits(waiting.size)
        self._begin()

    def ask_again(self, question: Question, waiting: Sequence[Waiting]) -> None:
        """Look once more, before all others, for requests whose question was answered."""
        asked = self._asked[question.about] = _Asked(question, waiting)
        asked.begun = True
        self._under_way.add(asked)
        for one in waiting:
            one.asker.waits(one.size)
        self._first.append(asked)
        self._begin()

    def forget(self, asker: Asker) -> None:
        """The asker's connection has ended: drop its requests, and its questions except those under way."""
        self._ended.add(asker)
        if self.asker is asker:
            self.asker = NOBODY
        askers = self._turns.get(asker.origin, {})
        for asked in [*askers.pop(asker, ()), *self._under_way]:
            asked.waiting = [one for one in asked.waiting if one.asker is not asker]
            if not asked.waiting and not asked.begun:
                del self._asked[asked.question.about]
        if not askers:
            self._turns.pop(asker.origin, None)

    def is_asked(self, about: Hashable) -> bool:
        """Do requests wait for this question?"""
        return about in self._asked

    def end(self, kind: type) -> None:
        """Answer the questions whose ``about`` is of this type as unreadable."""
        for about, asked in list(self._asked.items()):
            if isinstance(about, kind):
                # It gets no look in its turn.
                asked.begun = True
                self._answered(asked, asked.question.unreadable)

    def close(self) -> None:
        """Refuse all waiting requests."""
        self._post = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._turns.clear()
        self._first.clear()
        for asked in list(self._asked.values()):
            self._answered(asked, asked.question.unreadable)

    def _begin(self) -> None:
        while self._running < _THREADS and self._post is not None and (asked := self._next()) is not None:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookie metadata")
            asked.begun = True
            self._under_way.add(asked)
            self._running += 1
            self._threads.submit(self._look, asked, self._post)

    def _next(self) -> _Asked | None:
        if self._first:
            return self._first.popleft()
        while self._turns:
            origin = next(iter(self._turns))
            askers = self._turns.pop(origin)
            asker = next(iter(askers))
            questions = askers.pop(asker)
            asked = next(iter(questions))
            del questions[asked]
            if questions:
                askers[asker] = questions
            if askers:
                self._turns[origin] = askers
            if not asked.begun:
                return asked
        return None

    def _look(self, asked: _Asked, post: Post) -> None:
        unreadable = asked.question.unreadable
        try:
            answer = asked.question.look()
        except Exception as error:
            answer = Unknown(unreadable.reason, f"{unreadable.detail}: {error}")
        post(partial(self._answered, asked, answer))
        if not isinstance(answer, Positive):
            time.sleep(_REST_SECONDS)
        post(self._rested)

    def _rested(self) -> None:
        self._running -= 1
        self._begin()

    def _answered(self, asked: _Asked, answer: Answer) -> None:
        if self._asked.get(asked.question.about) is not asked:
            return
        del self._asked[asked.question.about]
        self._under_way.discard(asked)
        # The turns of its other askers may keep the question for long, but not its requests.
        waiting, asked.waiting = asked.waiting, []
        for one in waiting:
            one.asker.waits(-one.size)
        if asked.question.answered is not None:
            asked.question.answered(answer, waiting)
            return
        for one in waiting:
            self.answer(one, answer)

    def answer(self, one: Waiting, answer: Answer) -> None:
        """Let a request go on, or refuse it. If it has to wait again, it waits for the same asker."""
        self.asker = one.asker
        if isinstance(answer, Positive):
            one.go_on()
        else:
            one.done(status_of(answer))
