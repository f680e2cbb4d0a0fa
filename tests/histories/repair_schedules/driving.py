"""Carries out the requests of a repair machine, in any order, and judges each step.

Law: each answer is possible for a bookie or the metadata store. Every request is answered, so an unfinished machine without
outstanding requests would wait for ever. An ended machine returns no more actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from bookspark.errors import MetadataStoreError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    DeadlinePassed,
    Fail,
    Finish,
    MetadataFailed,
    ReadAnswered,
    SendAdd,
    SendRead,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.repair.entry_copying import _SILENCE, _SILENT_MAX, REQUESTS_MAX
from tests.histories.repair_schedules.drawing import Bookie
from tests.histories.repair_schedules.strays import stray
from tests.histories.repair_schedules.truth import ROOM_BYTES, holds

_STEPS_MAX = 20_000
_STRAY = 0.01
"""Probability of an unrequested answer."""
STORE_LOST = MetadataFailed(MetadataStoreError("no answer in time"))


class Driving:
    """Drives one machine over bookies, from its first actions to its end."""

    def __init__(self, random: Random, record: LedgerMetadata, bookies: Mapping[str, Bookie], lac: int) -> None:
        self._random, self._record, self._bookies, self._lac = random, record, bookies, lac
        self.wanted: Mapping[str, set[int]] = {}
        """The entries due to each target; other bookies get none."""
        self._entry_bytes = record.length // (record.last_entry_id + 1) if record.last_entry_id >= 0 else 1
        self._full = random.choice((1, 3, 10_000, 10_000))
        """The number of entries in an answer."""
        self._deadline = random.random() < 0.05
        self._sluggish = random.random() < 0.5
        """Whether requests pile up."""
        self._silent: dict[str, int] = {}
        self._reading: list[SendRead] = []
        self.undisturbed = True
        """Whether no deadline passed and no request to the metadata store failed."""

    def begin_copying(self) -> None:
        """Forget unanswered requests."""
        self._silent = {}

    def run(
        self,
        step: Callable[[Any], list[Any]],
        actions: list[Any],
        other: Callable[[Any], Any],
        broken_off: Callable[[Any], bool] = lambda action: False,
    ) -> Finish | Fail | None:
        """Run to the end. Returns the machine's last action, or None at an action matched by ``broken_off``. ``other`` answers
        requests to others than bookies."""
        todo: list[tuple[Any, Any]] = []
        for _ in range(_STEPS_MAX):
            for action in actions:
                if isinstance(action, Finish | Fail):
                    self._is_silent(step, todo, actions)
                    return action
                if broken_off(action):
                    return None
                todo += self._asked(action)
            holds(bool(todo), "a repair waits for ever")
            if self._deadline and self._random.random() < 0.03:
                self.undisturbed = False
                actions = step(DeadlinePassed())
                holds(any(isinstance(one, Fail) for one in actions), "a deadline ends nothing")
                continue
            if self._random.random() < _STRAY:
                stray(self._random, step, todo, self._record, self._bookies)
            at = self._random.randrange(len(todo)) if self._sluggish else -1
            asked, target = todo.pop(at)
            actions = step(self._answer(asked, target, other))
        raise AssertionError("a repair goes on for ever")

    def _asked(self, action: Any) -> list[tuple[Any, Any]]:
        match action:
            case SendRead():
                self._reading.append(action)
                holds(len(self._reading) <= REQUESTS_MAX, "too many requests are under way")
                size = self._entry_bytes * sum(one.last - one.first + 1 for one in self._reading)
                holds(size <= ROOM_BYTES, "too many bytes are under way")
                holds(
                    self._silent.get(action.bookie, 0) < _SILENT_MAX, "a bookie that never answers is asked on and on"
                )
                return [(action, action.bookie)]
            case SendAdd():
                ids = action.entries
                holds((ids[0], ids[-1]) == (action.first, action.last), "entries are not those of their ids")
                holds(action.last_add_confirmed <= self._lac, "a copy carries a LAC that is not confirmed")
                for target in action.bookies:
                    holds(self.wanted.get(target, set()).issuperset(ids), "a bookie is sent what it is not to get")
                return [(action, target) for target in action.bookies]
        return [(action, None)]

    def _answer(self, asked: Any, target: Any, other: Callable[[Any], Any]) -> Any:
        match asked:
            case SendRead():
                self._reading.remove(asked)
                answer = self._read(asked)
                nothing = answer.last < answer.first and isinstance(answer.following, Unknown)
                silent = nothing and answer.following.reason in _SILENCE  # type: ignore[union-attr]
                self._silent[asked.bookie] = self._silent.get(asked.bookie, 0) + 1 if silent else 0
                return answer
            case SendAdd():
                return AddAnswered(target, asked.first, asked.last, self._add(target, asked.entries))
        found = other(asked)
        if found is STORE_LOST:
            self.undisturbed = False
        return found

    def _is_away(self, bookie: Bookie) -> bool:
        return bookie.silent or (bookie.flaky and self._random.random() < 0.4)

    def _read(self, read: SendRead) -> ReadAnswered:
        bookie = self._bookies[read.bookie]
        if self._is_away(bookie):
            return ReadAnswered(read.bookie, read.first, read.first - 1, bookie.why_silent)
        ids = range(read.first, read.last + 1)
        given = [i for i in ids if i in bookie.held and i not in bookie.unreadable]
        given = given[: self._full * (20 if read.sparse else 1)]
        run = [i for k, i in enumerate(given) if i == read.first + k]
        last = read.first - 1 + len(run)
        following: Response = Positive()
        if last < read.last and not (run and len(run) == self._full) and not read.sparse:
            absent = bookie.unreadable.get(last + 1)
            following = Negative() if absent is None or last + 1 not in bookie.held else Unknown(absent)
        ahead = tuple((i, [i]) for i in given[len(run) :]) if read.sparse else ()
        return ReadAnswered(read.bookie, read.first, last, following, run, ahead=ahead)

    def _add(self, target: str, ids: list[int]) -> Response:
        bookie = self._bookies[target]
        if bookie.refuses_all:
            return Unknown(UnknownReason.READ_ONLY)
        if not bookie.refuses.isdisjoint(ids):
            return Unknown(self._random.choice((UnknownReason.IO_ERROR, UnknownReason.CONFLICT)))
        away = self._is_away(bookie)
        if not away or self._random.random() < 0.5:
            bookie.held.update(ids)
        return bookie.why_silent if away else Positive()

    def _is_silent(self, step: Callable[[Any], list[Any]], todo: list[tuple[Any, Any]], last: list[Any]) -> None:
        """Outstanding requests are answered after the end."""
        holds(len(last) == 1, "a repair ends and goes on")
        for asked, target in todo:
            if isinstance(asked, SendRead | SendAdd):
                late = self._answer(asked, target, lambda _: None)
                holds(not step(late), "a repair that has ended goes on")
        holds(not step(DeadlinePassed()), "a repair that has ended goes on")
