"""What a bookie knows of its ledgers apart from their entries, as the control log keeps it.

Law: as in ``protocol.bookie.bookie_boot``. A ledger that is unknown now may have been known before a lossy boot or a garbage
collection. So every new one is made here, and its fence is *unsure* if it may have had one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bookspark.protocol.bookie.bookie_boot import NO_LOSSY_BOOT, HealedNoted, LossyBootNoted, first_contact
from bookspark.protocol.bookie.bookie_ledger import NO_COPY, BookieLedger, ControlRecord, EntriesLost
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, CollectionNoted

_LEDGERS_A_PART = 1000

Record = ControlRecord | LossyBootNoted | HealedNoted | CollectionNoted
"""What a control log keeps: records of one ledger, and records of the whole bookie."""


class ControlState:
    """The state that the records of a control log make."""

    def __init__(self) -> None:
        self.ledgers: dict[int, BookieLedger] = {}
        """By id."""
        self.mark = NO_LOSSY_BOOT
        """The last lossy boot."""
        self.healed = HealedNoted(0)
        """The last lossy boot of which everything is back."""
        self.collected = NOTHING_COLLECTED
        """The highest ledger id that was garbage-collected."""
        self.lost_copies: dict[int, dict[int, EntriesLost]] = {}
        """The ledgers that lost entries, by id; of each the copies that may still lie in a log, by location."""

    def known(self, ledger_id: int) -> BookieLedger:
        """What is known of a ledger. If nothing is, a new one, which is not kept: only a request that is granted makes a ledger
        known."""
        return self.ledgers.get(ledger_id) or first_contact(ledger_id, self.mark, self.collected)

    def of(self, ledger_id: int) -> BookieLedger:
        """What is known of a ledger. If nothing is, a new one, which is kept."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = first_contact(ledger_id, self.mark, self.collected)
        return ledger

    def replay(self, records: Iterable[Record]) -> None:
        """Take over records, in any order and any number of times."""
        for record in records:
            if isinstance(record, LossyBootNoted):
                self.mark = max(self.mark, record)
            elif isinstance(record, HealedNoted):
                self.healed = max(self.healed, record)
            elif isinstance(record, CollectionNoted):
                self.collected = max(self.collected, record)
            else:
                ledger = self.ledgers.get(record.ledger_id)
                if ledger is None:
                    ledger = self.ledgers[record.ledger_id] = BookieLedger(record.ledger_id)
                ledger.replay(record)
                if isinstance(record, EntriesLost):
                    copies = self.lost_copies.setdefault(record.ledger_id, {})
                    if record.where != NO_COPY:
                        copies[record.where] = record

    def forget(self, ledger_id: int) -> None:
        """Drop everything that is known of a ledger; no error if nothing is."""
        self.ledgers.pop(ledger_id, None)
        self.lost_copies.pop(ledger_id, None)

    def limbo(self) -> dict[int, int]:
        """The ledgers in limbo, and the lossy boot that each is in limbo for."""
        if self.healed.boot == self.mark.boot:
            return {}
        return {ledger.ledger_id: ledger.limbo_boot for ledger in self.ledgers.values() if ledger.limbo}

    def records(self) -> Iterator[list[Record]]:
        """The records that make this state again, in parts. The state may change between two parts: these records, and those that
        are noted meanwhile, together make the state of then."""
        first: list[Record] = []
        if self.mark != NO_LOSSY_BOOT:
            first += (self.mark, self.healed)
        if self.collected != NOTHING_COLLECTED:
            first.append(self.collected)
        yield first
        ledgers = list(self.ledgers.values())
        for start in range(0, len(ledgers), _LEDGERS_A_PART):
            part: list[Record] = []
            for ledger in ledgers[start : start + _LEDGERS_A_PART]:
                part += ledger.control_records()
                part += self.lost_copies.get(ledger.ledger_id, {}).values()
            yield part
