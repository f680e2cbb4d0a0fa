"""One ledger on one bookie under random requests, records, losses and repairs, against ``plain_ledger``.

Law: "a fence holds for ever and against everyone but a recoverer; a request with a wrong password changes nothing"
(``bookie_ledger``). What is refused changes nothing. What was answered is known after a boot that replays the records of it, in
any order and any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from random import Random

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    ControlRecord,
    Decision,
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from bookspark.protocol.ledger.responses import UnknownReason
from tests.autorecovery.schedules.truth import holds
from tests.bookie.paper.answers import check_answers, check_reader, reason_of
from tests.bookie.paper.plain_ledger import PlainLedger, exactly

_KEYS = (b"", b"k", b"k" * 20)
_IDS = 9
_STEPS_MAX = 16
_BOOTS = 5
_WRONG, _FENCED, _LIMBO = UnknownReason.UNAUTHORIZED, UnknownReason.FENCED, UnknownReason.LIMBO


class OneLedger:
    """One schedule."""

    def __init__(self, random: Random) -> None:
        self.random = random
        unsure = random.random() < 0.3
        self.ledger = BookieLedger(7, fence_unsure=unsure)
        self.plain = PlainLedger(7, unsure=unsure)
        self.key = random.choice(_KEYS)
        """The ledger's own."""
        self.written: list[ControlRecord] = []
        self.admitted: list[tuple[Decision, bool]] = []
        """Decisions about adds that may be taken still, and whether a recoverer's."""

    def run(self) -> None:
        random = self.random
        check_reader(None, None, b"k")
        check_answers(random, None, None, _IDS)
        steps = [
            self.admit,
            self.admit,
            self.take,
            self.take,
            self.sync,
            self.fence,
            self.confirm,
            self.confirm,
            self.record,
        ]
        steps += [
            self.record,
            self.foreign_record,
            self.repair,
            self.repair,
            self.lose,
            self.away,
            self.back,
            self.sure,
        ]
        weights = [random.choice((0.1, 1.0, 1.0, 3.0)) for _ in steps]
        for step in random.choices(steps, weights, k=random.randrange(1, _STEPS_MAX)):
            step()
            self.plain.is_as(self.ledger, f"after {step.__name__}")
            check_reader(self.ledger, self.plain, random.choice((*_KEYS, None)))
            if random.random() < 0.3:
                check_answers(random, self.ledger, self.plain, _IDS)
        self.boot()

    def a_key(self) -> bytes:
        return self.key if self.random.random() < 0.8 else self.random.choice(_KEYS)

    def first_contact(self, key: bytes) -> list[ControlRecord]:
        return [] if self.plain.keys else [MasterKeyNoted(7, key)]

    def unchanged(self, act: Callable[[], object]) -> object:
        """What ``act`` returns, or the ValueError that it raises; it changes nothing."""
        before = copy(self.ledger)
        try:
            found = act()
        except ValueError as error:
            found = error
        holds(self.ledger == before, f"a refusal or a question changes the ledger: {found}")
        return found

    def is_decided(
        self, decision: Decision, refused: UnknownReason | None, records: Iterable[ControlRecord] = (), recovery: bool = False,
        asks: bool = False,
    ) -> None:  # fmt: skip
        holds(reason_of(decision.response) is refused, f"{decision.response}, and it has to be {refused or 'granted'}")
        expected = [] if refused else list(records)
        synced = decision.records
        holds(exactly(synced) == exactly(expected), f"{synced} are to be synced, and it has to be {expected}")
        holds(decision.ask_metadata is asks, "the metadata is asked or not")
        holds(bool(refused) or decision.recovery is recovery, "a recoverer's add, or a writer's")

    # -- requests

    def admit(self) -> None:
        """Admission changes nothing."""
        plain, key, recovery = self.plain, self.a_key(), self.random.random() < 0.4
        decision = self.unchanged(lambda: self.ledger.admit_add(key, recovery))
        assert isinstance(decision, Decision), decision
        refused = _WRONG if plain.knows_other(key) else None
        asks = False
        if refused is None and not recovery:
            asks = plain.unsure and not plain.fenced
            refused = _FENCED if plain.fenced else _LIMBO if plain.unsure else None
        records = self.first_contact(key)
        if records and plain.unsure:
            # The doubt is as old as the ledger here: it has to be there after the next boot.
            records.append(FenceUnsureNoted(7))
        self.is_decided(decision, refused, records, recovery, asks)
        self.admitted.append((decision, recovery))

    def take(self) -> None:
        """An add is taken some time after it was decided: perhaps after a fence."""
        if not self.admitted:
            return
        decision, recovery = self.admitted.pop(self.random.randrange(len(self.admitted)))
        plain, lac, lafr = self.plain, self.random.randrange(-1, _IDS), self.random.randrange(-1, _IDS)
        if any(isinstance(one, MasterKeyNoted) and plain.knows_other(one.master_key) for one in decision.records):
            # Nothing comes between a first contact's decision and its taking.
            return
        if reason_of(decision.response) is not None or (plain.fenced and not recovery):
            error = self.unchanged(lambda: self.ledger.added(decision, lac, lafr))
            holds(isinstance(error, ValueError), "an add is taken that was refused, or came before a fence")
            return
        higher = all(lac > told for told in plain.lacs)
        holds(self.ledger.added(decision, lac, lafr) is higher, "an add tells that the LAC went up, or that it did not")
        self.write(decision.records)
        plain.lacs.add(lac)
        plain.lafrs.add(lafr)

    def sync(self) -> None:
        """After a fence "the old writer must not hear of syncs" (BP-14)."""
        plain, key = self.plain, self.a_key()
        decision = self.unchanged(lambda: self.ledger.admit_sync(key))
        assert isinstance(decision, Decision), decision
        refused = _WRONG if plain.knows_other(key) else _FENCED if plain.fenced else _LIMBO if plain.unsure else None
        self.is_decided(decision, refused)

    def fence(self) -> None:
        plain, key, before = self.plain, self.a_key(), copy(self.ledger)
        records = [*self.first_contact(key), *([] if plain.fenced else [FenceNoted(7)])]
        decision = self.ledger.fence(key)
        wrong = plain.knows_other(key)
        holds(not wrong or self.ledger == before, "a wrong password changes something")
        self.is_decided(decision, _WRONG if wrong else None, records)
        self.write(decision.records)

    def confirm(self) -> None:
        """An explicit LAC: "the old writer of a fenced ledger is refused"."""
        plain, key, lac, before = self.plain, self.a_key(), self.random.randrange(-1, _IDS), copy(self.ledger)
        refused = _WRONG if plain.knows_other(key) else _FENCED if plain.fenced else _LIMBO if plain.unsure else None
        records = self.first_contact(key)
        if all(lac > told for told in plain.explicit_lacs):
            records.append(LastAddConfirmedNoted(7, lac))
        decision = self.ledger.write_last_add_confirmed(key, lac)
        holds(refused is None or self.ledger == before, "a LAC that is refused changes something")
        self.is_decided(decision, refused, records)
        self.write(decision.records)

    def write(self, records: Iterable[ControlRecord]) -> None:
        records = tuple(records)
        self.plain.hear(records)
        self.written += records

    # -- boots, losses and repairs

    def a_record(self, ledger_id: int) -> ControlRecord:
        random = self.random
        first = random.randrange(_IDS)
        records: list[ControlRecord] = [
            LimboNoted(ledger_id, random.randrange(1, _BOOTS)), LimboCleared(ledger_id, random.randrange(1, _BOOTS)),
            LastAddConfirmedNoted(ledger_id, random.randrange(_IDS)), FenceUnsureNoted(ledger_id), FenceNoted(ledger_id),
            EntriesLost(ledger_id, first, random.randrange(first, _IDS), random.choice((-1, 9))),
        ]  # fmt: skip
        records += [MasterKeyNoted(ledger_id, key) for key in self.plain.keys or {self.key}]
        return random.choices(records, (3, 3, 2, 1, 1, 1, 1))[0]

    def record(self) -> None:
        """A record that another directory's log has, or that a lossy boot writes."""
        record = self.a_record(7)
        self.ledger.replay(record)
        self.write([record])

    def foreign_record(self) -> None:
        record = self.a_record(self.random.choice((6, 8, -7)))
        error = self.unchanged(lambda: self.ledger.replay(record))
        holds(isinstance(error, ValueError), f"another ledger's record is taken: {record}")

    def repair(self) -> None:
        """A repair ends no limbo that is still to come."""
        plain, boot = self.plain, self.random.randrange(1, _BOOTS)
        if plain.limbos and all(one < boot for one in plain.limbos):
            error = self.unchanged(lambda: self.ledger.clear_limbo(boot))
            holds(isinstance(error, ValueError), "a limbo is ended that is still to come")
            return
        decision = self.ledger.clear_limbo(boot)
        self.is_decided(decision, None, [LimboCleared(7, boot)])
        self.write(decision.records)

    def some(self) -> list[tuple[int, int]]:
        """Ranges in any order that may overlap."""
        random = self.random
        firsts = [random.randrange(_IDS) for _ in range(random.randrange(3))]
        return [(first, min(first + random.choice((0, 0, 1, 3)), _IDS - 1)) for first in firsts]

    def lose(self) -> None:
        ranges = self.some()
        self.ledger.lose(iter(ranges))
        self.write(EntriesLost(7, first, last) for first, last in ranges)

    def away(self) -> None:
        """No record is written."""
        ranges = self.some()
        self.ledger.lose_for_now(iter(ranges))
        self.plain.away.update(i for first, last in ranges for i in range(first, last + 1))

    def back(self) -> None:
        held = sorted(self.some())
        self.ledger.entries_back(iter(held))
        for entry_id in (i for first, last in held for i in range(first, last + 1)):
            self.plain.lost.discard(entry_id)
            self.plain.away.discard(entry_id)

    def sure(self) -> None:
        """The metadata said so; "no record is written: after the next boot it is asked again"."""
        self.ledger.fence_is_sure()
        self.plain.unsure = False

    def boot(self) -> None:
        """Once from all that was written, in any order and some of it twice, and once from what ``control_records`` sums up."""
        random = self.random
        written = [*self.written, *random.choices(self.written, k=3)] if self.written else []
        random.shuffle(written)
        found, plain = BookieLedger(7), PlainLedger(7)
        for record in written:
            found.replay(record)
        plain.hear(self.written)
        plain.is_as(found, "after a boot")
        now, kept = self.plain, self.plain.after_a_boot()
        holds(
            (plain.keys, plain.fenced) == (now.keys, now.fenced),
            "a key or a fence that was answered is not in the records",
        )
        holds(plain.in_limbo == now.in_limbo, "a limbo, or its end, is not in the records")
        holds(plain.explicit_lacs == now.explicit_lacs, "a LAC that was answered is not in the records")
        holds(plain.lost >= now.lost, "entries that are lost are not in the records")
        summed, again = list(self.unchanged(self.ledger.control_records)), BookieLedger(7)  # type: ignore[call-overload]
        holds(len(exactly(summed)) == len(summed), f"a record is there twice: {summed}")
        told = PlainLedger(7)
        told.hear(summed)
        holds(told.keys <= now.keys and told.lost <= now.lost, f"it is summed up what is not so: {summed}")
        holds(
            told.limbos <= now.limbos and told.repaired <= now.repaired, f"a boot is summed up that was not: {summed}"
        )
        random.shuffle(summed)
        for record in summed:
            again.replay(record)
        kept.is_as(again, "after a boot from what is summed up")
        # A limbo that is still to come: the numbers are there too, and not only what they tell now.
        boot = random.randrange(1, _BOOTS)
        for one in (self.ledger, again):
            one.replay(LimboNoted(7, boot))
        self.plain.limbos.add(boot)
        holds(again.limbo is self.ledger.limbo is self.plain.in_limbo, "a boot forgets which limbo has ended")


def live(random: Random) -> None:
    OneLedger(random).run()
