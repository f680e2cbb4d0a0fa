"""A read of a range of entries, while bookies are replaced and the ledger may be closed.

Law: entries are delivered in order, each once, with their own content. Only bookies of the write set are asked for an entry, each
once, in the reader's order; the next is asked as soon as no answer is outstanding, or one is late. Entries that came early are
delivered in turn, and not requested again. An entry that a bookie gives is delivered. If none gives it, the read ends with the
error that follows from all answers, after it has looked for new bookies if it can.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bookspark.errors import (
    MetadataStoreError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
    TooManyRequestsError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.read_order import ReadOrder
from tests.histories.read_schedules.bookies import answer, closed, content_of, draw, ensemble_of, members
from tests.histories.read_schedules.misfits import another_ledgers, refuses
from tests.histories.read_schedules.plainly import about_the_first
from tests.histories.repair_schedules.truth import holds

_STEPS_MAX = 2000


class Read:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._drawn = drawn = draw(random)
        self._next = first = random.randrange(drawn.confirmed + 2)
        self._first, self._last = first, random.randrange(first - 1, max(drawn.confirmed, drawn.sent) + 1)
        names = sorted(drawn.bookies)
        self._order = ReadOrder(
            random.randrange(3),
            random.random() < 0.5,
            random.choice((None, random.choice(names))),
            frozenset(random.sample(names, random.choice((0, 0, 2)))),
            frozenset(random.sample(names, random.choice((0, 0, 1)))),
        )
        self._looks, self._ahead = random.random() < 0.6, random.random() < 0.7
        self._machine = RangeRead(drawn.record, first, self._last, self._order, self._looks, self._ahead)
        self._record = drawn.record
        """The record known to the reader."""
        self._late = random.choice((0.0, 0.0, 0.2))
        self._moves = random.choice((0.0, 0.0, 0.1, 0.3))
        self._todo: list[Any] = []
        self._answering: set[str] = set()
        """Bookies asked for the next entry that have not answered."""
        self._said: dict[str, Response] = {}
        """Answers of bookies without the next entry."""
        self._came: set[int] = set()
        """Entries that came early."""
        self._slow: set[str] = set()
        self._deliveries: dict[str, int] = {}
        self._last_by = self._order.first
        self._looking = self._ended = False
        self._lookup: type[Exception] | None = None
        """The error if no other bookie can be asked."""

    def run(self) -> None:
        self._carry_out(self._machine.start(), asks=self._first <= self._last)
        for _ in range(_STEPS_MAX):
            if self._ended:
                holds(not self._machine.step(act.ReadIsLate(self._next)), "a read ends twice")
                refuses(self._machine, act.MetadataRead(self._drawn.record, 9))
                for asked in self._todo:
                    if isinstance(asked, act.SendRead):
                        holds(not self._machine.step(self._answer(asked)), "a read that has ended goes on")
                return
            holds(bool(self._todo), "a read waits for ever")
            self._something_happens()
        raise AssertionError("a read goes on for ever")

    def _something_happens(self) -> None:
        random = self._random
        if random.random() < self._moves:
            self._others_change()
        if random.random() < 0.05:
            self._refuses()
        if random.random() < self._late and self._first <= self._next:
            self._is_late(random.choice((self._next, self._next, random.randint(self._first, self._next))))
            return
        asked = self._todo.pop(random.choice((-1, random.randrange(len(self._todo)))))
        if isinstance(asked, act.ReadMetadata):
            self._look()
            return
        event = self._answer(asked)
        if asked.first < self._next or self._looking:
            holds(not self._machine.step(event), "a late answer does something")
            return
        self._take(event)

    # -- events, and expected actions

    def _take(self, event: act.ReadAnswered) -> None:
        actions = self._machine.step(event)
        self._answering.discard(event.bookie)
        self._came |= {entry_id for entry_id, _ in event.ahead}
        delivered = list(range(event.first, event.last + 1))
        if delivered:
            while (following := delivered[-1] + 1) in self._came:
                delivered.append(following)
            self._next = following
            self._slow.discard(event.bookie)
            self._last_by = event.bookie
            if not self._order.sticky:
                self._deliveries[event.bookie] = self._deliveries.get(event.bookie, 0) + 1
            self._said, self._answering = {}, set()
            self._came = {entry_id for entry_id in self._came if entry_id >= self._next}
        if self._next == event.last + 1 and self._next <= self._last:
            refused = not isinstance(event.following, Positive)
            if event.bookie in self._members() and (refused or not delivered):
                self._said[event.bookie] = event.following if refused else about_the_first(event)
        self._carry_out(actions, delivered)

    def _is_late(self, first: int) -> None:
        if self._looking:
            holds(not self._machine.step(act.ReadIsLate(first)), "a read that looks for others asks")
            return
        actions = self._machine.step(act.ReadIsLate(first))
        if first < self._next:
            holds(not actions, "a read that has gone on asks for what it has")
            return
        self._slow |= self._answering
        self._carry_out(actions, asks=bool(self._left()))

    def _look(self) -> None:
        self._looking = False
        if self._random.random() < 0.15:
            error = self._random.choice((MetadataStoreError, NoSuchLedgerError))("no answer in time")
            self._lookup = NoSuchLedgerError if isinstance(error, NoSuchLedgerError) else ReadError
            self._carry_out(self._machine.step(act.MetadataFailed(error)))
            return
        found, before = self._drawn.record, set(self._members())
        actions = self._machine.step(act.MetadataRead(found, 4))
        if found.closed and self._next > found.last_entry_id:
            self._lookup = NoSuchEntryError
        else:
            self._record = found
            if set(self._members()) <= before:
                self._lookup = self._error()
            else:
                self._said = {name: said for name, said in self._said.items() if name in self._members()}
        self._carry_out(actions)

    def _carry_out(self, actions: list[Any], delivered: list[int] | None = None, asks: bool = True) -> None:
        """``delivered``: entries due for delivery; ``asks``: whether another bookie must be asked, if any is left."""
        came = [action for action in actions if isinstance(action, act.Deliver)]
        ids = [entry_id for one in came for entry_id in range(one.first, one.last + 1)]
        holds(ids == (delivered or []), "other entries are delivered than came")
        contents = [
            content for one in came for content in ((one.entries,) if isinstance(one.entries, str) else one.entries)
        ]
        holds(contents == list(map(content_of, ids)), "an entry is delivered with another one's content")
        actions = actions[len(came) :]
        if self._next > self._last:
            holds(actions == [act.Finish()], "a read does not end with its last entry")
            self._ended = True
            return
        if self._lookup is not None:
            holds(len(actions) == 1 and isinstance(actions[0], act.Fail), "a read goes on though nobody has the entry")
            self._check_error(actions[0].error, self._lookup)
            return
        left = self._left()
        if left and asks:
            holds(actions == [self._asked(left)], "not the one is asked for the entry whose turn it is")
            self._answering.add(actions[0].bookie)
            self._todo += actions
        elif self._answering:
            holds(not actions, "a read does not wait for those who were asked")
        elif self._looks:
            holds(actions == [act.ReadMetadata()], "a read does not look whether others have the entry")
            self._looking = True
            self._todo += actions
        else:
            holds(len(actions) == 1 and isinstance(actions[0], act.Fail), "a read goes on though nobody has the entry")
            self._check_error(actions[0].error, self._error())

    def _check_error(self, error: Exception, wanted: type[Exception]) -> None:
        holds(type(error) is wanted, f"a read fails with another error than what was said; {type(error)} {wanted}")
        if not self._moves:
            could = any(self._drawn.bookies[name].gives(self._next) for name in self._members())
            holds(not could, "a read failed, and a bookie gives the entry")
        self._ended = True

    def _error(self) -> type[Exception]:
        """The error that follows from all answers."""
        said = [self._said[name] for name in self._members()]
        reasons = [one.reason for one in said if isinstance(one, Unknown)]
        if UnknownReason.UNAUTHORIZED in reasons:
            return UnauthorizedAccessError
        if all(isinstance(one, Negative) for one in said):
            return NoSuchEntryError
        busy = len(reasons) == len(said) and set(reasons) == {UnknownReason.TOO_MANY_REQUESTS}
        return TooManyRequestsError if busy else ReadError

    def _asked(self, left: list[str]) -> act.SendRead:
        """The expected request for the next entry."""
        record = self._record
        name = self._order.choose(left, self._last_by, self._slow, self._deliveries)
        striped = record.ensemble_size > record.write_quorum
        last = self._next
        if self._ahead or not striped:
            while last < self._last and not any(one.first_entry_id == last + 1 for one in record.fragments):
                last += 1
        return act.SendRead(name, self._next, last, sparse=striped and self._ahead)

    def _members(self) -> list[str]:
        return members(self._record, ensemble_of(self._record, self._next), self._next)

    def _left(self) -> list[str]:
        return [name for name in self._members() if name not in self._said and name not in self._answering]

    # -- other clients

    def _answer(self, asked: act.SendRead) -> Any:
        return answer(self._random, asked.bookie, self._drawn.bookies[asked.bookie], asked)

    def _others_change(self) -> None:
        """A repair replaces a bookie, or the ledger is closed."""
        drawn, random = self._drawn, self._random
        if not drawn.record.closed and random.random() < 0.2:
            drawn.record = closed(drawn)
            return
        drawn.record = _repaired(random, drawn.record, drawn.bookies)

    def _refuses(self) -> None:
        random = self._random
        name = random.choice((*self._drawn.bookies, "stranger"))
        if name in self._answering or self._looking:
            name = "stranger"
        member = next(iter(sorted(self._answering)), None)
        strange: list[Any] = [act.MetadataFailed(MetadataStoreError("unasked")) if not self._looking else act.Start()]
        other = another_ledgers(random, self._drawn.record)
        strange.append(act.MetadataRead(other if self._looking else self._drawn.record, 9))
        if not self._looking:
            strange.append(act.ReadAnswered(name, self._next, self._next, Positive(), (content_of(self._next),)))
            strange.append(act.ReadIsLate(self._next + 1))
            if member is not None:
                strange += self._impossible(member)
        refuses(self._machine, random.choice(strange))

    def _impossible(self, member: str) -> list[act.ReadAnswered]:
        """Answers of an asked bookie with more than was requested."""
        asked = next(one for one in self._todo if one.bookie == member and one.first == self._next)
        far, near = asked.last + 1, self._next
        contents = tuple(map(content_of, range(near, far + 1)))
        return [
            act.ReadAnswered(member, near, far, Positive(), contents),
            act.ReadAnswered(member, near, near - 2, Positive()),
            act.ReadAnswered(member, near, near, Positive(), contents[:1], ahead=((near, contents[0]),)),
            act.ReadAnswered(member, near, near - 1, Positive(), (), ahead=((far, contents[-1]),)),
            act.ReadAnswered(member, near + 1, near, Positive()),
        ]


def _repaired(random: Random, record: LedgerMetadata, bookies: dict[str, Any]) -> LedgerMetadata:
    """Copy a fragment's entries to another bookie, and name it instead of the first."""
    at = random.randrange(len(record.fragments))
    fragment = record.fragments[at]
    gone = random.choice(fragment.ensemble)
    new = random.choice([name for name in bookies if name not in fragment.ensemble])
    ensemble = tuple(new if name == gone else name for name in fragment.ensemble)
    bookies[new].held |= bookies[gone].held
    fragments = (*record.fragments[:at], Fragment(fragment.first_entry_id, ensemble), *record.fragments[at + 1 :])
    return replace(record, fragments=fragments)
