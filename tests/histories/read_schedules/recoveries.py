"""A recovery of a ledger, beside a live writer and other clients that change its record.

Law: each step equals ``plainly``. A ledger closed without a loss ends at or after all confirmed entries, and entries written back
are on their bookies. A recovery without outstanding requests before its end would wait for ever. Unrequested events are refused
and change nothing.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bookspark.errors import MetadataStoreError, NoSuchLedgerError, NotEnoughBookiesError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.reading.recovery import LedgerRecovery
from tests.histories.read_schedules.bookies import (
    Ail,
    answer,
    closed,
    draw,
    ensemble_of,
    length_of,
    lose_for_good,
    members,
)
from tests.histories.read_schedules.misfits import another_ledgers, refuses
from tests.histories.read_schedules.plainly import How, recovery
from tests.histories.repair_schedules.truth import holds

_STEPS_MAX = 3000
_STRANGER = "stranger"


class Recovery:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._drawn = drawn = draw(random)
        self._version = self._known = 3
        """Version of the record, and version last read or written by the recovery."""
        self._trouble = random.choice((0.0, 0.0, 0.0, 0.03, 0.3))
        self._deadline = random.choice((0.0, 0.0, 0.0, 0.02, 0.2))
        accepted = None
        if random.random() < 0.5:
            if random.random() < 0.5:
                lose_for_good(random, drawn)
            silent = [name for name, bookie in drawn.bookies.items() if bookie.ail is Ail.SILENT]
            named = silent if random.random() < 0.7 else random.sample(sorted(drawn.bookies), random.randrange(3))
            accepted = AcceptedLoss("operator", 5, tuple(named))
        self._accepts = accepted is not None
        self._writes = random.choice((0.0, 0.1, 0.4)) if not accepted else 0.0
        how = How(random.choice((1, 3, 10_000)), random.random() < 0.6, random.random() < 0.1, accepted)
        self._machine = LedgerRecovery(how.run_entries_max, how.replaces_bookies, how.ack_quorum_reads, accepted)
        self._plain = recovery(how)
        next(self._plain)
        self._todo: list[tuple[Any, str]] = []
        self._acked: dict[int, set[str]] = {}
        self._ended: Any = None

    def run(self) -> None:
        self._step(self._read_record())
        for _ in range(_STEPS_MAX):
            if self._ended is not None:
                self._late()
                return
            holds(bool(self._todo), "a recovery waits for ever")
            if self._random.random() < self._writes:
                self._writer_adds()
            if self._random.random() < 0.05:
                self._refuses()
            if self._random.random() < self._deadline:
                self._step(act.DeadlinePassed())
                continue
            asked, name = self._todo.pop(self._random.choice((-1, self._random.randrange(len(self._todo)))))
            self._step(self._answer(asked, name))
        raise AssertionError("a recovery goes on for ever")

    def _step(self, event: Any) -> None:
        actions = self._machine.step(event)
        expected = self._plain.send(event)
        self._compare(actions, expected)
        for action in actions:
            match action:
                case act.SendAdd():
                    self._todo += [(action, name) for name in action.bookies]
                case act.SendRead() | act.SendReadLac() | act.SendListHeld():
                    self._todo.append((action, action.bookie))
                case act.Finish() | act.Fail():
                    self._ended = action
                    self._check_end(action)
                case _:
                    self._todo.append((action, ""))

    def _compare(self, actions: list[Any], expected: list[Any]) -> None:
        told, wanted = list(map(_looks, actions)), list(map(_looks, expected))
        if told != wanted:
            kinds = ", ".join(type(one).__name__ for one in actions) or "nothing"
            plain = ", ".join(type(one).__name__ for one in expected) or "nothing"
            holds(
                False,
                f"a recovery does other things than what its answers ask for ({kinds}; plainly {plain}); {told} {wanted}",
            )

    def _check_end(self, end: Any) -> None:
        if not isinstance(end, act.Finish):
            return
        record = end.metadata
        holds(
            record is not None and record == self._drawn.record, "a recovery ended well, and the record is another one"
        )
        holds(end.version == self._version, "a recovery ended well at another version of the record")
        if record is None or record.accepted_loss is not None:
            return
        if any(bookie.ail is Ail.FORGETFUL for bookie in self._drawn.bookies.values()):
            return
        holds(record.last_entry_id >= self._drawn.confirmed, "a confirmed entry was cut off")
        holds(record.length == length_of(record.last_entry_id), "the length is not that of the last entry")
        for entry_id in range(record.fragments[-1].first_entry_id, record.last_entry_id + 1):
            of = members(record, ensemble_of(record, entry_id), entry_id)
            # The other bookies may have lost it.
            held = sum(
                entry_id in self._drawn.bookies[name].held or self._drawn.bookies[name].ail is Ail.LIMBO for name in of
            )
            holds(held >= record.ack_quorum, "the ledger was closed, and too few bookies have an entry of it")

    def _late(self) -> None:
        """Outstanding requests, and the deadline, are answered after the end."""
        holds(not self._machine.step(act.DeadlinePassed()), "a recovery ends twice")
        for asked, name in self._todo:
            if name:
                event = answer(self._random, name, self._drawn.bookies[name], asked)
                holds(not self._machine.step(event), "a recovery that has ended goes on")

    # -- answers

    def _answer(self, asked: Any, name: str) -> Any:
        if name:
            return answer(self._random, name, self._drawn.bookies[name], asked)
        match asked:
            case act.ReadMetadata():
                return self._read_record()
            case act.WriteMetadata():
                return self._write(asked)
            case act.ChooseBookies():
                return self._choose(asked)
        raise AssertionError(asked)

    def _read_record(self) -> Any:
        if self._random.random() < self._trouble:
            return self._lost()
        self._known = self._version
        return act.MetadataRead(self._drawn.record, self._version)

    def _lost(self) -> act.MetadataFailed:
        return act.MetadataFailed(self._random.choice((MetadataStoreError, NoSuchLedgerError))("no answer in time"))

    def _write(self, asked: act.WriteMetadata) -> Any:
        if self._random.random() < self._trouble:
            self._others_change()
        if self._random.random() < self._trouble:
            return self._lost()
        if asked.version != self._version:
            return act.MetadataConflict()
        holds(self._known == self._version, "a record is written over one that was never read")
        loss = asked.metadata.accepted_loss
        holds(loss is None or len(loss.not_known) > 0, "a loss is recorded, and people are not told of it")
        self._drawn.record, self._version = asked.metadata, self._version + 1
        self._known = self._version
        return act.MetadataWritten(self._version)

    def _choose(self, asked: act.ChooseBookies) -> Any:
        random, wanted = self._random, len(asked.replaced)
        free = [name for name in self._drawn.bookies if name not in asked.ensemble]
        if random.random() < 0.2:
            wrong = random.sample([*free, *asked.ensemble], min(wanted + random.choice((0, 1)), len(free)))
            if len(wrong) != wanted or not set(wrong).isdisjoint(asked.ensemble):
                refuses(self._machine, act.BookiesChosen(tuple(wrong)))
        if len(free) < wanted or random.random() < 0.1:
            return self._lost() if random.random() < 0.2 else act.NoBookies(NotEnoughBookiesError("too few"))
        return act.BookiesChosen(tuple(random.sample(free, wanted)))

    # -- other clients

    def _others_change(self) -> None:
        """Another client changes the record: its writer, or another recovery."""
        drawn, random = self._drawn, self._random
        record = drawn.record
        self._version += 1
        if record.closed or random.random() < 0.3:
            drawn.record = replace(record, custom_metadata={"by": str(self._version).encode()})
        elif random.random() < 0.3:
            drawn.record = closed(drawn)
        elif record.state is LedgerState.OPEN and random.random() < 0.5:
            drawn.record = self._another_ensemble(record)
        else:
            drawn.record = replace(record, state=LedgerState.IN_RECOVERY)

    def _another_ensemble(self, record: LedgerMetadata) -> LedgerMetadata:
        """The writer replaces a bookie by one that holds all later entries."""
        drawn, random = self._drawn, self._random
        last = record.fragments[-1]
        gone = random.choice(last.ensemble)
        new = random.choice([name for name in drawn.bookies if name not in last.ensemble])
        after = max(last.first_entry_id, drawn.confirmed + 1)
        bookies = drawn.bookies
        bookies[new].held |= {i for i in bookies[gone].held if i >= after}
        ensemble = tuple(new if name == gone else name for name in last.ensemble)
        before = tuple(one for one in record.fragments if one.first_entry_id < after)
        return replace(record, fragments=(*before, Fragment(after, ensemble)))

    def _writer_adds(self) -> None:
        """An add of the writer reaches a bookie that may be fenced."""
        drawn = self._drawn
        entry_id = drawn.confirmed + self._random.choice((1, 1, 1, 2, 3))
        name = self._random.choice(members(drawn.record, drawn.record.fragments[-1].ensemble, entry_id))
        bookie = drawn.bookies[name]
        if drawn.record.closed or bookie.fenced or bookie.ail in (Ail.REFUSING, Ail.STRANGE):
            return
        bookie.held.add(entry_id)
        self._acked.setdefault(entry_id, set()).add(name)
        while len(self._acked.get(drawn.confirmed + 1, ())) >= drawn.record.ack_quorum:
            drawn.confirmed += 1

    # -- unrequested events

    def _refuses(self) -> None:
        random, ensemble = self._random, self._drawn.record.fragments[-1].ensemble
        name = random.choice((_STRANGER, *ensemble))
        strange = (
            act.LacAnswered(_STRANGER, Positive(), 0, 0),
            act.ReadAnswered(_STRANGER, 0, 0, Positive(), ("e0",)),
            act.AddAnswered(_STRANGER, 0, 0, Positive()),
            act.HeldAnswered(_STRANGER, 0, 0, Positive()),
            act.ReadAnswered(name, 10**6, 10**6, Positive(), ("e",)),
            act.AddAnswered(name, 10**6, 10**6, Positive()),
            act.HeldAnswered(name, 10**6, 10**6, Positive()),
            act.MetadataRead(another_ledgers(random, self._drawn.record), 9),
            act.Start(),
        )
        refuses(self._machine, random.choice(strange))


def _looks(action: Any) -> Any:
    """The compared part: the type of an error, and losses without their text."""
    match action:
        case act.Fail(error=error):
            return type(error)
        case act.WriteMetadata() | act.Finish() if action.metadata is not None and action.metadata.accepted_loss:
            loss = action.metadata.accepted_loss
            return replace(action, metadata=replace(action.metadata, accepted_loss=replace(loss, not_known=())))
    return action
