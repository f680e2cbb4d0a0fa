"""One round of reads during ledger recovery: a run of entries is asked of every bookie of its first entry's write set.

Law: the round decides about its first entry only. An answer brings as many consecutive entries as fit, and the shortest run that
came is written back. A bookie's answer for the id after its run is not used, because the next round asks every bookie of that
id's write set. Striped ledgers, whose consecutive entries lie on different bookies, are read one by one.

Source: ``ReadWritePhase`` of bookkeeper-tlaplus; BP-46 for the classes of answers.
"""

from __future__ import annotations

from bookspark.protocol.ledger.actions import Action, ReadAnswered, SendRead
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.quorum import Verdict, read_verdict, recovery_read_verdict
from bookspark.protocol.ledger.responses import Positive, Response
from bookspark.protocol.reading.answers import count_kinds, nothing_came


class RunRead:
    """The entries ``first..last``, as far as one answer carries them. ``fence``: it is a recovery read."""

    __slots__ = ("_fence", "_last", "_metadata", "answers", "first", "found")

    def __init__(self, metadata: LedgerMetadata, first: int, last: int, fence: bool) -> None:
        self.first = first
        self.answers: dict[str, Response] = {}
        """What each bookie answered about the first entry."""
        self.found: ReadAnswered | None = None
        """The shortest run that came."""
        self._metadata = metadata
        self._last = last
        self._fence = fence

    def start(self) -> list[Action]:
        return [SendRead(bookie, self.first, self._last, fence=self._fence) for bookie in self._write_set()]

    def concerns(self, event: ReadAnswered) -> bool:
        """Is it an answer to this read, of a bookie that was asked?"""
        return event.first == self.first and event.last <= self._last and event.bookie in self._write_set()

    def heard(self, event: ReadAnswered) -> None:
        """Take an answer in that concerns this read."""
        present = event.last >= event.first
        self.answers[event.bookie] = Positive() if present else nothing_came(event.following)
        if present and (self.found is None or event.last < self.found.last):
            self.found = event

    @property
    def all_answered(self) -> bool:
        return len(self.answers) == self._metadata.write_quorum

    def recovery_verdict(self, ack_quorum_reads: bool) -> Verdict:
        """Is the first entry recovered, or does the ledger end before it?"""
        m = self._metadata
        needed = m.ack_quorum if ack_quorum_reads else 1
        return recovery_read_verdict(m.write_quorum, m.ack_quorum, *count_kinds(self.answers.values()), needed)

    def read_verdict(self) -> Verdict:
        """Is the first entry there, by the rules of an ordinary read?"""
        return read_verdict(self._metadata.write_quorum, *count_kinds(self.answers.values()))

    def _write_set(self) -> tuple[str, ...]:
        return self._metadata.write_set_of(self.first)
