"""Control state: a bookie's knowledge of its ledgers apart from their entries, as the control log keeps it.

Law: as in ``protocol.bookie.bookie_boot``. A ledger unknown now may have been known before a lossy boot or a garbage collection.
Every new ledger is therefore made here, and its fence is *unsure* if it may have had a fence.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sortedcontainers import SortedSet

from bookspark.protocol.bookie.bookie_boot import (
    NO_LOSSY_BOOT,
    HealedNoted,
    LossyBootNoted,
    absence_unsure,
    first_contact,
)
from bookspark.protocol.bookie.bookie_ledger import (
    NO_COPY,
    BookieLedger,
    ControlRecord,
    EntriesLost,
    FenceUnsureNoted,
    KeyDecided,
    LimboCleared,
    LimboNoted,
)
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, CollectionNoted
from bookspark.protocol.bookie.read_only_switch import NEVER_SWITCHED, ReadOnlySwitched
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges
from bookspark.store.bookie.disk.packed_dict import PackedDict, ascending, since
from bookspark.store.bookie.steps import Steps
from bookspark.store.decisions.seam import watched

_LEDGERS_A_PART = 1000

_IN_USE_MAX = 1 << 14
"""At the boot, this number of ledger objects triggers packing."""
_LEDGERS_A_STEP = 1 << 10
_PLAIN = struct.Struct("<16sIIB")
_PLAIN_LEDGER = struct.Struct(f"<q{_PLAIN.size}s")
_FACTS = struct.Struct("<II")
_LAC_MAX = (1 << 32) - 2
_FENCED, _FENCE_UNSURE = 1, 2
_FLAGS_AT = _PLAIN.size - 1
_RANGE = struct.Struct("<qq")
_LOST_PACKED_MAX = 64
"""A ledger with more lost ranges stays an object: unpacking it for each request would cost more time than packing is worth."""
_NO_COPIES: dict[int, EntriesLost] = {}
"""Shared value of ``lost_copies`` for ledgers without such copies. Never changed."""


class LedgersNoted(NamedTuple):
    """Plain ledgers, each: i64 ledger id │ 16 bytes of master key │ u32 LAC + 1 │ u32 LAFR + 1 │ u8 flags: 1 fenced, 2 fence
    unsure. LAC (last add confirmed) and LAFR (last add fully replicated) are those known when the log was written; the checkpoint
    and the entry logs may know higher values."""

    ledgers: bytes

    def __repr__(self) -> str:
        return f"LedgersNoted({len(self.ledgers)} bytes)"


class LossAccepted(NamedTuple):
    """Operator ``by`` accepts the loss of the ``unread`` bytes (first, last) of log number ``log``, which its disk can't read. It
    is empty for the control log (0): the boot that accepts its loss writes that log anew."""

    log: int
    by: str
    unread: Sequence[tuple[int, int]]


Record = ControlRecord | LedgersNoted | LossyBootNoted | HealedNoted | CollectionNoted | ReadOnlySwitched | LossAccepted
"""Records of a control log: of one ledger, of many, or of the whole bookie."""


class WriteNumbered(NamedTuple):
    """The records up to the next ``WriteNumbered`` are write ``number``."""

    number: int


class WrittenUpTo(NamedTuple):
    """This copy holds all writes up to ``number``."""

    number: int


class LogsNoted(NamedTuple):
    entry_logs: list[int]
    rewritten: list[int]


class WithoutNoted(NamedTuple):
    """From now on the bookie is used without these unreadable directories (numbers from 0). The last such record holds."""

    directories: list[int]


CopyRecord = WriteNumbered | WrittenUpTo | LogsNoted | WithoutNoted


def _packed(ledger: BookieLedger) -> bytes | None:
    """The ledger's bytes as in ``LedgersNoted``, then first and last entry of each lost range. None if it has other facts or too
    many ranges."""
    key, confirmed, replicated = ledger.master_key, ledger.last_add_confirmed, ledger.last_add_fully_replicated
    if key is None or len(key) != 16 or not (-1 <= confirmed <= _LAC_MAX and -1 <= replicated <= _LAC_MAX):
        return None
    unsure, lost = ledger.fence_unsure, ledger.lost
    if len(lost) > _LOST_PACKED_MAX or ledger != BookieLedger(
        ledger.ledger_id, key, ledger.fenced, confirmed, replicated, lost=lost, fence_unsure=unsure
    ):
        return None
    plain = _PLAIN.pack(key, confirmed + 1, replicated + 1, _FENCED * ledger.fenced | _FENCE_UNSURE * unsure)
    return plain + b"".join(_RANGE.pack(first, last) for first, last in lost) if lost else plain


def _unpacked(ledger_id: int, content: bytes) -> BookieLedger:
    key, confirmed, replicated, flags = _PLAIN.unpack_from(content)
    ledger = BookieLedger(ledger_id, key, bool(flags & _FENCED), confirmed - 1, replicated - 1, lost=_lost_of(content))
    ledger.fence_unsure = bool(flags & _FENCE_UNSURE)
    return ledger


def _lost_of(content: bytes) -> EntryRanges:
    return tuple(_RANGE.iter_unpack(content[_PLAIN.size :])) if len(content) > _PLAIN.size else NO_RANGES


class ControlState:
    def __init__(self) -> None:
        self.ledgers: PackedDict[BookieLedger] = PackedDict(_packed, _unpacked, watched)
        self.mark = NO_LOSSY_BOOT
        self.healed = HealedNoted(0)
        """The last lossy boot whose losses are all restored."""
        self.collected = NOTHING_COLLECTED
        self.suspects: set[int] = set()
        """Ledgers that garbage collection is about to forget. A granted request removes its ledger."""
        self._in_limbo: Any = SortedSet()
        self.switch = NEVER_SWITCHED
        self.accepted: dict[int, LossAccepted] = {}
        """By log number, until the log is read as a whole, given up or gone."""
        self.fences_lost = False
        """May any ledger have had a fence, after this boot? Set until phase one is durable, which notes it."""
        self.write_number = 0
        self.lost_copies: dict[int, dict[int, EntriesLost]] = {}
        """Ledgers that lost entries, by id; for each, the copies that may still lie in a log, by location."""
        self.ledgers_not_back: set[int] = set()
        """Ledgers with entries still missing at the last check."""
        self.decided: dict[int, KeyDecided] = {}
        """At the boot: the last decision between two master keys of each ledger that had one."""
        self.decisions = 0
        """The highest number of such a decision, perhaps of one whose record is lost."""

    def next_write(self) -> int:
        self.write_number += 1
        return self.write_number

    def lose_fences(self) -> None:
        """Mark the fence of every unfenced ledger as unsure, because control records are lost. Packed ledgers stay packed. Called
        before the bookie serves."""
        self.fences_lost = True
        packed = self.ledgers.packed
        for ledger_id, kept in packed.items():
            if isinstance(kept, bytes):
                if not kept[_FLAGS_AT] & _FENCED:
                    flags = bytes([kept[_FLAGS_AT] | _FENCE_UNSURE])
                    packed[ledger_id] = kept[:_FLAGS_AT] + flags + kept[_FLAGS_AT + 1 :]
            elif (ledger := self.ledgers.look(ledger_id)) is not None and not ledger.fenced:
                ledger.replay(FenceUnsureNoted(ledger_id))

    def unsure_of(self, ledger_id: int) -> bool:
        """May the ledger have lost entries that no limbo covers?"""
        return absence_unsure(ledger_id, self.ledgers.look(ledger_id), self.mark, self.healed)

    def known(self, ledger_id: int) -> BookieLedger:
        """The ledger, or a new ledger that is not kept: only a granted request makes a ledger known."""
        return self.ledgers.get(ledger_id) or self._first_contact(ledger_id)

    def of(self, ledger_id: int) -> BookieLedger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = self._first_contact(ledger_id)
        return ledger

    def _first_contact(self, ledger_id: int) -> BookieLedger:
        ledger = first_contact(ledger_id, self.mark, self.collected)
        ledger.fence_unsure |= self.fences_lost
        return watched(ledger)

    def replay(self, records: Iterable[Record]) -> None:
        """Apply records, in any order and any number of times."""
        self._replay(records, self._replayed)

    def replay_at_boot(self, records: Iterable[Record]) -> None:
        """``replay`` for any number of ledgers, at the boot. Ledger objects may be packed meanwhile, so callers hold none."""
        self._replay(records, self._replayed_at_boot)

    def _replay(self, records: Iterable[Record], of: Callable[[int], BookieLedger]) -> None:
        lost: dict[int, list[EntriesLost]] = {}
        for record in records:
            if isinstance(record, EntriesLost):
                lost.setdefault(record.ledger_id, []).append(record)
            elif isinstance(record, LedgersNoted):
                self._replay_plain(record.ledgers)
            elif isinstance(record, LossyBootNoted):
                self.mark = max(self.mark, record)
            elif isinstance(record, HealedNoted):
                self.healed = max(self.healed, record)
            elif isinstance(record, CollectionNoted):
                self.collected = max(self.collected, record)
            elif isinstance(record, ReadOnlySwitched):
                self.switch = max(self.switch, record)
            elif isinstance(record, LossAccepted):
                self.accepted[record.log] = record
            else:
                if isinstance(record, KeyDecided):
                    self.decided[record.ledger_id] = max(record, self.decided.get(record.ledger_id, record))
                    self.decisions = max(self.decisions, record.number)
                ledger = of(record.ledger_id)
                ledger.replay(record)
                if isinstance(record, (LimboNoted, LimboCleared)):
                    self.look_at_limbo(ledger)
        for ledger_id, of_ledger in lost.items():
            # All at once: one by one would take quadratic time.
            of(ledger_id).lose([(record.first, record.last) for record in of_ledger])
            self.ledgers_not_back.add(ledger_id)
            self._note_copies(ledger_id, {record.where: record for record in of_ledger if record.where != NO_COPY})

    def _note_copies(self, ledger_id: int, copies: dict[int, EntriesLost]) -> None:
        """Note copies of these entries that may still lie in a log."""
        if known := self.lost_copies.get(ledger_id):
            known.update(copies)
        else:
            self.lost_copies[ledger_id] = copies or _NO_COPIES

    def lose_for_now(self, ledger_id: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Mark entries as lost while their copies lie in a directory that this process no longer uses."""
        self._replayed(ledger_id).lose_for_now(ranges)
        self._note_copies(ledger_id, {})
        self.ledgers_not_back.add(ledger_id)

    def all_back(self, ledger_id: int) -> None:
        """Note that all lost entries of a ledger are restored. Its lost copies stay noted as long as they lie in a log."""
        self.ledgers_not_back.discard(ledger_id)
        if not self.lost_copies.get(ledger_id):
            self.lost_copies.pop(ledger_id, None)

    def _replayed(self, ledger_id: int) -> BookieLedger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = watched(BookieLedger(ledger_id))
        return ledger

    def _replayed_at_boot(self, ledger_id: int) -> BookieLedger:
        if self.ledgers.in_use_count >= _IN_USE_MAX:
            self.ledgers.rest_all()
        return self._replayed(ledger_id)

    def forget(self, ledger_id: int) -> None:
        self.ledgers.pop(ledger_id)
        self._in_limbo.discard(ledger_id)
        self.lost_copies.pop(ledger_id, None)
        self.ledgers_not_back.discard(ledger_id)

    def limbo(self, start: int, count: int) -> list[tuple[int, int]]:
        """Ledgers in limbo from id ``start`` on, ascending, at most ``count``, each with its lossy boot."""
        if self.healed.boot == self.mark.boot:
            return []
        found = ((ledger_id, self.ledgers.look(ledger_id)) for ledger_id in since(self._in_limbo, start, count))
        return [(ledger_id, ledger.limbo_boot) for ledger_id, ledger in found if ledger is not None]

    def all_in_limbo(self) -> list[int]:
        return list(self._in_limbo)

    @property
    def limbo_count(self) -> int:
        return 0 if self.healed.boot == self.mark.boot else len(self._in_limbo)

    def look_at_limbo(self, ledger: BookieLedger) -> None:
        if ledger.limbo:
            self._in_limbo.add(ledger.ledger_id)
        else:
            self._in_limbo.discard(ledger.ledger_id)

    def _replay_plain(self, ledgers: bytes) -> None:
        known = self.ledgers
        for ledger_id, content in _PLAIN_LEDGER.iter_unpack(ledgers):
            if ledger_id not in known.packed:
                known.put_packed(ledger_id, content)
                continue
            kept = known.packed[ledger_id]
            if isinstance(kept, bytes) and kept[: _PLAIN.size] == content:
                continue
            found = _unpacked(ledger_id, content)
            ledger = _unpacked(ledger_id, kept) if isinstance(kept, bytes) else known[ledger_id]
            for record in found.control_records():
                ledger.replay(record)
            ledger.note(found.last_add_confirmed, found.last_add_fully_replicated)
            if isinstance(kept, bytes):
                known.packed[ledger_id] = _packed(ledger) or ledger

    def is_void(self, ledger_id: int, number: int) -> bool:
        """At the boot: was the ledger's key decided after decision ``number``, so that what a checkpoint of then says of the
        ledger is void?"""
        decided = self.decided.get(ledger_id)
        return decided is not None and number < decided.number

    def note(self, ledger_ids: array[int], confirmed: array[int], replicated: array[int], number: int) -> None:
        """Apply a checkpoint's LAC and LAFR of ledgers. ``number``: the checkpoint's last decision."""
        packed, start = self.ledgers.packed, _FLAGS_AT - _FACTS.size
        for ledger_id, lac, lafr in zip(ledger_ids, confirmed, replicated, strict=True):
            if self.decided and self.is_void(ledger_id, number):
                continue
            kept = packed.get(ledger_id)
            if isinstance(kept, bytes) and -1 <= lac <= _LAC_MAX and -1 <= lafr <= _LAC_MAX:
                known = _FACTS.unpack_from(kept, start)
                if lac >= known[0] or lafr >= known[1]:
                    facts = _FACTS.pack(max(lac + 1, known[0]), max(lafr + 1, known[1]))
                    packed[ledger_id] = kept[:start] + facts + kept[_FLAGS_AT:]
            else:
                self.of(ledger_id).note(lac, lafr)

    def rest(self) -> Steps[None]:
        """Pack the ledgers unused since the last call, in steps."""
        while self.ledgers.rest_some(_LEDGERS_A_STEP):
            yield None
        yield from self.ledgers.turn()

    def records(self) -> Iterator[list[Record]]:
        """The records that make this state again, in parts. The state may change between two parts: these records and those noted
        meanwhile together make the state at the end."""
        first: list[Record] = []
        if self.mark != NO_LOSSY_BOOT:
            first += (self.mark, self.healed)
        if self.collected != NOTHING_COLLECTED:
            first.append(self.collected)
        if self.switch != NEVER_SWITCHED:
            first.append(self.switch)
        yield first + list(self.accepted.values())
        ids = ascending(self.ledgers.ids)
        while ids_of_part := list(islice(ids, _LEDGERS_A_PART)):
            plain: list[bytes] = []
            part: list[Record] = []
            for ledger_id in ids_of_part:
                content = self.ledgers.packed_form(ledger_id)
                if isinstance(content, bytes):
                    plain.append(_PLAIN_LEDGER.pack(ledger_id, content[: _PLAIN.size]))
                    part += (EntriesLost(ledger_id, first, last) for first, last in _lost_of(content))
                elif content is not None:
                    part += content.control_records()
                part += self.lost_copies.get(ledger_id, {}).values()
            yield [LedgersNoted(b"".join(plain)), *part] if plain else part

    def plain_bytes(self) -> tuple[int, list[Record]]:
        """Bytes of the plain ledgers in a ``LedgersNoted``, and the records of the other ledgers."""
        others: list[Record] = []
        for ledger_id, copies in self.lost_copies.items():
            others += copies.values()
            if isinstance(content := self.ledgers.packed_form(ledger_id), bytes):
                others += (EntriesLost(ledger_id, first, last) for first, last in _lost_of(content))
        plain = len(self.ledgers)
        for ledger in self.ledgers.objects():
            if _packed(ledger) is None:
                plain -= 1
                others += ledger.control_records()
        return _PLAIN_LEDGER.size * plain, others


def without_void(copies: Sequence[Sequence[Record]]) -> list[Sequence[Record]]:
    """The records of each control log without those that a decision between two master keys made void: in each log, a ledger's
    records before the last ``KeyDecided`` with its highest number. A log without that record is older than the decision, or was
    used apart: a fence in it makes the ledger's fence unsure, as the decision itself does."""
    highest: dict[int, int] = {}
    for records in copies:
        for record in records:
            if isinstance(record, KeyDecided):
                highest[record.ledger_id] = max(record.number, highest.get(record.ledger_id, 0))
    return [_without_void(records, highest) for records in copies] if highest else list(copies)


def _without_void(records: Sequence[Record], highest: Mapping[int, int]) -> list[Record]:
    starts = dict.fromkeys(highest, len(records))
    for place, record in enumerate(records):
        if isinstance(record, KeyDecided) and record.number == highest[record.ledger_id]:
            starts[record.ledger_id] = place
    kept: list[Record] = []
    for place, record in enumerate(records):
        if isinstance(record, LedgersNoted):
            plain = _PLAIN_LEDGER.iter_unpack(record.ledgers)
            record = LedgersNoted(
                b"".join(_PLAIN_LEDGER.pack(one, content) for one, content in plain if place >= starts.get(one, 0))
            )
        elif place < starts.get(getattr(record, "ledger_id", -1), 0):
            continue
        kept.append(record)
    return kept
