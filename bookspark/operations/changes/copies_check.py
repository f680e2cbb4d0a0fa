"""Do the other bookies really have what a bookie has, by their indexes?

Law: nobody is believed by the metadata alone. An ensemble change may leave entries on the bookie that was replaced with an ack
quorum of copies and not more, and nobody has noted that. So before a bookie goes away, every fragment that names it is compared
with the indexes of the others. A bookie that does not answer, or lacks an entry of the fragment, has no copy of the fragment.
What is lacking at two looks, with a pause between them, is marked for autorecovery, which copies it. The fragment that is still
written to is compared up to what its bookies had at the first look.

Source: ``protocol.repair.audit_plan``, which the exact check of the auditor asks, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from bookspark.errors import BookKeeperError
from bookspark.protocol.changes.observed import Observed, Placed, placed
from bookspark.protocol.changes.safety import left_over
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.audit_plan import confirmed, mark_of_lacking, merged
from bookspark.protocol.repair.replication_plan import lacks
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import Ranges, held_ranges

_WHOLE_INDEX_LEDGERS = 32
"""A bookie that shares more ledgers is asked for its whole index, and not for each ledger."""


class CopiesCheck:
    """One check of what would be left without ``bookie_id``. ``ledgers``: the records that name it, read a moment ago."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        bookie_id: str,
        ledgers: Mapping[int, LedgerMetadata],
        observed: Observed,
        away: Collection[str],
    ) -> None:
        self._bookkeeper = bookkeeper
        self._bookie_id = bookie_id
        self._ledgers = ledgers
        self._observed = observed
        self._away = away
        self._silent: dict[str, str] = {}

    def problem(self, pause: Callable[[], None]) -> str:
        """Why the bookie must stay, in words; empty if it may go. ``pause`` is called between the two looks. Raises
        MetadataStoreError."""
        held = self._held()
        ends = {one: self._end(one, held) for one in self._ledgers}
        lacking = dict(self._lacking(held, ends))
        if lacking:
            pause()
            again = dict(self._lacking(self._held(), ends))
            lacking = {key: both for key, ranges in lacking.items() if (both := confirmed(ranges, again.get(key, [])))}
            self._mark(lacking)
        for metadata in self._ledgers.values():
            for one in placed(metadata):
                if self._bookie_id in one.ensemble and (why := self._too_few(one, lacking)):
                    return why
        return ""

    def _mark(self, lacking: Mapping[tuple[int, str], Ranges]) -> None:
        """Have autorecovery copy it; but for the fragment that is still written to, which is its writer's."""
        marks = []
        for (ledger_id, bookie), ranges in lacking.items():
            metadata = self._ledgers[ledger_id]
            closed = [(f.first_entry_id, last) for f, last in metadata.fragment_ranges() if last is not None]
            if found := confirmed(ranges, closed):
                marks.append(mark_of_lacking(ledger_id, bookie, found))
        if marks:
            self._bookkeeper.metadata.underreplication.mark(marks)

    def _too_few(self, fragment: Placed, lacking: Mapping[tuple[int, str], Ranges]) -> str:
        ledger_id = fragment.ledger_id
        gone = {
            bookie
            for bookie in fragment.ensemble
            if bookie == self._bookie_id
            or bookie in self._away
            or bookie in self._silent
            or (ledger_id, bookie) in lacking
            or not self._observed.counts(bookie, ledger_id)
        }
        left = left_over(fragment, gone)
        if left >= fragment.ack_quorum:
            return ""
        told = [f"{b} lacks {_told(lacking[ledger_id, b])}" for b in sorted(gone) if (ledger_id, b) in lacking] + [
            f"{b} {self._silent[b]}" for b in sorted(gone) if b in self._silent
        ]
        return (
            f"without {self._bookie_id}, entries of ledger {ledger_id} would have {left} of the {fragment.ack_quorum} copies "
            f"that are its ack quorum: {'; '.join(told) or 'others are down'}; autorecovery copies what is lacking, if it runs"
        )

    def _held(self) -> dict[tuple[int, str], Ranges]:
        """What each other bookie says to hold, by ledger and bookie."""
        shared: dict[str, list[int]] = {}
        for ledger_id, metadata in self._ledgers.items():
            members = {b for f in metadata.fragments if self._bookie_id in f.ensemble for b in f.ensemble} - {
                self._bookie_id,
                *self._away,
            }
            for member in members:
                if self._observed.counts(member, ledger_id):
                    shared.setdefault(member, []).append(ledger_id)
        found: dict[tuple[int, str], Ranges] = {}
        for member, ledger_ids in sorted(shared.items()):
            try:
                wanted = set(ledger_ids)
                for ledger_id, ranges in self._ranges(member, ledger_ids):
                    if ledger_id in wanted:
                        found[ledger_id, member] = ranges
            except BookKeeperError as error:
                self._silent[member] = f"does not tell what it has ({error})"
        return found

    def _ranges(self, member: str, ledger_ids: list[int]) -> Iterator[tuple[int, Ranges]]:
        asked: list[int | None] = [None] if len(ledger_ids) > _WHOLE_INDEX_LEDGERS else [*ledger_ids]
        for one in asked:
            for ledger_id, ranges in held_ranges(self._bookkeeper, member, one).items():
                yield ledger_id, merged(ranges)

    def _end(self, ledger_id: int, held: Mapping[tuple[int, str], Ranges]) -> int:
        """The last entry of a ledger that is not closed, as far as its bookies know."""
        members = self._ledgers[ledger_id].bookies()
        return max((ranges[-1][1] for b in members if (ranges := held.get((ledger_id, b)))), default=-1)

    def _lacking(
        self, held: Mapping[tuple[int, str], Ranges], ends: Mapping[int, int]
    ) -> Iterator[tuple[tuple[int, str], Ranges]]:
        """Entries that a bookie should hold and does not, of fragments that name the bookie that is to go."""
        for ledger_id, metadata in self._ledgers.items():
            shared = {b for f in metadata.fragments if self._bookie_id in f.ensemble for b in f.ensemble}
            for member in sorted(shared - {self._bookie_id, *self._away, *self._silent}):
                if not self._observed.counts(member, ledger_id):
                    continue
                ranges = held.get((ledger_id, member), [])
                missing = [(one.first, one.last) for one in lacks(metadata, member, ranges, ends[ledger_id])]
                if missing := confirmed(missing, self._shared(metadata, ends[ledger_id])):
                    yield (ledger_id, member), missing

    def _shared(self, metadata: LedgerMetadata, end: int) -> Ranges:
        """The entries of the fragments that name the bookie."""
        return [
            (fragment.first_entry_id, end if last is None else last)
            for fragment, last in metadata.fragment_ranges()
            if self._bookie_id in fragment.ensemble
        ]


def _told(ranges: Ranges) -> str:
    first, *more = ranges
    return (f"entry {first[0]}" if first[0] == first[1] else f"entries {first[0]}..{first[1]}") + (
        f" and {len(more)} more ranges" if more else ""
    )
