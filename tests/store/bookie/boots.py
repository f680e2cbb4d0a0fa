"""Random schedules of boots, losses, healing and damaged control logs of a bookie with several directories, without files.

Law: whatever happens to its directories, the bookie denies no acknowledged entry and admits no append by the writer of a fenced
ledger. Control log copies judged complete hold every record that any of them took; without an intact copy the bookie does not
boot. A kept explicit LAC (last add confirmed) survives, and no LAC appears that no client sent; ledger recovery can append to
its ledger; a wrong password changes nothing.

The decisions are the protocol's, and the bookie's own code joins the directories' records (``holdings.boot``). Control logs are
lists of numbered writes (``boot_directories``), entries are ids, and the truth is a few sets. Thousands of schedules a second
reach orders of boots that ``histories``, which has real files, seldom reaches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from random import Random

from bookspark.protocol.bookie.bookie_boot import (
    HealedNoted,
    LossyBootNoted,
    answer_unsure,
    first_mark,
    is_lossy,
    mark_above,
    phase_one,
)
from bookspark.protocol.bookie.bookie_ledger import EntriesLost, LimboCleared, LimboNoted, may_read
from bookspark.protocol.bookie.control_copies import (
    NUMBERS_LEFT_OUT,
    CopiesTell,
    judge_copies,
    left_behind,
    used_apart,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import FENCED, Positive
from bookspark.store.bookie.disk.control_state import ControlState, Record
from bookspark.store.bookie.holdings.boot import _join_marks
from tests.store.bookie.boot_directories import Directory, Entry, Write
from tests.store.bookie.boot_laws import ME, BootLaws, superseded

_KEYS, _OTHER_KEY = (b"k" * 16, b"k" * 20), b"o" * 16
"""Keys of 20 bytes belong to BookKeeper's clients."""
_STEPS_MAX = 30
_LEDGERS_MAX = 4
_ENTRIES_MAX = 5
_NUMBERED = (LossyBootNoted, HealedNoted, LimboNoted, LimboCleared)
"""Records that a boot concludes from all copies together. If they are missing, the next boot concludes them again, or entries
are denied."""


class Boots(BootLaws):
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.about_numbers = random.random() < 0.5
        """Does the schedule concentrate on the directories' numbers and healing, with few other steps?"""
        number = random.choice((2, 2, 3) if self.about_numbers else (1, 2, 2, 3))
        self.directories = [Directory(number) for number in range(number)]
        self.used = list(self.directories)
        self.journal = random.random() < 0.3
        self.key = random.choice(_KEYS)
        self.often_damaged = random.choice((0.0, 0.1, 0.3))
        self.often_everywhere = random.choice((0.2, 0.5, 0.8))
        self.often_lost = random.choice((0.05, 0.15, 0.4))
        self.metadata: dict[int, LedgerMetadata] = {}
        self.given_out = -1
        self.state = ControlState()
        self.acked: set[Entry] = set()
        self.fenced: set[int] = set()
        self.confirmed: dict[int, int] = {}
        self.told: dict[int, int] = {}
        self.healed: set[int] = set()
        """The ledgers healed since the last boot."""
        self.may_lack: set[int] = set()
        self.steps: list[str] = []
        self.down = False

    def run(self) -> None:
        steps = [self.add, self.close, self.heal, self.heal_all, self.heal_all, self.back_up_is_put_back]
        if self.about_numbers:
            steps += [self.fence, self.fill, self.fill, *[self.boot] * 5]
        else:
            steps += [
                self.add,
                self.add,
                self.fence,
                self.confirm,
                *[self.boot] * 3,
                self.make,
                self.heal,
                self.rewrite,
            ]
            steps += [self.stranger, self.fill, self.begin_anew]
        weights = [self.random.choice((0.2, 1.0, 1.0, 4.0)) for _ in steps]
        self.make()
        for _ in range(self.random.randint(5, _STEPS_MAX)):
            [step] = self.random.choices(steps, weights)
            self.steps.append(step.__name__)
            step()
            if self.down:
                return
            self.check()

    # -- steps

    def make(self) -> None:
        """Create a ledger."""
        if len(self.metadata) < _LEDGERS_MAX:
            self.given_out += 1
            ensemble = (ME, "bookie-2") if self.random.random() < 0.8 else ("bookie-2", "bookie-3")
            self.metadata[self.given_out] = LedgerMetadata(
                self.given_out, 2, 2, 1, (Fragment(0, ensemble),), master_key=self.key
            )

    def one(self) -> int:
        return self.random.choice(list(self.metadata))

    def note(self, records: Iterable[Record]) -> None:
        """Note records before the bookie answers: durable in every directory with room, and in at least one."""
        noted = tuple(records)
        if noted:
            write = Write(self.state.next_write(), noted)
            for directory in self.with_room():
                directory.take(write)

    def with_room(self) -> list[Directory]:
        """The directories that take records: at least one, since without any the bookie neither answers nor starts."""
        return [directory for directory in self.used if not directory.is_full]

    def add(self) -> None:
        ledger_id, recovery = self.one(), self.random.random() < 0.2
        if ME not in self.metadata[ledger_id].last_fragment.ensemble:
            return
        entry = ledger_id, self.random.randrange(_ENTRIES_MAX)
        ledger = self.state.known(ledger_id)
        decision = ledger.admit_add(self.key, recovery)
        if decision.ask_metadata and isinstance(answer_unsure(ME, self.metadata[ledger_id]), Positive):
            ledger.fence_is_sure()
            decision = ledger.admit_add(self.key, recovery)
        if isinstance(decision.response, Positive):
            ledger.added(decision, -1, -1)
            self.state.ledgers[ledger_id] = ledger
            self.note(decision.records)
            self.hold(entry, early=not (self.journal or recovery))
            self.acked.add(entry)
        assert decision.response != FENCED or (ledger.fenced and not recovery), f"told of a fence: {entry}"

    def hold(self, entry: Entry, *, early: bool) -> None:
        if not any(entry in directory.entries for directory in self.used):
            directory = self.random.choice(self.used)
            directory.entries.add(entry)
            if early:
                directory.early.add(entry)

    def fence(self) -> None:
        """A client recovers a ledger, first in the metadata, then on the bookie; it asks again if refused for now."""
        ledger_id = self.one()
        metadata = self.metadata[ledger_id]
        if not metadata.closed:
            self.metadata[ledger_id] = replace(metadata, state=LedgerState.IN_RECOVERY)
        for _ in range(2):
            decision = self.state.of(ledger_id).fence(self.key)
            if isinstance(decision.response, Positive):
                self.note(decision.records)
                self.fenced.add(ledger_id)

    def confirm(self) -> None:
        ledger_id, told = self.one(), self.random.randrange(_ENTRIES_MAX)
        self.told[ledger_id] = max(told, self.told.get(ledger_id, -1))
        for _ in range(2):
            ledger = self.state.known(ledger_id)
            decision = ledger.write_last_add_confirmed(self.key, told)
            if isinstance(decision.response, Positive):
                self.state.ledgers[ledger_id] = ledger
                self.note(decision.records)
                self.confirmed[ledger_id] = max(told, self.confirmed.get(ledger_id, -1))

    def close(self) -> None:
        self.close_ledger(self.one())

    def close_ledger(self, ledger_id: int) -> None:
        metadata = self.metadata[ledger_id]
        if not metadata.closed:
            last = max((one for of, one in self.acked if of == ledger_id), default=-1)
            self.metadata[ledger_id] = replace(
                metadata, state=LedgerState.CLOSED, last_entry_id=last, length=max(0, last + 1)
            )

    def stranger(self) -> None:
        ledger = self.state.known(self.one())
        if ledger.master_key == self.key:
            before = repr(ledger), ledger.master_key
            answers = (
                ledger.admit_add(_OTHER_KEY, True), ledger.fence(_OTHER_KEY), ledger.write_last_add_confirmed(_OTHER_KEY, 9),
                ledger.admit_sync(_OTHER_KEY),
            )  # fmt: skip
            granted = any(isinstance(answer.response, Positive) for answer in answers)
            granted |= may_read(ledger, _OTHER_KEY)
            assert not granted and before == (repr(ledger), ledger.master_key), f"granted to a stranger: {ledger}"
        # Repair reads without a key, and an unknown ledger has nothing to give away.
        readers = may_read(ledger, self.key), may_read(ledger, None), may_read(None, _OTHER_KEY)
        assert all(readers), f"no reader of {ledger}: {readers}"

    def back_up_is_put_back(self) -> None:
        """Older metadata is restored: ids that no ledger has are given out again."""
        self.given_out = max(self.metadata, default=-1)

    def begin_anew(self) -> None:
        """The bookie is decommissioned and starts with empty directories under the same id; repair may name that id again."""
        for ledger_id in self.metadata:
            self.close_ledger(ledger_id)
            self.fenced.add(ledger_id)
        for forgotten in (self.acked, self.confirmed, self.may_lack):
            forgotten.clear()
        self.directories = [Directory(one.number) for one in self.directories]
        self.start(list(self.directories), False)

    def rewrite(self) -> None:
        self.write_anew(self.with_room())

    def write_anew(self, directories: Iterable[Directory]) -> None:
        records = list(chain.from_iterable(self.state.records()))
        for directory in directories:
            directory.write_anew(records, self.state.write_number)

    def fill(self) -> None:
        """Fill a disk, or make room on it again."""
        directory = self.random.choice(self.used)
        if directory.is_full:
            self.write_anew([directory])
            directory.is_full = False
        else:
            directory.is_full = self.with_room() != [directory]

    # -- healing

    def heal(self) -> None:
        """Heal a random ledger."""
        if self.state.mark.boot > self.state.healed.boot:
            self.heal_one(self.random.choice(list(self.metadata)))

    def heal_one(self, ledger_id: int) -> None:
        ledger = self.state.known(ledger_id)
        self.healed.add(ledger_id)
        if ledger.limbo:
            self.close_ledger(ledger_id)
        elif not self.metadata[ledger_id].closed:
            # Its end is unknown, and so are its missing entries.
            return
        missing = sorted(entry for entry in self.acked if entry[0] == ledger_id and not self.is_held(entry))
        nowhere = missing[:1] if self.random.random() < 0.2 else []
        for entry in missing[len(nowhere) :]:
            self.hold(entry, early=False)
        self.may_lack.discard(ledger_id)
        lost = [EntriesLost(ledger_id, entry_id, entry_id) for _, entry_id in nowhere]
        if lost:
            self.state.of(ledger_id)
            self.state.replay(lost)
            self.note(lost)
        if ledger.limbo:
            self.note(self.state.of(ledger_id).clear_limbo(ledger.limbo_boot).records)
            self.state.look_at_limbo(ledger)
            self.confirmed.pop(ledger_id, None)

    def heal_all(self) -> None:
        boot = self.state.mark.boot
        if boot > self.state.healed.boot:
            for ledger_id in self.metadata.keys() - self.healed:
                self.heal_one(ledger_id)
            self.state.replay([HealedNoted(boot)])
            self.note([HealedNoted(boot)])

    # -- boots

    def boot(self) -> None:
        """Stop the bookie, damage its directories at random, and start it with the readable ones."""
        random = self.random
        everywhere = random.random() < self.often_everywhere or len(self.directories) == 1
        used = list(self.directories) if everywhere else random.sample(self.directories, len(self.directories) - 1)
        used.sort(key=lambda directory: directory.number)
        for directory in self.used:
            if directory.early and random.random() < 0.5:
                directory.marked = True
                self.lose(directory, directory.early)
            directory.early = set()
        for directory in used:
            if random.random() < self.often_lost:
                directory.marked = True
                self.lose(directory, directory.entries)
        if random.random() < self.often_damaged:
            self.damage(random.choice(used))
        self.start(used, any(directory.marked for directory in used))

    def lose(self, directory: Directory, entries: set[Entry]) -> None:
        """Lose some of these entries."""
        directory.entries -= {entry for entry in sorted(entries) if self.random.random() < 0.8}

    def damage(self, directory: Directory) -> None:
        """Lose a part of the control log, and perhaps its note of how far it reached."""
        copy = directory.copy()
        if directory.base and (not directory.writes or self.random.random() < 0.5):
            del directory.base[self.random.randrange(len(directory.base))]
        elif directory.writes:
            del directory.writes[self.random.randrange(len(directory.writes))]
        if directory.is_whole:
            directory.reaches = None if self.random.random() < 0.3 else copy.reaches
        directory.is_whole = False

    def start(self, used: list[Directory], unclean: bool) -> None:
        copies = [directory.copy() for directory in used]
        tell = judge_copies(copies)
        assert (tell is CopiesTell.NOTHING) == (not any(directory.is_whole for directory in used)), f"boots: {tell}"
        if tell is CopiesTell.NOTHING:
            self.down = True
            return
        apart = used_apart(copies)
        read = [directory.records for directory in used]
        missed = set().union(*(directory.took for directory in used)) - set(chain.from_iterable(read))
        missed = {record for record in missed if not isinstance(record, _NUMBERED)}
        assert tell is CopiesTell.TOO_LITTLE or not superseded(missed, read), f"lost, and told to be whole: {missed}"
        self.state, self.used, self.healed = ControlState(), used, set()
        state = self.state
        for records in read:
            state.replay_at_boot(records)
        _join_marks(read, state)
        state.write_number = max(max(copy.complete_to, copy.reaches or 0) for copy in copies)
        if tell is CopiesTell.TOO_LITTLE:
            state.write_number += 1
            state.mark = mark_above(state.mark, chain.from_iterable(read))
            state.lose_fences()
            self.confirmed.clear()
        missing = len(used) < len(self.directories)
        if unclean or missing:
            self.may_lack.update(of.ledger_id for of in self.metadata.values() if ME in of.last_fragment.ensemble)
        lossy = is_lossy(unclean=unclean, directory_lost=missing or bool(apart) or tell is CopiesTell.TOO_LITTLE)
        for directory in used:
            directory.took &= set(chain.from_iterable(read))
            directory.is_full &= directory.is_whole
            directory.used_without = directory.without if directory.is_whole else frozenset()
        if not self.with_room():
            used[0].is_full = False
        self.rewrite()
        if missing:
            state.write_number += NUMBERS_LEFT_OUT
        out = frozenset(directory.number for directory in self.directories) - {one.number for one in used}
        out |= left_behind((directory.copy() for directory in used if directory.is_full), state.write_number)
        for directory in used:
            directory.used_without = out - {directory.number}
            if not directory.is_full:
                directory.without = directory.used_without
        if lossy:
            self.given_out += 1
            highest = max([self.given_out, *self.metadata])
            found = phase_one(ME, self.metadata.values(), highest, state.mark)
            noted: list[Record] = [found.mark, *found.records]
            state.replay(noted)
            if missing or tell is CopiesTell.TOO_LITTLE:
                state.lose_fences()
                noted += chain.from_iterable(state.records())
            self.note(noted)
        elif (mark := first_mark(max([self.given_out, *self.metadata]), state.mark)) is not None:
            state.replay([mark])
            self.note([mark])
        state.fences_lost = False
        for directory in used:
            directory.marked = False


def failure_of(seed: int) -> str:
    """The broken law in the schedule of a seed, with its steps; "" if no law breaks."""
    schedule = Boots(seed)
    try:
        schedule.run()
    except (AssertionError, ValueError, TypeError) as error:
        return f"{error}; {' '.join(schedule.steps)}"
    return ""
